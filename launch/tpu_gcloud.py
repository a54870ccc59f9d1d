"""Calls gcloud and git: argument lists only, retried where that helps, printed by --dry-run.

Cloud(poll=30).call(["gcloud", "compute", "tpus", ...]).stdout
"""

from collections.abc import Callable
import contextlib
import dataclasses
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

from launch import tpu_slice
from launch.tpu_slice import LaunchError, Slice

MINUTE = 60.0
_PASSING = re.compile(
    r"\b(429|500|502|503|504)\b|UNAVAILABLE|DEADLINE_EXCEEDED|try again|timed? ?out|temporar"
    r"|connection (reset|refused|closed)|kex_exchange|return code \[255\]",
    re.IGNORECASE,
)
_STOCKOUT = re.compile(
    r"RESOURCE_EXHAUSTED|no more capacity|insufficient (reserved )?capacity|stockout", re.IGNORECASE
)
_EXISTS = re.compile(r"ALREADY_EXISTS|already exists", re.IGNORECASE)
_NO_KEY = "not present in the SSH agent"  # gcloud adds to it how to put it there, and try again
_GONE = re.compile(r"NOT_FOUND|was not found|\b404\b")
_TOKEN = re.compile(r"ya29\.[\w.-]+")  # Google's access tokens begin so
_REPORT = "icl_jax_host "  # the lines that tpu_host.py means for us begin so


class StockoutError(LaunchError):
    """The zone has no such slice to give right now."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    stdout: str = ""
    stderr: str = ""

    def last_lines(self, count: int = 5) -> str:
        """The end of what it complained about, indented; without tokens."""
        lines = [line for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return "\n".join("  " + _TOKEN.sub("[hidden]", line) for line in lines[-count:])


@dataclasses.dataclass
class Cloud:
    """Runs commands; with `dry_run` it prints them and takes what the caller pretends."""

    poll: float = 30.0  # seconds between two looks at something that takes its time
    dry_run: bool = False
    sleep: Callable[[float], None] = time.sleep

    def say(self, text: str) -> None:
        """Prints what happens; --dry-run leaves only commands."""
        if not self.dry_run:
            print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def wait(self, times: float = 1.0) -> None:
        """Waits `times` polls."""
        if not self.dry_run:
            self.sleep(self.poll * times)

    def call(
        self, command: list[str], timeout: float = 5 * MINUTE, tries: int = 1, pretend: str = ""
    ) -> Answer:
        """Runs a command; what looks like a passing fault is tried again, up to `tries` times."""
        if self.dry_run:
            print(shlex.join(command), flush=True)
            return Answer(0, pretend)
        for left in reversed(range(tries)):
            answer = _run(command, timeout)
            passing = _PASSING.search(answer.stderr) and _NO_KEY not in answer.stderr
            if answer.code == 0 or not passing or not left:
                return answer
            self.wait(2 ** (tries - 1 - left))
        raise ValueError(f"tries must be at least 1, got {tries}")

    def must(self, what: str, command: list[str], **options) -> Answer:
        """As `call`; a failure stops the program, with what the command complained about."""
        answer = self.call(command, **options)
        if answer.code:
            raise LaunchError(f"{what} failed (exit {answer.code}):\n{answer.last_lines()}")
        return answer

    def create(self, tpu: Slice, timeout: float) -> None:
        """Asks for the slice; without capacity it says so and what to do."""
        answer = self.call(tpu_slice.create(tpu), timeout=max(timeout, MINUTE), tries=4)
        if answer.code == 0:
            return
        if _EXISTS.search(answer.stderr):
            self.say(f"{tpu.name} already exists")
            return
        if _STOCKOUT.search(answer.stderr) and "quota" not in answer.stderr.lower():
            raise StockoutError(
                f"{tpu.zone} has no {tpu.type} free right now; create it with --queued to wait in "
                f"line, or try another zone:\n{answer.last_lines()}"
            )
        raise LaunchError(f"creating {tpu.name} failed:\n{answer.last_lines()}")

    def describe(self, tpu: Slice, request: bool = False, pretend: dict | None = None):
        """The slice (`request`: its place in the queue) as a dict; None: there is none."""
        command = tpu_slice.describe(tpu, request)
        answer = self.call(command, timeout=2 * MINUTE, tries=4, pretend=json.dumps(pretend))
        if answer.code == 0:
            return json.loads(answer.stdout)
        if _GONE.search(answer.stderr):
            return None
        raise LaunchError(f"looking at {tpu.name} failed:\n{answer.last_lines()}")

    def ask_hosts(
        self, tpu: Slice, command: list[str], pretend: list[dict] | None = None, **options
    ) -> tuple[list[dict], Answer]:
        """Runs tpu_host.py on all hosts; what each of them reports, and how gcloud ended."""
        shown = "\n".join(_REPORT + json.dumps(report) for report in pretend or [])
        answer = self.call(tpu_slice.ssh(tpu, command), pretend=shown, **options)
        lines = [line for line in answer.stdout.splitlines() if line.startswith(_REPORT)]
        reports = []
        for line in lines:
            with contextlib.suppress(ValueError):  # mixed with another host's: as if not answered
                reports.append(json.loads(line.removeprefix(_REPORT)))
        return sorted(reports, key=lambda report: report["host"]), answer


def check_gcloud() -> None:
    """Raises if there is no gcloud."""
    if shutil.which("gcloud") is None:
        raise LaunchError(
            "gcloud is not on the PATH: install the Google Cloud CLI "
            "(https://cloud.google.com/sdk/docs/install), then `gcloud auth login`"
        )


def _run(command: list[str], timeout: float) -> Answer:
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise LaunchError(f"{command[0]} is not on the PATH; install it") from None
    try:
        stdout, stderr = process.communicate(timeout=timeout)
        return Answer(process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        _kill(process)
        stdout, stderr = process.communicate()  # some hosts may have answered
        return Answer(124, stdout, f"{stderr}\n{command[0]} timed out after {timeout:.0f} s")
    except KeyboardInterrupt:
        _kill(process)
        raise


def _kill(process: subprocess.Popen) -> None:
    """With all that it started: gcloud is a script around a program around ssh."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
