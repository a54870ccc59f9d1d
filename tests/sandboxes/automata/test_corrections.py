"""What the printed proofs of Liu 2024, 3.4 get wrong: their form fails, and ours holds."""

import dataclasses
import itertools

import numpy as np
import pytest

from icl_jax.sandboxes.automata import Semiautomaton, algebra, make
from icl_jax.sandboxes.automata.exact.assembly import assemble
from icl_jax.sandboxes.automata.exact.checking import random_letters
from icl_jax.sandboxes.automata.exact.gadgets import FeedForward, Form, turned
from icl_jax.sandboxes.automata.exact.network import CONSTRUCTIONS, ExactNetwork, exact_network


def relu(x):
    return np.maximum(x, 0.0)


def value_of(mlp, form, channels):
    """A form on a feed-forward layer, from the values of its channels."""
    values = dict(channels)
    for level, units in enumerate(mlp.levels, 1):
        for place, unit in enumerate(units):
            values[level, place] = relu(total(unit, values))
    return total(form, values)


def total(form, values):
    return form.constant + sum(factor * values[key] for key, factor in form.terms.items())


def errors(automaton, draft, letters_BT):
    """Which states a draft, perhaps changed, gets wrong."""
    pads = tuple(draft.pad_tokens.tolist())
    network = ExactNetwork(automaton, "", draft.length, assemble(draft, "float64"), pads, {})
    return network.states(letters_BT) != automaton.run(letters_BT)


# Gadgets.


@pytest.mark.parametrize("length", [3, 8, 64])
def test_proposition_2_has_its_inequality_reversed(length):
    t = 2 * np.pi * np.arange(length) / length
    products = np.cos(t[:, None] - t)[~np.eye(length, dtype=bool)]
    assert products.max() > 1 - 2 * np.pi**2 / length**2  # printed: at most that
    assert products.max() <= 1 - 8 / length**2 + 1e-12


@pytest.mark.parametrize("count", [2, 3, 5])
def test_lemma_11_has_a_bias_that_makes_conjunction_0(count):
    ones = np.ones(count)
    assert relu(ones.sum() - count) == 0  # printed: bias -d_in
    mlp, channels = FeedForward(), {str(n): 1.0 for n in range(count)}
    unit = mlp.both([Form({name: 1.0}) for name in channels])
    assert value_of(mlp, unit, channels) == 1
    assert value_of(mlp, unit, {**channels, "0": 0.0}) == 0


def test_lemma_12_has_a_threshold_that_noise_gets_through():
    gap, noisy = 1.0, 0.75  # the least value that must count as above 0, less gap / 4
    printed = relu((noisy + gap) / (2 * gap)) - relu((noisy - gap) / (2 * gap))
    assert printed == 0.875
    ours = relu((noisy + gap / 2) / gap) - relu((noisy - gap / 2) / gap)
    assert ours == 1
    mlp = FeedForward()
    step = mlp.step(Form({"x": 1.0}), 1)
    assert value_of(mlp, step, {"x": 0.75}) == 1
    assert value_of(mlp, step, {"x": 0.25}) == 0


# Theorem 10: the prefix construction.


def prefix_draft():
    automaton = make("D6")
    letters_BT = np.array(list(itertools.product(range(2), repeat=8)))
    return automaton, CONSTRUCTIONS["prefix"](automaton, 8), letters_BT


def test_theorem_10_must_copy_the_right_channels():
    automaton, draft, letters_BT = prefix_draft()
    assert not errors(automaton, draft, letters_BT).any()
    for layer in draft.layers:
        (head,) = layer.heads
        head.reads = [(to, to, factor) for _, to, factor in head.reads]  # printed: W_V reads L
    assert errors(automaton, draft, letters_BT).any()


def test_theorem_10_turns_the_keys_the_wrong_way():
    automaton, draft, letters_BT = prefix_draft()
    for layer, back in zip(draft.layers, (1, 2, 4), strict=True):
        (head,) = layer.heads
        head.key = turned(*head.query, -np.pi * back / 8)  # printed: it looks ahead
    assert errors(automaton, draft, letters_BT).any()


def test_theorem_10_cannot_be_read_at_an_arbitrary_state():
    automaton, draft, letters_BT = prefix_draft()
    names, one, codes = draft.readout
    assert names == [f"R{automaton.start}"]
    draft.readout = [f"R{automaton.start + 1}"], one, codes
    wrong_BT = errors(automaton, draft, letters_BT)
    assert not wrong_BT[:, :-1].any()  # a pad, which goes to the start, takes part
    assert wrong_BT[:, -1].any()  # at t = T there is none


