"""Which files a corpus is made of, in which format, and what tells them from other files."""

from collections.abc import Iterator
import glob
import re

from etils import epath
import google_crc32c

from icl_jax.config import ConfigError, CorpusConfig
from icl_jax.corpus import tfds_source

# Format by the end of a file's name, after a `.gz` was taken off.
FORMAT_OF_NAME = {
    ".txt": "text",
    ".text": "text",
    ".tokens": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_WIKIEXTRACTOR_NAME = re.compile(r"wiki_\d+")
_CHECKED_BYTES = 64 * 1024  # at each end of a file


def find_files(config: CorpusConfig) -> dict[str, str]:
    """File -> format, in the order of `config.files`; those of a folder or glob are sorted."""
    found: dict[str, str] = {}
    for pattern in config.files:
        if tfds_source.is_tfds(pattern):
            found[pattern] = "tfds"
            continue
        files = list(_expand(pattern))
        if not files:
            raise ConfigError(
                f"design.corpus.files: nothing found at '{pattern}'; expected a file, a folder "
                "with files, or a glob that matches some"
            )
        for file in files:
            found.setdefault(file, _format_of(file, config.format))
    if not found:
        raise ConfigError("design.corpus.files names no file, folder or glob: there is no corpus")
    return found


def describe_files(config: CorpusConfig) -> dict[str, dict]:
    """File -> size and a checksum of its ends: whether a corpus is still the same."""
    return {
        file: tfds_source.describe(file) if kind == "tfds" else _describe(epath.Path(file))
        for file, kind in find_files(config).items()
    }


def is_gzip(file: str) -> bool:
    """Whether the file must be unpacked."""
    return file.endswith(".gz")


def _expand(pattern: str) -> Iterator[str]:
    path = epath.Path(pattern)
    if path.is_dir():
        yield from sorted(_files_below(path))
    elif path.exists():
        yield str(path)
    elif "://" in pattern:
        fixed = next(i for i, part in enumerate([*path.parts, "*"]) if glob.has_magic(part))
        root = epath.Path(*path.parts[:fixed])
        rest = "/".join(path.parts[fixed:])
        yield from (
            sorted(str(file) for file in root.glob(rest) if not file.is_dir()) if rest else ()
        )
    else:
        names = sorted(glob.glob(pattern, recursive=True))
        yield from (name for name in names if not epath.Path(name).is_dir())


def _files_below(folder: epath.Path) -> Iterator[str]:
    for path in folder.iterdir():
        if path.name.startswith((".", "_")):  # left by file systems and by other programs
            continue
        if path.is_dir():
            yield from _files_below(path)
        else:
            yield str(path)


def _format_of(file: str, wanted: str) -> str:
    if wanted != "auto":
        return wanted
    name = file.rsplit("/", 1)[-1].removesuffix(".gz")
    if _WIKIEXTRACTOR_NAME.fullmatch(name):
        return "wikiextractor"
    for end, kind in FORMAT_OF_NAME.items():
        if name.lower().endswith(end):
            return kind
    raise ConfigError(
        f"design.corpus.format is auto, but the name of {file} does not tell its format; known are "
        f"{', '.join(FORMAT_OF_NAME)} and wiki_NN, each but .parquet also with .gz. "
        "Set design.corpus.format, or choose the files by a glob"
    )


def _describe(path: epath.Path) -> dict:
    size = path.stat().length
    with path.open("rb") as file:
        checksum = google_crc32c.value(file.read(_CHECKED_BYTES))
        file.seek(max(0, size - _CHECKED_BYTES))
        checksum = google_crc32c.extend(checksum, file.read(_CHECKED_BYTES))
    return {"bytes": size, "checksum": f"{checksum:08x}"}
