from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.dyck import Dyck
from icl_jax.sandboxes.dyck.contrast import fixed_before, nested_before
from icl_jax.sandboxes.dyck.language import EMPTY, START
from icl_jax.sandboxes.dyck.trained import (
    FAR,
    NEAR,
    Training,
    accuracies,
    check,
    make_count,
    make_draw,
    make_loss,
    train,
)
from icl_jax.sandboxes.dyck.variation import random_variation, top_places, variation

LANGUAGE = Dyck(2, 3)
SMALL = {
    "depth": 3, "length": 8, "width": 7, "examples": 40, "steps": 3, "batch": 6, "seeds": 2,
    "longest": 40, "test_rows": 16,
}  # fmt: skip


def rows(count=5, length=9, seed=5):
    return np.asarray(LANGUAGE.sample(jax.random.key(seed), count, length).tokens_BT)


def test_nested_pairs_come_between_start_and_the_row():
    tokens_BT = rows(200)
    longer_BP, first_B = (
        np.asarray(x) for x in nested_before(LANGUAGE, jax.random.key(0), tokens_BT)
    )
    pairs = (first_B - 1) // 2
    assert set(pairs.tolist()) == {1, 2, 3}
    assert np.bincount(pairs)[1:].min() > 40  # uniform
    seen = set()
    for tokens, longer, first, count in zip(tokens_BT, longer_BP, first_B, pairs):
        inserted = longer[1:first]
        kinds = inserted[:count] - 1
        np.testing.assert_array_equal(inserted, LANGUAGE.nested(kinds))
        np.testing.assert_array_equal(longer[first : first + 9], tokens[1:])
        assert (longer[first + 9 :] == START).all() and longer[0] == START
        LANGUAGE.check(longer[None, : first + 9])
        seen.add(tuple(kinds.tolist()))
    assert len(seen) == 2 + 4 + 8  # all types at all depths


def test_the_fixed_prefix_has_every_bracket_and_one_more_pair_before_start():
    tokens_BT, seen = rows(4), set()
    for n in range(60):
        longer_BP, first_B = fixed_before(LANGUAGE, jax.random.key(n), tokens_BT)
        longer_BP, first = np.asarray(longer_BP), int(first_B[0])
        assert first == 2 * 2 * 3 + 2 + 1
        np.testing.assert_array_equal(longer_BP[:, first - 1 :], tokens_BT)
        prefix = longer_BP[0, : first - 1]
        text = "".join(LANGUAGE.symbols[token] for token in prefix)
        assert Dyck(2, 4).read(text)[-1] == prefix[-1] and text.count("[") + text.count("(") == 7
        seen.add(text)
    assert seen == {
        "[][[[]]]((()))", "[[][[]]]((()))", "[[[][]]]((()))", "[[[]]]()((()))", "[[[]]](()(()))",
        "[[[]]]((()()))",
    }  # fmt: skip


def test_a_batch_is_of_the_examples_and_its_targets_are_what_is_learnt():
    training = Training(**SMALL)
    examples = training.language.sample(jax.random.key(1_000_001), 40, 8)
    known = set(map(tuple, np.asarray(examples.tokens_BT).tolist()))
    task = make_draw(training)(jax.random.key(3)).task
    tokens_BT = np.asarray(task.inputs_BT)
    assert set(map(tuple, tokens_BT.tolist())) <= known
    np.testing.assert_array_equal(task.targets_BT[:, :-1], tokens_BT[:, 1:])
    closes = (tokens_BT[:, 1:] >= 3).astype(float)
    np.testing.assert_array_equal(task.weights_BT, np.pad(closes, ((0, 0), (0, 1))))
    task = make_draw(Training(**SMALL | {"learn": "all"}))(jax.random.key(3)).task
    np.testing.assert_array_equal(task.weights_BT, np.pad(np.ones((6, 8)), ((0, 0), (0, 1))))
    task = make_draw(Training(**SMALL | {"learn": "copy"}))(jax.random.key(3)).task
    np.testing.assert_array_equal(task.targets_BT, task.inputs_BT)
    np.testing.assert_array_equal(task.weights_BT, np.pad(np.ones((6, 8)), ((0, 0), (1, 0))))


