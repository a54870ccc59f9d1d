"""The gain of a group, against losses of one passage at a time, each alone in its row."""

import dataclasses
import json
import os
from pathlib import Path
import types

from flax import nnx
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import (
    ConfigError,
    ExamplesConfig,
    GPTConfig,
    MeshConfig,
    RobertaConfig,
    StageError,
)
from icl_jax.corpus.files import model_checksum
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.gain import filter as gain_filter
from icl_jax.design.gain.filter import (
    MASK_SHARE,
    filter_groups,
    gain_file,
    keep_all,
    measure,
    measure_in_worker,
)
from icl_jax.design.gain.model import check_gain_model, gain_inputs
from icl_jax.design.groups import GroupShard, keep_file, read_groups, read_keep
from icl_jax.design.records.layout import Marks, in_context
from icl_jax.models import huggingface
from icl_jax.models.passage_losses import Losses
from icl_jax.sharding import make_mesh
from icl_jax.workers.local import Runner
from tests.design.made_up import make_tables, related_groups, running_groups, write_strategy
from tests.models.small import make_model

pytestmark = pytest.mark.delicate

LIMIT = 96
SIZES = {"vocab_size": 331, "context_length": LIMIT, "num_layers": 1, "embed_dim": 8,
         "num_heads": 2}  # fmt: skip
