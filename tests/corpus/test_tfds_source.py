"""TFDS data sets as a corpus, from a prepared folder."""

import importlib.util
import shutil

import pytest

from icl_jax.config import ConfigError, CorpusConfig
from icl_jax.corpus import tfds_source
from icl_jax.corpus.files import describe_files
from icl_jax.corpus.shards import plan_shards
from tests.corpus import corpora

tfds = pytest.importorskip("tensorflow_datasets")
pytest.importorskip("array_record")

DOCUMENTS = corpora.make_documents(31)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    class Animals(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")
        url_infos = None  # nothing to download

        def _info(self):
            text = tfds.features.Text()
            features = tfds.features.FeaturesDict({"id": text, "title": text, "text": text})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):
            return {"train": self._generate_examples(), "test": self._generate_examples()}

        def _generate_examples(self):
            yield from enumerate(DOCUMENTS)

    folder = tmp_path_factory.mktemp("tfds")
    builder = Animals(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return str(builder.data_dir)


@pytest.mark.parametrize("shard_bytes", [500, 1 << 20])
def test_a_prepared_folder_gives_every_document_once_however_it_is_cut(prepared, shard_bytes):
    config = CorpusConfig(files=(f"tfds:{prepared}",))
    assert (len(plan_shards(config, shard_bytes)) > 3) == (shard_bytes == 500)
    found = corpora.read_all(config, shard_bytes)
    texts = {(d.name, d.title, d.text) for d in found}
    assert len(found) == 31 and texts == {(d["id"], d["title"], d["text"]) for d in DOCUMENTS}
    assert found[30].place == "example 30" and found[0].file == f"tfds:{prepared}"


def test_a_part_of_a_split_can_be_read(prepared):
    whole = corpora.read_all(CorpusConfig(files=(f"tfds:{prepared}:test",)))
    part = corpora.read_all(CorpusConfig(files=(f"tfds:{prepared}:test[10:20]",)), 300)
    assert [d.name for d in part] == [d.name for d in whole[10:20]]


@pytest.mark.parametrize(
    "split", ["test", "test[10:20]", "test[-9:]", "test[20%:80%]", "test[:3]+train[5:9]"]
)
def test_any_part_of_a_split_has_a_name_that_tfds_reads(prepared, split):
    builder = tfds.builder_from_directory(prepared)
    whole = [d["id"] for d in builder.as_data_source(split=split)]
    for start, stop in ((0, len(whole)), (2, 5), (len(whole) - 1, len(whole))):
        part = tfds_source._part(tfds, builder, split, start, stop)
        assert [d["id"] for d in builder.as_data_source(split=part)] == whole[start:stop]


def test_the_description_holds_the_size(prepared):
    config = CorpusConfig(files=(f"tfds:{prepared}",))
    (entry,) = describe_files(config).values()
    assert entry["bytes"] > sum(len(d["text"]) for d in DOCUMENTS)


def test_what_cannot_be_opened_says_why(prepared, tmp_path):
    for pattern, message in {
        f"tfds:{tmp_path}": "dataset_info.json",
        f"tfds:{prepared}:validation": "no split 'validation', but",
        "tfds:": "tfds:NAME",
    }.items():
        with pytest.raises(ConfigError, match=message):
            corpora.read_all(CorpusConfig(files=(pattern,)))


def test_a_tfrecord_folder_without_tensorflow_names_the_extra(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shutil.copytree(prepared, tmp_path / "1.0.0")
    info = tmp_path / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
    with pytest.raises(ConfigError, match=r"icl_jax\[tfds\]"):
        next(tfds_source.read(f"tfds:{tmp_path}/1.0.0", 0, 1))


@pytest.mark.parametrize(
    ("pattern", "source", "split"),
    [
        ("tfds:wikipedia/20230601.en", "wikipedia/20230601.en", None),
        ("tfds:wikipedia/20230601.en:1.0.0", "wikipedia/20230601.en:1.0.0", None),
        ("tfds:lm1b:1.1.0:test[:10%]", "lm1b:1.1.0", "test[:10%]"),
        ("tfds:gs://bucket/a/1.0.0:train", "gs://bucket/a/1.0.0", "train"),
        ("tfds:/data/a/1.0.0", "/data/a/1.0.0", None),
    ],
)
def test_names_versions_folders_and_splits_are_distinguished(pattern, source, split):
    match = tfds_source._PATTERN.fullmatch(pattern)
    assert (match["source"], match["split"]) == (source, split)
