"""M2 (E4, E5): other inputs and longer rows than in training. Liu 2024, Figures 3.20 and 3.21."""

from matplotlib.figure import Figure
import numpy as np

from icl_jax.sandboxes.automata.experiments.settings import (
    GPT,
    LSTM,
    SCRATCHPAD,
    accuracies,
    trained_point,
)
from icl_jax.sandboxes.automata.trained import Trial
from icl_jax.sandboxes.experiment import Experiment, Results, numbers
from icl_jax.sandboxes.points import Point
from icl_jax.sandboxes.report import (
    SURE,
    Claim,
    Finding,
    compare_seeds,
    make_table,
    paired_p,
    show_spread,
)

SETTINGS = {
    "mini": {
        "length": 10, "layers": 2, "shift": 40, "ones": (0.1, 0.3, 0.5, 0.7, 0.9),
        "lengths": (5, 10, 15, 20, 30, 40), "steps": 4000, "lstm_steps": 4000,
    },
    "paper": {
        "length": 40, "layers": 8, "shift": 400,
        "ones": tuple(round(0.05 * n, 2) for n in range(1, 20)),
        "lengths": tuple(range(8, 129, 8)), "steps": 100_000, "lstm_steps": 20_000,
    },
}  # fmt: skip
AUTOMATA = {"C2": "C2", "Dyck": "Dyck(4,2)"}
PERFECT = 0.999
SCRATCHPAD_ALIBI = "scratchpad, ALiBi"
ARMS = ("sinusoidal", "shifted", "no positions", "scratchpad", SCRATCHPAD_ALIBI, "LSTM")


def points(scale: str) -> list[Point]:
    """Each arm on C2 and on Dyck."""
    settings = SETTINGS[scale]
    gpt = GPT[scale] | {"layers": settings["layers"], "steps": settings["steps"]}
    scratchpad = SCRATCHPAD[scale] | {"layers": settings["layers"]}
    arms = {
        "sinusoidal": gpt,
        "shifted": gpt | {"shift": settings["shift"]},
        "no positions": gpt | {"position": "none"},
        "scratchpad": scratchpad,
        SCRATCHPAD_ALIBI: scratchpad | {"position": "alibi"},
        "LSTM": LSTM[scale] | {"steps": settings["lstm_steps"]},
    }
    return [
        trained_point(
            f"M2 {short}, {arm}", automaton=automaton, length=settings["length"],
            tests=_tests(settings, short), **fields,
        )
        for short, automaton in AUTOMATA.items()
        for arm, fields in arms.items()
    ]  # fmt: skip


def _tests(settings: dict, short: str) -> tuple[Trial, ...]:
    *shorter, longest = settings["lengths"]
    found = [Trial(longest, tuple(shorter))]
    if short == "C2":
        found += [Trial(settings["length"], ones=share) for share in settings["ones"]]
        found += [Trial(settings["length"], by_count=True)]
    return tuple(found)


def report(scale: str, results: Results) -> Finding:
    """Accuracy by the share of ones, by their number, and by length."""
    settings = SETTINGS[scale]
    length, lengths, ones = settings["length"], settings["lengths"], settings["ones"]
    tables = []
    for short, automaton in AUTOMATA.items():
        rows = [[f"{automaton}, trained at T = {length}", *(f"T={n}" for n in lengths)]]
        rows += [
            [arm, *(show_spread(accuracies(results, f"M2 {short}, {arm}", f"T={n}"))
                    for n in lengths)]
            for arm in ARMS
        ]  # fmt: skip
        tables.append(make_table(rows))
    names = [Trial(length, ones=share).name() for share in ones]
    rows = [[f"C2, T = {length}, Pr[1] =", *map(str, ones)]]
    rows += [
        [arm, *(show_spread(accuracies(results, f"M2 C2, {arm}", name)) for name in names)]
        for arm in ARMS
    ]
    text = (
        "Token accuracy in percent, median over seeds (least to largest). `shifted`: the position "
        f"of the first token is drawn from 0 to {settings['shift']} for each batch. Scratchpads "
        "read their own predictions.\n\n" + "\n\n".join([*tables, make_table(rows)])
    )
    return Finding(
        "M2", "other inputs, longer rows", text, _claims(settings, results),
        {"scale": scale, "points": numbers(results, points(scale))},
        lambda figure: _draw(figure, settings, results), size=(9.5, 5.2),
    )  # fmt: skip


