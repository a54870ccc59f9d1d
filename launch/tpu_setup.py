"""Puts this clone's last commit onto every host, installs it, and counts the devices.

setup(cloud, tpu, hosts=4, commit=committed(cloud, allow_dirty=False))
"""

from pathlib import Path
import tempfile

from launch import tpu_slice
from launch.tpu_gcloud import MINUTE, Answer, Cloud
from launch.tpu_slice import HOST_PYTHON, HOST_SCRIPT, LaunchError, Slice, host

ROOT = Path(__file__).parents[1]
_ARCHIVE = "icl_jax_source.tar.gz"


def committed(cloud: Cloud, allow_dirty: bool) -> str:
    """The commit to send; uncommitted changes would silently stay behind, so they are refused."""
    git = ["git", "-C", str(ROOT)]
    changes = cloud.must("git status", [*git, "status", "--porcelain"])
    if changes.stdout.strip() and not allow_dirty:
        raise LaunchError(
            "there are changes that are not committed, and only commits are sent: commit them, or "
            f"use --allow-dirty to send the last commit without them:\n{changes.stdout.rstrip()}"
        )
    return cloud.must("git rev-parse", [*git, "rev-parse", "HEAD"], pretend="HEAD").stdout.strip()


def setup(cloud: Cloud, tpu: Slice, hosts: int, commit: str) -> None:
    """Sends and installs a commit on all hosts, then checks what JAX sees."""
    cloud.say(f"sending commit {commit[:12]} to {hosts} host(s)")
    if cloud.dry_run:
        send(cloud, tpu, commit, Path(tempfile.gettempdir(), "icl_jax_XXXXXXXX"))
    else:
        with tempfile.TemporaryDirectory(prefix="icl_jax_") as folder:
            send(cloud, tpu, commit, Path(folder))
    cloud.say("installing it; the first time this takes minutes")
    command = host("install", f"--commit={commit}")
    pretend = [{"host": str(number)} for number in range(hosts)]
    installed, answer = cloud.ask_hosts(tpu, command, pretend, timeout=60 * MINUTE)
    _all_answered("installing", tpu, hosts, installed, answer)
    count_devices(cloud, tpu, hosts)


def send(cloud: Cloud, tpu: Slice, commit: str, folder: Path) -> None:
    """Copies the source of a commit, and the script that runs on the hosts."""
    archive = str(folder / _ARCHIVE)
    pack = ["git", "-C", str(ROOT), "archive", "--format=tar.gz", f"--output={archive}", commit]
    cloud.must("git archive", pack)
    files = [archive, str(ROOT / "launch" / HOST_SCRIPT)]
    copy = tpu_slice.copy(tpu, files)
    cloud.must(f"copying to {tpu.name}", copy, timeout=20 * MINUTE, tries=4)


def count_devices(cloud: Cloud, tpu: Slice, hosts: int) -> None:
    """Raises unless all hosts see all devices of the slice."""
    expected = tpu.devices if tpu.type else None
    pretend = [
        {"host": str(n), "process": n, "processes": hosts, "devices": expected, "platform": "tpu"}
        for n in range(hosts)
    ]
    command = host("devices", f"--hosts={hosts}", python=HOST_PYTHON)
    reports, answer = cloud.ask_hosts(tpu, command, pretend, timeout=10 * MINUTE)
    _all_answered("counting devices", tpu, hosts, reports, answer)
    for report in reports:
        if report["platform"] != "tpu":
            raise LaunchError(
                f"JAX on {report['host']} sees the platform {report['platform']}, expected tpu; "
                "another process may hold the TPU (`status`), or --runtime is not for this type"
            )
    counts = {report["host"]: report["devices"] for report in reports}
    if set(counts.values()) != {expected}:
        shown = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise LaunchError(
            f"a {tpu.type} has {expected} devices for JAX, but the hosts see: {shown}; delete the "
            "slice and create it again, or look at one host with `ssh`"
        )
    if sorted(report["process"] for report in reports) != list(range(hosts)):
        shown = ", ".join(f"{report['host']} {report['process']}" for report in reports)
        raise LaunchError(f"processes must be numbered 0 to {hosts - 1}, but hosts say: {shown}")
    cloud.say(f"{hosts} host(s) see {expected} devices")


def _all_answered(what: str, tpu: Slice, hosts: int, reports: list, answer: Answer) -> None:
    if answer.code or len(reports) != hosts:
        raise LaunchError(
            f"{what} on {tpu.name}: {len(reports)} of {hosts} hosts succeeded:\n"
            f"{answer.last_lines(12)}"
        )
