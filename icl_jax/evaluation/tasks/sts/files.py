"""Reads sentence pairs with human scores: STS12-16, STS-B, SICK-R and tables.

The data folder holds sts/ (or STS/) and sick/ (or SICK/) as SentEval has them; sts/ may hold the
text twice, in original/ and, tokenised and lower-cased, in senteval_tok/. Lines are tab-separated;
quotes are text. White space is folded, as SentEval does. Pairs without a score are dropped and
counted.
"""

import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

from icl_jax.config import ConfigError, EvaluationConfig
from icl_jax.corpus.files import describe_file
from icl_jax.evaluation.tables import describe_source, named_sources, read_table, read_text

# Of STS13 SentEval leaves out SMT, which must be licensed.
SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    "STS-B": (),
    "SICK-R": (),
}
_RANGE = (0.0, 5.0)
_SICK_RANGE = (1.0, 5.0)
_STSB_FILE, _SICK_FILE = "sts-test.csv", "SICK_test_annotated.txt"
_TRAINING_FILES = {"STS-B": "sts-train.csv", "SICK-R": "SICK_train.txt"}
_STSB_COLUMNS = (5, 6, 4)  # sentences and score; what comes before and after them varies
_TRAINING = "DATA/sts/STSBenchmark/sts-train.csv and DATA/sick/SICK_train.txt (SentEval's layout)"
_COLUMNS = {  # of tables, and what others call them
    "sentence1": ("sentence1", "sentence_A", "sentence_1"),
    "sentence2": ("sentence2", "sentence_B", "sentence_2"),
    "score": ("score", "relatedness_score", "similarity_score", "label"),
}


class Pair(NamedTuple):
    """Two sentences and the mean of their human scores."""

    task: str
    subset: str  # "": the set has none
    sentence1: str
    sentence2: str
    gold: float


@dataclasses.dataclass
class PairSet:
    """What was found of one set."""

    name: str
    pairs: list[Pair] = dataclasses.field(default_factory=list)
    unscored: int = 0
    missing: list[str] = dataclasses.field(default_factory=list)  # NAME, or NAME/SUBSET
    source: str = ""  # a folder of the data folder, or as the user wrote it
    files: dict[str, dict] = dataclasses.field(default_factory=dict)  # name -> size and checksum

    def add(self, subset: str, pairs: list[tuple[str, str, float | None]]) -> None:
        """Adds the pairs that have a score."""
        scored = [Pair(self.name, subset, *pair) for pair in pairs if pair[2] is not None]
        self.pairs += scored
        self.unscored += len(pairs) - len(scored)


def read_sets(config: EvaluationConfig) -> list[PairSet]:
    """All sets that a config names, in its order; stops with everything that is wrong.

    A missing set or subset is no error while others are there.
    """
    sources = named_sources(config.sts.files, "evaluation.sts.files")
    if config.data and not Path(config.data).is_dir():
        raise ConfigError(f"evaluation.data: there is no folder {config.data}")
    sets, found = [], []
    for name in dict.fromkeys([*config.sts.tasks, *sources]):
        try:
            if name in sources:
                sets.append(_read_table_set(name, sources[name]))
            else:
                sets.append(_read_folder_set(name, config))
        except ConfigError as error:
            found.append(str(error))
    if found:
        raise ConfigError("; ".join(found))
    if not any(held.pairs for held in sets):
        text = "senteval_tok" if config.sts.tokenised else "original"
        where = config.data or "DATA"
        raise ConfigError(
            f"none of {', '.join(held.name for held in sets)} is in evaluation.data"
            f"={config.data!r}; expected SentEval's layout ({where}/sts/{text}/STS12-en-test/, "
            f"{where}/sts/STS12-en-test/, {where}/sts/STSBenchmark/{_STSB_FILE}, "
            f"{where}/sick/{_SICK_FILE}), or name files in evaluation.sts.files"
        )
    return sets


def read_training_sets(data: str) -> list[PairSet]:
    """The pairs of STS-B and SICK-R to train on; SentEval has none of the other sets."""
    if not Path(data).is_dir():
        raise ConfigError(f"--data: there is no folder {data or 'named'}; expected {_TRAINING}")
    sets = []
    for name, file in _TRAINING_FILES.items():
        held, folder = PairSet(name), _find_folder(name, EvaluationConfig(data=data))
        if folder is not None:
            _read_one_file(held, folder / file)
        sets.append(held)
    missing = [held.name for held in sets if not held.pairs]
    if missing:
        raise ConfigError(
            f"the training sets of {', '.join(missing)} are not in {data}; expected {_TRAINING}"
        )
    return sets


def _read_folder_set(name: str, config: EvaluationConfig) -> PairSet:
    held = PairSet(name)
    folder = _find_folder(name, config)
    if folder is None:
        held.missing = [name]
        return held
    above = folder if name == "SICK-R" else folder.parent
    held.source = str(above.relative_to(config.data))
    if SUBSETS[name]:
        for subset in SUBSETS[name]:
            _read_subset(held, folder, subset)
    else:
        _read_one_file(held, folder / (_STSB_FILE if name == "STS-B" else _SICK_FILE))
    if not held.pairs:
        held.missing = [name]
    return held


def _find_folder(name: str, config: EvaluationConfig) -> Path | None:
    data = Path(config.data)
    if not config.data:
        return None
    if name == "SICK-R":
        places = [data / top for top in ("sick", "SICK")]
    else:
        inner = "STSBenchmark" if name == "STS-B" else f"{name}-en-test"
        levels = ("senteval_tok", "") if config.sts.tokenised else ("original", "", "senteval_tok")
        tops = [data / top / level for level in levels for top in ("sts", "STS")]
        held = [top for top in tops if any(top.glob("STS*"))]
        places = [top / inner for top in held[:1]]  # of one kind of text all sets, never of two
    return next((place for place in places if place.is_dir()), None)


