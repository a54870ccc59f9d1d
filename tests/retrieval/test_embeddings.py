"""A table becomes vectors shard by shard, and a run that was killed continues."""

import shutil

import numpy as np
import pyarrow as pa
import pytest

from icl_jax.config import EncoderConfig, StageError
from icl_jax.files.step_folder import read_results
from icl_jax.retrieval import embeddings
from icl_jax.retrieval.embeddings import embed_shard, embed_table
from icl_jax.retrieval.encoders.encoder import fit_tfidf, open_encoder
from icl_jax.retrieval.vectors import normalise, shard_file

pytestmark = pytest.mark.delicate

SHARDS = [["one", "three"], ["seventeen", "two", "eleven"], ["nine"]]


class Table:
    """What embedding needs of a sentence table."""

    fingerprint = "5e"
    num_shards = len(SHARDS)
    starts = np.array([0, 2, 5, 6])

    def __len__(self):
        return 6

    def texts(self, shard):
        return pa.array(SHARDS[shard])

    def text(self, sentence):
        return [text for shard in SHARDS for text in shard][sentence]


class Encoder:
    """Width 2: the length of a text, and 1; remembers what it was asked."""

    width = 2

    def __init__(self, scale=1.0, stop_at=None):
        self.identity = {"kind": "length", "scale": scale}
        self.scale, self.stop_at, self.seen = scale, stop_at, []

    def encode(self, texts, progress=None):
        if self.stop_at in texts:
            raise KeyboardInterrupt
        self.seen += texts
        progress and progress(len(texts))
        return np.array([[len(text) * self.scale, 1.0] for text in texts], np.float32)


@pytest.mark.parametrize("store", ["float16", "float32"])
def test_every_sentence_has_its_vector_in_the_chosen_type(tmp_path, store):
    vectors = embed_table(Table(), Encoder(), EncoderConfig(store=store), tmp_path / "v")
    assert [shard.dtype for shard in vectors.shards] == [store] * 3
    expected = normalise(np.array([[len(Table().text(n)), 1.0] for n in range(6)], np.float32))
    np.testing.assert_allclose(vectors.take(np.arange(6)), expected, atol=1e-6)
    results = {"num_shards": 3, "count": 6, "width": 2, "dtype": store}
    assert read_results(tmp_path / "v") == results


def test_a_stopped_run_continues_with_the_next_shard_and_a_complete_one_does_nothing(tmp_path):
    config = EncoderConfig()
    with pytest.raises(KeyboardInterrupt):
        embed_table(Table(), Encoder(stop_at="nine"), config, tmp_path)
    assert read_results(tmp_path) is None
    rest = Encoder()
    embed_table(Table(), rest, config, tmp_path)
    assert rest.seen == ["nine"]
    again = Encoder()
    assert len(embed_table(Table(), again, config, tmp_path)) == 6
    assert again.seen == []


def test_vectors_of_another_encoder_are_never_mixed_in(tmp_path):
    embed_table(Table(), Encoder(), EncoderConfig(), tmp_path)
    with pytest.raises(StageError, match=r"other inputs.*scale"):
        embed_table(Table(), Encoder(scale=2.0), EncoderConfig(), tmp_path)


def test_vectors_of_another_type_are_never_mixed_in(tmp_path):
    embed_table(Table(), Encoder(), EncoderConfig(store="float16"), tmp_path)
    with pytest.raises(StageError, match=r"other inputs.*store: 'float16' there, 'float32' here"):
        embed_table(Table(), Encoder(), EncoderConfig(store="float32"), tmp_path)


def test_one_shard_alone_gives_the_file_of_the_whole_run(tmp_path):
    embed_table(Table(), Encoder(), EncoderConfig(), tmp_path / "whole")
    (tmp_path / "part").mkdir()
    embed_shard(Table(), 1, Encoder(), "float16", tmp_path / "part")
    assert [file.name for file in (tmp_path / "part").iterdir()] == ["vectors-00001.npy"]
    whole, part = (shard_file(tmp_path / name, 1).read_bytes() for name in ("whole", "part"))
    assert whole == part


@pytest.mark.parametrize(
    ("scale", "fix"), [(np.nan, "check the weights"), (1e4, "set encoder.store to float32")]
)
def test_a_vector_that_is_not_finite_names_its_sentence(tmp_path, scale, fix):
    with pytest.raises(StageError, match=f"sentence 2 is not finite in float16.*{fix}.*seventeen"):
        embed_shard(Table(), 1, Encoder(scale=scale), "float16", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_stops_before_the_first_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 9))
    encoder = Encoder()
    with pytest.raises(StageError, match="6 sentence vectors will take"):
        embed_table(Table(), encoder, EncoderConfig(), tmp_path)
    assert encoder.seen == []


def test_a_worker_that_sees_another_encoder_stops(tmp_path):
    config = EncoderConfig(tfidf_dim=3)
    for name, text in (("here", "river mill bridge"), ("there", "harbour town guild")):
        fit_tfidf(text.split(), config, tmp_path / name, seed=0)
    encoder = open_encoder(config, None, tmp_path / "here")
    told = embeddings._describe(encoder, config, None, tmp_path / "there")
    with pytest.raises(StageError, match="another encoder for a worker"):
        embeddings._open_encoder(told)
    told = embeddings._describe(encoder, config, None, tmp_path / "here")
    assert embeddings._open_encoder(told).identity == encoder.identity
    assert embeddings._open_encoder(told) is embeddings._open_encoder(told)  # kept
