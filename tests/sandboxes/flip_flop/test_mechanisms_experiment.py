"""The experiment on the mechanisms: its report says what the numbers say, and its points run."""

import copy
import json
import math

from flax import nnx
import jax
from matplotlib.figure import Figure
import numpy as np
import pytest

from icl_jax.config import GPTConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.flip_flop.experiments import EXPERIMENTS, long_rows, mechanisms
from icl_jax.sandboxes.flip_flop.experiments.long_rows import KINDS, first_failure, proof_row

NOOP, ZERO, ONE = range(3)


def as_published():
    """No errors from c = 1.5 T on, ranges that only ALiBi widens, failures where predicted."""
    sharpness = (1.0, 1.5, 4.0)
    found = [
        {"rows_of": name, "sharpness": c, "rows": 10, "reads": 20, "errors": 7 * (c == 1.0),
         "off": (0.5 if c > 1 else 2.5) * math.exp(-c)}
        for name in ("all strings of 8", "FFL(0.8) of 64") for c in sharpness
    ]  # fmt: skip
    sizes = {"layers": 2, "heads": 1, "width": 7}
    results = {"exact network": {"sizes": sizes, "found": found}}
    for name, widening in (("no positions", 0.0), ("ALiBi", 2.0)):
        lengths = [
            {"length": n, "score_range": np.full((2, 2, 4), 3 + widening * k).tolist(),
             "weight": np.full((2, 2, 4), 0.2 / (k + 1)).tolist()}
            for k, n in enumerate((64, 128))
        ]  # fmt: skip
        results[f"dilution, {name}"] = {"losses": [[0.1]] * 2, "lengths": lengths}
    results["margin of hard attention"] = {
        "losses": [[0.5, 0.01]] * 2,
        "networks": [
            {"kappa": kappa, "rows": [
                {"row": kind, "write": write, "predicted": predicted, "found": found}
                for kind, (predicted, found) in zip(KINDS, lengths) for write in (1, 2)
            ]}
            for kappa, lengths in (
                (0.4, ((30, 30), (None, None))), (-0.2, ((5000, None), (50, 50)))
            )
        ],
    }  # fmt: skip
    return results


def claims(results):
    return EXPERIMENTS["mechanisms"].report("mini", results).claims


def test_all_claims_hold_of_results_as_published():
    assert [claim.holds for claim in claims(as_published())] == [True] * 10


def test_every_claim_fails_of_results_that_contradict_it():
    results = as_published()
    for each in results["exact network"]["found"]:
        each["errors"], each["off"] = int(each["sharpness"] > 1), 1.0
    for name in ("no positions", "ALiBi"):
        for each in results[f"dilution, {name}"]["lengths"]:
            each["weight"] = np.full((2, 2, 4), 0.9).tolist()
            each["score_range"] = np.full((2, 2, 4), 3.0).tolist()
    for network in results["margin of hard attention"]["networks"]:
        for row in network["rows"]:
            row["predicted"], row["found"] = None, None
        network["rows"][0]["predicted"] = 30
    assert [claim.holds for claim in claims(results)] == [False] * 10


def test_without_a_network_of_one_sign_its_case_cannot_be_told():
    results = as_published()
    del results["margin of hard attention"]["networks"][1]
    case = next(claim for claim in claims(results) if claim.claim.startswith("kappa < 0"))
    assert case.holds is None and case.measured.startswith("0 networks")


@pytest.mark.parametrize(
    ("predicted", "found", "agrees"),
    [
        (30, 30, True), (30, 31, True), (30, 32, False), (30, None, False), (None, 30, False),
        (None, None, True), (5000, None, True), (5000, 900, False),
    ],
)  # fmt: skip
def test_a_prediction_is_right_if_the_failure_is_there_or_beyond_what_was_tried(
    predicted, found, agrees
):
    results = as_published()
    margin = results["margin of hard attention"]
    margin["networks"][0]["rows"][0] |= {"predicted": predicted, "found": found}
    assert claims(results)[-1].holds == agrees


def test_one_wrong_read_is_counted_against_the_exact_network():
    results = as_published()
    results["exact network"]["found"][-1]["errors"] = 1
    first = claims(results)[0]
    assert not first.holds and first.measured == "1 of 80 reads wrong"


def test_the_report_shows_what_the_range_of_scores_allows():
    results = as_published()
    found = EXPERIMENTS["mechanisms"].report("mini", results)
    allowed = 1 / (1 + 127 * math.exp(-3))  # of softmax with one score 3 above all others
    (line,) = (x for x in found.text.splitlines() if x.startswith("| no positions | 2 | 128 |"))
    assert f"| {1 + math.exp(3):.3g} (" in line and f"| {allowed:.3g} (" in line
    assert "| 64 | 2.07 | 3.17 | 4.37 |" in found.text  # (ln 63 + ln odds) / 2
    assert "| never, > 1,000 |" in found.text and "| 5000, > 1,000 |" in found.text
    json.dumps(found.results, allow_nan=False)


