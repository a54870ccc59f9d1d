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
