"""Questions and the prompts that put them to a model, with or without examples before them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_jax.config import ConfigError, QuestionsConfig
from icl_jax.evaluation.tables import read_table
from icl_jax.evaluation.tasks.questions.scores import normalise

_SHOWN = 5  # bad questions in one message


class Form(NamedTuple):
    """How a question is put, and where its answer ends."""

    introduction: str  # once, before the examples
    template: str  # of the question, and of each example, whose answer comes after a space
    separator: str  # between examples, and before the question
    stop: tuple[str, ...]  # the answer ends before any of these


PRESETS = {
    # Brown et al. 2020, appendix G; the answer is its first line
    "gpt3": Form("", "Q: {question}?\n\nA:", "\n\n", ("\n",)),
    # nq_open of lm-evaluation-harness, version 4.0
    "harness": Form("Answer these questions:\n\n", "Q: {question}?\nA:", "\n", ("\n", ".", ",")),
}


class Question(NamedTuple):
    """A question with every answer that is right."""

    text: str
    answers: list[str]


class Prompts:
    """Makes the prompts of some questions; reads the examples, and stops if there are too few."""

    def __init__(self, config: QuestionsConfig, seed: int, questions: Sequence[Question]):
        self.form, self._count, self._seed = _form(config), config.shots, seed
        self._shots = []
        if config.shots:
            self._shots = read_questions(config.shots_file, "evaluation.questions.shots_file")
            keys = {_key(shot) for shot in self._shots}
            others = len(keys) - bool(keys & {_key(question) for question in questions})
            if others < config.shots:
                raise ConfigError(
                    f"evaluation.questions.shots: {config.shots} examples are wanted for each "
                    f"question, but {config.shots_file} has only {others} other questions"
                )

    def fill(self, question: Question, number: int) -> str:
        """Introduction, examples and the question; examples depend on the seed and its number."""
        examples = [f"{self._put(s)} {s.answers[0]}" for s in self._draw(question, number)]
        return self.form.introduction + self.form.separator.join([*examples, self._put(question)])

    def cut(self, output: str) -> str:
        """What comes before the first stop, without white space around it."""
        for end in self.form.stop:
            output = output.partition(end)[0]
        return output.strip()

    def _put(self, question: Question) -> str:
        text = question.text.strip()
        if "{question}?" in self.form.template:
            text = text.rstrip("?").rstrip()  # not two of them
        return self.form.template.replace("{question}", text)

    def _draw(self, question: Question, number: int) -> list[Question]:
        """Different questions, none of them the one that is asked."""
        random, chosen = np.random.RandomState([self._seed, number]), {}
        while len(chosen) < self._count:
            shot = self._shots[random.randint(len(self._shots))]
            if _key(shot) != _key(question):
                chosen.setdefault(_key(shot), shot)
        return list(chosen.values())


def read_questions(source: str, field: str) -> list[Question]:
    """All questions of a source; stops on those without text or answers, naming them."""
    questions, found = [], []
    for number, row in enumerate(read_table(source, field), start=1):
        text, answers = row.get("question"), row.get("answer", row.get("answers"))
        answers = [answers] if isinstance(answers, str) else answers
        if not _is_text(text):
            found.append(f"question {number} has no text")
        elif not isinstance(answers, list) or not any(map(_is_text, answers)):
            found.append(f"question {number} ({text[:40]!r}) has no answer")
        elif _is_list_as_text(answers):
            found.append(f"the answer to question {number} is the text {answers[0][:40]!r}")
        else:
            questions.append(Question(text, [answer for answer in answers if _is_text(answer)]))
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"{field}: expected `question`, a text, and `answer`, a list of texts, in each row of "
            f"{source}, but {'; '.join(found[:_SHOWN])}{more}"
        )
    if not questions:
        raise ConfigError(f"{field}: {source} holds no question")
    return questions


def _is_list_as_text(answers: list) -> bool:
    """A list in a cell of a .csv or .tsv, which knows texts only."""
    text = str(answers[0]).strip()
    return len(answers) == 1 and text.startswith("[") and text.endswith("]")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _form(config: QuestionsConfig) -> Form:
    """That of the preset, with what the user gave instead."""
    form = PRESETS[config.preset]
    if config.template:
        form = form._replace(introduction="", template=config.template.replace("\\n", "\n"))
    if config.stop:
        form = form._replace(stop=tuple(end.replace("\\n", "\n") for end in config.stop))
    return form


def _key(question: Question) -> str:
    """Equal for the same question in other dress."""
    return normalise(question.text) or question.text
