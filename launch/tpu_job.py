"""One run of icl_jax.main on all hosts of a slice: where it goes, its start, what it reports.

job = Job(cloud, tpu, arguments, logs_of(arguments)); job.bring_up(); job.start(); job.look()
"""

import dataclasses
from pathlib import Path

from launch import tpu_lifecycle, tpu_slice
from launch.tpu_gcloud import MINUTE, Cloud
from launch.tpu_lifecycle import LOST
from launch.tpu_setup import committed, setup
from launch.tpu_slice import HOST_SCRIPT, LaunchError, LostError, Slice, check_bucket_path, host


def logs_of(arguments: list[str]) -> str:
    """The folder for the logs, in the --workdir of the run; raises unless hosts can share it."""
    pairs = zip(arguments, [*arguments[1:], ""])
    found = [
        following if argument == "--workdir" else argument.partition("=")[2]
        for argument, following in pairs
        if argument == "--workdir" or argument.startswith("--workdir=")
    ]
    if not found:
        raise LaunchError(
            "expected the flags of icl_jax.main after --, with --workdir=gs://BUCKET/FOLDER; for "
            "example: run --name=my-tpu ... -- --config=configs/tiny.py --workdir=gs://bucket/run"
        )
    return check_bucket_path("--workdir", found[-1]) + "/logs"


@dataclasses.dataclass(frozen=True)
class Look:
    """What was seen at one time: the slice's state and what its hosts reported."""

    state: str
    hosts: int = 0
    reports: tuple[dict, ...] = ()
    why_not_all: str = ""

    @property
    def verdict(self) -> str:
        """lost, ended (by `stop`), failed, away (not reached), stopped, complete or running."""
        if self.state in LOST or self.state == "gone":
            return "lost"
        if any(report["asked_to_stop"] for report in self.reports):
            return "ended"
        if any(_has_failed(report) for report in self.reports):
            return "failed"
        if self.state != "READY" or len(self.reports) < self.hosts:
            return "away"
        if all(report["state"] == "exited" for report in self.reports):
            return "stopped" if any(r["stopped"] for r in self.reports) else "complete"
        return "running"

    @property
    def failed(self) -> list[dict]:
        """The reports of the hosts on which the run failed."""
        return [report for report in self.reports if _has_failed(report)]

    @property
    def step(self) -> list[int] | None:
        """The last step that the log of any host shows, and of how many."""
        return max((r["step"] for r in self.reports if r["step"]), default=None)

    def __str__(self) -> str:
        busy = sum(report["state"] == "running" for report in self.reports)
        line = next((r["step_line"] for r in self.reports if r["step_line"]), "no step yet")
        return f"{self.state}, runs on {busy} of {self.hosts} hosts, {line}"


def _has_failed(report: dict) -> bool:
    failed = report["exit"] and not report["stopped"]
    return report["state"] in ("vanished", "none") or bool(failed)


