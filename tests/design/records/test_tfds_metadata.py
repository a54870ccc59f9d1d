"""TensorFlow and TensorFlow Datasets read an arm's folder as it is, and find what we wrote."""

from pathlib import Path

import numpy as np
import pytest

from icl_jax.data.shards import Shards, find_shards
from icl_jax.design.records.records import write_arm
from icl_jax.files.step_folder import read_results
from icl_jax.workers.local import Runner
from tests.design.made_up import make_tables, related_groups, write_strategy

LIMIT = 127
LAYOUTS = ("in_context", "in_batch")


@pytest.fixture(scope="module")
def arms(tmp_path_factory) -> dict[str, Path]:
    workdir = tmp_path_factory.mktemp("arms")
    sentences = make_tables(workdir, documents=40)
    groups = write_strategy(workdir / "groups", [related_groups(sentences, 150, LIMIT)])
    for layout in LAYOUTS:
        write_arm(
            str(workdir), sentences, groups, f"{layout}_arm", layout, LIMIT, 0, 10_000, Runner(1),
            workdir / layout,
        )  # fmt: skip
    return {layout: workdir / layout for layout in LAYOUTS}


def ours(folder: Path) -> list[dict]:
    shards = Shards(find_shards(str(folder)))
    assert len(find_shards(str(folder))) > 2
    return [shards[i] for i in range(len(shards))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tfds_builds_from_the_directory(arms, layout):
    pytest.importorskip("tensorflow")
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(arms[layout])
    records, results = ours(arms[layout]), read_results(arms[layout])
    split = builder.info.splits["train"]
    assert builder.info.name == f"{layout}_arm" and "at most 127 tokens" in builder.info.description
    assert split.num_examples == results["records"] == len(records)
    assert split.num_shards == results["shards"]
    assert split.num_bytes == sum(path.stat().length for path in find_shards(str(arms[layout])))
    assert set(builder.info.features) == set(records[0])
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    found = list(tfds.as_numpy(builder.as_dataset(split="train", read_config=in_order)))
    assert len(found) == len(records)
    for theirs, record in zip(found, records):
        assert theirs.keys() == record.keys()
        for name, values in record.items():
            assert theirs[name].dtype == values.dtype
            np.testing.assert_array_equal(np.atleast_1d(theirs[name]), values)
    half = builder.as_dataset(split="train[:50%]")
    assert len(list(half)) == pytest.approx(len(records) / 2, abs=1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tf_data_parses_the_records(arms, layout):
    tf = pytest.importorskip("tensorflow")
    records = ours(arms[layout])
    spec = {
        name: tf.io.RaggedFeature(tf.float32 if name == "similarities" else tf.int64)
        for name in records[0]
    }
    files = [str(path) for path in find_shards(str(arms[layout]))]
    rows = iter(records)
    for batch in tf.data.TFRecordDataset(files).batch(16):
        parsed = {k: v.to_list() for k, v in tf.io.parse_example(batch, spec).items()}
        for i in range(len(batch)):
            for name, values in next(rows).items():
                assert parsed[name][i] == values.tolist()
    assert next(rows, None) is None
    dense = tf.io.parse_example(batch, {"tokens": tf.io.VarLenFeature(tf.int64)})["tokens"]
    padded = tf.sparse.to_dense(dense, default_value=-1).numpy()
    assert [row[row >= 0].tolist() for row in padded][-1] == records[-1]["tokens"].tolist()


def test_the_metadata_is_written_without_tensorflow(arms):
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; "
        "from icl_jax.design.records.tfds_metadata import write_metadata; "
        f"write_metadata(Path({str(arms['in_batch'].parent)!r}), 'x', 'in_batch', 'text', "
        "[{'records': 3, 'bytes': 70}]); print('tensorflow' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
