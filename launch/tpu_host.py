"""What a host of a TPU slice does; launch.tpu_vm copies this file there and calls it by ssh.

python3 tpu_host.py install|devices|start|report|stop ...  (the image's Python 3.10, nothing else)
"""

import argparse
import hashlib
import json
import os
from pathlib import Path
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time

HOME = Path.home()
SOURCE, ENVIRONMENT, RUNS = HOME / "icl_jax_source", HOME / "icl_jax_env", HOME / "icl_jax_runs"
PYTHON = ENVIRONMENT / "bin" / "python"
LOCK = SOURCE / "launch" / "requirements-tpu.txt"
UV = "uv==0.13.8"  # where an image has no Python 3.11, uv brings one: this pins that too
HOST = socket.gethostname()
# The progress bar of the training, and the line at its end.
STEP = re.compile(r"train: .*?(\d+)/(\d+) \[|(\d+) of (\d+) steps done")
STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)  # it saved first, or had nothing to save


def main() -> None:
    """Does one thing and reports it in one line, short enough not to mix with other hosts'."""
    parser = argparse.ArgumentParser(description=__doc__)
    actions = (install, devices, start, supervise, report, stop)
    parser.add_argument("action", choices=[action.__name__ for action in actions])
    parser.add_argument("--run", help="the name of the run")
    parser.add_argument("--logs", help="the gs:// folder that gets a copy of the log")
    parser.add_argument("--commit", help="the commit that the sent source is of")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--upload-every", type=float, default=60, help="seconds")
    parser.add_argument("--grace", type=float, default=120, help="seconds to save before a kill")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    args.arguments = words[split + 1 :]  # for icl_jax.main
    RUNS.mkdir(exist_ok=True)
    tell(**next(action for action in actions if action.__name__ == args.action)(args))


def tell(**report) -> None:
    """One line for launch.tpu_vm."""
    print("icl_jax_host " + json.dumps({"host": HOST, **report}), flush=True)


def install(args) -> dict:
    """Unpacks the sent source and installs it, with the versions of its lock, in an environment."""
    for record in RUNS.glob("*.run.json"):
        if is_alive(record):
            sys.exit(f"{HOST}: {record.name.split('.')[0]} runs here; stop it before a setup")
        record.unlink()
    installed = RUNS / "installed.json"
    before = json.loads(installed.read_text()).get("made_of") if installed.exists() else None
    installed.unlink(missing_ok=True)  # until all is done: half an environment is rebuilt
    shutil.rmtree(SOURCE, ignore_errors=True)
    with tarfile.open(HOME / "icl_jax_source.tar.gz") as archive:
        archive.extractall(SOURCE)
    if not LOCK.exists():
        sys.exit(f"{HOST}: commit {args.commit} has no {LOCK.relative_to(SOURCE)}")
    made_of = [UV, hashlib.sha256(LOCK.read_bytes()).hexdigest()]
    tools = HOME / "icl_jax_tools"  # uv: the images come with a Python that is too old
    environment = {**os.environ, "UV_NO_PROGRESS": "1"}
    uv = str(tools / "bin" / "uv")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(tools)]
    into = [uv, "pip", "install", "--python", str(PYTHON)]
    commands = [
        [*pip, UV],
        [uv, "venv", "--clear", "--python", "3.11", str(ENVIRONMENT)],
        # The lock constrains builds too: some packages come as source only.
        [*into, "--require-hashes", "--build-constraints", str(LOCK), "-r", str(LOCK)],
        [*into, "--no-deps", "--no-build-isolation", "-e", str(SOURCE)],
    ]
    with (RUNS / "setup.log").open("w") as log:
        for command in commands[2:] if made_of == before else commands:
            done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
            if done.returncode:
                last = "\n".join(last_lines(RUNS / "setup.log", 8))
                sys.exit(f"{HOST}: {command[0]} failed (exit {done.returncode}):\n{last}")
    installed.write_text(json.dumps({"commit": args.commit, "made_of": made_of}))
    return {"installed": args.commit}


def devices(args) -> dict:
    """What JAX sees here, once all hosts have found each other."""
    import jax

    if args.hosts > 1:
        jax.distributed.initialize()
    return {
        "process": jax.process_index(),
        "processes": jax.process_count(),
        "devices": jax.device_count(),
        "platform": jax.default_backend(),
    }


