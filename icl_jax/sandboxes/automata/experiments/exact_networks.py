"""M0: networks whose weights are written down make no error. Liu 2024, 3.4.4, as corrected here."""

from collections.abc import Sequence
import math
from pathlib import Path

from icl_jax.sandboxes.automata.exact.checking import LONG, check, find, plan
from icl_jax.sandboxes.experiment import Experiment, Results
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import Claim, Finding, make_table

LENGTH = 64
SECONDS = 2.5  # of one network, mostly to compile it
STRINGS_A_SECOND = 4e5
# What sizes call a quantity, what bounds call it, and what the table calls it.
SIZES = {
    "layers": ("depth", "layers"),
    "width": ("width", "width"),
    "heads": ("heads", "heads"),
    "mlp_width": ("mlp_width", "MLP width"),
    "largest_weight": ("largest_weight", "largest weight"),
}


def points(scale: str) -> list[Point]:
    """A point for each network; the scale does not matter."""
    return [
        Point(
            _name(automaton, construction), check_network,
            {"automaton": automaton, "construction": construction, "length": LENGTH},
            SECONDS + min(find(automaton).num_letters ** 7, 8**7) / STRINGS_A_SECOND,
        )
        for automaton, construction in plan()
    ]  # fmt: skip


def _name(automaton: str, construction: str) -> str:
    return f"M0 {automaton}, {construction}"


def check_network(folder: Path, automaton: str, construction: str, length: int) -> dict:
    """Builds a network and counts its wrong states."""
    return check(automaton, construction, length)


def report(scale: str, results: Results) -> Finding:
    """Wrong states, and sizes beside the bounds of the theorems."""
    networks = [results[_name(*entry)] for entry in plan()]
    wrong = sum(network["wrong_states"] for network in networks)
    header = ["automaton", "construction", *(shown for _, shown in SIZES.values())]
    rows = [[*header, "all strings to", "of them", "wrong states"]]
    rows += [
        [
            network["automaton"], network["construction"],
            *(_beside(network, size) for size in SIZES),
            f"T = {network['all_to']}", f"{network['strings']:,}", network["wrong_states"],
        ]
        for network in networks
    ]  # fmt: skip
    rounds = {network["random_rows"] for network in networks}
    text = (
        "Ordinary networks of `icl_jax.models` in float64, with weights that are computed and not "
        "trained. Each is compared with its automaton after every letter: on all strings up to a "
        f"length, and on {max(rounds):,} random rows of T = {LENGTH} (prefix: as many "
        f"of T = {LONG}). In brackets: what the theorem or lemma allows; `-` where it names no "
        "number.\n\n"
        f"{make_table(rows)}\n\n{_formulas(networks)}"
    )
    numbers = {"wrong_states": wrong, "networks": networks}
    return Finding("M0", "exact networks", text, _claims(networks, wrong), numbers)


def _beside(network: dict, size: str) -> str:
    allowed = network["bounds"].get(SIZES[size][0], (None, ""))[0]
    return f"{_short(network[size])} ({'-' if allowed is None else _short(allowed)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def _formulas(networks: Sequence[dict]) -> str:
    seen = {}
    for network in networks:
        known = [
            f"{shown} {network['bounds'][bound][1]}"
            for bound, shown in SIZES.values()
            if network["bounds"].get(bound, (None, ""))[1]
        ]
        seen.setdefault(network["construction"], f"- {network['construction']}: {'; '.join(known)}")
    return "\n".join(["The bounds:", "", *seen.values()])


def _claims(networks: Sequence[dict], wrong: int) -> list[Claim]:
    strings = sum(network["strings"] for network in networks)
    rows = sum(network["random_rows"] for network in networks)
    first = next(n for n in networks if n["automaton"] == "S5" and n["construction"] == "prefix")
    claims = [
        Claim(
            f"the {len(networks)} networks make no error", "theorems 10 to 12, proofs corrected",
            f"{wrong} wrong states on {strings:,} strings and {rows:,} random rows", wrong == 0,
        ),
        Claim(
            f"S5 takes log2 T layers: {math.ceil(math.log2(LENGTH))} at T = {LENGTH}",
            "theorem 10", f"{first['layers']} layers of width {first['width']}",
            first["layers"] == math.ceil(math.log2(LENGTH)) and first["wrong_states"] == 0,
        ),
    ]  # fmt: skip
    for size, (bound, shown) in SIZES.items():
        limited = [n for n in networks if n["bounds"].get(bound, (None,))[0] is not None]
        over = [
            f"{n['automaton']} by {n['construction']}"
            for n in limited
            if n[size] > n["bounds"][bound][0] * (1 + 1e-9)
        ]
        claims.append(Claim(
            f"{shown}: within the bound, wherever a number is given", "the theorems' statements",
            f"{len(limited) - len(over)} of {len(limited)}"
            + (f"; over it: {', '.join(over)}" if over else ""),
            not over,
        ))  # fmt: skip
    return claims


EXPERIMENT = Experiment("M0", "exact networks", points, report)
