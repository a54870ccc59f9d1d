"""The gain of a group, against losses of one passage at a time, each alone in its row."""

from pathlib import Path

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
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.example_design.gain_filter import (
    MASK_SHARE,
    check_gain_model,
    filter_groups,
    gain_file,
)
from icl_jax.example_design.gain_inputs import gain_inputs
from icl_jax.example_design.groups import GroupShard, keep_file, read_groups, read_keep
from icl_jax.example_design.layout import Marks, in_context
from icl_jax.models import huggingface
from icl_jax.sharding import make_mesh
from tests.example_design.made_up import make_tables, related_groups, running_groups, write_strategy
from tests.models.small import make_model

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


def gain_by_loops(model, kind, sentences, shard, row, tokenizer):
    """One passage at a time, alone in its row, in float64."""
    marks = Marks.of(tokenizer)
    tokens, starts = in_context(sentences, shard, row, marks)
    tokens = tokens.tolist()
    ids = shard.ids[shard.offsets[row] : shard.offsets[row + 1]]
    if len(ids) == 1:
        return 0.0
    ends = [*starts[1:], len(tokens)]
    together = apart = count = 0
    wholly, asked = list(tokens), []
    for sentence, start, end in zip(ids, starts, ends, strict=True):
        while tokens[end - 1] in marks:
            end -= 1
        if kind == "GPT":
            places = list(range(1, end - start))
        else:
            draw = np.random.RandomState(sentence).random_sample(end - start)
            places = [i for i, x in enumerate(draw) if x < MASK_SHARE or x == min(draw)]
        asked += [start + place for place in places]
        alone = ([] if kind == "GPT" else [2]) + tokens[start:end] + [0]
        shift = len(alone) - 1 - (end - start)
        apart += loss(model, kind, alone, [shift + place for place in places])
        count += len(places)
    together = loss(model, kind, wholly, asked)
    return (apart - together) / count


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
    assert not gains[alone].any() and np.abs(gains[~alone]).min() > 0
    keep = read_keep(folder, 0, len(shard))
    np.testing.assert_array_equal(keep, alone | (gains > 0.01))
    assert results["kept"] == keep.sum() and sum(results["gain_counts"]) == (~alone).sum()


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


def test_a_killed_filter_goes_on_and_another_model_is_refused(tables, tmp_path):
    sentences, tokenizers = tables
    shards = [related_groups(sentences, 5, LIMIT, seed) for seed in range(3)]
    folder = write_strategy(tmp_path / "groups", shards)
    model = save("GPT", tmp_path / "model")
    examples = ExamplesConfig(gain_model=str(model))
    results = filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizers["GPT"])
    before = [gain_file(folder, i).read_bytes() for i in range(3)]
    (folder / "gain" / "results.json").unlink()
    keep_file(folder, 1).unlink()
    stamp = gain_file(folder, 0).stat().st_mtime_ns
    assert filter_groups(folder, examples, LIMIT, mesh(), sentences, tokenizers["GPT"]) == results
    assert [gain_file(folder, i).read_bytes() for i in range(3)] == before
    assert gain_file(folder, 0).stat().st_mtime_ns == stamp
    other = ExamplesConfig(gain_model=str(save("GPT", tmp_path / "other", seed=1)))
    with pytest.raises(StageError, match=r"made from other inputs \(model"):
        filter_groups(folder, other, LIMIT, mesh(), sentences, tokenizers["GPT"])
    assert gain_inputs(other, "neighbours") != gain_inputs(examples, "neighbours") != {}
    assert gain_inputs(examples, "contiguous") == gain_inputs(ExamplesConfig(), "neighbours") == {}


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