# Lemmas 15 and 16: counter and memory.


def test_lemma_15_takes_half_of_the_sum_and_leaves_out_the_start():
    automaton = dataclasses.replace(make("C5"), start=3)
    letters_BT = random_letters(automaton, 20, 8, seed=0)
    sums_BT = np.cumsum(letters_BT, axis=1)
    s_BT = sums_BT / (2 * 8)  # the output of the attention
    states_BT = automaton.run(letters_BT)
    assert (np.floor(8 * s_BT) % 5 != sums_BT % 5).any()  # printed: Ts mod n
    assert (2 * 8 * s_BT % 5 == sums_BT % 5).all()
    assert (sums_BT % 5 != states_BT).any()  # without q0
    network = exact_network(automaton, 8, "counter")
    np.testing.assert_array_equal(network.states(letters_BT), states_BT)


@pytest.mark.parametrize(("factor", "found"), [(1, 0.5), (2, 1.0)])
def test_lemma_16_needs_2_where_the_text_has_1_or_the_start_ties_at_the_end(factor, found):
    length, idle = 8, np.array([0.0] + [1.0] * 8)  # a start token, then only no-ops
    place = np.arange(length + 1) / length
    scores = length * np.log(16 * 4 * length) * (place - factor * idle)
    weights = np.exp(scores - scores.max())
    assert weights[0] / weights.sum() == pytest.approx(found, abs=0.02)  # at t = T


# Lemma 20 and the wreath product.


def test_lemma_20_needs_a_token_that_resets_to_the_start():
    automaton = dataclasses.replace(make("reset(A4)"), start=5)
    group, start = algebra.group(automaton), automaton.start
    letters_BT = random_letters(make("A4"), 18, 24, seed=0)  # no reset at all: 432 states
    printed_BT, elements_B = np.empty_like(letters_BT), np.zeros(18, int)
    moves = [group.numbers[tuple(move)] for move in automaton.delta_SQ[:2].tolist()]
    for t in range(24):
        elements_B = group.product_EE[np.array(moves)[letters_BT[:, t]], elements_B]
        # No place is a reset, so the last place wins, and g_<=t g_<=t^-1 is the identity.
        undone = group.product_EE[elements_B, group.inverse_E[elements_B]]
        printed_BT[:, t] = group.maps_EQ[undone, start]
    states_BT = automaton.run(letters_BT)
    assert (printed_BT == start).all() and (printed_BT != states_BT).sum() > 300
    draft = CONSTRUCTIONS["reset"](automaton, 24)
    assert not errors(automaton, draft, letters_BT).any()
    draft.channels["reset"].pads[:] = 0  # ours without the reset is wrong too
    assert errors(automaton, draft, letters_BT).any()


def test_lemma_20_has_too_few_dimensions_for_its_parts():
    automaton = make("reset(D6)")
    order = algebra.group(automaton).order
    stated = order + automaton.num_states + 4
    parts = 2 * order + 2 * order + 4  # sim_G.dim + sim_G.repDim + sim_M.dim, theorem 16
    assert stated < parts
    width = exact_network(automaton, 8, "reset").sizes()["width"]
    assert stated < width <= parts


def test_equation_3_1_loses_h():
    def multiply(x, y, keep):
        (g, h), (k, i) = x, y
        moved = tuple(g[(n + i) % 2] for n in range(2))
        return tuple((a + b) % 2 for a, b in zip(moved, k, strict=True)), (h + i) % 2 if keep else 0

    def reached(keep):  # C2 wr C2, from (g1, g2, h) = (1, 0, e) and (e, e, h)
        found = {((0, 0), 0)}
        while True:
            more = found | {multiply(x, y, keep) for x in found for y in (((1, 0), 0), ((0, 0), 1))}
            if more == found:
                return len(found)
            found = more

    assert reached(keep=True) == 2**2 * 2  # |N|^|H| |H|
    assert reached(keep=False) == 2**2  # printed: the last part of a product is e_H


# Theorem 12: the gridworld.


def walks(length=10, states=4):
    """All inputs: prefix sums from 0 through `states` - 1 steps down, and the states."""
    letters_BT = np.array(list(itertools.product((0, 1), repeat=length)))
    steps_BT = np.concatenate(
        [np.full((len(letters_BT), states - 1), -1), 2 * letters_BT - 1], axis=1
    )
    sums_BT = np.concatenate([np.zeros((len(letters_BT), 1), int), steps_BT.cumsum(axis=1)], axis=1)
    return letters_BT, sums_BT, make(f"Grid{states}").run(letters_BT)


