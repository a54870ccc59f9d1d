"""A pip that installs a uv which notes how it was called and plays the part of the real one.

What is in its environment is `packages.json` there; a file `fail` in the home makes it fail once.
"""

import json
from pathlib import Path
import re
import shutil
import sys

HERE = Path(__file__).parent
NEWEST = "whatever is newest today"


def pip() -> None:
    """`pip install ... --target TOOLS uv==...`, as `python -m pip`."""
    note(["pip", *sys.argv[1:]])
    tool = Path(value("--target")) / "bin" / "uv"
    tool.parent.mkdir(parents=True, exist_ok=True)
    script = f"import sys; sys.path.insert(0, {str(HERE)!r}); import stand_in_uv as it; it.uv()"
    tool.write_text(f"#!{sys.executable} -IS\n{script}\n")
    tool.chmod(0o755)


def uv() -> None:
    note(["uv", *sys.argv[1:]])
    if sys.argv[1] == "venv":
        folder, packages = Path(sys.argv[-1]), {}
        if "--clear" in sys.argv:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    else:
        folder = Path(value("--python")).parents[1]
        packages = json.loads((folder / "packages.json").read_text())
    if "-r" in sys.argv:
        lock = Path(value("-r")).read_text()
        packages |= re.findall(r"^([\w.-]+)==(\S+)", lock, flags=re.MULTILINE)
    if "-e" in sys.argv:
        packages["icl_jax"] = value("-e")
        if "--no-deps" not in sys.argv:
            packages["jax"] = NEWEST
        if (Path.home() / "fail").exists():
            (Path.home() / "fail").unlink()
            raise SystemExit("error: the disk is full")
    (folder / "packages.json").write_text(json.dumps(packages))


def value(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


def note(words: list[str]) -> None:
    with (Path.home() / "installs.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
