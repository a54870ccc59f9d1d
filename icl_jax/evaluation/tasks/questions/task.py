"""Closed-book questions: the likeliest continuation of a prompt, scored against gold answers.

`exact_match` and `f1` are SQuAD's (scores.py), whatever the preset. The preset `harness`
adds `harness_exact_match`, by the rules of lm-evaluation-harness's nq_open: the number to compare
with its own result without examples (it draws examples in another way).

An answer is the first sentence that is generated: a model trained on sentences with separators
between them often begins with a separator, and generates another sentence after the next.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, EvaluationConfig, ModelConfig
from icl_jax.evaluation.bootstrap import mean_of, note_few_items, share_interval, show_interval
from icl_jax.evaluation.generation.generate import Generator
from icl_jax.evaluation.metric import SHARE, Metric, Metrics, share_of_right
from icl_jax.evaluation.tables import describe_source
from icl_jax.evaluation.task import Task
from icl_jax.evaluation.tasks.questions import scores as question_scores
from icl_jax.evaluation.tasks.questions.prompts import Prompts, Question, read_questions
from icl_jax.models.inputs import position_limit
from icl_jax.models.kinds import kind_of
from icl_jax.training.model_at import ModelAt

FILE = "nq_open/NQ-open.dev.jsonl"  # of the data folder


class NaturalQuestions(Task):
    """The task `nq_open`."""

    unit, part_size, folders = "questions", 512, ("nq_open",)
    item = ("number", "question", "answers", "prompt")
    rank, counted, fallback = 1, "exact_match", "f1"
    outputs, prefixed = "the answers", False

    @classmethod
    def check(cls, config: EvaluationConfig, model: ModelConfig) -> None:
        """Stops on a model that cannot generate, and on a file that cannot be read."""
        if kind_of(model).objective != "next_token":
            raise ConfigError("the model predicts masked tokens and cannot generate; train a GPT")
        _read(config)

    def __init__(self, model: ModelAt, config: EvaluationConfig):
        if model.masked:
            raise ConfigError(
                f"{model.path} predicts masked tokens and cannot generate; choose a GPT"
            )
        self._model, self._config, wanted = model, config, config.questions
        limit = position_limit(model.config)
        if limit is not None and wanted.max_new_tokens >= limit:
            raise ConfigError(
                f"evaluation.questions.max_new_tokens must be below the {limit} positions of "
                f"{model.path}, got {wanted.max_new_tokens}"
            )
        source = _source(config)
        questions = _read(config)
        self.items = questions[: wanted.limit] if wanted.limit else questions
        self.prompts = Prompts(wanted, config.seed, self.items)
        self._harness = wanted.preset == "harness"
        self._metrics = ["exact_match", "f1", *["harness_exact_match"] * self._harness]
        self._generator: Generator | None = None
        self.inputs = {
            "questions": describe_source(source),
            "limit": wanted.limit,
            "prompt": self.prompts.form._asdict(),
            "harness_exact_match": self._harness,
            "max_new_tokens": wanted.max_new_tokens,
            "shots": wanted.shots,
            "shots_from": describe_source(wanted.shots_file) if wanted.shots else None,
            "seed": config.seed if wanted.shots else None,
        }

    def run(
        self, items: Sequence[Question], first: int, mesh: Mesh, progress: Callable[[int], None]
    ) -> list[dict]:
        """One row for each question: prompt, raw output, answer and its scores."""
        tokenizer = self._model.tokenizer
        prompts = [self.prompts.fill(question, first + n) for n, question in enumerate(items)]
        generated = self._open(mesh).generate(
            [np.append(np.int32(self._model.begin), tokenizer.encode(p)) for p in prompts],
            self._config.questions.max_new_tokens,
            stop_when=self._has_answered,
            first=first,
            progress=progress,
        )
        rows = []
        for n, (question, prompt, new) in enumerate(zip(items, prompts, generated, strict=True)):
            row = {"number": first + n, "question": question.text, "answers": question.answers}
            row |= {"prompt": prompt, "output": tokenizer.decode(new.tokens)}
            said = tokenizer.decode(self._model.said(new.tokens)[0])
            rows.append(row | self.score(said, question.answers) | {"cut": new.cut})
        return rows

    def _has_answered(self, tokens: np.ndarray) -> bool:
        said, ended = self._model.said(tokens)
        text = self._model.tokenizer.decode(said)
        return ended or any(end in text for end in self.prompts.form.stop)

    def score(self, output: str, golds: Sequence[str]) -> dict:
        """The answer in a generated text, and its scores."""
        answer = self.prompts.cut(output)
        scores = {
            "answer": answer,
            "exact_match": question_scores.exact_match(answer, golds),
            "f1": question_scores.f1(answer, golds),
        }
        if self._harness:
            scores["harness_exact_match"] = question_scores.harness_exact_match(answer, golds)
        return scores

    def results(self, rows: list[dict]) -> dict:
        """Shares of 1, with 95% intervals over the questions."""
        resamples, seed = self._config.resamples, self._config.seed
        numbers, form = {}, self.prompts.form
        for name in self._metrics:
            scores = [row[name] for row in rows]
            numbers[name] = float(np.mean(scores))
            numbers[f"{name}_interval95"] = share_interval(scores, resamples, seed)
        return numbers | {
            "correct": sum(row["exact_match"] for row in rows),
            "total": len(rows),
            "empty_answers": sum(not row["answer"] for row in rows),
            "prompts_cut": sum(row["cut"] > 0 for row in rows),
            "preset": self._config.questions.preset,
            "template": form.introduction + form.template,
            "stop": list(form.stop),
            "shots": self._config.questions.shots,
        }

    def table(self, results: dict) -> str:
        """The results for people."""
        lines = ["| metric (share of 1) | value | 95% interval |", "|---|---|---|"]
        for name in self._metrics:
            words = name.replace("_", " ").replace("f1", "F1")
            ends = show_interval(results[f"{name}_interval95"], "{:.4f}".format)
            lines.append(f"| {words} | {results[name]:.4f} | {ends} |")
        lines += [
            "",
            f"{results['correct']:,} of {results['total']:,} answers match exactly, "
            f"{results['empty_answers']:,} are empty; intervals by bootstrap over the questions, "
            "exact (Clopper-Pearson) where all score alike.",
            f"Prompt: {results['template']!r} ({results['preset']}), {results['shots']} examples; "
            f"an answer ends before {' or '.join(map(repr, results['stop']))}.",
            *note_few_items(results["total"]),
        ]
        if results["prompts_cut"]:
            lines.append(
                f"{results['prompts_cut']:,} prompts were too long for the model's positions and "
                "were cut on the left."
            )
        return "\n".join(lines)

    @staticmethod
    def metrics(rows: list[dict], results: dict) -> Metrics:
        """The shares of right answers, and F1."""
        f1 = np.array([row["f1"] for row in rows])
        metrics = {
            "exact_match": share_of_right([row["exact_match"] for row in rows]),
            "f1": Metric(SHARE, mean_of(f1), f1),
        }
        if "harness_exact_match" in rows[0]:
            metrics["harness_exact_match"] = share_of_right(
                [row["harness_exact_match"] for row in rows]
            )
        return metrics

    @staticmethod
    def headline(metrics: list[str]) -> list[str]:
        """By SQuAD's rules."""
        return ["exact_match", "f1"]

    @classmethod
    def title(cls, metric: str, items: int) -> str:
        """Of its panel in the figure of a report."""
        if metric == cls.counted:
            return f"Closed-book questions answered, of {items:,}"
        return "Closed-book questions, F1"

    @classmethod
    def sentence(cls, name: str, metric: str, model: str, value: str, items: int) -> str:
        """What a report says first."""
        if metric == cls.counted:
            return f"{model} answers {value} of {items:,} questions"
        return f"No arm answers a question exactly; {model} has an F1 of {value}"

    def _open(self, mesh: Mesh) -> Generator:
        if self._generator is None:
            options = {"end_ids": self._model.end_ids, "batch_size": self._config.batch_size}
            self._generator = Generator(self._model.load(mesh), mesh, **options)
        return self._generator


def _read(config: EvaluationConfig) -> list[Question]:
    return read_questions(_source(config), "evaluation.questions.file")


def _source(config: EvaluationConfig) -> str:
    if not config.questions.file and not config.data:
        raise ConfigError(
            "no questions: expected evaluation.data (--data of icl_jax.evaluation.run), a folder "
            f"that holds {FILE}, or evaluation.questions.file"
        )
    return config.questions.file or str(Path(config.data) / FILE)
