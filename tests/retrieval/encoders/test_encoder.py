"""Encoders of every kind: what a vector is, what is refused, and that no arrangement shows."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest
import tokenizers

from icl_jax.config import ConfigError, EncoderConfig, MeshConfig, StageError
from icl_jax.corpus.words import RULES_VERSION
from icl_jax.models import huggingface
from icl_jax.retrieval.encoders import tfidf as encoder_tfidf
from icl_jax.retrieval.encoders import token_rows
from icl_jax.retrieval.encoders.encoder import fit_tfidf, open_encoder
from icl_jax.retrieval.encoders.sentence_recipe import SentenceRecipe
from icl_jax.retrieval.vectors import normalise
from icl_jax.sharding import make_mesh
from tests.retrieval.small_encoder import (
    WIDTH,
    WORDS,
    make_gpt_folder,
    make_sentence_folder,
    save_tokenizer,
)

pytestmark = pytest.mark.delicate

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(1, 20))) for _ in range(53)]


@pytest.fixture(scope="module")
def sentence_folder(tmp_path_factory):
    pooling = {"pooling_mode_mean_tokens": True}
    return make_sentence_folder(tmp_path_factory.mktemp("st") / "bert", pooling)


def open_folder(folder, devices=1, mesh=None, **options):
    mesh = make_mesh(mesh or MeshConfig(), jax.devices()[:devices])
    return open_encoder(EncoderConfig(folder=str(folder), **options), mesh, None)


def by_hand(folder, text, max_tokens=23):
    """The mean of the last layer of one sentence alone."""
    words = text.split()[: max_tokens - 2]
    tokens = np.array([[2, *(4 + WORDS.index(word) for word in words), 3]], np.int32)
    padded = np.pad(tokens, ((0, 0), (0, 23 - tokens.shape[1])))
    group = (np.arange(23) < tokens.shape[1]).astype(np.int32)[None]
    hidden = huggingface.load(folder).hidden(padded, group)
    return np.asarray(hidden)[0, : tokens.shape[1]].mean(axis=0)


def test_sentences_that_share_a_row_get_the_vectors_they_have_alone(sentence_folder):
    vectors = open_folder(sentence_folder).encode(TEXTS)
    assert vectors.shape == (53, WIDTH) and vectors.dtype == np.float32
    for n in (0, 7, 52):
        expected = normalise(by_hand(sentence_folder, TEXTS[n])[None])[0]
        np.testing.assert_allclose(vectors[n], expected, atol=1e-5)


def test_eight_devices_give_what_one_gives(sentence_folder):
    one = open_folder(sentence_folder).encode(TEXTS)
    mesh = MeshConfig(data=2, fsdp=2, tensor=2)
    eight = open_folder(sentence_folder, 8, mesh, batch_tokens=64).encode(TEXTS)
    np.testing.assert_allclose(eight, one, atol=1e-5)


def test_vectors_and_progress_do_not_depend_on_chunks(sentence_folder, monkeypatch):
    encoder, done = open_folder(sentence_folder), []
    expected = encoder.encode(TEXTS)
    monkeypatch.setattr("icl_jax.retrieval.encoders.transformer.CHUNK", 11)
    np.testing.assert_allclose(encoder.encode(TEXTS, done.append), expected, atol=1e-6)
    assert sum(done) == 53 and len(done) > 4


def test_a_long_sentence_is_cut_at_max_tokens(sentence_folder):
    long = " ".join(["mill"] * 40)
    encoder = open_folder(sentence_folder, max_tokens=7)
    expected = normalise(by_hand(sentence_folder, long, 7)[None])
    np.testing.assert_allclose(encoder.encode([long]), expected, atol=1e-5)
    with pytest.raises(ConfigError, match=r"max_tokens is 24, but .* 23 positions"):
        open_folder(sentence_folder, max_tokens=24)


def test_the_identity_distinguishes_encoders_and_names_no_place(sentence_folder, tmp_path):
    first = open_folder(sentence_folder).identity
    copy = make_sentence_folder(tmp_path / "copy", {"pooling_mode": "mean"})
    assert open_folder(copy).identity == first
    assert open_folder(copy, batch_tokens=64).identity == first
    assert open_folder(copy, max_tokens=9).identity != first
    assert open_folder(copy, dtype="bfloat16").identity != first
    save_tokenizer(copy, special=False)
    assert open_folder(copy).identity != first
    assert str(sentence_folder.parent) not in json.dumps(first)


def test_every_part_of_a_recipe_is_in_its_identity():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    recipe = SentenceRecipe(tokenizer, max_tokens=16)
    changes = (
        {}, {"max_tokens": 8}, {"poolings": ("cls",)}, {"after": ("normalize",)},
        {"prompt": "query: "}, {"first_last": True}, {"special_tokens": False},
    )  # fmt: skip
    found = {str(dataclasses.replace(recipe, **change).identity()) for change in changes}
    assert len(found) == len(changes)


def test_an_exported_gpt_is_an_encoder_once_its_tokenizer_is_there(tmp_path):
    folder = make_gpt_folder(tmp_path / "gpt")
    with pytest.raises(StageError, match=r"no tokenizer\.json; copy the tokenizer's files there"):
        open_folder(folder)
    save_tokenizer(folder, special=False)
    vectors = open_folder(folder).encode(["born in kersk", ""])
    tokens = np.array([[4 + WORDS.index(word) for word in ("born", "in", "kersk")]], np.int32)
    expected = np.asarray(huggingface.load(folder).hidden(tokens))[0].mean(axis=0)
    np.testing.assert_allclose(vectors[0], expected, atol=1e-5)
    assert not vectors[1].any()  # no token: a zero row


def test_a_tokenizer_of_another_network_is_named(tmp_path):
    folder = make_gpt_folder(tmp_path / "gpt")
    save_tokenizer(folder, special=False)
    fields = json.loads((folder / "tokenizer.json").read_text())
    fields["model"]["vocab"]["kersk"] = 999
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    with pytest.raises(StageError, match="gives token 999, but the network has only 16"):
        open_folder(folder).encode(["born in kersk"])


@pytest.mark.parametrize(
    ("broken", "error", "message"),
    [
        ({"1_Pooling/config.json": {"pooling_mode": "sum"}}, ConfigError, "supported are cls, max"),
        ({"modules.json": [{"type": "a.CNN", "path": ""}]}, ConfigError, "has the modules CNN"),
        ({"1_Pooling/config.json": None}, StageError, "1_Pooling has no config.json"),
        ({"model.safetensors": None}, StageError, "has no model.safetensors"),
        ({"tokenizer.json": []}, StageError, "not a readable tokenizer"),
    ],
)
def test_a_folder_that_cannot_run_is_refused_at_once(tmp_path, broken, error, message):
    folder = make_sentence_folder(tmp_path / "st", {"pooling_mode": "mean"})
    for name, content in broken.items():
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    with pytest.raises(error, match=message):
        open_folder(folder)


def test_rows_hold_every_sentence_once_with_little_padding():
    lengths = np.clip(RNG.lognormal(3.3, 0.5, 3000).astype(int), 1, 200)
    lengths[[5, 77]] = 0
    sentences = [[n + 1] * length for n, length in enumerate(lengths)]
    batches = token_rows.make_batches(sentences, 1024, divisor=4, pad_id=0)
    found = np.concatenate([batch.sentences for batch in batches])
    assert sorted(found) == [n for n in range(3000) if n not in (5, 77)]
    for batch in batches:
        assert batch.tokens_BT.size == 1024
        for n, row, slot in zip(batch.sentences, batch.rows, batch.slots, strict=True):
            members = batch.tokens_BT[row][batch.group_BT[row] == slot + 1]
            assert members.tolist() == sentences[n]
    used = lengths.sum() / sum(batch.tokens_BT.size for batch in batches)
    assert used > 0.98
    assert len({batch.tokens_BT.shape for batch in batches}) <= 3


def test_no_row_holds_more_sentences_than_it_has_slots():
    batches = token_rows.make_batches([[1]] * 500, 256, divisor=1, pad_id=0)
    assert sum(len(batch.sentences) for batch in batches) == 500
    for batch in batches:
        assert batch.slots.max() < token_rows.num_slots(batch.tokens_BT.shape[1])


SMALL_CORPUS = [
    "Anna Velt was born in Kersk.",
    "The old bridge of Kersk crosses the river Lod.",
    "Peter Amsel lives by the sea.",
    "The sea is cold in winter.",
    "A mill stands by the river Lod.",
    "Winter in the mountains is long.",
]


def test_tfidf_finds_sentences_that_share_a_rare_name(tmp_path):
    fit_tfidf(SMALL_CORPUS, EncoderConfig(), tmp_path, seed=0)
    encoder = open_encoder(EncoderConfig(), None, tmp_path)
    assert encoder.width <= 6  # no more directions than sentences
    vectors = normalise(encoder.encode(SMALL_CORPUS))
    query = normalise(encoder.encode(["Who was born in Kersk?", "Where does Amsel live?"]))
    assert (query @ vectors.T).argmax(axis=1).tolist() == [0, 2]
    assert {0, 1} == set((query @ vectors.T)[0].argsort()[-2:])
    assert not encoder.encode(["the of and", ""]).any()


def test_tfidf_keeps_cosines_of_rare_words_where_directions_do_not_fit(tmp_path):
    # Topic words are everywhere; names occur twice each, far too rarely for a leading direction.
    topics = [f"topic{n}" for n in range(40)]
    texts = [
        " ".join([*RNG.choice(topics, 6), f"name{n % 150}"]) for n in range(300)
    ]  # n and n + 150 share a name
    fit_tfidf(texts, EncoderConfig(tfidf_dim=64), tmp_path, seed=0)
    encoder = open_encoder(EncoderConfig(), None, tmp_path)
    assert encoder.width == 64
    similarity = (vectors := normalise(encoder.encode(texts))) @ vectors.T
    np.fill_diagonal(similarity, -1)
    assert (similarity.argmax(axis=1) == (np.arange(300) + 150) % 300).mean() > 0.9


def test_tfidf_where_directions_fit_hears_what_is_asked_and_not_only_about_whom(tmp_path):
    # Trades are less rare than towns: if rare words counted more, they would be nearer.
    people = [f"first{n % 10} last{n}" for n in range(100)]
    texts = [f"{name} was born in town{n % 12}." for n, name in enumerate(people)]
    texts += [f"{name} worked as a trade{n % 10}." for n, name in enumerate(people)]
    fit_tfidf(texts, EncoderConfig(), tmp_path, seed=0)
    encoder = open_encoder(EncoderConfig(), None, tmp_path)
    asked = normalise(encoder.encode([f"Where was {name} born?" for name in people]))
    similarity = asked @ normalise(encoder.encode(texts)).T
    assert similarity.argmax(axis=1).tolist() == list(range(100))


def test_tfidf_is_the_same_for_the_same_seed_and_holds_no_pickle(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_tfidf, "MAX_SAMPLE", 4)
    for name, seed in {"a": 3, "b": 3, "c": 4}.items():
        fit_tfidf(iter(SMALL_CORPUS), EncoderConfig(), tmp_path / name, seed)
    identity = {
        name: open_encoder(EncoderConfig(), None, tmp_path / name).identity for name in "abc"
    }
    assert identity["a"] == identity["b"] != identity["c"]
    assert identity["a"]["sentences"] == 4
    files = {file.suffix for file in (tmp_path / "a").iterdir()}
    assert files == {".json", ".npy"}
    np.load(tmp_path / "a/components.npy", allow_pickle=False)


def test_tfidf_is_fitted_on_a_sample_that_every_part_of_the_corpus_is_in(monkeypatch):
    monkeypatch.setattr(encoder_tfidf, "MAX_SAMPLE", 100)
    places = [int(text) for text in encoder_tfidf._sample(map(str, range(10_000)), 0)]
    assert len(places) == len(set(places)) == 100 and places == sorted(places)
    assert abs(np.mean(places) - 5000) < 1200  # four standard deviations


def test_tfidf_counts_a_word_said_three_times_only_a_little_more(tmp_path):
    fit_tfidf(["bridge", "river"], EncoderConfig(), tmp_path, seed=0)  # each as rare
    encoder = open_encoder(EncoderConfig(), None, tmp_path)
    texts = ["bridge bridge bridge river", "bridge", "river"]
    both, bridge, river = normalise(encoder.encode(texts))
    assert (both @ bridge) / (both @ river) == pytest.approx(1 + np.log(3), rel=1e-5)


def test_tfidf_keeps_stop_words_of_other_languages_and_accents(tmp_path):
    fit_tfidf(["the café", "the cafe"], EncoderConfig(), tmp_path, seed=0, language="fr")
    vectors = normalise(
        open_encoder(EncoderConfig(), None, tmp_path).encode(["CAFÉ", "cafe", "the"])
    )
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    assert vectors[0] @ vectors[1] < 0.5


def test_tfidf_knows_the_words_of_a_script_without_spaces_and_what_signs_tell_apart(tmp_path):
    texts = ["今天天气很好", "明天天气不好", "股票价格上涨了", "He writes C++", "He writes C#"]
    fit_tfidf(texts, EncoderConfig(), tmp_path, seed=0, language="zh")
    encoder = open_encoder(EncoderConfig(), None, tmp_path)
    assert encoder.identity["words"] == RULES_VERSION
    similarity = (vectors := normalise(encoder.encode(texts))) @ vectors.T
    assert similarity[0, 1] > 0.1 > abs(similarity[0, 2])
    assert similarity[3, 4] < 0.95


def test_tfidf_counts_as_it_was_fitted():
    texts = [*SMALL_CORPUS, "", "3.5 of 1,000 C++ programs", "今天 Ünïcode ünïcode"]
    counter = encoder_tfidf._counter("en")
    counts = counter.fit_transform(texts)
    columns = {term: i for i, term in enumerate(counter.get_feature_names_out())}
    assert (encoder_tfidf._count(texts, columns) != counts).nnz == 0


def test_tfidf_of_a_corpus_without_words_says_so(tmp_path):
    with pytest.raises(StageError, match="found no word in 2 sentences"):
        fit_tfidf(["the of", "?"], EncoderConfig(), tmp_path, seed=0)
    with pytest.raises(StageError, match="holds no fitted TF-IDF"):
        open_encoder(EncoderConfig(), None, tmp_path)


@pytest.mark.parametrize(
    "name", ["modules.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"]
)
def test_a_pipe_in_an_encoder_folder_is_refused_and_not_waited_for(tmp_path, name):
    folder = make_sentence_folder(tmp_path / "bert", {"pooling_mode_mean_tokens": True})
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match=f"{name} is a named pipe"):
        open_folder(folder)
