"""The tables, from the numbers of the cells to Markdown."""

from collections.abc import Callable

from icl_jax.config import ExperimentConfig
from icl_jax.studies.pods.cells import (
    CONFIGS,
    DTYPE,
    ENCODERS,
    INDEXES,
    SENTENCE_TOKENS,
    SENTENCES,
    Cell,
    search_candidates,
)
from icl_jax.tpu.chips import generation_of, num_chips, one_chip, slice_of, slices
from icl_jax.tpu.compile import GB

TAPT_EXAMPLES = 170_000  # Levine et al. 2022, section 3.1; each counts as a row of its own
HOURS_CHIPS = 16  # of the slice for which hours of embedding are given
Read = Callable[[Cell], dict | None]


def count_steps(config: ExperimentConfig) -> tuple[int, str]:
    """The total steps of a run, and a sentence that explains them."""
    training, more = config.training, config.branches.steps
    if training.epochs:
        steps = int(training.epochs * TAPT_EXAMPLES / config.batch_size)
        about = f"{training.epochs:g} epochs of the paper's {TAPT_EXAMPLES:,} examples, a row each"
        return steps, f"{steps:,} steps: {about}"
    if not more:
        return training.steps, f"{training.steps:,} steps"
    return training.steps + more, f"{training.steps:,} regular steps and {more:,} with kNN examples"


def training_table(name: str, config: ExperimentConfig, read: Read) -> str:
    """The cost of a config on every slice that it was compiled for."""
    steps, about = count_steps(config)
    found = {place: read(Cell("training", name, place)) for place in slices()}
    found = {place: numbers for place, numbers in found.items() if numbers}
    fitting = [numbers for numbers in found.values() if numbers["fits"]]
    kinds = [kind for kind in _kinds(fitting) if any(n["sent"][kind] for n in fitting)]
    sizes = f"{config.batch_size} rows of {config.sequence_length} tokens"
    if fitting:
        sizes = f"{fitting[0]['parameters']:,} parameters, {sizes}"
    header = [
        "slice", "chips", "rows/chip", "GB/chip", *(f"{kind}, MB" for kind in kinds), "step, ms",
        "utilisation", "hours", "chip-hours",
    ]  # fmt: skip
    lines = [_training_line(place, n, config, steps, kinds) for place, n in found.items()]
    text = f"`{CONFIGS[name]}`: {sizes}; {about}. {_left_out(len(slices()) - len(found))}"
    return f"{text.strip()}\n\n{_table(header, lines)}"


def _training_line(
    place: str, numbers: dict, config: ExperimentConfig, steps: int, kinds: list[str]
) -> list[str]:
    chips = num_chips(slices()[place])
    line = [place, str(chips), f"{config.batch_size / chips:g}"]
    if not numbers["fits"]:
        return [*line, f"does not fit: {numbers['why']}", *[""] * (len(kinds) + 4)]
    memory, use = numbers["memory"], numbers["utilisation"]
    seconds = times(numbers)
    hours = [steps * x / 3600 for x in seconds]
    return [
        *line,
        f"{memory['total'] / GB:.2f} of {memory['available'] / GB:.2f}",
        *(f"{numbers['sent'][kind] / 2**20:,.0f}" for kind in kinds),
        span(*(1e3 * x for x in seconds)),
        span(*(100 * use[x] for x in ("cycles_and_collectives", "cycles_or_collectives"))) + "%",
        span(*hours),
        span(*(chips * x for x in hours)),
    ]


def times(numbers: dict) -> tuple[float, float]:
    """Seconds of a step if collectives are hidden behind the rest, and if they are not."""
    seconds = numbers["seconds"]
    return seconds["cycles_or_collectives"], seconds["cycles_and_collectives"]


def _kinds(fitting: list[dict]) -> list[str]:
    return list(fitting[0]["sent"]) if fitting else []


