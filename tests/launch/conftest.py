"""A stand-in for Google, and a small clone to send to it."""

import json
from pathlib import Path
import shlex
import shutil
import subprocess
import sys

import pytest

from launch import tpu_setup, tpu_vm
from tests.launch.stand_in_gcloud import LOCK, NOTHING_RUNS, create, set_all

HOSTS = 2
FINISHES = {"looks": 1, "exit": [0] * HOSTS, "step": [7, 7], "step_line": "7 of 7 steps done"}
FLAGS = ["--name=my-tpu", "--zone=us-west4-a", "--type=v5litepod-8", "--poll=0"]


class StandIn:
    """What the stand-in knows (`world`), and how it was called."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.change(
            hosts=HOSTS, node=None, request=None, run=None, reports=[NOTHING_RUNS] * HOSTS,
            looks=0, busy=0, stockouts=0, preempted_at_look=[], devices=[8] * HOSTS,
            queue=["ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], queue_data={},
            states=[], runs=[FINISHES], sent=[],
        )  # fmt: skip

    @property
    def world(self) -> dict:
        path = self._folder / "world.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def change(self, **values) -> None:
        (self._folder / "world.json").write_text(json.dumps({**self.world, **values}))

    def have(self, *, queued: bool = False, commit: str | None = None) -> None:
        """A ready spot slice made by `create`; `commit`: set up with that."""
        world, flags = (
            self.world,
            {"accelerator-type": "v5litepod-8", "labels": "created-by=icl-jax"},
        )
        flags["version"] = "v2-alpha-tpuv5-lite"
        create(world, "request" if queued else "node", "my-tpu", flags, spot=True)
        if queued:
            world["node"] = world["request"]["tpu"]["nodeSpec"][0]["node"]
            world |= {"request": {**world["request"], "state": {"state": "ACTIVE"}}, "states": []}
        world["node"]["state"] = "READY"
        set_all(world, installed=commit)
        self.change(**world)

    @property
    def calls(self) -> list[list[str]]:
        path = self._folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def forget_calls(self) -> None:
        (self._folder / "calls.jsonl").unlink(missing_ok=True)

    @property
    def remote(self) -> list[list[str]]:
        """The words that the hosts' shells were given."""
        found = [word for call in self.calls for word in call if word.startswith("--command=")]
        return [shlex.split(word.removeprefix("--command=")) for word in found]

    @property
    def verbs(self) -> list[str]:
        """What was done, in order, without looks: create, delete, scp, install, start, ..."""
        found = []
        for call in self.calls:
            words = [x for x in call if x.startswith("--command=")]
            verb = shlex.split(words[0])[2] if words else call[3]
            if verb not in ("describe", "report"):
                found.append(verb)
        return found


@pytest.fixture(scope="session")
def clone(tmp_path_factory):
    """A repository of one commit."""
    root = tmp_path_factory.mktemp("clone")
    (root / "launch").mkdir()
    (root / "launch" / "tpu_host.py").write_text("# sent to the hosts\n")
    (root / LOCK).write_text("jax==0.10.2\n")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    return root


@pytest.fixture(scope="session")
def commit(clone):
    """Its commit."""
    git = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def google(tmp_path, monkeypatch, clone):
    """A gcloud on the PATH that is not Google's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    here = str(Path(__file__).parent)
    script = f"import sys; sys.path.insert(0, {here!r}); import stand_in_gcloud as it; it.main()"
    (folder / "gcloud").write_text(f"#!{sys.executable} -IS\n{script}\n")
    (folder / "gcloud").chmod(0o755)
    for tool in ("git", "gzip"):
        (folder / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(folder))  # and nothing else: there may be a real gcloud here
    monkeypatch.setattr(tpu_setup, "ROOT", clone)
    return StandIn(folder)


@pytest.fixture
def tpu(google, capsys):
    """Gives a command of launch.tpu_vm; its exit code and all that it printed."""

    def give(command: str, *more: str) -> tuple[int, str]:
        try:
            tpu_vm.main([command, *FLAGS, *more])
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 1
            if isinstance(stopped.code, str):
                print(stopped.code)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return give