def start(args) -> dict:
    """Starts the run in the background, unless it runs."""
    record = RUNS / f"{args.run}.run.json"
    if is_alive(record):
        return report(args)
    if not (RUNS / "installed.json").exists():
        sys.exit(f"{HOST}: icl_jax is not installed here; run `setup` first")
    for name in ("exit", "asked_to_stop"):
        (RUNS / f"{args.run}.{name}").unlink(missing_ok=True)
    command = [sys.executable, __file__, "supervise", f"--run={args.run}", f"--logs={args.logs}"]
    command += [f"--upload-every={args.upload_every}"]
    # Until it can act on a signal, it must not end by one: its own child would keep running alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    process = subprocess.Popen(
        [*command, "--", *args.arguments], cwd=HOME, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    record.write_text(json.dumps({"pid": process.pid, "arguments": args.arguments}))
    end = time.monotonic() + 5  # for a moment a new process has no name in /proc
    while report(args)["state"] == "vanished" and time.monotonic() < end:
        time.sleep(0.05)
    return report(args)


def supervise(args) -> dict:
    """Runs icl_jax.main to its end, copies its log to the bucket, and writes its exit code."""
    log, process, asked = RUNS / f"{args.run}.log", None, []

    def end(*_) -> None:
        asked.append(True)
        if process:
            process.terminate()

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # `start` blocked it
    with log.open("ab", buffering=0) as out:
        out.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}, {HOST}\n".encode())
        process = subprocess.Popen(
            [str(PYTHON), "-m", "icl_jax.main", *args.arguments], cwd=SOURCE,
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    if asked:  # before there was a process
        process.terminate()
    while process.poll() is None:
        try:
            process.wait(args.upload_every)
        except subprocess.TimeoutExpired:
            upload(log, args.logs)
    upload(log, args.logs)  # before the exit is known: then the slice may be deleted
    part = RUNS / f"{args.run}.exit.part"
    part.write_text(str(process.returncode))
    part.replace(RUNS / f"{args.run}.exit")
    return {}


def upload(log: Path, folder: str) -> None:
    """Copies the log to the bucket; why it failed is kept for the report."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/snap/bin", "/usr/local/bin"])
    gcloud, gsutil = shutil.which("gcloud", path=path), shutil.which("gsutil", path=path)
    tool = [gcloud, "storage", "cp"] if gcloud else [gsutil or "gsutil", "cp"]
    failed = log.with_suffix(".upload_failed")
    try:
        subprocess.run([*tool, str(log), f"{folder}/{HOST}.log"], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=300, check=True)  # fmt: skip
        failed.unlink(missing_ok=True)
    except (OSError, subprocess.SubprocessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip()
        failed.write_text(why.splitlines()[-1][:200] if why else "no reason given")


def report(args) -> dict:
    """Whether the run is running here, how it ended, how far it is."""
    record, code = RUNS / f"{args.run}.run.json", RUNS / f"{args.run}.exit"
    log, failed = RUNS / f"{args.run}.log", RUNS / f"{args.run}.upload_failed"
    installed = RUNS / "installed.json"
    alive = is_alive(record)  # asked first: the code is written before the end
    state = "running" if alive else "vanished" if record.exists() else "none"
    state = "exited" if record.exists() and code.exists() else state
    lines = last_lines(log, 400)
    steps = [match for match in map(STEP.search, lines) if match]
    return {
        "installed": json.loads(installed.read_text())["commit"] if installed.exists() else None,
        "state": state,
        "exit": int(code.read_text()) if state == "exited" else None,
        "arguments": json.loads(record.read_text())["arguments"] if record.exists() else None,
        "asked_to_stop": (RUNS / f"{args.run}.asked_to_stop").exists(),
        "stopped": state == "exited" and int(code.read_text()) in STOPPED,
        "step": [int(x) for x in steps[-1].groups() if x] if steps else None,
        "step_line": steps[-1].string if steps else None,
        "tail": lines[-12:],
        "upload_failed": failed.read_text() if failed.exists() else None,
    }


def stop(args) -> dict:
    """Ends the run: it may save first, and is killed after the grace time."""
    record = RUNS / f"{args.run}.run.json"
    if is_alive(record):
        (RUNS / f"{args.run}.asked_to_stop").touch()
        pid = json.loads(record.read_text())["pid"]
        os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + args.grace
        while is_alive(record) and time.monotonic() < end:
            time.sleep(0.2)
        if is_alive(record):
            os.killpg(pid, signal.SIGKILL)
    return report(args)


def is_alive(record: Path) -> bool:
    """Whether the run of this record still runs; another process may have its number by now."""
    if not record.exists():
        return False
    pid = json.loads(record.read_text())["pid"]
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"supervise" in words


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a file, in short lines of plain characters."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2**16))
        text = file.read().decode("ascii", "ignore")
    lines = [" ".join(line.split())[:180] for line in re.split(r"[\r\n]+", text)]
    return [line for line in lines if line][-count:]


if __name__ == "__main__":
    main()
