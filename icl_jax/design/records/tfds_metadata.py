"""Files beside the records for TensorFlow Datasets: `tfds.builder_from_directory(folder)`."""

from collections.abc import Sequence
from pathlib import Path
import tempfile

import numpy as np

from icl_jax.files.step_folder import beside

_FEATURES = {
    "tokens": np.int64,
    "group": np.int64,
    "sentence_ids": np.int64,
    "document_ids": np.int64,
    "similarities": np.float32,
    "sentence_starts": np.int64,
}
_FILES = ("dataset_info.json", "features.json")


def write_metadata(
    folder: Path, name: str, layout: str, description: str, counts: Sequence[dict]
) -> None:
    """Describes shards with these counts (`records`, `bytes`) in files that TFDS reads."""
    import tensorflow_datasets as tfds  # takes half a second; TensorFlow itself is not imported

    features = {
        key: tfds.features.Tensor(shape=(None,), dtype=dtype) for key, dtype in _FEATURES.items()
    }
    if layout == "in_batch":
        features["batch_group"] = tfds.features.Scalar(np.int64)
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder, dataset_name=name, split="train", filetype_suffix="tfrecord"
    )
    split = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[shard["records"] for shard in counts],
        num_bytes=sum(shard["bytes"] for shard in counts),
        filename_template=template,
    )
    info = tfds.core.DatasetInfo(
        builder=tfds.core.DatasetIdentity(
            name=name, version=tfds.core.Version("1.0.0"), data_dir=str(folder), module_name=""
        ),
        features=tfds.features.FeaturesDict(features),
        description=description,
    )
    info.set_file_format(tfds.core.FileFormat.TFRECORD)
    info.set_splits(tfds.core.SplitDict([split]))
    with tempfile.TemporaryDirectory() as place:
        info.write_to_directory(place)
        for file in _FILES:
            with beside(folder / file) as partial:
                partial.write_bytes((Path(place) / file).read_bytes())
