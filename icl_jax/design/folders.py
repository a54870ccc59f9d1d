"""The folders of a design and its arms; light enough for every worker process to import."""

import json
import os

from etils import epath

from icl_jax.config import DesignConfig, ExamplesConfig, StageError
from icl_jax.config.design import PACKED
from icl_jax.design.arms import ARMS
from icl_jax.files import mirror
from icl_jax.files.remote import is_remote
from icl_jax.files.step_folder import absolute
from icl_jax.workers.local import Runner

# These say how far a design is: all that is fetched of one at a URL before a step is opened.
_STATE = frozenset({"inputs.json", "results.json", "config.json", "kept.json"})
PREFIX = "design:"  # a source called design:contiguous is that arm of the same workdir
BRANCHES = "branches"  # of a workdir: the workdirs of the runs that branch off


class DesignFolders:
    """The folders of the steps in a workdir; if it is at a URL, those of its local copy."""

    def __init__(self, workdir: str | os.PathLike):
        self.path = mirror.local_folder(epath.Path(workdir) / "design")
        self.config = self.path / "config.json"
        self.tokenizer = self.path / "tokenizer"
        self.corpus = self.path / "corpus"
        self.queries = self.path / "queries"  # missing if the corpus is searched with itself
        self.encoder = self.path / "encoder"  # missing if the encoder is a published one
        self.corpus_vectors = self.path / "corpus_vectors"
        self.query_vectors = self.path / "query_vectors"
        self.neighbours = self.path / "neighbours"
        self.groups = self.path / "groups"  # a folder for each strategy
        self.arms = self.path / "arms"  # a folder of records for each arm
        self.overlap = self.path / "overlap"
        self.card = self.path / "card.html"
        self.beam = self.path / "beam"  # where workers of Beam leave their results
        if is_remote(workdir):
            self.beam = self.path.with_name(f"{self.path.name}-beam")  # nothing to be kept
            mirror.fetch(self.path, _STATE)
            mirror.fetch(self.tokenizer)

    def runner(self, design: DesignConfig) -> Runner:
        """Runs the work on the shards."""
        return Runner.of(design, self.beam)

    @property
    def has_queries(self) -> bool:
        """Whether the queries are the sentences of a task, not those of the corpus."""
        return bool(json.loads(self.config.read_text())["queries"]["files"])


def shard_bytes_of(design: DesignConfig) -> int:
    """How many bytes of text a shard has."""
    return max(1, round(design.shard_megabytes * 1e6))


def design_workdir(workdir: epath.PathLike) -> epath.Path:
    """The workdir whose design a run reads: its own, or that of the run it branched off."""
    own = absolute(workdir)
    is_branch = own.parent.name == BRANCHES and not (own / "design").exists()
    return own.parent.parent if is_branch else epath.Path(workdir)


def is_arm(source: str) -> bool:
    """Whether a source of training is an arm of the workdir's own design stage."""
    return source.startswith(PREFIX)


def arm_folder(workdir: epath.PathLike, arm: str) -> epath.Path:
    """The records of an arm; stops if it was not built, and names those that were."""
    folder = design_workdir(workdir) / "design" / "arms" / arm
    if not (folder / "results.json").exists():
        built = sorted(path.parent.name for path in folder.parent.glob("*/results.json"))
        known = arm in ARMS
        raise StageError(
            f"there is no arm '{arm}' in {folder.parent}; available: "
            f"{', '.join(built) or 'none'}. "
            + ("Add it to design.examples.arms and run --stages=design" if known
               else f"Arms that can be built: {', '.join(ARMS)}")
        )  # fmt: skip
    return folder


def planned_rows(examples: ExamplesConfig, arm: str) -> str:
    """What a row of this arm holds by the config of a design; running text is always packed."""
    return examples.rows if ARMS[arm].has_queries else PACKED
