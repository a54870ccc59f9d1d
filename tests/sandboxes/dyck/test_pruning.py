"""Pruned random networks compute what their targets do, and may agree in a matrix all the same."""

import itertools
import json

import numpy as np
import pytest

from icl_jax.config import ConfigError
from icl_jax.sandboxes.dyck import pruning
from icl_jax.sandboxes.dyck.pruning import (
    ANY,
    LINEAR,
    MATRICES,
    POSITIVE,
    apply_masks,
    as_function,
    bound_error,
    bound_gap,
    choose,
    demonstrate,
    drop_idle,
    find_diagonal,
    find_largest_gap,
    matrices_of,
    prune,
    prune_pair,
    random_network,
    random_target,
    run,
    width_curve,
)

UNITS = 96


@pytest.fixture(scope="module")
def shown():
    return demonstrate(seed=0, units=UNITS, positions=3)


def torch_layer(layer, x_NE):
    """Equation 3.23 with columns for positions, as it is printed."""
    torch = pytest.importorskip("torch")
    query, key, value = (torch.tensor(matrix) for matrix in layer[:3])
    x = torch.tensor(x_NE).T
    scores = (key @ x).T @ (query @ x)
    mask = torch.tril(torch.full(scores.shape, -torch.inf, dtype=x.dtype), -1)
    attended = value @ x @ torch.softmax(scores + mask, dim=0)
    centred = attended - attended.mean(dim=0)
    normed = centred / centred.norm(dim=0).clamp(min=pruning.FLOOR)
    hidden = layer.branch * normed + (1 - layer.branch) * attended + x
    for matrix in layer.mlp[:-1]:
        hidden = torch.relu(torch.tensor(matrix) @ hidden)
    return (torch.tensor(layer.mlp[-1]) @ hidden).T.numpy()


@pytest.mark.parametrize("branch", [0.0, 0.3, 1.0])
def test_a_layer_is_that_of_the_equation(branch):
    rng = np.random.default_rng(0)
    x_BNE = rng.normal(size=(3, 5, 24)) * np.array([1.0, 0.01, 3.0])[:, None, None]
    layer = random_network(2, 8, 0)[0]._replace(branch=branch)
    expected = np.stack([torch_layer(layer, x_NE) for x_NE in x_BNE])
    np.testing.assert_allclose(run([layer], x_BNE), expected, rtol=1e-9, atol=1e-9)


def test_the_sum_chosen_is_the_nearest_of_all():
    rng = np.random.default_rng(0)
    for size, total in itertools.product((1, 2, 5, 10, 11), (-3.0, -0.4, 0.02, 0.9)):
        products = rng.uniform(-1, 1, size=size)
        subsets = itertools.product((0, 1), repeat=size)
        nearest = min(abs(np.dot(subset, products) - total) for subset in subsets)
        chosen = choose(products, total)
        assert len(set(chosen)) == len(chosen)
        assert abs(products[chosen].sum() - total) == pytest.approx(nearest, abs=1e-12)


def test_of_many_products_a_sum_is_chosen_to_a_millionth():
    rng = np.random.default_rng(0)
    for _ in range(5):
        products = rng.uniform(-1, 1, size=60)
        assert abs(products[choose(products, 0.7)].sum() - 0.7) < 1e-6


@pytest.mark.parametrize(("signs", "relu"), [(ANY, True), (POSITIVE, True), (LINEAR, False)])
def test_a_pruned_pair_computes_its_target_between_the_places_asked_for(signs, relu):
    rng = np.random.default_rng(0)
    target = rng.normal(size=(3, 2)) / 4
    first, second = rng.uniform(-1, 1, size=(2 * UNITS, 7)), rng.uniform(-1, 1, size=(5, 2 * UNITS))
    inputs, outputs = [5, 1], [4, 0, 2]
    kept = prune_pair(first, second, target, inputs, outputs, UNITS, signs)
    x = rng.normal(size=(7, 100))  # places that are not asked for must not matter
    if signs == POSITIVE:
        x = np.abs(x)
    hidden = (first * kept[0]) @ x
    found = (second * kept[1]) @ (np.maximum(hidden, 0) if relu else hidden)
    np.testing.assert_allclose(found[outputs], target @ x[inputs], atol=1e-4)
    assert not found[[1, 3]].any()
    # Every unit left reads one input and is read.
    assert kept[0].sum(axis=1).max() == 1
    np.testing.assert_array_equal(kept[0].any(axis=1), kept[1].any(axis=0))


