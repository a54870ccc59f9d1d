"""Why attention misreads, as numbers: weights that make no error, dilution, margins.

Liu 2024, 3.5.7, propositions 3, 4 and 5.
"""

from collections.abc import Sequence
import dataclasses
import math
from pathlib import Path

import jax
from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.flip_flop.exact import all_strings, exact_network, measure
from icl_jax.sandboxes.flip_flop.experiments.long_rows import KINDS, dilute, fail
from icl_jax.sandboxes.flip_flop.experiments.settings import (
    CORE,
    GPT,
    LANGUAGE,
    POSITIONS,
    START,
)
from icl_jax.sandboxes.flip_flop.language import ffl
from icl_jax.sandboxes.flip_flop.mechanisms import half_length, largest_weight, needed_sigma
from icl_jax.sandboxes.flip_flop.trained import TEST_SEED, Training
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import Claim, Finding, make_table

TITLE = "why attention misreads, as numbers"
EXACT, MARGIN = "exact network", "margin of hard attention"
ENOUGH, TOO_SMALL = 1.5, 1.0  # c/T from which on nothing is misread; and one that is not enough
CHECKED = {
    "sharpness": [TOO_SMALL, ENOUGH, 2.0, 4.0], "all_to": [4, 8, 10],
    "random": [[64, 400], [512, 20]],  # tokens, rows of each language
    "ignored": [0.1, 0.8, 0.98],
}  # fmt: skip
DILUTED = {
    "mini": {"lengths": [64, 128, 256, 512], "rows": 32, "seeds": 2},
    "paper": {"lengths": [512, 1024, 2048], "rows": 8, "seeds": 3},
}
BOUNDED, UNBOUNDED = "none", "alibi"  # positions; scores of the second widen with the distance
MARGIN_FIELDS = {"length": 24, "longest": 1000, "width": 32, "noop": 0.8, "steps": 500, "batch": 32}
MARGIN_SEEDS = {"mini": 8, "paper": 25}
WEIGHTS = (0.5, 0.9, 0.99)
NEAR = 1  # tokens by which a prediction may be off


def points(scale: str) -> list[Point]:
    """The exact network, networks whose attention may dilute, heads with linear positions."""
    margin = MARGIN_FIELDS | {"seeds": MARGIN_SEEDS[scale]}
    return [
        Point(EXACT, read_exactly, CHECKED, START),
        *(_dilution_point(scale, position) for position in (BOUNDED, UNBOUNDED)),
        Point(MARGIN, fail, margin, START + 2 * margin["seeds"]),
    ]


def _dilution_point(scale: str, position: str) -> Point:
    """The baseline with these positions; fewer seeds, no tests."""
    own = GPT[scale] | {"position": position, "seeds": DILUTED[scale]["seeds"]}
    training = Training(**LANGUAGE[scale], **own, tests=())
    fields = dataclasses.asdict(training) | DILUTED[scale]
    return Point(_dilution(position), dilute, fields, START + training.flops() / CORE)


def _dilution(position: str) -> str:
    return f"dilution, {POSITIONS[position]}"


def read_exactly(
    folder: Path, sharpness: list[float], all_to: list[int], random: list[list[int]],
    ignored: list[float],
) -> dict:  # fmt: skip
    """Reads all short strings and some long rows with the network of proposition 3."""
    drawn = {f"all strings of {length}": all_strings(length) for length in all_to}
    for length, rows in random:
        for ignore in ignored:
            key = jax.random.key(TEST_SEED)
            drawn[f"FFL({ignore:g}) of {length}"] = np.asarray(
                ffl(length, ignore).sample(key, rows)
            )
    found = []
    for name, tokens_BT in drawn.items():
        for c in sharpness:
            network = exact_network(tokens_BT.shape[1], sharpness=c)
            found.append({"rows_of": name, "sharpness": c, **measure(network, tokens_BT)})
    config = network.config
    sizes = {
        "layers": config.num_layers, "heads": config.num_heads, "width": config.embed_dim,
        "head width": config.head_dim, "feed-forward width": config.mlp_dim,
    }  # fmt: skip
    return {"sizes": sizes, "found": found}


# The report.