@dataclasses.dataclass
class Job:
    """A run; `commit` is what its hosts have, so that a new slice gets the same."""

    cloud: Cloud
    tpu: Slice
    arguments: list[str]
    logs: str
    timeout: float = 86400.0
    allow_dirty: bool = False
    commit: str | None = None
    hosts: int = 0

    def bring_up(self) -> None:
        """Attaches to the run on the slice, or starts it there, on a new slice if there is none."""
        node = self.cloud.describe(self.tpu, pretend=tpu_lifecycle.pretended(self.tpu))
        if node is not None:
            self.tpu = tpu_lifecycle.same_again(self.tpu, node)
            self.tpu.check()
        elif self.tpu.type is None:
            raise LaunchError(f"there is no slice {self.tpu.name}; add --type to create it")
        if node is None or node["state"] in LOST:
            self.commit = committed(self.cloud, self.allow_dirty)
            self.rebuild()
            return
        if node["state"] != "READY":
            node = tpu_lifecycle.wait_until_ready(self.cloud, self.tpu, self.timeout)
        self.hosts = len(node["networkEndpoints"])
        script = str(Path(__file__).parent / HOST_SCRIPT)
        copy = tpu_slice.copy(self.tpu, [script])
        self.cloud.must(f"copying to {self.tpu.name}", copy, tries=4)
        if not self.attach():
            self.prepare_and_start()

    def attach(self) -> bool:
        """Whether this run is already running here, or has run to its end."""
        look = self._ask("report", pretend={"state": "none"})
        if len(look.reports) < self.hosts:
            raise LaunchError(f"{self.tpu.name}: not all hosts answered:\n{look.why_not_all}")
        busy = [report for report in look.reports if report["state"] == "running"]
        if any(report["arguments"] != self.arguments for report in busy):
            raise LaunchError(
                f"{self.tpu.name} runs something else: {' '.join(busy[0]['arguments'])}; wait for "
                "it, or end it with `stop`"
            )
        commits = {report["installed"] for report in look.reports}
        self.commit = commits.pop() if len(commits) == 1 else None
        same = all(report["arguments"] == self.arguments for report in look.reports)
        if busy or (same and look.verdict == "complete"):
            self.cloud.say(f"attached to the run on {self.tpu.name}")
            return True
        return False

    def prepare_and_start(self) -> None:
        """Starts the run with the clone's last commit, installed where hosts have another."""
        head = committed(self.cloud, self.allow_dirty)
        if self.commit != head and not self.cloud.dry_run:
            setup(self.cloud, self.tpu, self.hosts, head)
        self.commit = head
        self.start()

    def rebuild(self) -> None:
        """Deletes what is left of the slice, creates it again, sets it up and starts."""
        found = tpu_lifecycle.find(self.cloud, self.tpu)
        if found.node is not None or found.request is not None:
            tpu_lifecycle.delete(self.cloud, self.tpu, found)
        node = tpu_lifecycle.create_when_free(self.cloud, self.tpu, self.timeout)
        self.hosts = len(node["networkEndpoints"])
        try:
            setup(self.cloud, self.tpu, self.hosts, self.commit)
            self.start()
        except LaunchError as error:
            if self.look().verdict == "lost":
                raise LostError(f"{self.tpu.name} was lost again: {error}") from error
            raise

    def start(self) -> None:
        """Starts the run in the background of all hosts."""
        look = self._ask("start", f"--logs={self.logs}", "--", *self.arguments)
        if len(look.reports) < self.hosts:
            raise LaunchError(
                f"{len(look.reports)} of {self.hosts} hosts of {self.tpu.name} started:\n"
                f"{look.why_not_all}"
            )
        self.cloud.say(f"started on {self.hosts} host(s); logs go to {self.logs}")

    def stop(self) -> Look:
        """Ends the run on all hosts; what they report then."""
        return self._ask("stop", timeout=10 * MINUTE)

    def look(self) -> Look:
        """The slice's state and, if it is ready, the reports of its hosts."""
        try:
            node = self.cloud.describe(self.tpu, pretend=tpu_lifecycle.pretended(self.tpu))
        except LaunchError as error:  # no network here, say: the run does not need us
            return Look("not seen", self.hosts, why_not_all=str(error))
        if node is None or node["state"] != "READY":
            return Look(node["state"] if node else "gone", self.hosts)
        self.hosts = len(node["networkEndpoints"])
        return self._ask("report", pretend={"state": "exited", "exit": 0})

    def _ask(
        self, action: str, *more: str, pretend: dict | None = None, timeout=3 * MINUTE
    ) -> Look:
        blank = {"state": "running", "exit": None, "stopped": False, "step": None}
        blank |= {"step_line": None, "arguments": self.arguments, "installed": "HEAD"}
        blank |= {"asked_to_stop": False, "tail": [], "upload_failed": None}
        pretended = [{"host": str(n), **blank, **(pretend or {})} for n in range(self.hosts)]
        command = host(action, f"--run={self.tpu.name}", *more)
        reports, answer = self.cloud.ask_hosts(
            self.tpu, command, pretended, timeout=timeout, tries=2
        )
        return Look("READY", self.hosts, tuple(reports), answer.last_lines())