def sentences_table(read: Read) -> str:
    """How many sentences one chip embeds, and the cost of all."""
    header = [
        "encoder", "chip", "sentences/s a chip, cycles", "by roofline", "chip-hours",
        f"hours on {HOURS_CHIPS} chips",
    ]  # fmt: skip
    lines, missing = [], 0
    for encoder in ENCODERS:
        for generation in one_chip():
            numbers = read(Cell("encode", encoder, generation))
            missing += numbers is None
            if not numbers:
                continue
            if not numbers["fits"]:
                lines.append([encoder, generation, numbers["why"], "", "", ""])
                continue
            rates = [numbers["sentences"] / x for x in encode_bounds(numbers)]
            hours = [SENTENCES / rate / 3600 for rate in rates]
            place = slice_of(generation, HOURS_CHIPS)
            lines.append([
                encoder, generation, *(f"{rate:,.0f}" for rate in reversed(rates)), span(*hours),
                f"{place}: {span(*(x / HOURS_CHIPS for x in hours))}",
            ])  # fmt: skip
    text = (
        f"{SENTENCES:,} sentences of {SENTENCE_TOKENS} tokens, {DTYPE} products, the steps of one "
        f"chip. {_left_out(missing)}"
    )
    return f"{text.strip()}\n\n{_table(header, lines)}"


def join_table(read: Read) -> str:
    """How many queries one chip searches, and the cost of searching for every sentence."""
    header = [
        "vectors of", "index", "slice", "GB/chip", "queries/s a chip, at most", "hours, at least",
        "chip-hours, at least",
    ]  # fmt: skip
    lines, missing = [], 0
    for encoder in ENCODERS:
        for index in INDEXES:
            for generation in one_chip():
                numbers = read(Cell("search", f"{encoder}-{index}", generation))
                missing += numbers is None
                if numbers:
                    lines.append(_join_line(encoder, index, generation, numbers))
    text = (
        f"{SENTENCES:,} queries against {SENTENCES:,} float32 vectors, {search_candidates()} "
        f"candidates each, on the smallest slice that holds them. {_left_out(missing)}"
    )
    return f"{text.strip()}\n\n{_table(header, lines)}"


def _join_line(encoder: str, index: str, generation: str, numbers: dict) -> list[str]:
    vectors = f"{encoder}, {ENCODERS[encoder].embed_dim} wide"
    if not numbers["fits"]:
        return [vectors, index, generation, f"does not fit: {numbers['why']}", *[""] * 3]
    chips, memory = num_chips(numbers["topology"]), numbers["memory"]
    rates = [numbers["queries"] / x for x in search_bounds(numbers)]  # of the slice
    hours = [SENTENCES / rate / 3600 for rate in rates]
    return [
        vectors,
        index,
        slice_of(generation_of(numbers["topology"]), chips),
        f"{memory['total'] / GB:.2f} of {memory['available'] / GB:.2f}",
        span(*(rate / chips for rate in rates)),
        span(*hours),
        span(*(chips * x for x in hours)),
    ]


def encode_bounds(numbers: dict) -> tuple[float, float]:
    """Seconds of a step at the published peak rates, and by the compiler's cycles."""
    seconds = numbers["seconds"]
    return seconds["largest"], seconds["cycles_and_collectives"]


def search_bounds(numbers: dict) -> tuple[float, float]:
    """Seconds of a step: its longest part at the published peak rates, and the largest bound known.

    That bound is all parts one after the other, or the compiler's cycles. Neither includes the
    sorts and `top_k`, for which the compiler reports no cycles: a real step takes longer.
    """
    seconds = numbers["seconds"]
    parts = numbers["passes"] * seconds["products"], seconds["memory"], seconds["collectives"]
    return max(parts), max(sum(parts), seconds["cycles_and_collectives"])


def span(one: float, other: float) -> str:
    """`93-100`, the smaller first, or one number if both look the same."""
    low, high = sorted((one, other))
    form = ",.0f" if high >= 20 else ".1f" if high >= 1 else ".2g"
    low, high = f"{low:{form}}", f"{high:{form}}"
    return low if low == high else f"{low}-{high}"


def _left_out(missing: int) -> str:
    return f"({missing} lines of this table were not compiled.)" if missing else ""


def _table(header: list[str], lines: list[list[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
