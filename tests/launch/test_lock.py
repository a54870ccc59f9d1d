"""What hosts install: exact versions of all that pyproject.toml asks for, and nothing else."""

from pathlib import Path
import re
import shlex
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
import pytest

from launch import tpu_host

ROOT = Path(__file__).parents[2]
LOCK = "launch/requirements-tpu.txt"
TEXT = (ROOT / LOCK).read_text()
PIN = re.compile(r"([a-z0-9-]+)==([^\s;]+)((?: --hash=sha256:[0-9a-f]{64})+)")
HOST = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.11"}


def entries(text: str) -> list[str]:
    """A line a package, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [" ".join(line.split()) for line in "\n".join(lines).replace("\\\n", "").splitlines()]


def problems(pyproject: dict, text: str) -> list[str]:
    """What pyproject.toml asks for and the lock does not give."""
    pins = dict(pin.group(1, 2) for pin in map(PIN.fullmatch, entries(text)) if pin)
    project = pyproject["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["tpu"]
    found = []
    for requirement in map(Requirement, asked + pyproject["build-system"]["requires"]):
        if requirement.marker and not requirement.marker.evaluate({**HOST, "extra": "tpu"}):
            continue
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None or not requirement.specifier.contains(pin, prereleases=True):
            found.append(f"{requirement}, locked: {pin}; bash launch/lock.sh")
    return found


@pytest.fixture
def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_lock_has_all_that_the_project_asks_for(pyproject):
    assert not problems(pyproject, TEXT)
    assert "\nlibtpu==" in TEXT  # of jax[tpu]


@pytest.mark.parametrize("new", ["jax~=0.99.1", "another-package>=1", "optax<0.1"])
@pytest.mark.parametrize("extra", [False, True])
def test_a_changed_dependency_without_a_new_lock_is_noticed(pyproject, new, extra):
    project = pyproject["project"]
    asked = project["optional-dependencies"]["tpu"] if extra else project["dependencies"]
    asked.append(new)
    assert new in [line.partition(",")[0] for line in problems(pyproject, TEXT)]


def test_every_line_is_an_exact_version_with_hashes():
    lines = entries(TEXT)
    assert len(lines) > 50
    assert not [line for line in lines if not PIN.fullmatch(line)]
    names = [line.partition("==")[0] for line in lines]
    assert len(set(names)) == len(names) and "icl-jax" not in names


def test_the_lock_names_no_registry_and_no_folder_of_a_machine():
    assert "://" not in TEXT and "pypi" not in TEXT.lower()
    assert not [word for word in TEXT.split() if word.startswith(("/", "~", "file:"))]


def test_the_image_has_the_versions_of_the_lock_in_a_layer_before_the_source():
    steps = (ROOT / "launch" / "Dockerfile").read_text().replace("\\\n", "").splitlines()
    steps = [shlex.split(step) for step in steps if not step.startswith("#")]
    commands, copied = [], set()
    for what, *words in steps:
        if what == "COPY":
            copied |= set(words[:-1])
        elif what == "RUN":
            parts = " ".join(words).split(" && ")
            commands += [(part.split(), frozenset(copied)) for part in parts]
    tool, lock, source = commands
    assert tool[0][-1] == tpu_host.UV and tool[0][:2] == ["pip", "install"]
    assert lock[0][-2:] == ["-r", LOCK] and "--require-hashes" in lock[0] and lock[1] == {LOCK}
    assert source[0][-2:] == ["-e", "."] and "--no-deps" in source[0] and "icl_jax" in source[1]


def test_the_host_looks_for_the_lock_where_it_is():
    assert tpu_host.LOCK.relative_to(tpu_host.SOURCE) == Path(LOCK)
