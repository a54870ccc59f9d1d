"""Every construction against a plain loop over the transitions."""

import dataclasses
import itertools

from flax import nnx
import jax
import numpy as np
import pytest

from icl_jax.config import GPTConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.automata import Semiautomaton, make
from icl_jax.sandboxes.automata.exact.checking import find, random_letters
from icl_jax.sandboxes.automata.exact.network import CONSTRUCTIONS, exact_network


def followed(automaton, letters_BT):
    """The states, one letter of one row at a time."""
    rows = []
    for row in letters_BT.tolist():
        state, states = automaton.start, []
        for letter in row:
            state = int(automaton.delta_SQ[letter][state])
            states.append(state)
        rows.append(states)
    return np.array(rows)


def all_strings(automaton, length):
    return np.array(list(itertools.product(range(automaton.num_letters), repeat=length)))


def moved(name, start):
    """The same automaton from another state."""
    return dataclasses.replace(make(name), name=f"{name} from {start}", start=start)


# Two resets, a rotation and two exchanges of 4 points: levels with C4, S3 and C2.
MIXED = Semiautomaton("mixed", np.array([[1, 2, 3, 0], [0, 0, 2, 3], [1, 1, 3, 3]]), 2)
# Its second level has all of S4: three steps, 6 copies.
DEEP = Semiautomaton("deep", np.array([[2, 4, 3, 0, 1], [0, 0, 0, 3, 3], [4, 2, 3, 4, 3]]), 2)
IDLE = Semiautomaton("idle", np.array([[0, 1, 2]]), 1)

SHORT = [  # all strings of this length
    ("prefix", make("C3"), 5), ("prefix", make("abab"), 7), ("prefix", moved("Grid4", 2), 8),
    ("prefix", make("D6"), 1), ("prefix", make("D6"), 2), ("prefix", make("A4"), 3),
    ("prefix", moved("A4", 5), 4),
    ("counter", make("C2"), 7), ("counter", moved("C5", 3), 4), ("counter", make("C2^3"), 3),
    ("counter", make("C2xC3"), 4), ("counter", make("C6"), 1),
    ("memory", moved("memory4", 2), 5), ("memory", make("flipflop"), 6),
    ("solvable", make("D6"), 7), ("solvable", moved("D8", 5), 7), ("solvable", make("Q8"), 5),
    ("solvable", make("A4"), 7), ("solvable", make("C4"), 4), ("solvable", IDLE, 3),
    ("reset", make("reset(C3)"), 4), ("reset", moved("reset(D6)", 4), 3),
    ("reset", make("memory4"), 4), ("reset", make("D8"), 5), ("reset", IDLE, 3),
    ("cascade", moved("Grid4", 1), 7), ("cascade", make("abab"), 7), ("cascade", MIXED, 5),
    ("cascade", make("reset(C3)"), 3), ("cascade", IDLE, 2),
    ("gridworld", make("Grid2"), 7), ("gridworld", make("Grid4"), 7),
    ("gridworld", make("Grid4+"), 5), ("gridworld", make("Grid2xGrid3"), 4),
]  # fmt: skip
LONG = [
    ("prefix", "S5", 64), ("prefix", "A5", 17), ("counter", "C8", 64), ("counter", "C2^2", 40),
    ("memory", "memory4", 64), ("solvable", "Q8", 64), ("solvable", "A4", 40),
    ("solvable", "S4", 20), ("reset", "reset(A4)", 24), ("cascade", "Grid9", 24),
    ("cascade", "random 3", 24), ("gridworld", "Grid9+", 64), ("gridworld", "Grid4xGrid4", 40),
    ("dyck", "Dyck(4,2)", 64), ("dyck", "Dyck(2,3)", 9),
]  # fmt: skip


@pytest.mark.parametrize(
    ("construction", "automaton", "length"), SHORT, ids=lambda x: getattr(x, "name", x)
)
def test_all_short_strings_are_followed_without_an_error(construction, automaton, length):
    network = exact_network(automaton, length, construction)
    letters_BT = all_strings(automaton, length)
    np.testing.assert_array_equal(network.states(letters_BT), followed(automaton, letters_BT))


@pytest.mark.parametrize(("construction", "name", "length"), LONG)
def test_random_long_strings_are_followed_without_an_error(construction, name, length):
    automaton = find(name)
    network = exact_network(automaton, length, construction)
    letters_BT = random_letters(automaton, 32, length, seed=5)
    np.testing.assert_array_equal(network.states(letters_BT), followed(automaton, letters_BT))