@pytest.mark.parametrize("prefix", ["nested", "fixed"])
def test_the_contrastive_term_is_the_mean_square_of_what_pairs_change(prefix):
    training = Training(**SMALL | {"contrast": 0.7, "prefix": prefix})
    model = training.start(nnx.Rngs(0))
    for part in (model.query, model.key, model.value):
        part.kernel[...] *= 40
    batch = make_draw(training)(jax.random.key(3))
    logits_BTV = np.asarray(model(batch.task.inputs_BT), np.float64)
    after = []
    for longer, first in zip(np.asarray(batch.longer_BP), np.asarray(batch.first_B)):
        after.append(np.asarray(model(longer[None, : first + 8]), np.float64)[0, first:])
    closing = np.asarray(batch.task.weights_BT) > 0
    log_p = logits_BTV - np.log(np.exp(logits_BTV).sum(axis=-1, keepdims=True))
    target = np.take_along_axis(log_p, np.asarray(batch.task.targets_BT)[..., None], -1)[..., 0]
    contrast = np.mean((np.array(after) - logits_BTV[:, 1:]) ** 2)
    assert contrast > 1e-3
    found = make_loss(training)(model, batch, None, jnp.int32(0))
    assert float(found) == pytest.approx(-target[closing].mean() + 0.7 * contrast, rel=1e-3)


def test_without_positions_pairs_before_start_do_as_pairs_after_it():
    training = Training(**SMALL)
    model = training.start(nnx.Rngs(1))
    tokens, pairs = rows(1, 8)[0], LANGUAGE.nested([0, 1])
    before = model(np.concatenate([pairs, tokens])[None])[0, 5:]
    after = model(np.concatenate([[START], pairs, tokens[1:]])[None])[0, 5:]
    np.testing.assert_allclose(before, after, atol=1e-5)


def test_the_three_accuracies_are_counted_where_a_bracket_is_open():
    tokens_BT = np.array([LANGUAGE.read(text) for text in ("[()]()", "(()[])")])
    top_BT = LANGUAGE.check(tokens_BT)
    # What is said of the closings ] and ) after each token: right, unsure, wrong.
    share = {"right": 0.9, "unsure": 0.6, "wrong": 0.1}
    said = [
        ["wrong", "right", "wrong", "unsure", "wrong", "right", "right"],
        ["right", "unsure", "right", "wrong", "right", "right", "wrong"],
    ]
    logits = np.full((*tokens_BT.shape, 5), 9.0)  # openings and START do not matter
    for (row, place), top in np.ndenumerate(top_BT):
        p = share[said[row][place]]
        logits[row, place, 3:] = np.log([p, 1 - p] if top == 0 else [1 - p, p])
    table = jnp.asarray(logits, jnp.float32)
    model = lambda tokens_BT: table  # noqa: E731
    counts = make_count(LANGUAGE, tokens_BT[None], top_BT[None])(model)
    counts = jax.tree.map(lambda x: np.asarray(x)[None], counts)
    asked = [(r, t) for r in (0, 1) for t in range(7) if top_BT[r, t] != EMPTY]
    after = [(r, t) for r, t in asked if tokens_BT[r, t] >= 3]
    hits = lambda places, kinds: np.mean([said[r][t] in kinds for r, t in places])  # noqa: E731
    found = accuracies(counts, 1, 6)
    assert found["all"][0] == pytest.approx(hits(asked, ("right", "unsure")))
    assert found["after_closings"][0] == pytest.approx(hits(after, ("right", "unsure")))
    assert found["sure"][0] == pytest.approx(hits(asked, ("right",)))
    later = [(r, t) for r, t in asked if t >= 3]
    assert accuracies(counts, 3, 6)["sure"][0] == pytest.approx(hits(later, ("right",)))


