"""Zero-shot GLUE (MNLI, RTE, WNLI): the label whose word fits the filled template best.

A GPT scores a label by the likelihood of the whole text: total, and by token (`_normalised`). The
first token is given, not predicted: it is the same for all labels. An encoder scores it by the
probabilities of the word's tokens, all of them behind masks at once: their sum, and their mean.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, EvaluationConfig, ModelConfig, StageError
from icl_jax.evaluation.bootstrap import note_few_items, share_interval, show_interval
from icl_jax.evaluation.likelihood import Likelihood
from icl_jax.evaluation.metric import Metrics, share_of_right, split
from icl_jax.evaluation.tables import describe_source, named_sources
from icl_jax.evaluation.task import Task
from icl_jax.evaluation.tasks.glue.pairs import Pair, find_pairs, read_pairs
from icl_jax.evaluation.tasks.glue.templates import Template, read_templates
from icl_jax.training.model_at import ModelAt

# Scores that differ by less than this share of the best are equal: the position of a text in a
# batch and the CPU can change that much (float32: up to 5e-7 with 4 layers of width 256).
TIE = 1e-6


# Count of pairs -> what is special about them.
COUNTED = {
    "cut": "cut on the left to the model's positions",
    "ties": "whose best labels differ by at most {tie_tolerance:g} of their score, so that the "
    "first counts as guessed",
}


class GlueZeroShot(Task):
    """The task `glue`."""

    unit, part_size, folders = "pairs", 500, ("glue",)
    item = ("task", "sentence1", "sentence2", "label")
    rank = 5

    @classmethod
    def check(cls, config: EvaluationConfig, model: ModelConfig) -> None:
        """Stops on files that cannot be read."""
        read_tasks(config)

    def __init__(self, model: ModelAt, config: EvaluationConfig):
        self._config, self._tokenizer = config, model.tokenizer
        self._likelihood = Likelihood(model)
        self._templates, sources, self.items, self._unlabelled = read_tasks(config)
        self.inputs = {
            "files": {task: describe_source(source) for task, source in sources.items()},
            "templates": {task: self._templates[task]._asdict() for task in sources},
            "limit": config.glue.limit,
        }
        self._texts = [self._tokenise(pair) for pair in self.items]

    def run(
        self, items: Sequence[Pair], first: int, mesh: Mesh, progress: Callable[[int], None]
    ) -> list[dict]:
        """The rows of some pairs."""
        longest = max(len(tokens) for texts, _ in self._texts for tokens, _ in texts)
        model = self._likelihood.open(mesh, longest)
        owners, passages = [], []
        for n in range(len(items)):
            for label, (tokens, asked) in enumerate(self._texts[first + n][0]):
                passages.append(self._likelihood.passage(tokens, asked, len(owners)))
                owners.append((n, label))
        scores = [{} for _ in items]
        for passage, losses, _ in model.each(passages):
            n, label = owners[passage.owner]
            labels = self._templates[items[n].task].labels
            scores[n][labels[label]] = (-float(losses.sum()), len(losses))
            if len(scores[n]) == len(labels):
                progress(1)
        cuts = [cut for _, cut in self._texts[first : first + len(items)]]
        return [_row(*found) for found in zip(items, scores, cuts, strict=True)]

    def _tokenise(self, pair: Pair) -> tuple[list[tuple[np.ndarray, np.ndarray]], int]:
        """Of each label the tokens and which are asked for; how many are cut off on the left.

        It is the same number for all labels, so that they are asked for the same tokens.
        """
        template, texts = self._templates[pair.task], []
        for word in template.words:
            filled = template.fill(pair.sentence1, pair.sentence2, word)
            encoded = self._tokenizer.library.encode(filled.text, add_special_tokens=False)
            asked = np.arange(len(encoded.ids)) > 0
            if self._likelihood.masked:
                asked = [end > filled.start and start < filled.end
                         for start, end in encoded.offsets]  # fmt: skip
            texts.append((np.array(encoded.ids, np.int32), np.array(asked, bool)))
        cut = max(0, max(len(tokens) for tokens, _ in texts) - self._likelihood.room)
        return [(tokens[cut:], asked[cut:]) for tokens, asked in texts], cut

    def results(self, rows: list[dict]) -> dict:
        """Of each task, from its rows."""
        found = {}
        for task in self._config.glue.tasks:
            own = [row for row in rows if row["task"] == task]
            found[task] = self._results(own) | {"unlabelled": self._unlabelled[task]}
        kind = "masked word" if self._likelihood.masked else "whole filled template"
        return found | {"score": kind, "preset": self._config.glue.preset, "tie_tolerance": TIE}

    def _results(self, rows: list[dict]) -> dict:
        template = self._templates[rows[0]["task"]]
        numbers: dict = {"pairs": len(rows)}
        for end in ("", "_normalised"):
            right = [row[f"prediction{end}"] == row["label"] for row in rows]
            numbers[f"accuracy{end}"] = float(np.mean(right))
            numbers[f"accuracy{end}_interval95"] = share_interval(
                right, self._config.resamples, self._config.seed
            )
        gold = Counter(row["label"] for row in rows)
        majority = max(template.labels, key=lambda label: gold[label])
        guessed = Counter(row["prediction"] for row in rows)
        both = Counter((row["label"], row["prediction"]) for row in rows)
        return numbers | {
            "majority_label": majority,
            "majority_rate": gold[majority] / len(rows),
            "prediction_rates": {label: guessed[label] / len(rows) for label in template.labels},
            "confusion": {a: {b: both[a, b] for b in template.labels} for a in template.labels},
            "ties": sum(len(_best(row["scores"])) > 1 for row in rows),
            "cut": sum(row["cut"] > 0 for row in rows),
            "template": template.template,
            "words": dict(zip(template.labels, template.words, strict=True)),
        }

    def table(self, results: dict) -> str:
        """One line for each task, and how its labels are confused."""
        return make_table(results, self._config.glue.tasks)

    @staticmethod
    def metrics(rows: list[dict], results: dict) -> Metrics:
        """Both accuracies of each task."""
        guesses = {"accuracy": "prediction", "accuracy by token": "prediction_normalised"}
        return {
            f"{name} {accuracy}": share_of_right([row[guess] == row["label"] for row in own])
            for name, own in split(rows, "task").items()
            for accuracy, guess in guesses.items()
        }

    @staticmethod
    def headline(metrics: list[str]) -> list[str]:
        """The accuracies by the likelihood of the whole, not by token."""
        return [name for name in metrics if name.endswith(" accuracy")]

    @classmethod
    def title(cls, metric: str, items: int) -> str:
        """Of its panel in the figure of a report."""
        return f"Zero-shot {metric}"


def _hint(task: str) -> str:
    """How to write what looks like several tasks in one."""
    names = tuple(name.strip() for name in task.split(",") if name.strip())
    form = str(names).replace(" ", "")
    return f'; several are written --evaluation.glue.tasks="{form}"' if "," in task else ""


def read_tasks(config: EvaluationConfig):
    """Templates, sources, pairs, and how many have no label, of all tasks of a config."""
    templates = read_templates(config.glue.templates, config.glue.preset)
    sources = _find_sources(config, templates)
    items, unlabelled, found = [], {}, []
    for task, source in sources.items():
        try:
            pairs, unlabelled[task] = read_pairs(source, task, templates[task])
            items += pairs[: config.glue.limit or None]
        except ConfigError as error:
            found.append(str(error))
    if found:
        raise ConfigError("; ".join(found))
    return templates, sources, items, unlabelled


def _find_sources(config: EvaluationConfig, templates: dict[str, Template]) -> dict[str, str]:
    """Task -> where its pairs come from."""
    glue = config.glue
    named = named_sources(glue.files, "evaluation.glue.files")
    found, sources = [], {}
    for task in [*named, *glue.tasks]:
        if task not in templates:
            known = ", ".join(templates)
            found.append(
                f"there is no template for the task '{task}', only for {known}{_hint(task)}"
            )
        elif task not in glue.tasks:
            found.append(f"evaluation.glue.files names {task}, but evaluation.glue.tasks does not")
    for task in glue.tasks:
        if task in templates:
            try:
                sources[task] = named.get(task) or find_pairs(task, config.data)
            except ConfigError as error:
                found.append(str(error))
    if found:
        raise ConfigError("; ".join(found))
    return sources


def _row(pair: Pair, scores: dict[str, tuple[float, int]], cut: int) -> dict:
    sums = {label: score for label, (score, _) in scores.items()}
    counts = {label: count for label, (_, count) in scores.items()}
    if not np.all(np.isfinite(list(sums.values()))):
        raise StageError(
            f"the model gives no finite likelihood to a pair of {pair.task} "
            f"({pair.sentence1!r}); look at its weights"
        )
    means = {label: score / max(1, counts[label]) for label, score in sums.items()}
    return {
        **pair._asdict(),
        "prediction": _best(sums)[0],
        "prediction_normalised": _best(means)[0],
        "scores": sums,
        "tokens": counts,
        "cut": cut,
    }


def _best(scores: dict[str, float]) -> list[str]:
    """The label with the best score, and those that tie with it, in the order of the labels."""
    best = max(scores.values())
    return [label for label, score in scores.items() if best - score <= TIE * abs(best)]


def make_table(results: dict, tasks: Sequence[str]) -> str:
    """One line for each task, notes, and below them each task's confusion matrix."""
    lines = [
        "| task | pairs | accuracy (95% interval) | accuracy by token (95% interval) "
        "| majority class | guessed |",
        "|---|---|---|---|---|---|",
    ]
    for task in tasks:
        own = results[task]
        guessed = ", ".join(
            f"{label} {_percent(r)}" for label, r in own["prediction_rates"].items()
        )
        lines.append(
            f"| {task} | {own['pairs']:,} | {_accuracy(own, 'accuracy')} | "
            f"{_accuracy(own, 'accuracy_normalised')} | "
            f"{_percent(own['majority_rate'])} ({own['majority_label']}) | {guessed} |"
        )
    lines += [
        "",
        f"Accuracy by the likelihood of the {results['score']}, preset {results['preset']}; by "
        "token: divided by its number of tokens.",
        *note_few_items(*(results[task]["pairs"] for task in tasks)),
    ]
    for name, words in COUNTED.items():
        counts = {task: results[task][name] for task in tasks}
        if any(counts.values()):
            listed = ", ".join(f"{task} {count:,}" for task, count in counts.items())
            lines.append(f"Pairs {words.format(**results)}: {listed}.")
    lines += ["", "What was guessed (by likelihood, not by token) for each gold label, in pairs:"]
    for task in tasks:
        lines += ["", *_confusion(task, results[task]["confusion"])]
    return "\n".join(lines)


def _confusion(task: str, counts: dict[str, dict[str, int]]) -> list[str]:
    """Rows gold, columns guessed."""
    lines = [f"| {task}: gold | " + " | ".join(f"guessed {label}" for label in counts) + " |"]
    lines.append("|---" * (len(counts) + 1) + "|")
    for label, row in counts.items():
        lines.append(f"| {label} | " + " | ".join(f"{count:,}" for count in row.values()) + " |")
    return lines


def _accuracy(own: dict, name: str) -> str:
    return f"{_percent(own[name])} ({show_interval(own[f'{name}_interval95'], _percent)})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"
