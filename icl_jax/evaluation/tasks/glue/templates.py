"""The templates of zero-shot GLUE, which are data: `templates.json`, or a file of the user's.

`labels` lists the labels of each task; a label's place is its number in GLUE's and TFDS's files,
and of labels that score the same the first is chosen. `presets` has for each task a template, the
word of each label, and what is done to the sentences before they are filled in. `cloze` is that of
Gao, Fisch and Chen 2021 (LM-BFF) for MNLI and RTE, and for WNLI by analogy; they drop the last
character of the first sentence, here only marks are dropped. `harness` is that of
lm-evaluation-harness (Gao, Tow et al. 2021), which Levine et al. 2022, appendix F, cite.
"""

import json
from pathlib import Path
import string
from typing import NamedTuple

from icl_jax.config import ConfigError

FILE = Path(__file__).with_suffix(".json")
FIELDS = ("sentence1", "sentence2", "word")
EDITS = {
    "strip": str.strip,
    "drop_final_punctuation": lambda text: text.rstrip(".,;:!?"),
    "lower_first_letter": lambda text: text[:1].lower() + text[1:],
    "end_with_full_stop": lambda text: text if text.endswith(".") else f"{text}.",
}


class Filled(NamedTuple):
    """A template with everything filled in."""

    text: str
    start: int  # of the label's word
    end: int


class Template(NamedTuple):
    """How the pairs of one task are asked."""

    labels: tuple[str, ...]
    words: tuple[str, ...]  # like labels
    template: str
    sentence1: tuple[str, ...]  # what is done to it
    sentence2: tuple[str, ...]

    def fill(self, sentence1: str, sentence2: str, word: str) -> Filled:
        """The text of one pair with one word."""
        for edit in self.sentence1:
            sentence1 = EDITS[edit](sentence1)
        for edit in self.sentence2:
            sentence2 = EDITS[edit](sentence2)
        before, after = (
            part.format(sentence1=sentence1, sentence2=sentence2)
            for part in self.template.split("{word}")
        )
        return Filled(before + word + after, len(before), len(before) + len(word))


def read_templates(file: str, preset: str) -> dict[str, Template]:
    """Task -> template, of a file ("": ours) and one of its presets."""
    file = Path(file or FILE)
    try:
        held = json.loads(file.read_text())
        labels, presets = held["labels"], held["presets"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"evaluation.glue.templates: {file} is not a JSON file with labels and presets as "
            f"templates.json has them ({type(error).__name__}: {error})"
        ) from None
    if preset not in presets:
        raise ConfigError(
            f"evaluation.glue.preset must be one of {', '.join(presets)}, those of {file}, got "
            f"'{preset}'"
        )
    tasks, found = {}, []
    for task, fields in presets[preset].items():
        wrong = _problems(fields, labels.get(task))
        field = f"evaluation.glue.templates: {preset}.{task} of {file}"
        found += [f"{field}: {problem}" for problem in wrong]
        if not wrong:
            tasks[task] = Template(
                tuple(labels[task]), tuple(fields["words"][label] for label in labels[task]),
                fields["template"], tuple(fields["sentence1"]), tuple(fields["sentence2"]),
            )  # fmt: skip
    if found:
        raise ConfigError("; ".join(found))
    return tasks


def _problems(fields: dict, labels: list[str] | None) -> list[str]:
    missing = [n for n in ("template", "words", "sentence1", "sentence2") if n not in fields]
    if missing:
        return [f"{', '.join(missing)} missing"]
    found = []
    used = [name for _, name, _, _ in string.Formatter().parse(fields["template"]) if name]
    if sorted(used) != sorted(FIELDS):
        found.append(f"the template must have {{sentence1}}, {{sentence2}} and {{word}}, each "
                     f"once, got {fields['template']!r}")  # fmt: skip
    if labels is None or sorted(labels) != sorted(fields["words"]):
        found.append(f"there must be a word for each label, {labels}, got {fields['words']}")
    unknown = {*fields["sentence1"], *fields["sentence2"]} - EDITS.keys()
    if unknown:
        found.append(f"expected edits of {', '.join(EDITS)}, got {', '.join(sorted(unknown))}")
    return found