def report(scale: str, results: Results) -> Finding:
    """The network without errors, then both mechanisms, predicted and measured."""
    parts = [
        _exact_text(results[EXACT]), _dilution_text(scale, results), _margin_text(results[MARGIN]),
    ]  # fmt: skip
    claims = [
        *_exact_claims(results[EXACT]), *_dilution_claims(results),
        *_margin_claims(results[MARGIN]),
    ]  # fmt: skip
    return Finding(
        "mechanisms", TITLE, "\n\n".join(parts), claims, {"scale": scale, "points": results},
        lambda figure: _draw(figure, results), size=(10.0, 3.3),
    )  # fmt: skip


# Proposition 3.


def _exact_text(result: dict) -> str:
    sharpness = sorted({each["sharpness"] for each in result["found"]})
    errors = {(each["rows_of"], each["sharpness"]): each for each in result["found"]}
    names = list(dict.fromkeys(each["rows_of"] for each in result["found"]))
    rows = [["rows", "number", "reads", *(f"wrong reads, c = {c:g} T" for c in sharpness)]]
    for name in names:
        first = errors[name, sharpness[0]]
        own = [errors[name, c]["errors"] for c in sharpness]
        rows.append([name, f"{first['rows']:,}", f"{first['reads']:,}", *own])
    sizes = ", ".join(f"{what} {size}" for what, size in result["sizes"].items())
    off = ", ".join(
        f"{_off(result, c):.2g} at c = {c:g} T (e^(-c/T): {math.exp(-c):.2g})" for c in sharpness
    )
    return (
        f"**Weights that make no error.** An ordinary GPT in float64 ({sizes}) whose weights are "
        f"written down. The bit that it puts out is off by at most {off}.\n\n{make_table(rows)}"
    )


def _off(result: dict, sharpness: float) -> float:
    return max(each["off"] for each in result["found"] if each["sharpness"] == sharpness)


def _exact_claims(result: dict) -> list[Claim]:
    sharp = [each for each in result["found"] if each["sharpness"] >= ENOUGH]
    blunt = [each for each in result["found"] if each["sharpness"] == TOO_SMALL]
    wrong, reads = (sum(each[what] for each in sharp) for what in ("errors", "reads"))
    missed, tried = (sum(each[what] for each in blunt) for what in ("errors", "reads"))
    closest = max(each["off"] / math.exp(-each["sharpness"]) for each in sharp)
    return [
        Claim(
            f"the exact network makes no error from c = {ENOUGH:g} T on",
            "with c of the order of T log T (proposition 3)", f"{wrong} of {reads:,} reads wrong",
            wrong == 0,
        ),
        Claim(
            f"c = {TOO_SMALL:g} T is not enough", "- (the proof leaves the factor open)",
            f"{missed:,} of {tried:,} reads wrong", missed > 0,
        ),
        Claim(
            "the exact network's output is off by at most e^(-c/T)",
            "soft attention approximates hard attention (proposition 3)",
            f"at most {closest:.2f} times as much", closest <= 1,
        ),
    ]  # fmt: skip


# Proposition 4.


def _heads(results: Results, position: str, length: int, what: str) -> np.ndarray:
    """(seeds, layers, heads) of one length."""
    found = {each["length"]: each[what] for each in results[_dilution(position)]["lengths"]}
    return np.array(found[length])


def _lengths(results: Results) -> list[int]:
    return [each["length"] for each in results[_dilution(BOUNDED)]["lengths"]]


def _dilution_text(scale: str, results: Results) -> str:
    lengths = _lengths(results)
    needed = [["T", *(f"sigma for a weight of {weight:g}" for weight in WEIGHTS)]]
    needed += [[n, *(f"{needed_sigma(weight, n):.2f}" for weight in WEIGHTS)] for n in lengths]
    rows = [[
        "positions", "layer", "T", "range R of scores", "T_half = 1 + e^R", "largest weight",
        "the most that the range allows",
    ]]  # fmt: skip
    for position in (BOUNDED, UNBOUNDED):
        layers = _heads(results, position, lengths[0], "weight").shape[1]
        for layer in range(layers):
            for length in lengths:
                range_SH, weight_SH = (
                    _heads(results, position, length, what)[:, layer]
                    for what in ("score_range", "weight")
                )
                rows.append([
                    POSITIONS[position], layer + 1, length, _show(range_SH),
                    _show(half_length(range_SH)), _show(weight_SH), _show(_bound(range_SH, length)),
                ])  # fmt: skip
    return (
        "**Soft attention dilutes.** Unit vectors give one of T tokens a weight only if sigma, the "
        "norm of W_K^T W_Q, is as large as\n\n"
        f"{make_table(needed)}\n\n"
        "A head whose scores have a range of R is as sharp as sigma = R/2 allows. Networks of the "
        f"baseline's size, {DILUTED[scale]['seeds']} seeds each, trained on rows of "
        f"{lengths[0]}; at the last read of {DILUTED[scale]['rows']} rows, medians of each head; "
        f"median over heads and seeds (least to most):\n\n{make_table(rows)}"
    )