def _read_subset(held: PairSet, folder: Path, subset: str) -> None:
    """STS.input.X.txt and STS.gs.X.txt; those of 2016 begin with STS2016."""
    texts, scores = (_find_file(folder, held.name, kind, subset) for kind in ("input", "gs"))
    if texts is None or scores is None:
        held.missing.append(f"{held.name}/{subset}")
        return
    text_lines, score_lines = _read_lines(texts), _read_lines(scores)
    if len(text_lines) != len(score_lines):
        raise ConfigError(
            f"{texts} has {len(text_lines)} lines, but {scores.name} beside it has "
            f"{len(score_lines)}; expected one score (or a blank line) for each pair: fetch both "
            "again"
        )
    pairs = []
    for number, (text, score) in enumerate(zip(text_lines, score_lines, strict=True), start=1):
        # 2016: two more fields, the sources of the sentences
        sentences = _sentences(text.split("\t")[:2], f"line {number} of {texts}")
        pairs.append((*sentences, _score(score, _RANGE, f"line {number} of {scores}")))
    _require_scores(pairs, scores)
    held.add(subset, pairs)
    held.files |= {file.name: describe_file(str(file)) for file in (texts, scores)}


def _find_file(folder: Path, name: str, kind: str, subset: str) -> Path | None:
    names = (f"STS.{kind}.{subset}.txt", f"STS20{name.removeprefix('STS')}.{kind}.{subset}.txt")
    return next((folder / n for n in names if (folder / n).exists()), None)


def _read_one_file(held: PairSet, file: Path) -> None:
    """STS-B, or SICK-R, whose first line names its columns."""
    if not file.exists():
        return
    allowed, columns = (_RANGE, _STSB_COLUMNS) if held.name == "STS-B" else (_SICK_RANGE, None)
    lines, first = _read_lines(file), 1
    if columns is None:
        header, lines, first = lines[0].split("\t") if lines else [], lines[1:], 2
        columns = [_find_column(header, column, f"the first line of {file}") for column in _COLUMNS]
        columns = [header.index(column) for column in columns]
    pairs = []
    for number, line in enumerate(lines, start=first):
        fields, where = line.split("\t"), f"line {number} of {file}"
        if len(fields) <= max(columns):
            raise ConfigError(
                f"{where}: expected at least {max(columns) + 1} tab-separated fields, got "
                f"{len(fields)}: {line[:60]!r}; fetch the file again"
            )
        sentence1, sentence2, score = (fields[n] for n in columns)
        pairs.append((*_sentences([sentence1, sentence2], where), _score(score, allowed, where)))
    _require_scores(pairs, file)
    held.add("", pairs)
    held.files[file.name] = describe_file(str(file))


def _read_table_set(name: str, source: str) -> PairSet:
    held = PairSet(name, source=source)
    rows = read_table(source, "evaluation.sts.files")
    if not rows:
        raise ConfigError(f"evaluation.sts.files: {source} holds no rows; expected pairs of {name}")
    columns = [_find_column(list(rows[0]), column, source) for column in _COLUMNS]
    allowed = _SICK_RANGE if name == "SICK-R" else _RANGE
    parts: dict[str, list] = {}
    for number, row in enumerate(rows, start=1):
        where = f"row {number} of {source}"
        sentence1, sentence2, score = (row.get(column) for column in columns)
        pair = (*_sentences([sentence1, sentence2], where), _score(score, allowed, where))
        parts.setdefault(str(row.get("subset") or ""), []).append(pair)
    _require_scores([pair for part in parts.values() for pair in part], source)
    for subset, pairs in parts.items():
        held.add(subset, pairs)
    if set(parts) <= set(SUBSETS.get(name, ())):  # it speaks of the known ones
        held.missing = [f"{name}/{subset}" for subset in SUBSETS[name] if subset not in parts]
    held.files[name] = describe_source(source)
    return held


def _find_column(columns: list[str], wanted: str, where: str) -> str:
    for name in _COLUMNS[wanted]:
        if name in columns:
            return name
    raise ConfigError(
        f"{where}: expected a column {wanted} (or {', '.join(_COLUMNS[wanted][1:])}), got "
        f"{', '.join(map(repr, columns)) or 'nothing'}; rename one"
    )


def _read_lines(file: Path) -> list[str]:
    lines = read_text(str(file), "evaluation.data").split("\n")  # text may hold other line breaks
    if not lines[-1]:
        lines.pop()  # what follows the last line's end
    return [line.removesuffix("\r") for line in lines]


def _sentences(fields: list, where: str) -> tuple[str, str]:
    folded = [" ".join(str(field).split()) for field in fields if field is not None]
    if len(folded) != 2 or not all(folded):
        raise ConfigError(
            f"{where}: expected two sentences, got {sum(map(bool, folded))}: "
            f"{' '.join(folded)[:60]!r}; correct it, or fetch the file again"
        )
    return folded[0], folded[1]


def _score(value, allowed: tuple[float, float], where: str) -> float | None:
    """None: nobody scored the pair."""
    if value is None or not str(value).strip():
        return None
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    lowest, highest = allowed
    if not lowest <= score <= highest:
        raise ConfigError(
            f"{where}: expected a score from {lowest:g} to {highest:g}, got {str(value)[:60]!r}; "
            "correct it, leave it blank if nobody scored the pair, or choose a split whose scores "
            "are public"
        )
    return score


def _require_scores(pairs: list, source: Path | str) -> None:
    if all(score is None for *_, score in pairs):
        raise ConfigError(f"{source} has no score at all; fetch it again")
