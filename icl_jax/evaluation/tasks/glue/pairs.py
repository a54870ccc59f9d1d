"""The sentence pairs of GLUE's inference tasks, from the files that they come in."""

from pathlib import Path
from typing import NamedTuple

from icl_jax.config import ConfigError
from icl_jax.evaluation.tables import FORMATS, read_table
from icl_jax.evaluation.tasks.glue.templates import Template

PLACES = {"MNLI": "MNLI/dev_matched", "RTE": "RTE/dev", "WNLI": "WNLI/dev"}  # below data/glue
# The first of these that a table has; GLUE's own MNLI has label1 ... label5 and gold_label.
COLUMNS = {
    "sentence1": ("sentence1", "premise"),
    "sentence2": ("sentence2", "hypothesis"),
    "label": ("gold_label", "label"),
}
DATA_FIELD = "evaluation.data (--data of icl_jax.evaluation.run)"
UNLABELLED = ("-", "-1", "")


class Pair(NamedTuple):
    """Two sentences and how they are related."""

    task: str
    sentence1: str
    sentence2: str
    label: str


def find_pairs(task: str, data: str) -> str:
    """The file of a task in the data folder."""
    if task not in PLACES or not data:
        raise ConfigError(
            f"where is {task}? Name its file, {task}=FILE in evaluation.glue.files"
            + (f", or a data folder, {DATA_FIELD}" if task in PLACES else "")
        )
    place = Path(data) / "glue" / PLACES[task]
    names = [f"{place}{end}{packed}" for end in FORMATS for packed in ("", ".gz")]
    there = [name for name in names if Path(name).is_file()]
    if len(there) != 1:
        got = f"both {there[0]} and {there[1]}" if there else "there is none"
        raise ConfigError(
            f"expected one file {place}.tsv (or {', '.join(FORMATS)}), but {got}; name it, "
            f"{task}=FILE in evaluation.glue.files"
        )
    return there[0]


def read_pairs(source: str, task: str, template: Template) -> tuple[list[Pair], int]:
    """The labelled pairs of a source, and how many have no label."""
    rows, where = read_table(source, f"evaluation.glue.files, {task}"), f"{task}: {source}"
    if not rows:
        raise ConfigError(f"{where} has no rows")
    names = {}
    for field, known in COLUMNS.items():
        names[field] = next((name for name in known if name in rows[0]), None)
        if names[field] is None:
            raise ConfigError(
                f"{where} has no column {' or '.join(known)}; it has {', '.join(rows[0])}"
            )
    pairs = []
    for number, row in enumerate(rows, start=1):
        if not row.keys() >= {*names.values()}:
            raise ConfigError(
                f"{where} has only {', '.join(row)} in row {number}; expected "
                f"{', '.join(names.values())}"
            )
        label = _label(row[names["label"]], template.labels)
        if label is None:
            continue
        if label not in template.labels:
            raise ConfigError(
                f"{where} has the label {label!r} in row {number}; expected "
                f"{', '.join(template.labels)}, or 0 to {len(template.labels) - 1} in that order"
            )
        sentences = [row[names[field]] for field in ("sentence1", "sentence2")]
        if not all(isinstance(text, str) and text.strip() for text in sentences):
            raise ConfigError(f"{where} has a pair without two sentences in row {number}: {row}")
        pairs.append(Pair(task, *sentences, label))
    if not pairs:
        raise ConfigError(
            f"{where} has no label in any of its {len(rows)} rows: a test split? Choose the "
            "development set"
        )
    return pairs, len(rows) - len(pairs)


def _label(value: object, labels: tuple[str, ...]) -> str | None:
    """The label's name; None: the pair has none."""
    value = "" if value is None else str(value).strip()
    if value in UNLABELLED:
        return None
    if value.isdigit() and int(value) < len(labels):
        return labels[int(value)]
    return value
