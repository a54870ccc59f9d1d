"""Shards on all processes of a job: real processes, one leads and the other follows."""

import socket

from tests.a_job import end_job, start_job


def test_processes_of_a_job_share_shards_counts_and_errors(tmp_path):
    job = start_job(["tests/steps_of_a_job.py", str(tmp_path)], processes=2, devices=1)
    (code, leader, errors), (others, follower, more) = end_job(job)
    first, second = (f"process {place} ({socket.gethostname()})" for place in (0, 1))
    assert leader.splitlines() == [
        "[9, 1, 4] [0, 1]",
        "12 [['by all'], ['by the leader']] False",  # closed when the step was done
        "nothing comes of 0",
        f"{second}: nothing comes of 1",
        f"{second} cannot see what {first} writes to {tmp_path}; expected a --workdir on a disk "
        "that all hosts share, under the same path",
    ], errors
    told = [line.replace(f"{first}: ", "") for line in follower.splitlines()]
    assert told == leader.splitlines()[2:], more
    assert follower.startswith(f"{first}: nothing comes of 0\n")
    assert (code, errors) == (2, "error: a wrong word\n")
    assert (others, more) == (2, f"error: {first}: a wrong word\n")
    assert {path.name for path in tmp_path.iterdir()} == {"met", "both were counted"}


# The leader writes what a stranger could: a pickle, and calls of functions that are no tasks.
STRANGER = """
import pickle, sys
from pathlib import Path
from icl_jax.workers import hosts as parallel_hosts, hosts_session
from icl_jax.workers.job import job_place, join_job
from icl_jax.workers.local import Runner

class Opened:
    def __reduce__(self):
        return Path.touch, (Path(sys.argv[1]) / "opened",)

def lead():
    session = parallel_hosts._leading
    own = parallel_hosts._Call(parallel_hosts.leads, [], [], Runner(1), False, None)
    for function in ("os:system", "icl_jax.workers.local:os.system", "icl_jax.workers.beam:call"):
        hosts_session.encode = lambda call: told(call).replace(b"HERE", function.encode())
        say(session, own)
    hosts_session.encode = lambda call: pickle.dumps(Opened())
    say(session, own)
    hosts_session.encode = encode

def told(call):
    call.function = None
    return encode(call).replace(b'["function",null]', b'["function",{"function":"HERE"}]')

def say(session, call):
    number = session.tell(call)
    print(session.read(f"{number}/ended/1").error)

encode = hosts_session.encode
join_job(*(read(flag.partition("=")[2]) for read, flag in zip((str, int, int), sys.argv[2:])))
parallel_hosts.by_leader(lead)
print("ended", job_place())
"""


def test_a_follower_refuses_pickles_and_foreign_functions_and_goes_on(tmp_path):
    job = start_job(["-c", STRANGER, str(tmp_path)], processes=2, devices=1)
    (code, leader, errors), (others, follower, more) = end_job(job)
    *refused, last = leader.splitlines()
    names = ["os:system", "icl_jax.workers.local:os.system", "icl_jax.workers.beam:call"]
    assert (code, others, last) == (0, 0, "ended 0"), errors + more
    follows = f"process 1 ({socket.gethostname()}): a message of another process"
    expected = "expected one of icl_jax.corpus, icl_jax.design, icl_jax.retrieval"
    assert refused[:3] == [f"{follows} names '{name}'; {expected}" for name in names]
    assert refused[3].startswith(f"{follows} cannot be read") and len(refused) == 4
    assert follower == "ended 1\n"
    assert not any(tmp_path.iterdir())
