"""Documents from TensorFlow Datasets, by name (`tfds:wikipedia/20230601.en`) or prepared folder.

ArrayRecord folders are read without TensorFlow; TFRecord folders need it (the extra `tfds`).
"""

from collections.abc import Iterator
import functools
import importlib
import importlib.util
import re

from etils import epath
import google_crc32c

from icl_jax.config import ConfigError

# tfds:NAME, tfds:NAME:1.0.0, tfds:FOLDER, each optionally with :SPLIT (train, train[:10%])
_PATTERN = re.compile(r"tfds:(?P<source>(?:\w+://)?[^:]+(?::\d+\.\d+\.\d+)?)(?::(?P<split>\D.*))?")
_READ_AHEAD = 256  # examples


def is_tfds(pattern: str) -> bool:
    """Whether an entry of `corpus.files` is a TFDS data set rather than a file."""
    return pattern.startswith("tfds:")


def describe(pattern: str) -> dict:
    """Size and checksum of a data set, from the metadata in its folder."""
    builder, split = _open(pattern)
    info = (epath.Path(builder.data_dir) / "dataset_info.json").read_bytes()
    return {
        "bytes": _split_info(builder, split)[1],
        "checksum": f"{google_crc32c.value(info):08x}",
    }


def size(pattern: str) -> tuple[int, int]:
    """The number of examples, and of bytes on disk."""
    return _split_info(*_open(pattern))


def read(pattern: str, start: int, stop: int) -> Iterator[dict]:
    """The examples `start` .. `stop` - 1, in the order of the files."""
    builder, split = _open(pattern)
    if builder.info.file_format.value == "array_record":
        source = builder.as_data_source(split=split)
        for first in range(start, stop, _READ_AHEAD):
            yield from source.__getitems__(range(first, min(first + _READ_AHEAD, stop)))
        return
    if importlib.util.find_spec("tensorflow") is None:
        raise ConfigError(
            f"{pattern} holds {builder.info.file_format.value} files, which TFDS reads with "
            "TensorFlow only: pip install 'icl_jax[tfds]', or prepare the data set as array_record"
        )
    import tensorflow_datasets as tfds

    # One file at a time: the order must not depend on threads.
    options = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
    part = _part(tfds, builder, split, start, stop)
    yield from tfds.as_numpy(
        builder.as_dataset(split=part, read_config=options, shuffle_files=False)
    )


@functools.lru_cache(maxsize=8)
def _open(pattern: str):
    """The prepared data set and the split; a named one is downloaded if necessary."""
    import tensorflow_datasets as tfds

    match = _PATTERN.fullmatch(pattern)
    if not match:
        raise ConfigError(f"expected tfds:NAME[:split] or tfds:FOLDER[:split], got '{pattern}'")
    source, split = match["source"], match["split"] or "train"
    if (epath.Path(source) / "dataset_info.json").exists():
        builder = tfds.builder_from_directory(source)
    elif source.startswith((".", "/", "~")) or "://" in source:
        raise ConfigError(
            f"{pattern}: {source} is not a prepared TFDS folder: it has no dataset_info.json; "
            "give the folder of one version (.../wikipedia/20230601.en/1.0.0)"
        )
    else:
        builder = _download(tfds, source)
    if split.split("[")[0] not in builder.info.splits:
        raise ConfigError(
            f"{pattern}: there is no split '{split}', but {', '.join(builder.info.splits)}"
        )
    return builder, split


def _download(tfds, name: str):
    try:
        importlib.import_module("tensorflow_datasets.text")  # registers wikipedia, c4 and others
        builder = tfds.builder(name)
        if not builder.is_prepared():
            builder = tfds.builder(name, file_format="array_record")
            builder.download_and_prepare()
    except Exception as error:  # TFDS and its transports have no common error class
        reason = str(error).strip().partition("\n")[0]  # the rest lists all known data sets
        raise ConfigError(
            f"tfds:{name} could not be opened or prepared ({type(error).__name__}: {reason}); "
            "without a network, give an already prepared folder as tfds:/the/folder"
        ) from error
    return builder


def _part(tfds, builder, split: str, start: int, stop: int) -> str:
    """Some examples of a split as a split of their own, so that TFDS opens only their files."""
    parts = []
    splits = builder.info.splits
    for whole in tfds.core.ReadInstruction.from_spec(split).to_absolute(splits):
        first = whole.from_ or 0
        end = splits[whole.splitname].num_examples if whole.to is None else whole.to
        begin, finish = first + max(0, start), min(first + stop, end)
        if begin < finish:
            parts.append(f"{whole.splitname}[{begin}:{finish}]")
        start, stop = start - (end - first), stop - (end - first)
    return "+".join(parts)


def _split_info(builder, split: str) -> tuple[int, int]:
    whole, part = builder.info.splits[split.split("[")[0]], builder.info.splits[split]
    share = part.num_examples / max(1, whole.num_examples)
    return part.num_examples, int(share * int(whole.num_bytes))