def _claims(settings: dict, results: Results) -> list[Claim]:
    length, claims = settings["length"], []
    far, farther = f"T={2 * length}", f"T={settings['lengths'][-1]}"
    rarest, commonest = settings["ones"][0], settings["ones"][-1]
    of = lambda arm, test, short="C2": accuracies(results, f"M2 {short}, {arm}", test)  # noqa: E731
    own = f"T={length}"
    for share in (rarest, commonest):
        words, sure = compare_seeds(of("sinusoidal", own), of("sinusoidal", f"{own} ones={share}"))
        claims.append(Claim(
            f"C2: GPT is worse at Pr[1] = {share} than at 0.5", "falls sharply away from 0.5",
            words, sure,
        ))  # fmt: skip
    for arm in ("LSTM", SCRATCHPAD_ALIBI):
        values = [v for share in settings["ones"] for v in of(arm, f"{own} ones={share}")]
        claims.append(_perfect(f"C2: {arm} is perfect at every Pr[1]", values))
    claims += _rare_counts(settings, results)
    for short, automaton in AUTOMATA.items():
        words, sure = compare_seeds(of("sinusoidal", own, short), of("sinusoidal", far, short))
        claims.append(Claim(
            f"{automaton}: GPT is worse at twice the length", "drops sharply", words, sure
        ))  # fmt: skip
        for arm in ("shifted", "no positions"):
            values, plain = of(arm, far, short), of("sinusoidal", far, short)
            words, sure = compare_seeds(values, plain)
            claims.append(Claim(
                f"{automaton}: {arm} does better at twice the length, but not perfectly",
                "a significant boost, not perfect", words, sure and np.median(values) < PERFECT,
            ))  # fmt: skip
        for arm in ("LSTM", SCRATCHPAD_ALIBI):
            claims.append(
                _perfect(f"{automaton}: {arm} is perfect at {farther}", of(arm, farther, short))
            )
        words, sure = compare_seeds(
            of(SCRATCHPAD_ALIBI, farther, short), of("scratchpad", farther, short)
        )
        claims.append(Claim(
            f"{automaton}: a scratchpad needs the recency bias, at {farther}",
            "without it, no improvement", words, sure,
        ))  # fmt: skip
    return claims


def _perfect(claim: str, values: list[float]) -> Claim:
    words = f"least of all seeds and tests {100 * min(values):.2f}"
    return Claim(f"{claim} (99.9% and more in all seeds)", "perfect", words, min(values) >= PERFECT)


def _rare_counts(settings: dict, results: Results) -> list[Claim]:
    length = settings["length"]
    by_count = _by_count(results, "sinusoidal", length)
    few, usual, many = (
        by_count[:, where].mean(axis=1)
        for where in (
            slice(0, length // 4), slice(3 * length // 8, 5 * length // 8 + 1),
            slice(length - length // 4 + 1, None),
        )
    )  # fmt: skip
    measured = (
        f"up to {length // 4 - 1} ones {show_spread(few)}, around {length // 2} "
        f"{show_spread(usual)}, {length - length // 4 + 1} and more {show_spread(many)}; p "
        f"{paired_p(usual, few):.3f} and, few against many, {paired_p(many, few):.3f}"
    )
    holds = paired_p(usual, few) < SURE and paired_p(many, few) < SURE
    claim = "C2: GPT is worst where ones are few, worse than where they are many"
    shifted = _by_count(results, "shifted", length)[:, : length // 4].mean(axis=1)
    words, sure = compare_seeds(shifted, few)
    return [
        Claim(claim, "worse at low counts than at high ones", measured, holds),
        Claim(
            f"C2: shifted does better at up to {length // 4 - 1} ones", "a significant improvement",
            words, sure,
        ),
    ]  # fmt: skip


def _by_count(results: Results, arm: str, length: int) -> np.ndarray:
    """(seeds, number of ones): no number is left out by 2,048 rows."""
    found = results[f"M2 C2, {arm}"]["tests"][f"T={length} by count"]["by_count"]
    return np.array(found, float).T


def _draw(figure: Figure, settings: dict, results: Results) -> None:
    length = settings["length"]
    panels = figure.subplots(2, 2).ravel()
    for arm, colour in zip(ARMS, ("C0", "C2", "C4", "C1", "C3", "C7")):
        by_share = [f"T={length} ones={share:g}" for share in settings["ones"]]
        by_length = [f"T={n}" for n in settings["lengths"]]
        curves = [
            (panels[0], settings["ones"], by_share, "C2"),
            (panels[2], settings["lengths"], by_length, "C2"),
            (panels[3], settings["lengths"], by_length, "Dyck"),
        ]
        for axis, x, names, short in curves:
            values = [accuracies(results, f"M2 {short}, {arm}", name) for name in names]
            _band(axis, x, np.array(values).T, arm, colour)
        _band(panels[1], range(length + 1), _by_count(results, arm, length), arm, colour)
    for axis, title, what in zip(
        panels,
        ("C2: by share of ones", "C2: by number of ones", "C2: by length", "Dyck(4,2): by length"),
        ("Pr[1]", "ones in the row", "length", "length"),
    ):
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_xlabel(what)
        axis.set_ylabel("accuracy, %")
        axis.set_ylim(None, 101)
    for axis in panels[2:]:
        axis.axvline(length, color="0.7", linewidth=0.8, linestyle=":")
    panels[0].legend(fontsize=7, frameon=False)


def _band(axis, x, values_SX: np.ndarray, label: str, colour: str) -> None:
    low, middle, high = np.percentile(100 * values_SX, (0, 50, 100), axis=0)
    axis.plot(list(x), middle, color=colour, label=label, marker="o", markersize=2.5)
    axis.fill_between(list(x), low, high, color=colour, alpha=0.15, linewidth=0)


EXPERIMENT = Experiment("M2", "other inputs, longer rows", points, report)