def _bound(ranges: np.ndarray, length: int) -> np.ndarray:
    """What one token can get in a row: sigma is half the range."""
    return np.vectorize(lambda spread: largest_weight(spread / 2, length))(ranges)


def _show(values: np.ndarray) -> str:
    low, middle, high = (f"{value:.3g}" for value in np.percentile(values, (0, 50, 100)))
    return f"{middle} ({low} to {high})"


def _dilution_claims(results: Results) -> list[Claim]:
    lengths = _lengths(results)
    short, long = lengths[0], lengths[-1]
    shares = np.stack([
        _heads(results, BOUNDED, n, "weight")
        / _bound(_heads(results, BOUNDED, short, "score_range"), n)
        for n in lengths[1:]
    ])  # fmt: skip
    within = int((shares <= 1).sum())
    before, after = (_heads(results, BOUNDED, n, "weight") for n in (short, long))
    falls = int((after < before).sum())
    narrow, wide = (_heads(results, UNBOUNDED, n, "score_range") for n in (short, long))
    widens = int((wide > narrow).sum())
    return [
        Claim(
            f"{POSITIONS[BOUNDED]}: in longer rows no weight is above what the range of scores at "
            f"T = {short} allows", "max weight <= 1 / (1 + (T-1) e^(-2 sigma)) (proposition 4)",
            f"{within} of {shares.size} (heads and lengths); at most {shares.max():.2g} of it",
            within == shares.size,
        ),
        Claim(
            f"{POSITIONS[BOUNDED]}: the largest weight of every head falls with the length",
            "attention dilutes (proposition 4)",
            f"{falls} of {before.size} heads from T = {short} to {long}; median "
            f"{np.median(before):.2g} to {np.median(after):.2g}",
            falls == before.size,
        ),
        Claim(
            f"{POSITIONS[UNBOUNDED]}: the range of every head's scores grows with the length",
            "- (proposition 4 is about ranges that do not)",
            f"{widens} of {narrow.size} heads; median {np.median(narrow):.2g} to "
            f"{np.median(wide):.2g}",
            widens == narrow.size,
        ),
    ]  # fmt: skip


# Proposition 5.


def _margin_text(result: dict) -> str:
    rows = [["seed", "loss", "kappa", *(
        f"{kind}, {bit}: predicted, found" for kind in KINDS for bit in ("0", "1")
    )]]  # fmt: skip
    for seed, network in enumerate(result["networks"]):
        ordered = sorted(network["rows"], key=lambda row: (KINDS.index(row["row"]), row["write"]))
        shown = [f"{row['predicted'] or 'never'}, {_found(row)}" for row in ordered]
        rows.append([seed, f"{result['losses'][seed][-1]:.2g}", f"{network['kappa']:.3g}", *shown])
    return (
        "**Positions outweigh tokens.** One head without norms, with linear positions i/C, trained "
        f"to say which bit was written last in rows of C = {MARGIN_FIELDS['length']} letters. Its "
        "score on token j is A[x_i, x_j] + b[x_i] j/C + c[x_j] i/C + kappa ij/C^2. Predicted of "
        "these terms, and found by NumPy with the scores of every length up to "
        f"{MARGIN_FIELDS['longest']:,}: the shortest row whose last token has its largest score on "
        "another token than the latest write. One write: write, nothing, nothing, ...; two "
        f"writes: write the other bit, nothing, ..., write, nothing.\n\n{make_table(rows)}"
    )


def _found(row: dict) -> str:
    return str(row["found"]) if row["found"] else f"> {MARGIN_FIELDS['longest']:,}"


def _agrees(row: dict) -> bool:
    """Found where predicted; or nothing where nothing is predicted up to the longest row."""
    predicted = row["predicted"] or math.inf
    if row["found"] is None:
        return predicted > MARGIN_FIELDS["longest"] - NEAR
    return abs(predicted - row["found"]) <= NEAR


