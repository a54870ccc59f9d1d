"""What the stage `evaluate` measures, and on which data."""

import dataclasses

from icl_jax.config.checks import MAX_SEED, require_at_least_0, require_choice, require_positive
from icl_jax.config.design import CorpusConfig
from icl_jax.evaluation.tasks import TASKS

STS_SETS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
POOLINGS = ("own", "mean", "cls", "first_last")
QUESTION_PRESETS = ("gpt3", "harness")


@dataclasses.dataclass
class StsConfig:
    """Sentence similarity: the cosine of two sentences' vectors against human scores."""

    # Which sets; each from the data folder in SentEval's layout (sts/, sick/), or from `files`.
    tasks: tuple[str, ...] = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
    # NAME=SOURCE: pairs from a .csv, .tsv, .jsonl or .parquet with columns sentence1, sentence2,
    # score (0 to 5) and optionally subset; or from tfds:NAME:SPLIT, hf:NAME:SPLIT.
    # A name that is not among the tasks is a new set.
    files: tuple[str, ...] = ()
    tokenised: bool = False  # SentEval's tokenised, lower-cased text instead of the original
    # own: as a sentence-transformers folder says; mean for other models. mean: of the last layer's
    # tokens. cls: the first token. first_last: mean of the first and the last layer.
    pooling: str = "own"
    special_tokens: bool = True  # whether begin and end tokens count in a mean

    def problems(self) -> list[str]:
        found: list[str] = []
        require_choice(found, "pooling", self.pooling, POOLINGS)
        named = [entry.partition("=")[0] for entry in self.files]
        unknown = [task for task in self.tasks if task not in (*STS_SETS, *named)]
        if unknown:
            found.append(
                f"tasks: expected some of {', '.join(STS_SETS)}, or sets that `files` names, got "
                f"'{unknown[0]}'"
            )
        if len(set(self.tasks)) < len(self.tasks) or not (self.tasks or named):
            found.append(f"tasks must be different ones, at least one, got {self.tasks}")
        return found


@dataclasses.dataclass
class QuestionsConfig:
    """Closed-book questions: exact match and F1 of a GPT's continuation of the prompt."""

    # A .jsonl, .parquet, tfds:natural_questions_open:validation or hf:NAME:SPLIT with columns
    # question and answer (a list of right ones); or builtin:encyclopaedia. "": the file
    # nq_open/NQ-open.dev.jsonl of the data folder.
    file: str = ""
    limit: int = 0  # only the first questions; 0: all (the paper: 20,000 of the training set)
    preset: str = "gpt3"  # prompt and stop: gpt3, or harness (nq_open of lm-evaluation-harness)
    template: str = ""  # replaces the preset's; contains {question}; \n is a new line
    stop: tuple[str, ...] = ()  # replaces the preset's: the answer ends before any of these
    max_new_tokens: int = 32
    shots: int = 0  # answered questions before each question, drawn by the seed
    shots_file: str = ""  # where they come from, in the form of `file`

    def problems(self) -> list[str]:
        found: list[str] = []
        require_choice(found, "preset", self.preset, QUESTION_PRESETS)
        require_positive(found, self, "max_new_tokens")
        require_at_least_0(found, self, "limit", "shots")
        if self.template and "{question}" not in self.template:
            found.append(f"template must hold {{question}}, got {self.template!r}")
        if "" in self.stop:
            found.append(f"stop must not contain an empty text, got {self.stop}")
        if self.shots > 0 and not self.shots_file:
            found.append(f"shots={self.shots} needs shots_file, the source of the examples")
        return found


@dataclasses.dataclass
class GlueConfig:
    """Zero-shot GLUE: the label whose word makes the filled template most likely."""

    tasks: tuple[str, ...] = ("MNLI", "RTE", "WNLI")
    files: tuple[str, ...] = ()  # NAME=SOURCE, replacing those of the data folder, as for STS
    preset: str = "cloze"  # template and words: cloze (S1? Yes, S2), harness (Question: ... True)
    templates: str = ""  # a JSON file; "": evaluation/tasks/glue/templates.json
    limit: int = 0  # only the first pairs of each; 0: all

    def problems(self) -> list[str]:
        found: list[str] = []
        require_at_least_0(found, self, "limit")
        if len(set(self.tasks)) < len(self.tasks) or not self.tasks:
            found.append(f"tasks must be different ones, at least one, got {self.tasks}")
        return found


@dataclasses.dataclass
class PerplexityConfig:
    """How well a model predicts text: per token, per character and per byte."""

    documents: CorpusConfig = dataclasses.field(default_factory=CorpusConfig)
    # Folders of TFRecords, or design:ARM of the run's own design; each group of a record is a text.
    records: tuple[str, ...] = ()
    window: int = 0  # tokens read at once; 0: the model's positions
    stride: int = 0  # tokens from one window to the next; 0: half a window
    limit: int = 0  # only the first documents or records of each source; 0: all

    def problems(self) -> list[str]:
        found: list[str] = []
        require_at_least_0(found, self, "window", "stride", "limit")
        if 0 < self.window <= self.stride:
            found.append(
                f"stride must be below window, so that every token has tokens before it, got "
                f"{self.stride} and {self.window}"
            )
        return found


@dataclasses.dataclass
class NeighbourGainConfig:
    """How much a sentence's loss falls when its neighbours come before it."""

    design: str = ""  # a workdir whose design has neighbours; "": the run's own
    queries: int = 1000  # drawn by the seed; 0: all

    def problems(self) -> list[str]:
        found: list[str] = []
        require_at_least_0(found, self, "queries")
        return found


@dataclasses.dataclass
class EvaluationConfig:
    """The stage `evaluate`."""

    tasks: tuple[str, ...] = ()  # names in evaluation/tasks/__init__.py
    data: str = ""  # the folder with the data of the tasks, as docs/evaluating.md lists it
    tokenizer: str = ""  # a folder; "": the model's own, or that of the run's design
    ema: bool = False  # True: evaluate the moving average of the weights
    batch_size: int = 32  # prompts answered at once
    resamples: int = 10_000  # of a bootstrap, for 95% intervals
    seed: int = 0  # of everything drawn at random
    sts: StsConfig = dataclasses.field(default_factory=StsConfig)
    questions: QuestionsConfig = dataclasses.field(default_factory=QuestionsConfig)
    glue: GlueConfig = dataclasses.field(default_factory=GlueConfig)
    perplexity: PerplexityConfig = dataclasses.field(default_factory=PerplexityConfig)
    neighbour_gain: NeighbourGainConfig = dataclasses.field(default_factory=NeighbourGainConfig)

    def problems(self) -> list[str]:
        found: list[str] = []
        for task in self.tasks:
            require_choice(found, "tasks: each", task, tuple(TASKS))
        require_positive(found, self, "batch_size", "resamples")
        if not 0 <= self.seed <= MAX_SEED:
            found.append(f"seed must be from 0 to {MAX_SEED} (2**32 - 1), got {self.seed}")
        return found
