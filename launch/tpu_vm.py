"""Runs an experiment on a Cloud TPU slice: creates, sets up and deletes it, survives pre-emption.

python -m launch.tpu_vm create --name=my-tpu --zone=us-west4-a --type=v5litepod-16 --spot --queued
python -m launch.tpu_vm setup  --name=my-tpu --zone=us-west4-a
python -m launch.tpu_vm run    --name=my-tpu --zone=us-west4-a -- --config=configs/tiny.py --workdir=gs://bucket/run
python -m launch.tpu_vm status|logs|ssh|stop|delete --name=my-tpu --zone=us-west4-a

Needs gcloud and Python alone. --dry-run prints the commands and runs none of them.
"""

import argparse
from collections.abc import Sequence
import os
import shlex
import sys

from launch import tpu_lifecycle, tpu_slice
from launch.tpu_gcloud import Cloud, check_gcloud
from launch.tpu_job import Job, logs_of
from launch.tpu_setup import committed, setup
from launch.tpu_slice import RUNS, LaunchError, LostError, Slice
from launch.tpu_watch import watch


def main(argv: Sequence[str] | None = None) -> None:
    """Reads and checks the whole command line, then runs one command."""
    words = list(sys.argv[1:] if argv is None else argv)
    split = words.index("--") if "--" in words else len(words)
    parser = make_parser()
    args = parser.parse_args(words[:split])
    args.rest = words[split + 1 :]
    if args.rest and args.command != "run":
        parser.error(f"only `run` takes arguments after --, got: {shlex.join(args.rest)}")
    tpu = Slice(args.name, args.zone, args.type, args.project, args.runtime, args.spot, args.queued)
    cloud = Cloud(args.poll, args.dry_run)
    try:
        tpu.check()
        if args.command == "run":
            logs_of(args.rest)
        if not args.dry_run:
            check_gcloud()
        COMMANDS[args.command](cloud, tpu, args)
    except LaunchError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        continues = "; the run continues, rerun the command to attach to it"
        print(f"\nstopped{continues if args.command == 'run' else ''}", file=sys.stderr)
        sys.exit(130)