def test_the_error_of_a_pair_bounds_that_of_any_input_and_is_reached():
    rng = np.random.default_rng(0)
    first = np.kron(np.eye(3), np.ones((4, 1))) * rng.normal(size=(12, 1))
    second, target = rng.normal(size=(2, 12)), rng.normal(size=(2, 3))
    bound = bound_error(first, second, target)
    x = rng.normal(size=(3, 20000))
    x /= np.linalg.norm(x, axis=0)
    errors = np.linalg.norm(second @ np.maximum(first @ x, 0) - target @ x, axis=0)
    assert 0.7 * bound < errors.max() <= bound


def test_width_makes_a_pair_precise_fast():
    points = width_curve(units=(24, 48, 96), networks=3)
    assert json.loads(json.dumps(points)) == points
    median = {
        units: np.median([point["error"] for point in points if point["units"] == units])
        for units in (24, 48, 96)
    }
    assert median[24] > 100 * median[48]
    assert median[48] > 10 * median[96]
    assert median[96] < 1e-5


def test_pruned_weights_are_those_of_the_random_network_or_zero():
    network = random_network(4, 32, 0)
    masks = prune(network, random_target(4, 1), 0, 32)
    for layer, mask, pruned in zip(network, masks, apply_masks(network, masks), strict=True):
        for name, weights in matrices_of(layer).items():
            kept = matrices_of(mask)[name]
            assert kept.dtype == bool and kept.shape == weights.shape
            found = matrices_of(pruned)[name]
            assert set(found[found != weights]) <= {0.0}
            np.testing.assert_array_equal(found[kept], weights[kept])
        assert pruned.branch in (0, layer.branch)


def test_dropping_idle_units_changes_nothing():
    network = random_network(4, 32, 0)
    pruned = apply_masks(network, prune(network, random_target(4, 1), 0, 32))
    x = np.random.default_rng(0).normal(size=(2, 5, 48))
    small = [drop_idle(layer) for layer in pruned]
    assert small[0].mlp[1].size < pruned[0].mlp[1].size / 100
    np.testing.assert_allclose(run(small, x), run(pruned, x), atol=1e-12)


def test_values_keep_a_diagonal_above_a_half_in_places_of_their_own():
    network = random_network(4, 8, 0)
    rows, columns = find_diagonal(network[0].value, 4)
    assert len({*rows, *columns}) == 8
    assert network[0].value[rows, columns].min() > 0.5
    with pytest.raises(ConfigError, match=r"36 values .* the largest is 0\.\d\d; take another"):
        find_diagonal(network[0].value / 2, 4)


def test_targets_have_matrices_of_norm_one():
    for matrix in matrices_of_target(random_target(4, 3)):
        assert np.linalg.norm(matrix, 2) == pytest.approx(1)


def matrices_of_target(target):
    return (target.query, target.key, target.value, *target.mlp)


def test_the_search_finds_a_gap_that_random_inputs_do_not():
    corner = np.array([0.8, -0.6, 0.0, 0.0])

    def spike(x_BND):
        return np.maximum(x_BND @ corner - 0.9, 0)[..., None] * corner

    def zero(x_BND):
        return np.zeros_like(x_BND)

    gap, x_BND = find_largest_gap(spike, zero, 4, 3, seed=0)
    assert 0.09 < gap <= 0.1 + 1e-12
    assert np.linalg.norm(x_BND, axis=-1).max() <= 1 + 1e-12