def window(sums, states):
    """The last run of sums that has as many values as there are states; None if there is none."""
    for start in range(len(sums) - 1, -1, -1):
        if len(set(sums[start:])) == states:
            return start
    return None


def test_theorem_12_has_heads_that_do_not_fall_back_on_t():
    _, sums_BT, _ = walks(length=6)
    last = sums_BT.shape[1] - 1
    unmatched = elsewhere = 0
    for sums in sums_BT:
        for shift in (-3, -2, -1, 1, 2, 3):
            goal = sums[-1] + shift
            if goal not in sums:
                angles = np.pi * (sums - goal) / (2 * len(sums))
                order = np.cos(angles) + 1e-6 * np.arange(len(sums))  # the later of equal ones
                unmatched += 1
                elsewhere += int(np.argmax(order) != last)
    assert elsewhere > unmatched / 4  # printed (lemma 23, eq. 3.5): all of them select t
    automaton = make("Grid4")
    letters_BT = np.array(list(itertools.product((0, 1), repeat=6)))
    network = exact_network(automaton, 6, "gridworld")
    np.testing.assert_array_equal(network.states(letters_BT), automaton.run(letters_BT))


def test_theorem_12_is_wrong_without_the_penalty_on_other_values():
    automaton = make("Grid4")
    letters_BT = np.array(list(itertools.product((0, 1), repeat=7)))
    draft = CONSTRUCTIONS["gridworld"](automaton, 7)
    assert not errors(automaton, draft, letters_BT).any()
    for head in draft.layers[1].heads:  # values are times alone: unmatched heads count too
        ((value, channel, sign),) = head.reads
        head.reads = [(Form({"place": value.terms["place"]}), channel, sign)]
    for n, unit in enumerate(draft.layers[1].mlp.levels[0]):
        unit.terms.pop("sum 0")
        unit.constant = 0.5 if n % 2 == 0 else -0.5
    assert errors(automaton, draft, letters_BT).any()


def test_algorithm_1_has_two_branches_that_coincide():
    _, sums_BT, states_BT = walks()
    for sums, states in zip(sums_BT, states_BT, strict=True):
        kept = sums[window(sums, 4) :]
        if_lower = sums[-1] - kept.min()
        if_upper = sums[-1] - kept.max() + 3
        assert if_lower == if_upper == states[-1]


def test_theorem_12_adds_a_constant_where_nothing_is_to_be_added():
    top = 3
    _, sums_BT, states_BT = walks()
    for sums, states in zip(sums_BT, states_BT, strict=True):
        s = sums[window(sums, top + 1) :].min() - sums[-1] + top  # the window of heads s to s + S
        assert top - s == states[-1]
        assert 2 * top + 1 - s > top  # printed, if the last end was the upper one: no state at all


def test_algorithm_1_needs_pads_and_the_sum_before_them():
    sums = np.array([0, -1, -2, -3, -2])  # three steps down, then one up
    assert window(sums, 4) == 0
    assert window(sums[1:], 4) is None  # printed: sums start after the first step
    assert window(np.array([0, 1]), 4) is None  # and without pads there is none at all


# Remarks.


def test_footnote_17_the_smallest_non_solvable_automaton_has_5_states_not_60():
    a5 = Semiautomaton("A5 on its points", make("A5").point_delta_SP)
    assert (a5.num_states, algebra.group(a5).solvable) == (5, False)
    # On 4 points all groups are within S4, which is solvable.
    assert algebra.generate([(1, 2, 3, 0), (1, 0, 2, 3)], 4).solvable


def test_the_smallest_extension_that_does_not_split_is_c4_not_q8():
    group = algebra.group(make("C4"))
    orders = {}
    for element in range(1, group.order):
        product, order = element, 1
        while product:
            product, order = group.product_EE[element, product], order + 1
        orders[element] = order
    assert sorted(orders.values()) == [2, 4, 4]  # one involution: C2 has no complement
    assert group.order < algebra.group(make("Q8")).order


def test_line_2864_has_an_output_of_abab_that_its_own_rule_never_gives():
    automaton = make("abab")
    text = np.array([["ab".index(letter) for letter in "abababaaabab"]])
    assert "".join(map(str, automaton.run(text)[0])) == "012301244444"  # as printed
    letters_BT = np.array(list(itertools.product((0, 1), repeat=9)))
    outputs = {"".join(map(str, row)) for row in (automaton.run(letters_BT) == 3).astype(int)}
    assert "000100010" in outputs  # of ababababa, as printed
    assert "000111111" not in outputs  # printed: of a string that enters the sink at 5
    assert "000100000" in outputs