def make_parser() -> argparse.ArgumentParser:
    """All flags; each command uses those that concern it and ignores the others."""
    parser = argparse.ArgumentParser(
        prog="python -m launch.tpu_vm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("command", choices=list(COMMANDS))
    add("--name", required=True, help="of the slice, and of its place in the queue")
    add("--zone", required=True, help="such as us-west4-a")
    add("--type", help="such as v5litepod-16; needed to create")
    add("--project", help="default: that of gcloud")
    add("--runtime", help="the image to boot; default: the one for the type")
    add("--spot", action="store_true", help="cheaper, and can be pre-empted")
    add("--queued", action="store_true", help="wait in line for the slice")
    add("--dry-run", action="store_true", help="print the commands, run nothing")
    add("--poll", type=float, default=30, help="seconds between two looks (30)")
    add("--timeout", type=float, default=86400, help="seconds to wait for a slice (86400)")
    add("--allow-dirty", action="store_true", help="send the last commit without later changes")
    add("--detach", action="store_true", help="run: start, do not watch")
    add("--max-restarts", "--max_restarts", type=int, default=100, help="run: how often (100)")
    add("--worker", type=int, default=0, help="logs, ssh: which host (0)")
    add("--follow", action="store_true", help="logs: as they come")
    add("--lines", type=int, default=50, help="logs: how many (50)")
    add("--yes", action="store_true", help="delete: do not ask")
    return parser


def create(cloud: Cloud, tpu: Slice, args) -> None:
    """Makes a slice and waits until it is ready."""
    if tpu.type is None:
        raise LaunchError("create needs --type, such as --type=v5litepod-16")
    tpu_lifecycle.create(cloud, tpu, args.timeout)


def set_up(cloud: Cloud, tpu: Slice, args) -> None:
    """Sends this clone's last commit to all hosts and installs it."""
    commit = committed(cloud, args.allow_dirty)
    node = cloud.describe(tpu, pretend=tpu_lifecycle.pretended(tpu))
    if node is None or node["state"] != "READY":
        state = node["state"] if node else "not there"
        raise LaunchError(f"{tpu.name} is {state}, expected READY; `status` shows more")
    tpu = tpu_lifecycle.same_again(tpu, node)
    tpu.check()
    setup(cloud, tpu, len(node["networkEndpoints"]), commit)


def run(cloud: Cloud, tpu: Slice, args) -> None:
    """Starts icl_jax.main on all hosts, or attaches to it, and stays until it is complete."""
    job = Job(cloud, tpu, args.rest, logs_of(args.rest), args.timeout, args.allow_dirty)
    try:
        job.bring_up()
    except LostError as error:
        if args.detach:
            raise
        cloud.say(str(error))
    if not args.detach:
        watch(job, args.max_restarts)
    if cloud.dry_run and tpu.type is not None:
        print("# if the slice is lost, before the run continues:")
        job.rebuild()


def status(cloud: Cloud, tpu: Slice, args) -> None:
    """Prints the state of the slice, of its request and of the run on each host."""
    found = tpu_lifecycle.find(cloud, tpu)
    if found.request is not None:
        cloud.say(f"request: {found.request['state']['state']}")
    if found.node is None:
        cloud.say(f"there is no slice {tpu.name} in {tpu.zone}")
        return
    node = found.node
    kind, health = node.get("acceleratorType", tpu.type), node.get("health", "health unknown")
    hosts = len(node.get("networkEndpoints", []))
    cloud.say(f"slice: {kind}, {node['state']}, {health}, {hosts} host(s)")
    look = Job(cloud, tpu, [], "").look()
    for report in look.reports:
        how = f"exited with {report['exit']}" if report["state"] == "exited" else report["state"]
        line = report["step_line"] or (report["tail"] or ["nothing logged"])[-1]
        cloud.say(f"{report['host']}: {how}, {line}")
        if report["upload_failed"]:
            cloud.say(f"{report['host']}: its log was not copied to the bucket: "
                      f"{report['upload_failed']}")  # fmt: skip
    if look.state == "READY" and len(look.reports) < hosts:
        cloud.say(f"{hosts - len(look.reports)} host(s) did not report; not set up yet?\n"
                  f"{look.why_not_all}")  # fmt: skip


def logs(cloud: Cloud, tpu: Slice, args) -> None:
    """Shows the end of one host's log."""
    command = ["tail", "-n", str(args.lines), *(["-F"] if args.follow else [])]
    path = f"{RUNS}/{tpu.name}.log"
    _become(cloud, tpu_slice.ssh(tpu, [*command, path], str(args.worker)))


def ssh(cloud: Cloud, tpu: Slice, args) -> None:
    """Opens a terminal on one host."""
    _become(cloud, tpu_slice.shell(tpu, str(args.worker)))


def stop(cloud: Cloud, tpu: Slice, args) -> None:
    """Ends the run on all hosts; it saves first."""
    look = Job(cloud, tpu, [], "").stop()
    cloud.say(f"{tpu.name}: {len(look.reports)} host(s) stopped\n{look.why_not_all}".rstrip())


def delete(cloud: Cloud, tpu: Slice, args) -> None:
    """Deletes the slice and its request, after asking."""
    found = tpu_lifecycle.find(cloud, tpu)
    if found.node is None and found.request is None:
        raise LaunchError(f"there is nothing called {tpu.name} in {tpu.zone}")
    if found.is_ours and not args.yes and not cloud.dry_run:
        state = found.node["state"] if found.node else "in the queue"
        print(f"{tpu.name} ({state}) and everything that is only on its hosts will be deleted.")
        print("A `run` that is watching it would create it again: end that first.")
        try:
            typed = input("Type its name to continue: ")
        except EOFError:
            typed = ""
        if typed.strip() != tpu.name:
            raise LaunchError(f"nothing was deleted: expected '{tpu.name}', got '{typed}'")
    tpu_lifecycle.delete(cloud, tpu, found)


def _become(cloud: Cloud, command: list[str]) -> None:
    """Replaces this process, so that the terminal belongs to the command."""
    if cloud.dry_run:
        cloud.call(command)
    else:
        os.execvp(command[0], command)


COMMANDS = {
    "create": create,
    "setup": set_up,
    "run": run,
    "status": status,
    "logs": logs,
    "ssh": ssh,
    "stop": stop,
    "delete": delete,
}


if __name__ == "__main__":
    main()