@pytest.mark.parametrize("first", [0, 2])
def test_no_gap_is_larger_than_its_bound_however_bad_the_pruning(first):
    network, target = random_network(4, UNITS, 2), random_target(4, 2)
    pruned = apply_masks(network, prune(network, target, first, UNITS))
    good = bound_gap(pruned, target, first)
    assert good < 0.01
    damages = [(first, "mlp 2"), (first, "mlp 4"), (3 - first, "mlp 3")]
    damages += [(first + 1, name) for name in ("query", "value", "mlp 1", "mlp 4")]
    for number, name in damages:
        layers = [*pruned[:number], damaged(pruned[number], name), *pruned[number + 1 :]]
        bound = bound_gap(layers, target, first)
        one, other = as_function(layers, 4), as_function([target], 4)
        gap, _ = find_largest_gap(one, other, 4, 3, seed=0, rounds=3)
        assert gap <= bound
        assert bound > 2 * good and gap > 1e-5


def damaged(layer, name):
    """The largest weight of every row is 3% larger."""
    matrices = matrices_of(layer)
    weights = matrices[name].copy()
    rows = np.flatnonzero(weights.any(axis=1))
    weights[rows, np.abs(weights[rows]).argmax(axis=1)] *= 1.03
    matrices[name] = weights
    query, key, value, *mlp = matrices.values()
    return layer._replace(query=query, key=key, value=value, mlp=tuple(mlp))


def test_both_networks_do_what_their_targets_do_and_differ_from_each_other(shown):
    assert max(shown["gaps"]) < 1e-3 < 1 < shown["disagreement"]
    for gap, bound in zip(shown["gaps"], shown["bounds"], strict=True):
        assert gap <= bound < 0.01
    example = shown["example"]
    np.testing.assert_allclose(example["pruned"], example["targets"], atol=2e-3)
    assert np.shape(example["input"]) == np.shape(example["pruned"][0]) == (3, 4)
    apart = np.linalg.norm(np.subtract(*example["pruned"]), axis=-1).max()
    size = np.linalg.norm(example["input"], axis=-1).max()
    assert apart / size == pytest.approx(shown["disagreement"])


def test_the_chosen_matrix_is_pruned_alike_and_is_not_empty(shown):
    component = shown["component"]
    assert component["same"] and component["places"][0] == component["places"][1]
    assert component["kept"][0] == len(component["places"][0]) > 50
    assert (component["layer"], component["matrix"]) == (3, "mlp 4")
    assert shown["carried_by"] == [1, 2]
    differ = {row["layer"] for row in shown["matrices"] if not row["same"]}
    assert differ == {1, 2}
    assert len(shown["matrices"]) == 4 * len(MATRICES)
    assert json.loads(json.dumps(shown)) == shown


@pytest.mark.parametrize("layer", [1, 2, 3, 4])
def test_a_matrix_of_any_layer_may_be_chosen(layer):
    found = demonstrate(seed=1, layer=layer, matrix="mlp 2", units=16, positions=2)
    assert found["component"]["same"] and found["component"]["kept"][0] > 10
    assert layer not in found["carried_by"]


def test_a_matrix_that_does_not_exist_and_too_few_units_are_refused():
    with pytest.raises(ConfigError, match=r"layer from 1 to 4 .*mlp 4; got layer 5 and 'value'"):
        demonstrate(layer=5, matrix="value")
    with pytest.raises(ConfigError, match=r"one of query.*got layer 1 and 'head'"):
        demonstrate(layer=1, matrix="head")
    with pytest.raises(ConfigError, match="at least 8 units for each input, got 4"):
        demonstrate(units=4)


def test_functions_take_inputs_of_the_dimension_of_targets():
    target = random_target(4, 0)
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    np.testing.assert_array_equal(as_function([target], 4)(x), run([target], x))
