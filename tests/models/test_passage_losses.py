"""Losses of packed passages, against the model on one passage at a time."""

import numpy as np
import pytest

from icl_jax.config import GPTConfig, MeshConfig, RobertaConfig
from icl_jax.models import passage_losses
from icl_jax.models.passage_losses import Passage, PassageLosses, ask, pack, row_length
from icl_jax.sharding import make_mesh
from tests.models.small import make_model

pytestmark = pytest.mark.delicate

SIZES = {"vocab_size": 37, "context_length": 16, "num_layers": 1, "embed_dim": 8, "num_heads": 2}
MASK = 3


def draw_passages(count):
    random = np.random.RandomState(0)
    for n in range(count):
        tokens = random.randint(4, 37, random.randint(1, 17)).astype(np.int32)
        yield tokens, random.random_sample(len(tokens)) < 0.5, n % 5


@pytest.mark.parametrize("kind", [GPTConfig, RobertaConfig])
def test_packed_losses_are_those_of_one_passage_at_a_time(kind):
    model, mask_id = make_model(kind(**SIZES)), MASK if kind is RobertaConfig else None
    drawn = list(draw_passages(23))
    losses = PassageLosses(model, 16, make_mesh(MeshConfig(data=8)))
    seen = []
    found = losses.losses([ask(*parts, mask_id) for parts in drawn], 5, seen.append)
    sums, counts, greedy = np.zeros(5), np.zeros(5), np.ones(5, bool)
    for tokens, chosen, owner in drawn:
        inputs, group = np.zeros((2, 1, 16), np.int32)
        inputs[0, : len(tokens)], group[0, : len(tokens)] = tokens, 1
        if mask_id is not None:
            inputs[0, : len(tokens)][chosen] = mask_id
        logits = np.asarray(model(inputs, group), np.float64)[0]
        for place in np.flatnonzero(chosen):
            at = place if mask_id is not None else place - 1
            if at >= 0:  # a GPT is never asked for the first token
                logp = logits[at] - np.log(np.exp(logits[at]).sum())
                sums[owner] -= logp[tokens[place]]
                counts[owner] += 1
                greedy[owner] &= logp.argmax() == tokens[place]
    np.testing.assert_allclose(found.sums, sums, rtol=1e-5)
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_array_equal(found.greedy, greedy)
    assert sum(seen) == len(drawn)


@pytest.mark.parametrize("remembered", [2**22, 16])  # all, one
def test_equal_passages_are_computed_once_and_score_the_same(remembered, monkeypatch):
    monkeypatch.setattr(passage_losses, "REMEMBERED_TOKENS", remembered)
    losses = PassageLosses(make_model(GPTConfig(**SIZES)), 16, None)
    rows, launch = [], losses._launch
    monkeypatch.setattr(losses, "_launch", lambda now: rows.extend(now) or launch(now))
    drawn = [(tokens, np.arange(len(tokens)) > 0) for tokens, _, _ in draw_passages(9)]
    twice = [parts for parts in drawn for _ in range(2)]  # one after the other
    passages = [ask(*parts, owner) for owner, parts in enumerate(twice + drawn)]
    found = list(losses.each(passages))
    assert [passage.owner for passage, _, _ in found] == list(range(27))
    for n in range(9):
        first = 2 * n
        np.testing.assert_array_equal(found[first][1], found[first + 1][1])
        if remembered > 16:
            np.testing.assert_array_equal(found[first][1], found[18 + n][1])
        np.testing.assert_allclose(found[first][1], found[18 + n][1], rtol=1e-5)
    computed = [passage.owner for row in rows for passage in row]
    assert computed == [*range(0, 18, 2), *(range(18, 27) if remembered == 16 else ())]


def test_passages_that_differ_in_what_is_asked_keep_their_own_losses():
    tokens = np.arange(4, 14, dtype=np.int32)
    chosen = np.arange(10) > 0, np.arange(10) > 6
    losses = PassageLosses(make_model(GPTConfig(**SIZES)), 16, None)
    (_, everything, _), (_, end, _) = losses.each([ask(tokens, c, 0) for c in chosen])
    np.testing.assert_array_equal(everything[-3:], end)
    first = ask(tokens, chosen[0], 0)
    found = losses.losses([first, first._replace(targets=first.targets + np.int32(1), owner=1)], 2)
    assert found.sums[0] != found.sums[1]


def test_the_likeliest_tokens_are_marked_as_greedy():
    model = make_model(GPTConfig(**SIZES))
    tokens = [5]
    for _ in range(6):
        row = np.zeros((1, 16), np.int32)
        row[0, : len(tokens)] = tokens
        group = (np.arange(16) < len(tokens)).astype(np.int32)[None]
        tokens.append(int(np.asarray(model(row, group))[0, len(tokens) - 1].argmax()))
    greedy = np.array(tokens, np.int32)
    other = greedy.copy()
    other[3] = (other[3] + 1) % 37
    rest = np.arange(len(greedy)) > 0
    found = PassageLosses(model, 16, None).losses([ask(greedy, rest, 0), ask(other, rest, 1)], 2)
    assert found.greedy.tolist() == [True, False]


def test_a_passage_longer_than_a_row_is_refused():
    tokens = np.zeros(17, np.int32)
    with pytest.raises(ValueError, match="a passage has 17 tokens, but a row only 16"):
        list(pack([Passage(tokens, tokens, tokens > 0, 0)], 16))


def test_rows_have_few_lengths():
    assert [row_length(n, 1000) for n in (1, 128, 129, 900)] == [128, 128, 256, 1000]
    assert row_length(5, 64) == 64