def test_the_figure_is_drawn_with_and_without_failures():
    results = as_published()
    for found in (results, copy.deepcopy(results)):
        figure = Figure()
        EXPERIMENTS["mechanisms"].report("mini", found).draw(figure)
        figure.canvas.draw()
        for network in results["margin of hard attention"]["networks"]:
            for row in network["rows"]:
                row["found"] = None
        assert len(figure.axes) == 3


# The points.


def random_head():
    """One head of large random weights, linear positions."""
    config = GPTConfig(
        vocab_size=3, context_length=7, num_layers=1, embed_dim=6, num_heads=1, mlp_dim=7,
        norm="none", position="linear",
    )  # fmt: skip
    graphdef, state = nnx.split(GPT(config, rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(4)
    state = jax.tree.map(lambda x: 0.7 * rng.standard_normal(x.shape).astype(np.float32), state)
    return nnx.merge(graphdef, state)


def test_the_scores_of_the_last_token_give_the_weights_of_the_model():
    model = random_head()
    letters_T = np.random.default_rng(5).integers(0, 3, 17).astype(np.int32)
    weights_TS = np.asarray(model.attention_weights(letters_T[None]))[0, 0, 0]
    scores = long_rows._last_scores(model)
    for t in (0, 5, 16):
        # The model divides scores by the root of head_dim.
        raised = np.exp(scores(letters_T[: t + 1]) / 6**0.5)
        np.testing.assert_allclose(raised / raised.sum(), weights_TS[t, : t + 1], atol=1e-5)


def test_the_rows_are_those_of_the_proof():
    one, right = proof_row("one write", 5, ZERO, ONE)
    assert one.tolist() == [ZERO, NOOP, NOOP, NOOP, NOOP] and right == 0
    two, right = proof_row("two writes", 5, ZERO, ONE)
    assert two.tolist() == [ONE, NOOP, NOOP, ZERO, NOOP] and right == 3


def test_the_first_failure_is_where_the_largest_weight_of_the_model_leaves_the_write():
    model, found = random_head(), []
    for kind, shortest in zip(KINDS, (2, 3), strict=True):
        for write, other in ((ZERO, ONE), (ONE, ZERO)):
            expected = None
            for length in range(shortest, 10):
                letters_T, right = proof_row(kind, length, write, other)
                padded = np.append(letters_T, [NOOP] * (10 - length)).astype(np.int32)
                weights_TS = np.asarray(model.attention_weights(padded[None]))[0, 0, 0]
                if weights_TS[length - 1].argmax() != right:
                    expected = length
                    break
            found.append(first_failure(model, kind, write, other, 9))
            assert found[-1] == expected
    assert any(found)


def test_heads_are_trained_and_their_failures_predicted_and_found(tmp_path):
    found = long_rows.fail(
        tmp_path, length=8, longest=40, width=8, noop=0.5, steps=30, batch=8, seeds=2
    )
    assert len(found["networks"]) == 2 and not list(tmp_path.glob("*.npz"))
    for network in found["networks"]:
        assert [row["row"] for row in network["rows"]] == [*KINDS, *KINDS]
        for row in network["rows"]:
            if row["found"]:
                assert abs(row["found"] - row["predicted"]) <= 1
            else:
                assert row["predicted"] is None or row["predicted"] > 39
    json.dumps(found, allow_nan=False)


def test_networks_are_trained_and_their_heads_read_on_longer_rows(tmp_path):
    point = next(p for p in mechanisms.points("mini") if p.name == "dilution, no positions")
    small = {"length": 8, "lengths": [8, 16], "rows": 4, "width": 8, "heads": 2, "steps": 10,
             "batch": 4}  # fmt: skip
    found = point.work(tmp_path, **json.loads(json.dumps(point.arguments)) | small)
    for each, keys in zip(found["lengths"], (7, 15), strict=True):
        ranges, weights = np.array(each["score_range"]), np.array(each["weight"])
        assert ranges.shape == weights.shape == (2, 2, 2)
        assert (weights >= 1 / keys - 1e-6).all()
        assert (weights <= 1 / (1 + (keys - 1) * np.exp(-ranges)) + 0.02).all()
    json.dumps(found, allow_nan=False)


def test_short_strings_are_read_exactly_and_counted(tmp_path):
    found = mechanisms.read_exactly(
        tmp_path, sharpness=[1.0, 4.0], all_to=[8], random=[[8, 5]], ignored=[0.5]
    )
    assert [(each["rows_of"], each["rows"]) for each in found["found"]] == [
        *[("all strings of 8", 50)] * 2, *[("FFL(0.5) of 8", 5)] * 2
    ]  # fmt: skip
    blunt, sharp = found["found"][:2]
    assert blunt["errors"] > 0 == sharp["errors"]
    assert found["sizes"]["width"] == 7 and found["sizes"]["head width"] == 2
