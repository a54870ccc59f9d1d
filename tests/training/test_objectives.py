"""Which tokens are seen, which are predicted, and with what weight."""

import jax
import numpy as np
import pytest

from icl_jax.config import RobertaConfig, TrainingConfig
from icl_jax.training.objectives import masked_token, next_token

pytestmark = pytest.mark.delicate


def test_each_token_predicts_its_follower_inside_its_group_only():
    tokens = np.array([[5, 6, 7, 8, 9, 1], [5, 6, 7, 8, 9, 3]], np.int32)
    group = np.array([[1, 1, 2, 2, 0, 0], [7, 7, 7, 7, 7, 7]], np.int32)
    task = next_token(tokens, group)
    weights = np.asarray(task.weights_BT)
    assert weights.tolist() == [[1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
    targets = np.asarray(task.targets_BT)[weights > 0].tolist()
    assert targets == [6, 8, 6, 7, 8, 9, 3]


def masked_rows(step=0, rows=64, length=512, vocab=1000):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab, (rows, length)).astype(np.int32)
    group = np.ones_like(tokens)
    group[:, -100:] = 0
    key = jax.random.fold_in(jax.random.key(3), step)
    config = TrainingConfig(mask_token_id=4, special_token_ids=(0, 2, 3, 4))
    model = RobertaConfig(vocab_size=vocab, pad_token_id=1)
    task = masked_token(tokens, group, key, config, model)
    return tokens, group, jax.tree.map(np.asarray, task)


def test_15_percent_are_chosen_and_of_those_80_10_10():
    tokens, group, task = masked_rows()
    chosen = task.weights_BT > 0
    free = (group > 0) & ~np.isin(tokens, (0, 2, 3, 4))
    # 26,000 free tokens: three standard deviations are 0.007 of the share, 0.02 of the fates.
    assert abs(chosen[free].mean() - 0.15) < 0.007
    hidden = task.inputs_BT[chosen] == 4
    kept = task.inputs_BT[chosen] == tokens[chosen]
    assert abs(hidden.mean() - 0.8) < 0.02
    assert abs(kept.mean() - 0.1) < 0.016
    replaced = task.inputs_BT[chosen][~hidden & ~kept]
    assert replaced.min() < 20 and replaced.max() > 980 and len(np.unique(replaced)) > 200


def test_special_tokens_and_padding_are_never_chosen_and_the_rest_is_unchanged():
    tokens, group, task = masked_rows()
    chosen = task.weights_BT > 0
    assert not chosen[(group == 0) | np.isin(tokens, (0, 2, 3, 4))].any()
    np.testing.assert_array_equal(task.inputs_BT[~chosen], tokens[~chosen])
    np.testing.assert_array_equal(task.targets_BT, tokens)


def test_a_random_replacement_is_never_special_and_any_other_is_as_likely():
    tokens, _, task = masked_rows(vocab=11)
    changed = (task.weights_BT > 0) & (task.inputs_BT != 4) & (task.inputs_BT != tokens)
    ids, counts = np.unique(task.inputs_BT[changed], return_counts=True)
    assert ids.tolist() == [5, 6, 7, 8, 9, 10]  # 0, 2, 3 are special, 1 is padding, 4 the mask
    # 224 of them: four standard deviations are 0.6 of an id's share; of two ids' it would be 1.
    assert counts.sum() > 200 and (abs(counts / counts.mean() - 1) < 0.6).all()


def test_masks_change_with_the_step_and_the_row_and_come_back_with_them():
    _, _, first = masked_rows(step=5)
    again, other = masked_rows(step=5)[2], masked_rows(step=6)[2]
    np.testing.assert_array_equal(first.inputs_BT, again.inputs_BT)
    assert (first.weights_BT != other.weights_BT).any()
    assert (first.weights_BT[0] != first.weights_BT[1]).any()
    fewer = masked_rows(step=5, rows=16)[2]  # a row's mask does not depend on the other rows
    np.testing.assert_array_equal(first.weights_BT[:16], fewer.weights_BT)
