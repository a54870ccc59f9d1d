"""A Cloud TPU slice: its name, zone and type, checked, and the gcloud commands about it.

`create(slice)` and its siblings return argument lists; nothing is run here.
"""

import dataclasses
import re
import shlex
from typing import NamedTuple

LABEL = ("created-by", "icl-jax")  # what `create` puts on, and `delete` asks for
HOST_SCRIPT = "tpu_host.py"  # in the home folder of every host
HOST_PYTHON = "icl_jax_env/bin/python"
RUNS = "icl_jax_runs"  # logs and records, in the home folder of every host


class Generation(NamedTuple):
    """What is known of a TPU generation to start it; its speed is in icl_jax/tpu/chips.py."""

    image: str  # the runtime to boot
    devices: float  # that JAX sees for each unit of the type's number
    per_host: int  # devices of each of several hosts
    one_host: int  # devices of the largest slice with a single host


# v2 and v3 show every core; v4 and v5p count two cores for what JAX shows as one chip.
_V2_TO_V4 = "tpu-ubuntu2204-base"
GENERATIONS = {
    "v2": Generation(_V2_TO_V4, 1.0, 8, 8),
    "v3": Generation(_V2_TO_V4, 1.0, 8, 8),
    "v4": Generation(_V2_TO_V4, 0.5, 4, 4),
    "v5litepod": Generation("v2-alpha-tpuv5-lite", 1.0, 4, 8),
    "v5p": Generation("v2-alpha-tpuv5", 0.5, 4, 4),
    "v6e": Generation("v2-alpha-tpuv6e", 1.0, 4, 8),
}

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-(ai[0-9])?[a-z]")
_TYPE = re.compile(r"([a-z0-9]+)-([1-9][0-9]{0,4})")
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_RUNTIME = re.compile(r"[a-z0-9][-a-z0-9._]{0,99}")
_BUCKET_PATH = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._=+@-]+)+/?")


class LaunchError(Exception):
    """Something that the user has to know; ends the command in one message."""


class LostError(LaunchError):
    """The slice was taken away while it was worked on."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """What is asked for; `type` is None where a command does not need it."""

    name: str
    zone: str
    type: str | None = None
    project: str | None = None
    runtime: str | None = None  # None: the default image of the type
    spot: bool = False
    queued: bool = False

    def check(self) -> None:
        """Raises unless every part is one that Google takes."""
        rule = "a letter, then up to 62 of a-z, 0-9 and -, not ending in -"
        _match("--name", self.name, _NAME, rule)
        _match("--zone", self.zone, _ZONE, "a zone such as us-central2-b")
        if self.project is not None:
            _match("--project", self.project, _PROJECT, "a project id such as my-project-123")
        if self.runtime is not None:
            _match("--runtime", self.runtime, _RUNTIME, "an image such as v2-alpha-tpuv5-lite")
        if self.type is not None:
            _match("--type", self.type, _TYPE, "a type such as v5litepod-16")
            generation = self.type.rpartition("-")[0]
            if generation not in GENERATIONS:
                hint = "; v5e is called v5litepod there" if generation == "v5e" else ""
                known = ", ".join(f"{name}-N" for name in GENERATIONS)
                raise LaunchError(f"--type must be one of {known}, got '{self.type}'{hint}")

    @property
    def image(self) -> str:
        """The runtime image to boot."""
        return self.runtime or GENERATIONS[self.type.rpartition("-")[0]].image

    @property
    def devices(self) -> int:
        """What jax.device_count() has to be."""
        generation, _, number = self.type.rpartition("-")
        return max(1, int(int(number) * GENERATIONS[generation].devices))

    @property
    def hosts(self) -> int:
        """How many hosts it has."""
        generation = GENERATIONS[self.type.rpartition("-")[0]]
        alone = self.devices <= generation.one_host
        return 1 if alone else -(-self.devices // generation.per_host)

    @property
    def flags(self) -> list[str]:
        """What every command about this slice ends with."""
        return [f"--zone={self.zone}", *([f"--project={self.project}"] if self.project else [])]


def check_bucket_path(flag: str, path: str) -> str:
    """The path without a last slash; raises unless it is a folder of a bucket."""
    _match(flag, path, _BUCKET_PATH, "a folder of a bucket such as gs://bucket/run")
    return path.rstrip("/")


def _match(flag: str, value: str, pattern: re.Pattern, expected: str) -> None:
    if not pattern.fullmatch(value):
        raise LaunchError(f"{flag} must be {expected}; got '{value}'")


def create(tpu: Slice) -> list[str]:
    """Asks for the slice: at once, or in the queue under the same name."""
    spot = ["--spot"] if tpu.spot else []
    label = [f"--labels={'='.join(LABEL)}"]
    if not tpu.queued:
        what = [f"--accelerator-type={tpu.type}", f"--version={tpu.image}"]
        return ["gcloud", *_VM, "create", tpu.name, *tpu.flags, *what, *spot, *label, "--quiet"]
    what = [f"--node-id={tpu.name}", f"--accelerator-type={tpu.type}"]
    what += [f"--runtime-version={tpu.image}", *spot, *label, "--async", "--quiet"]
    return ["gcloud", *_QUEUE, "create", tpu.name, *tpu.flags, *what]


def describe(tpu: Slice, request: bool = False) -> list[str]:
    """Its state as JSON; `request`: that of its place in the queue."""
    group = _QUEUE if request else _VM
    return ["gcloud", *group, "describe", tpu.name, *tpu.flags, "--format=json"]


def delete(tpu: Slice, request: bool = False) -> list[str]:
    """Deletes the slice; `request`: its place in the queue and, with it, the slice."""
    if request:
        return ["gcloud", *_QUEUE, "delete", tpu.name, *tpu.flags, "--force", "--quiet"]
    return ["gcloud", *_VM, "delete", tpu.name, *tpu.flags, "--quiet"]


def copy(tpu: Slice, files: list[str]) -> list[str]:
    """Copies files to the home folder of every host."""
    return ["gcloud", *_VM, "scp", *files, f"{tpu.name}:", *tpu.flags, "--worker=all", "--quiet"]


def ssh(tpu: Slice, command: list[str], worker: str = "all") -> list[str]:
    """Runs a command in the home folder of one host or of all of them at once."""
    remote = [f"--worker={worker}", f"--command={shlex.join(command)}", "--quiet"]
    return ["gcloud", *_VM, "ssh", tpu.name, *tpu.flags, *remote]


def shell(tpu: Slice, worker: str) -> list[str]:
    """A terminal on one host."""
    return ["gcloud", *_VM, "ssh", tpu.name, *tpu.flags, f"--worker={worker}"]


def host(*arguments: str, python: str = "python3") -> list[str]:
    """A call of the script that the hosts have."""
    return [python, HOST_SCRIPT, *arguments]


_VM = ("compute", "tpus", "tpu-vm")
_QUEUE = ("compute", "tpus", "queued-resources")