def test_a_level_with_a_group_of_three_steps_is_followed():
    network = exact_network(DEEP, 6, "cascade")
    letters_BT = random_letters(DEEP, 64, 6, seed=2)
    np.testing.assert_array_equal(network.states(letters_BT), followed(DEEP, letters_BT))


def test_every_construction_is_tested_here():
    assert {row[0] for row in SHORT} | {row[0] for row in LONG} == set(CONSTRUCTIONS)


def test_rows_may_be_shorter_than_the_network_is_built_for():
    automaton = make("D6")
    letters_BT = all_strings(automaton, 3)
    for construction in ("prefix", "solvable"):
        network = exact_network(automaton, 9, construction)
        np.testing.assert_array_equal(network.states(letters_BT), followed(automaton, letters_BT))


@pytest.mark.parametrize(
    ("name", "length", "construction", "layers"),
    [
        ("C5", 9, "counter", 1), ("memory4", 9, "memory", 1), ("D6", 9, "solvable", 2),
        ("D6", 2, "prefix", 1), ("S4", 9, "solvable", 3), ("reset(C3)", 9, "reset", 2),
        ("Grid9", 9, "gridworld", 2), ("Dyck(2,2)", 9, "dyck", 2), ("abab", 9, "prefix", 4),
        ("A5", 17, "prefix", 5),
    ],
)  # fmt: skip
def test_the_shallowest_construction_is_taken(name, length, construction, layers):
    network = exact_network(make(name), length)
    assert (network.construction, network.sizes()["layers"]) == (construction, layers)


@pytest.mark.parametrize(
    ("construction", "name", "length", "equal"),
    [
        ("prefix", "S5", 64, {"width", "layers"}),
        ("prefix", "Grid9", 30, {"width"}),
        ("counter", "C2", 64, {"width", "layers", "heads", "head_dim"}),
        ("counter", "C8", 64, {"width", "layers", "heads", "head_dim"}),
        ("memory", "memory4", 64, {"width", "layers", "heads"}),
        ("solvable", "D6", 20, set()), ("solvable", "S4", 20, set()), ("solvable", "Q8", 20, set()),
        ("reset", "reset(C3)", 20, set()), ("reset", "reset(D6)", 20, set()),
        ("cascade", "abab", 20, set()),
        ("gridworld", "Grid9", 20, {"layers"}),
    ],
)  # fmt: skip
def test_sizes_are_within_what_the_theorem_says(construction, name, length, equal):
    network = exact_network(make(name), length, construction)
    sizes, bounds = network.sizes(), network.bounds
    assert all(isinstance(formula, str) for _, formula in bounds.values())
    bound = {part: number for part, (number, _) in bounds.items() if number is not None}
    bound["layers"] = bound.pop("depth")
    # One head carries the sums that the lemmas give to heads of their own.
    attention = sizes["heads"] * sizes["head_dim"]
    if construction != "gridworld":
        assert attention <= bound.pop("heads", attention) * max(bound.pop("head_dim", 1), 1)
    for part, number in bound.items():
        assert sizes[part] <= number, part
    assert all(sizes[part] == bound.get(part, sizes[part]) for part in equal)


def test_the_network_of_s5_has_12_channels_and_6_layers():
    sizes = exact_network(make("S5"), 64, "prefix").sizes()
    assert (sizes["width"], sizes["layers"], sizes["mlp_layers"]) == (12, 6, 2)


def test_the_model_is_an_ordinary_gpt_in_float64():
    model = exact_network(make("C3"), 5).model
    config = model.config
    assert (config.norm, config.activation, config.position) == ("none", "relu", "learned")
    assert not config.tie_head and config.dtype == "float64"
    assert model.head.rows[...].dtype == np.float64
    with jax.enable_x64(True):
        logits, gradient = jax.value_and_grad(lambda m: m(np.zeros((1, 3), np.int32)).sum())(model)
    assert logits.dtype == np.float64
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {np.dtype("float64")}


def test_float64_needs_x64():
    config = GPTConfig(vocab_size=5, num_layers=1, embed_dim=4, num_heads=1, dtype="float64")
    with pytest.raises(ValueError, match="enable_x64"):
        GPT(config, rngs=nnx.Rngs(0))
