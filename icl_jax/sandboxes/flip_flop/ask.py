"""Asks a language model flip-flops in English: is the light on or off?

python -m icl_jax.sandboxes.flip_flop.ask --model=FOLDER [--lengths=16,32,...] [--rows=500]
    [--to=DIR] [--tokenizer=FOLDER]

FOLDER is a GPT-2 of Hugging Face, a run's workdir or WORKDIR/checkpoints/STEP. A row of T tokens is
T/2 sentences: Alice turns the light on or off, Bob eats something, and the last asks for the light;
before it stands an answered example of 16 tokens (Liu 2024, 3.5.6.2.1). The model answers what it
finds likelier. DIR gets the error rate by length as flip_flop.json, .md and .png. Killed, rerun the
command to continue.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags
from absl import logging as absl_logging
import jax
from jax.sharding import Mesh
import matplotlib
from matplotlib.figure import Figure
import numpy as np

from icl_jax.cli import Flag, command, several, whole
from icl_jax.config import ConfigError, MeshConfig, StageError
from icl_jax.evaluation.likelihood import Likelihood
from icl_jax.files.folder_lock import alone_in
from icl_jax.files.step_folder import OtherInputsError, StepFolder, absolute, beside, write_json
from icl_jax.models.passage_losses import Passage
from icl_jax.sandboxes.flip_flop.experiments.errors import counted, show_rate
from icl_jax.sandboxes.flip_flop.language import (
    IGNORE,
    ONE,
    READ,
    SHORTEST,
    WRITE,
    ZERO,
    check,
    ffl,
)
from icl_jax.sandboxes.report import STYLE, make_table
from icl_jax.sharding import make_mesh
from icl_jax.training.model_at import ModelAt, model_at
from icl_jax.workers.local import progress_bar

LENGTHS = (16, 32, 64, 128, 256)  # tokens: a sentence for every two
EXAMPLE = 16
IGNORED = 0.8  # p_i: that of the training rows of the thesis, which does not say what it asked
SEED = 0
GUESS = 0.5  # the error rate of answering by chance, or always alike
ANSWERS = {ZERO: " off", ONE: " on"}
SENTENCES = {
    (WRITE, ZERO): "Alice turns the light off.",
    (WRITE, ONE): "Alice turns the light on.",
    (IGNORE, ZERO): "Bob eats a banana.",
    (IGNORE, ONE): "Bob eats an apple.",
    (READ, ZERO): "The light is turned off.",
    (READ, ONE): "The light is turned on.",
}
PAIRS = {sentence: pair for pair, sentence in SENTENCES.items()}


class Question(NamedTuple):
    """A prompt that ends before the answer, and the bit that is right."""

    prompt: str
    bit: int  # ZERO or ONE


@command(
    Flag("model=FOLDER", "a run's workdir or a model folder", required=True),
    Flag("lengths=T,...", "tokens of a row: even, at least 4", several(whole(SHORTEST)), LENGTHS),
    Flag("rows=N", "prompts of each length", whole(1), 500),
    Flag("to=DIR", "the folder for results; by default flip_flop/NAME", Path),
    Flag("tokenizer=FOLDER", "a tokenizer, if not the model's own", default=""),
)
def main(given: flags.FlagValues) -> None:
    """Asks, writes the results and prints their table."""
    absl_logging.set_verbosity(absl_logging.ERROR)
    model = model_at(given.model, given.tokenizer)
    to = given.to or Path("flip_flop") / absolute(model.path).name
    results = ask(model, given.lengths, given.rows, to, make_mesh(MeshConfig()))
    print(f"{show(results)}\n\nresults: {to / 'flip_flop.json'}, .md, .png")


def ask(model: ModelAt, lengths: Sequence[int], rows: int, to: Path, mesh: Mesh) -> dict:
    """The results by length, written to a folder; what it already holds is not computed again."""
    if model.masked:
        raise ConfigError(
            f"{model.path} has no causal mask: it predicts masked tokens, and would see what comes "
            "after the answer; choose a GPT"
        )
    if not lengths or len(set(lengths)) < len(lengths):
        raise ConfigError(f"expected different lengths, at least one, got {list(lengths)}")
    likelihood = Likelihood(model)
    questions = {length: make_questions(length, rows) for length in sorted(lengths)}
    passages = {length: _passages(model, likelihood, questions[length]) for length in questions}
    longest = {length: max(len(p.inputs) for p in passages[length]) for length in questions}
    fit = _those_that_fit(model, longest, likelihood.positions)
    with alone_in(to), progress_bar(total=rows * len(fit), desc="prompts", unit="prompt") as bar:
        found = {}
        for length in fit:
            step = _open(to, model, length, rows)
            if step.results is None:
                opened = likelihood.open(mesh, max(longest[n] for n in fit) - len(likelihood.begin))
                losses_N2 = np.zeros((rows, 2))
                for passage, each, _ in opened.each(passages[length]):
                    losses_N2[divmod(passage.owner, 2)] = each.sum()
                    bar.update(passage.owner % 2)
                step.complete(_count(model, questions[length], losses_N2))
            else:
                bar.update(rows)
            found[str(length)] = step.results | {"prompt_tokens": longest[length]}
        results = {
            "model": model.path,
            "identity": model.identity,
            "rows": rows,
            "ignored": IGNORED,
            "example": EXAMPLE,
            "positions": likelihood.positions,
            "lengths": found,
            "skipped": {str(n): longest[n] for n in questions if n not in fit},
        }
        write(results, to)
    return results


def _those_that_fit(model: ModelAt, longest: dict[int, int], positions: int) -> list[int]:
    """The lengths, the shortest first, whose longest prompts the model has positions for."""
    fit = [length for length, tokens in longest.items() if tokens <= positions]
    if not fit:
        shortest = min(longest)
        raise ConfigError(
            f"{model.path} has {positions} positions, but prompts of length {shortest} take up to "
            f"{longest[shortest]} tokens; ask for a shorter length in --lengths, or choose a model "
            "with more positions"
        )
    return fit


# The prompts.


def make_questions(length: int, rows: int) -> list[Question]:
    """Prompts with rows of FFL(.8) of this length, each after an answered example of its own."""
    example_key, key = jax.random.split(jax.random.fold_in(jax.random.key(SEED), length))
    draw = jax.jit(lambda key, length: ffl(length, IGNORED).sample(key, rows), static_argnums=1)
    examples_BT, rows_BT = np.asarray(draw(example_key, EXAMPLE)), np.asarray(draw(key, length))
    questions = []
    for example_T, row_T in zip(examples_BT, rows_BT, strict=True):
        bit = int(row_T[-1])
        asked = to_sentences(row_T).removesuffix(f"{ANSWERS[bit]}.")
        question = Question(f"{to_sentences(example_T)}\n{asked}", bit)
        tokens_T = np.concatenate(from_prompt(question.prompt, bit))
        assert np.array_equal(tokens_T, [*example_T, *row_T]), question.prompt
        questions.append(question)
    return questions


def to_sentences(tokens_T: np.ndarray) -> str:
    """A flip-flop row in English, a sentence for each instruction and its bit."""
    pairs = check(tokens_T[None])[0].reshape(-1, 2).tolist()
    return " ".join(SENTENCES[instruction, bit] for instruction, bit in pairs)


def from_prompt(prompt: str, bit: int) -> tuple[np.ndarray, np.ndarray]:
    """The example and the row of an answered prompt as tokens; stops if they are no flip-flops."""
    rows = []
    for line in f"{prompt}{ANSWERS[bit]}.".split("\n"):
        sentences = [f"{sentence}." for sentence in line.removesuffix(".").split(". ")]
        strange = [sentence for sentence in sentences if sentence not in PAIRS]
        if strange:
            raise ConfigError(f"no sentence of a flip-flop: {strange[0]!r}")
        row_T = np.array([token for sentence in sentences for token in PAIRS[sentence]], np.int32)
        rows.append(check(row_T[None])[0])
    example_T, row_T = rows
    return example_T, row_T


def _passages(
    model: ModelAt, likelihood: Likelihood, questions: Sequence[Question]
) -> list[Passage]:
    """Two for each question: the light is off, the light is on; their tokens that differ count."""
    passages = []
    for n, question in enumerate(questions):
        off, on = (model.tokenizer.encode(question.prompt + ANSWERS[bit]) for bit in (ZERO, ONE))
        same = min(len(off), len(on))
        differ = np.flatnonzero(off[:same] != on[:same])
        if not len(differ):
            raise ConfigError(
                f"the tokenizer of {model.path} cannot tell '{ANSWERS[ONE]}' from "
                f"'{ANSWERS[ZERO]}': both are the tokens {off.tolist()[-3:]}; expected different "
                "ones. Choose a model whose tokenizer knows English text"
            )
        for side, tokens in enumerate((off, on)):
            asked = np.arange(len(tokens)) >= differ[0]
            passages.append(likelihood.passage(tokens, asked, 2 * n + side))
    return passages


# What came of them.


def _open(to: Path, model: ModelAt, length: int, rows: int) -> StepFolder:
    inputs = {"model": model.identity, "length": length, "rows": rows}
    inputs |= {"seed": SEED, "ignored": IGNORED, "example": EXAMPLE}
    try:
        return StepFolder(to / f"{length}_tokens_{rows}_rows", inputs)
    except OtherInputsError as error:
        raise ConfigError(str(error).replace("--workdir", "--to")) from None


def _count(model: ModelAt, questions: Sequence[Question], losses_N2: np.ndarray) -> dict:
    """Errors of one length, and their exact interval; a tie is an error."""
    if not np.isfinite(losses_N2).all():
        raise StageError(
            f"{model.path} gives no finite likelihood to a prompt; look at its weights"
        )
    right_N = np.array([question.bit == ONE for question in questions]).astype(int)
    rows = np.arange(len(questions))
    wrong_N = losses_N2[rows, right_N] >= losses_N2[rows, 1 - right_N]
    return counted(int(wrong_N.sum()), len(questions)) | {
        "said_on": int((losses_N2[:, 1] < losses_N2[:, 0]).sum()),
        "on": int(right_N.sum()),
        "wrong": np.flatnonzero(wrong_N).tolist(),
    }


def show(results: dict) -> str:
    """The table, and what was left out."""
    rows = [["tokens of a row", "errors", "error rate", "95% interval", "answered on", "it is on"]]
    for length, own in results["lengths"].items():
        low, high = own["interval95"]
        errors, total = own["errors"], own["total"]
        said, right = (f"{own[name] / total:.0%}" for name in ("said_on", "on"))
        interval = f"{low:.2g} to {high:.2g}"
        rows.append(
            [length, f"{errors} of {total}", show_rate(errors, total), interval, said, right]
        )
    lines = [make_table(rows), ""]
    lines.append(
        f"{results['model']}: is the light on or off, after an example of {EXAMPLE} tokens; by "
        f"chance {GUESS:.0%} are wrong. Intervals are exact (Clopper-Pearson)."
    )
    for length, tokens in results["skipped"].items():
        lines.append(
            f"Length {length} was skipped: its prompts take up to {tokens} tokens, and the model "
            f"has {results['positions']} positions."
        )
    return "\n".join(lines)


def write(results: dict, to: Path) -> None:
    """Writes the results as JSON, the table and the figure."""
    write_json(to / "flip_flop.json", results)
    with beside(to / "flip_flop.md") as partial:
        partial.write_text(show(results) + "\n\n![error rate by length](flip_flop.png)\n")
    with matplotlib.rc_context(STYLE), beside(to / "flip_flop.png") as partial:
        figure = Figure(figsize=(5.0, 3.2), dpi=150, layout="constrained")
        _draw(figure.subplots(), results)
        figure.savefig(partial, format="png", metadata={"Software": None})


def _draw(axis, results: dict) -> None:
    lengths = [int(length) for length in results["lengths"]]
    rate = np.array([own["errors"] / own["total"] for own in results["lengths"].values()])
    ends = np.array([own["interval95"] for own in results["lengths"].values()])
    bars = np.abs(ends.T - rate)
    axis.errorbar(lengths, rate, bars, fmt="o-", color="black", capsize=3, markersize=4)
    axis.axhline(GUESS, color="0.6", linestyle=":")
    axis.annotate(
        "by chance", (1, GUESS), xycoords=("axes fraction", "data"), ha="right", va="bottom"
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.set_ylim(-0.02, 1.02)  # points at an end are whole
    axis.set_xlabel("tokens of the flip-flop row")
    axis.set_ylabel("error rate, 95% interval")
    axis.set_title(Path(results["model"]).name, loc="left")


if __name__ == "__main__":
    main()