CONFIGS = {"GPT": GPTConfig(**SIZES), "RoBERTa": RobertaConfig(**SIZES)}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Sentences, and tokenizers for either kind of model."""
    workdir = tmp_path_factory.mktemp("gain")
    sentences = make_tables(workdir, 40)
    library = Tokenizer.open(workdir / "design" / "tokenizer").library
    special = {"end_of_text_id": 0, "separator_id": 1}
    gpt = Tokenizer(library, **special)
    roberta = Tokenizer(library, **special, begin_of_text_id=2, mask_id=3)
    return sentences, {"GPT": gpt, "RoBERTa": roberta}


def save(kind, folder: Path, seed=0) -> Path:
    huggingface.save(make_model(CONFIGS[kind], seed), folder)
    return folder


def mesh(**axes):
    return make_mesh(MeshConfig(**{"data": 8} | axes))


def gain_by_loops(model, kind, sentences, shard, row, tokenizer, whole_documents=False):
    """One passage at a time, alone in its row, in float64."""
    marks = Marks.of(tokenizer)
    tokens, starts = in_context(sentences, shard, row, marks)
    tokens = tokens.tolist()
    ids = shard.ids[shard.offsets[row] : shard.offsets[row + 1]]
    ends = [*starts[1:], len(tokens)]
    pieces = {}  # where its tokens are, and which of them are asked for
    for sentence, start, end in zip(ids, starts, ends, strict=True):
        while tokens[end - 1] in marks:
            end -= 1
        if kind == "GPT":
            places = list(range(1, end - start))
        else:
            draw = np.random.RandomState(sentence).random_sample(end - start)
            places = [i for i, x in enumerate(draw) if x < MASK_SHARE or x == min(draw)]
        key = sentences.corpus.documents[sentence] if whole_documents else start
        span, asked = pieces.setdefault(key, ([], []))
        span += range(start, end)
        asked += [start + place for place in places]
    if len(pieces) == 1:
        return np.nan
    apart, wholly = 0, [place for _, asked in pieces.values() for place in asked]
    for span, asked in pieces.values():
        alone = ([] if kind == "GPT" else [2]) + [tokens[place] for place in span] + [0]
        shift = len(alone) - 1 - len(span) - span[0]
        apart += loss(model, kind, alone, [shift + place for place in asked])
    return (apart - loss(model, kind, tokens, wholly)) / len(wholly)


def loss(model, kind, tokens, asked):
    inputs, group = np.zeros((2, 1, LIMIT), np.int32)  # one length: compiled once
    inputs[0, : len(tokens)], group[0, : len(tokens)] = tokens, 1
    if kind == "RoBERTa":
        inputs[0, asked] = 3
    logits = np.asarray(model(inputs, group), np.float64)[0]
    top = logits.max(axis=1, keepdims=True)
    logp = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return -sum(logp[place - (kind == "GPT"), tokens[place]] for place in asked)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("running", [False, True], ids=["related", "running"])
def test_gains_are_those_of_one_sentence_at_a_time(kind, running, tables, tmp_path):
    sentences, tokenizers = tables
    tokenizer = tokenizers[kind]
    if running:
        shard = running_groups(sentences, LIMIT, tokenizer.end_of_text_id)
        shard = first_groups(shard, 9)
    else:
        shard = related_groups(sentences, 9, LIMIT)
    folder = write_strategy(tmp_path / "groups", [shard])
    model = save(kind, tmp_path / "model")
    examples = ExamplesConfig(gain_model=str(model), min_gain=0.01)
    results = filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizer)
    gains, loaded = np.load(gain_file(folder, 0)), huggingface.load(model)
    shard = read_groups(folder, 0)
    for row in range(len(shard)):
        expected = gain_by_loops(loaded, kind, sentences, shard, row, tokenizer)
        np.testing.assert_allclose(gains[row], expected, atol=2e-5)
    alone = np.diff(shard.offsets) == 1
    np.testing.assert_array_equal(np.isnan(gains), alone)
    assert np.abs(gains[~alone]).min() > 0
    keep = read_keep(folder, 0, len(shard))
    np.testing.assert_array_equal(keep, alone | (gains > 0.01))
    assert results["kept"] == keep.sum() and sum(results["gain_counts"]) == (~alone).sum()


@pytest.mark.parametrize("kind", CONFIGS)
def test_documents_of_one_context_are_compared_with_documents_apart(kind, tables, tmp_path):
    sentences, tokenizers = tables
    tokenizer = tokenizers[kind]
    shard = paired_documents(sentences, tokenizer)
    folder = write_strategy(tmp_path / "groups", [shard])
    model = save(kind, tmp_path / "model")
    examples = ExamplesConfig(gain_model=str(model), min_gain=-100.0)
    options = {"whole_documents": True}
    filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizer, **options)
    gains, loaded = np.load(gain_file(folder, 0)), huggingface.load(model)
    shard = read_groups(folder, 0)
    expected = [
        gain_by_loops(loaded, kind, sentences, shard, row, tokenizer, True)
        for row in range(len(shard))
    ]
    np.testing.assert_allclose(gains, expected, atol=2e-5)
    documents = [
        len({*sentences.corpus.documents[i]}) for i in np.split(shard.ids, shard.offsets[1:-1])
    ]
    assert np.isnan(gains).tolist() == [count == 1 for count in documents]
    assert sorted({*documents}) == [1, 2] and np.diff(shard.offsets).min() > 1
    with pytest.raises(StageError, match="pieces: 'documents' there, 'sentences' here"):
        filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizer)


def test_a_document_that_continues_in_the_next_context_is_a_piece_of_both(tables):
    sentences, tokenizers = tables
    documents = sentences.corpus.documents
    a, b, c = (
        np.flatnonzero(documents == d)[:2] for d in np.flatnonzero(np.bincount(documents) > 1)[:3]
    )
    shard = GroupShard(np.array([0, 3, 6]), np.array([*a, b[0], b[1], *c]), np.ones(6, np.float32))
    heard = []

    def losses(passages, num_owners, progress):
        heard.append([(passage.owner, passage.inputs.tolist()) for passage in passages])
        return Losses(np.zeros(num_owners), np.ones(num_owners, int), np.ones(num_owners, bool))

    model = types.SimpleNamespace(masked=False, losses=losses)
    gains = measure(shard, sentences, tokenizers["GPT"], model, whole_documents=True)
    assert gains.tolist() == [0, 0]  # both were compared
    _, apart = heard
    assert [owner for owner, _ in apart] == [0, 0, 1, 1]
    for (_, tokens), ids in zip(apart, (a, b[:1], b[1:], c), strict=True):
        expected = [[*sentences.tokens(id), 1] for id in ids]
        assert tokens == [*np.concatenate(expected)[:-1].tolist(), 0]


def paired_documents(sentences, tokenizer):
    """Contexts of two documents, the first sentences of each, and then of one."""
    found, documents = [], sentences.corpus.documents
    for document in range(sentences.corpus.num_documents):
        ids = np.flatnonzero(documents == document)[:2]
        if len(ids) == 2 and sentences.lengths_of(ids).sum() < LIMIT // 2 - 4:
            found.append(ids)
    found = found[:10]
    groups = [found[i : i + 2] for i in range(0, 8, 2)] + [[ids] for ids in found[8:]]
    ids, tokens, starts, offsets, token_offsets = [], [], [], [0], [0]
    for group in groups:
        first = len(tokens)
        for place, members in enumerate(group):
            tokens += [tokenizer.separator_id] * bool(place)
            for sentence in members:
                ids.append(sentence)
                starts.append(len(tokens) - first)
                tokens += sentences.tokens(sentence).tolist()
        offsets.append(len(ids))
        token_offsets.append(len(tokens))
    return GroupShard(
        np.array(offsets), np.array(ids), np.ones(len(ids), np.float32), np.array(tokens),
        np.array(token_offsets), np.array(starts),
    )  # fmt: skip


def first_groups(shard, count):
    sentences, tokens = shard.offsets[count], shard.token_offsets[count]
    return GroupShard(
        shard.offsets[: count + 1], shard.ids[:sentences], shard.similarities[:sentences],
        shard.tokens[:tokens], shard.token_offsets[: count + 1], shard.starts[:sentences],
    )  # fmt: skip


def test_the_mesh_changes_nothing_but_rounding(tables, tmp_path):
    sentences, tokenizers = tables
    shard = related_groups(sentences, 30, LIMIT)
    examples = ExamplesConfig(gain_model=str(save("GPT", tmp_path / "model")))
    found = []
    for name, place in (("a", mesh()), ("b", mesh(data=2, fsdp=2, tensor=2)), ("c", None)):
        folder = write_strategy(tmp_path / name, [shard])
        filter_groups(folder, examples, LIMIT, place, sentences, tokenizers["GPT"])
        found.append(np.load(gain_file(folder, 0)))
    np.testing.assert_allclose(found[1], found[0], atol=2e-5)
    np.testing.assert_allclose(found[2], found[0], atol=2e-5)


def copying_model(folder: Path) -> Path:
    """A GPT that adds up what it has read: it expects tokens that were there before.

    Attention is even, values and output are the identity, and rows of the embedding are nearly
    orthogonal, so the logit of a token is its share of the text so far, and of the last token.
    """
    config = GPTConfig(
        vocab_size=331, context_length=LIMIT, num_layers=1, embed_dim=256, num_heads=1
    )
    model = make_model(config)
    rng = np.random.default_rng(0)
    state = nnx.state(model)
    flat = []
    for path, variable in nnx.to_flat_state(state):
        value = np.zeros(variable.shape, np.float32)
        if path[-1] == "scale":
            value += 1
        elif path[0] == "token_embedding":
            value = rng.normal(size=value.shape).astype(np.float32) / 4
        elif "attention" in path and path[-2:] in {("value", "kernel"), ("out", "kernel")}:
            value = 8 * np.eye(256, dtype=np.float32).reshape(value.shape)
        flat.append((path, variable.replace(jnp.asarray(value))))
    nnx.update(model, nnx.from_flat_state(flat))
    huggingface.save(model, folder)
    return folder


def test_a_model_that_copies_keeps_what_repeats_itself(tables, tmp_path):
    sentences, tokenizers = tables
    order = np.argsort(sentences.lengths_of(np.arange(len(sentences))), kind="stable")
    middle = order[len(order) // 4 :][:20]
    pairs = [[a, a] for a in middle[:10]] + [[a, b] for a, b in zip(middle[:10], middle[10:])]
    ids = np.array(pairs).ravel()
    shard = GroupShard(np.arange(0, 41, 2), ids, np.ones(40, np.float32))
    folder = write_strategy(tmp_path / "groups", [shard])
    model = str(copying_model(tmp_path / "model"))
    examples = ExamplesConfig(gain_model=model, min_gain=5.0)
    filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizers["GPT"])
    gains = np.load(gain_file(folder, 0))
    assert (gains[:10] > gains[10:]).all() and gains[:10].min() > 0
    keep = read_keep(folder, 0, 20)
    assert keep[:10].all() and not keep[10:].all()


def test_a_killed_filter_continues_and_another_model_is_refused(tables, tmp_path):
    sentences, tokenizers = tables
    shards = [related_groups(sentences, 5, LIMIT, seed) for seed in range(3)]
    folder = write_strategy(tmp_path / "groups", shards)
    model = save("GPT", tmp_path / "model")
    examples = ExamplesConfig(gain_model=str(model))
    results = filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizers["GPT"])
    before = [gain_file(folder, i).read_bytes() for i in range(3)]
    (folder / "gain" / "results.json").unlink()
    gain_file(folder, 1).unlink()
    keep_file(folder, 1).unlink()
    stamp = gain_file(folder, 0).stat().st_mtime_ns
    assert filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizers["GPT"]) == results
    assert [gain_file(folder, i).read_bytes() for i in range(3)] == before
    assert gain_file(folder, 0).stat().st_mtime_ns == stamp and keep_file(folder, 1).exists()
    other = ExamplesConfig(gain_model=str(save("GPT", tmp_path / "other", seed=1)))
    with pytest.raises(StageError, match=r"made from other inputs \(model"):
        filter_groups(folder, other, LIMIT, mesh(), sentences, tokenizers["GPT"])
    assert gain_inputs(other, "neighbours") != gain_inputs(examples, "neighbours") != {}
    assert gain_inputs(examples, "contiguous") == gain_inputs(ExamplesConfig(), "neighbours") == {}


def test_another_min_gain_measures_nothing_again(tables, tmp_path, monkeypatch):
    sentences, tokenizers = tables
    shards = [related_groups(sentences, 9, LIMIT, seed) for seed in range(2)]
    folder = write_strategy(tmp_path / "groups", shards)
    examples = ExamplesConfig(gain_model=str(save("GPT", tmp_path / "model")), min_gain=-100.0)
    arguments = (LIMIT, mesh(), sentences, tokenizers["GPT"])
    assert filter_groups(folder, examples, *arguments)["kept"] == 18
    gains = np.concatenate([np.load(gain_file(folder, i)) for i in range(2)])
    monkeypatch.setattr(gain_filter, "open_gain_model", None)  # not opened again
    middle = float(np.nanmedian(gains))
    results = filter_groups(folder, dataclasses.replace(examples, min_gain=middle), *arguments)
    keep = np.concatenate([read_keep(folder, i, 9) for i in range(2)])
    np.testing.assert_array_equal(keep, np.isnan(gains) | (gains > np.float32(middle)))
    assert 0 < results["kept"] == keep.sum() < 18
    told = {"min_gain": middle, "kept": results["kept"]}
    assert json.loads((folder / "kept.json").read_text()) == told
    keep_all(folder)
    assert not (folder / "kept.json").exists()
    assert all(read_keep(folder, i, 9).all() for i in range(2))
    assert filter_groups(folder, examples, *arguments)["kept"] == 18


def test_a_filter_that_keeps_nothing_reports_what_there_is_to_gain(tables, tmp_path):
    sentences, tokenizers = tables
    pairs = GroupShard(np.arange(0, 13, 2), np.arange(12), np.ones(12, np.float32))
    folder = write_strategy(tmp_path / "groups", [pairs])
    examples = ExamplesConfig(gain_model=str(save("GPT", tmp_path / "model")), min_gain=7.5)
    with pytest.raises(StageError) as error:
        filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizers["GPT"])
    gains = np.load(gain_file(folder, 0)).astype(np.float64)
    median, best = round(float(np.median(gains)), 4), round(float(gains.max()), 4)
    told = f"more than 7.5 nats a token; the median is {median}, the best {best}; lower design"
    assert str(error.value).startswith("of 6 groups in ") and told in str(error.value)
    assert not keep_file(folder, 0).exists()


def test_workers_of_beam_measure_the_same(tables, tmp_path, monkeypatch):
    pytest.importorskip("apache_beam")
    sentences, _ = tables
    workdir = sentences.corpus.folder.parent.parent
    tokenizer = Tokenizer.open(DesignFolders(workdir).tokenizer)
    shards = [related_groups(sentences, 5, LIMIT, seed) for seed in range(3)]
    model = str(save("GPT", tmp_path / "model"))
    arguments = (ExamplesConfig(gain_model=model), LIMIT, mesh(), sentences, tokenizer)
    folders = [write_strategy(tmp_path / name, shards) for name in ("local", "beam")]
    threads = ("--direct_num_workers=2", "--direct_running_mode=multi_threading")
    beam = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    runner = Runner(kind="beam", options=(beam, *threads), folder=str(tmp_path / "results"))
    opened, open_model = [], gain_filter.open_gain_model
    monkeypatch.setattr(
        gain_filter, "open_gain_model", lambda *how: opened.append(how) or open_model(*how)
    )
    results = [
        filter_groups(folders[0], *arguments),
        filter_groups(folders[1], *arguments, runner, str(workdir)),
    ]
    assert len(opened) == 2  # here, and by workers, once for all shards
    assert results[0] == results[1]
    for file in sorted(folders[0].rglob("*.npy")):
        assert (folders[1] / file.relative_to(folders[0])).read_bytes() == file.read_bytes()
    told = json.dumps({"folder": model, "limit": LIMIT, "mesh": None, "checksum": "of another"})
    with pytest.raises(StageError, match="holds another model for a worker"):
        measure_in_worker(
            str(workdir), sentences.fingerprint, tokenizer.fingerprint, told, str(folders[0]),
            False, 0,
        )  # fmt: skip


def test_weights_that_changed_in_their_folder_are_noticed(tmp_path):
    folder = save("GPT", tmp_path / "model")
    before, file = model_checksum(str(folder)), folder / "model.safetensors"
    content, stamp = bytearray(file.read_bytes()), file.stat().st_mtime_ns
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stamp + 10**9, stamp + 10**9))
    after = model_checksum(str(folder))
    assert after != before
    os.utime(file, ns=(stamp + 2 * 10**9, stamp + 2 * 10**9))
    assert model_checksum(str(folder)) == after


def test_a_model_of_another_tokenizer_is_refused(tables, tmp_path):
    _, tokenizers = tables
    ours, folder = tokenizers["GPT"], save("GPT", tmp_path / "model")
    examples = ExamplesConfig(gain_model=str(folder))
    ours.save(folder)
    check_gain_model(examples, LIMIT, ours)
    ids = ours.special_ids
    (folder / "special_ids.json").write_text(json.dumps(ids | {"separator_id": 7}))
    with pytest.raises(ConfigError, match=r"special_ids\.json separator_id is 7, but here it is 1"):
        check_gain_model(examples, LIMIT, ours)
    (folder / "special_ids.json").unlink()

    held = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = held["model"]["vocab"]
    a, b = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (folder / "tokenizer.json").write_text(json.dumps(held))
    with pytest.raises(ConfigError, match=r"another tokenizer: of our 3\d\d tokens 2 are not the"):
        check_gain_model(examples, LIMIT, ours)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is unreadable"):
        check_gain_model(examples, LIMIT, ours)


def test_a_separator_that_was_added_for_training_is_no_other_tokenizer(tables, tmp_path):
    _, tokenizers = tables
    folder = save("GPT", tmp_path / "model")
    tokenizers["GPT"].save(folder)
    (folder / "special_ids.json").unlink()
    library = type(tokenizers["GPT"].library).from_str(tokenizers["GPT"].library.to_str())
    library.add_special_tokens(["<|between|>"])
    ours = Tokenizer(library, library.token_to_id("<|between|>"), 0)
    assert ours.vocab_size == tokenizers["GPT"].vocab_size + 1
    check_gain_model(ExamplesConfig(gain_model=str(folder)), LIMIT, ours)


def test_a_model_that_cannot_judge_is_named_before_anything_is_read(tables, tmp_path):
    _, tokenizers = tables
    with pytest.raises(ConfigError, match=r"design\.examples\.gain_model: .* is not a folder"):
        check_gain_model(ExamplesConfig(gain_model=str(tmp_path / "none")), LIMIT)
    examples = ExamplesConfig(gain_model=str(save("GPT", tmp_path / "gpt")))
    check_gain_model(examples, LIMIT, tokenizers["GPT"])
    with pytest.raises(ConfigError, match=r"has 96 positions, fewer than the 97 tokens"):
        check_gain_model(examples, LIMIT + 1)
    small = GPTConfig(**SIZES | {"vocab_size": 100})
    huggingface.save(make_model(small), tmp_path / "small")
    with pytest.raises(ConfigError, match=r"knows 100 tokens, but the tokenizer has 3\d\d"):
        check_gain_model(
            ExamplesConfig(gain_model=str(tmp_path / "small")), LIMIT, tokenizers["GPT"]
        )
    examples = ExamplesConfig(gain_model=str(save("RoBERTa", tmp_path / "roberta")))
    with pytest.raises(ConfigError, match="the tokenizer has no mask token"):
        check_gain_model(examples, LIMIT, tokenizers["GPT"])
    headless = RobertaConfig(**SIZES, mlm_head=False)
    huggingface.save(make_model(headless), tmp_path / "headless")
    with pytest.raises(ConfigError, match="has no MLM head"):
        check_gain_model(ExamplesConfig(gain_model=str(tmp_path / "headless")), LIMIT)