def test_variation_is_the_mean_over_all_pairs_of_seeds():
    maps = np.random.default_rng(0).dirichlet(np.ones(6), (5, 6))
    pairs = [np.sum((maps[a] - maps[b]) ** 2) for a in range(5) for b in range(a)]
    assert variation(maps) == pytest.approx(np.mean(pairs))


def test_random_rows_vary_as_much_as_their_variance_says():
    random, queries = np.random.default_rng(0), 9
    maps = np.zeros((4000, queries, queries))
    for n in range(1, queries + 1):
        maps[:, n - 1, :n] = random.dirichlet(np.ones(n), 4000)
    assert variation(maps) == pytest.approx(random_variation(queries), rel=0.02)
    assert [round(random_variation(n), 2) for n in (15, 16, 17)] == [2.89, 3.0, 3.1]


def test_the_top_of_the_stack_is_the_opening_that_closes_next():
    language = Dyck(2, 4)
    shown = language.every_bracket()
    assert "".join(language.symbols[t] for t in shown[0]) == "·[[[[]]]](((())))"
    tokens_1T = language.read("[(())[")[None]
    assert top_places(language, tokens_1T)[0].tolist() == [-1, 1, 2, 3, 2, 1, 6]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"network": "gpt", "position": "linear", "uniform": True},
        {"network": "gpt", "learn": "copy"},
    ],
)
def test_a_training_says_everything_of_every_seed(fields, tmp_path):
    found = train(tmp_path, **SMALL | fields)
    assert np.shape(found["attention"]) == (2, 13, 13) and found["shown"] == "·[[[]]]((()))"
    np.testing.assert_allclose(np.sum(found["attention"], axis=-1), 1, atol=1e-3)
    if "uniform" in fields:
        equal = np.tril(np.ones((13, 13))) / np.arange(1, 14)[:, None]
        np.testing.assert_allclose(found["attention"], [equal, equal], atol=1e-4)
    assert found["variation"] >= 0 and len(found["on_top"]) == 2
    assert not list(tmp_path.glob("unfinished*"))
    if fields.get("learn") == "copy":
        assert len(found["tests"][NEAR]["copied_without_attention"]) == 2
        assert np.shape(found["on_closings"]) == (2, 2)
        return
    for test in (NEAR, FAR):
        for values in found["tests"][test].values():
            assert len(values) == 2 and all(0 <= value <= 1 for value in values)
    assert np.shape(found["by_length"]["after_closings"]) == (2, len(found["by_length"]["length"]))
    assert ("violation" in found) == ("network" not in fields)
    if "violation" in found:
        assert all(0 < b <= m for b, m in zip(found["violation"], found["largest_violation"]))


def test_a_network_with_a_minimal_first_layer_learns_to_close_brackets(tmp_path):
    fields = SMALL | {"width": 20, "examples": 500, "batch": 50, "steps": 150}
    found = train(tmp_path, **fields)
    assert min(found["tests"][NEAR]["after_closings"]) > 0.97
    assert min(found["tests"][NEAR]["all"]) > 0.97


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"network": "lstm"}, "network must be minimal or gpt, got 'lstm'"),
        ({"learn": "openings"}, "learn must be closings or all or copy, got 'openings'"),
        ({"prefix": "random"}, "prefix must be nested or fixed"),
        ({"form": "one-hot"}, "form must be pairs or types and depths or types and angles"),
        ({"position": "linear"}, "a minimal first layer has no positions; set position='none'"),
        ({"network": "gpt", "position": "rotary"}, "position must be none or linear"),
        ({"network": "gpt", "learn": "copy", "contrast": 0.3}, "set contrast=0"),
        ({"network": "minimal", "learn": "copy"}, "copying needs network='gpt'"),
        ({"types": 1}, "balance is between 2 types and 2 depths at least, got 1 and 4"),
        ({"seeds": 1}, "seeds must be at least 2 to compare them, got 1"),
        ({"opening": 1.5}, "probability of an opening"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        check(Training(**fields))