def _margin_claims(result: dict) -> list[Claim]:
    networks, longest = result["networks"], MARGIN_FIELDS["longest"]
    rows = [row for network in networks for row in network["rows"]]
    agree = [row for row in rows if _agrees(row)]
    both = sum(row["found"] is not None for row in agree)
    first = [_earliest(network["rows"]) for network in networks]
    sizes = sorted(abs(network["kappa"]) for network in networks)
    return [
        Claim(
            "every trained network has kappa other than 0, and its hard attention fails from some "
            f"length up to {longest:,} on", "kappa = 0 is needed for all lengths (proposition 5)",
            f"|kappa| from {sizes[0]:.2g} to {sizes[-1]:.2g}; "
            f"{sum(n is not None for n in first)} of {len(first)} networks fail, first at "
            f"{', '.join(str(n) for n in sorted(n for n in first if n is not None)) or 'none'}",
            all(n is not None for n in first) and sizes[0] > 0,
        ),
        *(_sign_claim(networks, kind) for kind in KINDS),
        Claim(
            f"hard attention first fails where the terms predict, within {NEAR} token",
            "- (proposition 5 gives the order of growth)",
            f"{len(agree)} of {len(rows)} rows; {both} of these fail by {longest:,} tokens",
            len(agree) == len(rows),
        ),
    ]  # fmt: skip


def _earliest(rows: Sequence[dict]) -> int | None:
    return min((row["found"] for row in rows if row["found"] is not None), default=None)


def _sign_claim(networks: Sequence[dict], kind: str) -> Claim:
    """That a sign of kappa is fatal to one of the two rows; None if no network has that sign."""
    positive = kind == KINDS[0]
    of_sign = [each for each in networks if (each["kappa"] > 0) == positive]
    rows = [row for each in of_sign for row in each["rows"] if row["row"] == kind]
    fail_at = [row["predicted"] for row in rows if row["predicted"] is not None]
    found = sum(row["found"] is not None for row in rows)
    return Claim(
        f"kappa {'>' if positive else '<'} 0 fails on {kind}",
        f"case {1 if positive else 2} of proposition 5's proof",
        f"{len(of_sign)} networks, {len(rows)} rows: {len(fail_at)} must fail, {found} do by "
        f"{MARGIN_FIELDS['longest']:,} tokens",
        len(fail_at) == len(rows) if rows else None,
    )  # fmt: skip


# The figure.


def _draw(figure: Figure, results: Results) -> None:
    exact, dilution, margin = figure.subplots(1, 3)
    found = results[EXACT]["found"]
    sharpness = np.array(sorted({each["sharpness"] for each in found}))
    exact.semilogy(sharpness, np.exp(-sharpness), color="0.4", label="e^(-c/T)")
    exact.semilogy(sharpness, [_off(results[EXACT], c) for c in sharpness], "o", label="largest")
    exact.set_xlabel("c / T")
    exact.set_ylabel("output is off by")
    exact.legend(fontsize=7, frameon=False)

    lengths = _lengths(results)
    for weight, style in zip(WEIGHTS, (":", "--", "-"), strict=True):
        needed = [needed_sigma(weight, n) for n in lengths]
        dilution.plot(lengths, needed, style, color="0.4", label=f"for {weight:g}")
    for n, position in enumerate((BOUNDED, UNBOUNDED)):
        for length in lengths:
            ranges = _heads(results, position, length, "score_range").ravel()
            label = f"heads, {POSITIONS[position]}" if length == lengths[0] else None
            shifted = np.full(len(ranges), length * (0.95 + 0.1 * n))
            dilution.plot(shifted, ranges / 2, ".", color=f"C{n}", alpha=0.6, label=label)
    dilution.set_xscale("log", base=2)
    dilution.set_yscale("log")
    dilution.set_xlabel("T")
    dilution.set_ylabel("sigma; of heads R/2")
    dilution.legend(fontsize=7, frameon=False)

    _draw_margin(margin, results[MARGIN])


def _draw_margin(axis, result: dict) -> None:
    for n, kind in enumerate(KINDS):
        pairs = [
            (row["predicted"], row["found"])
            for network in result["networks"]
            for row in network["rows"]
            if row["row"] == kind and row["predicted"] and row["found"]
        ]
        axis.loglog(*zip(*pairs, strict=True) if pairs else ([], []), "ox"[n], label=kind,
                    alpha=0.7)  # fmt: skip
    ends = (2, MARGIN_FIELDS["longest"])
    axis.loglog(ends, ends, color="0.7", linewidth=0.8)
    axis.set_xlabel("first failure: predicted tokens")
    axis.set_ylabel("found")
    axis.legend(fontsize=7, frameon=False)


EXPERIMENT = Experiment("mechanisms", TITLE, points, report)
