"""What every strategy is given to make its groups with."""

from collections.abc import Callable
import dataclasses
import os
from pathlib import Path

import numpy as np

from icl_jax.config import ExamplesConfig, ExperimentConfig
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.gain.model import gain_inputs
from icl_jax.design.groups import Groups, group_file, read_counts
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import Sentences
from icl_jax.files.step_folder import StepFolder, once, read_inputs
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import add_up, make_shards


@dataclasses.dataclass
class Build:
    """A workdir whose sentences, and neighbours if they are needed, have been found."""

    config: ExperimentConfig
    workdir: str
    folders: DesignFolders
    sentences: Sentences
    neighbours: Neighbours | None
    tokenizer: Tokenizer
    runner: Runner
    limit: int  # tokens of an example

    @classmethod
    def open(
        cls, config: ExperimentConfig, workdir: str | os.PathLike, neighbours: Neighbours | None
    ) -> "Build":
        """The build of a workdir after `find_related`."""
        folders = DesignFolders(workdir)
        return cls(
            config,
            str(workdir),
            folders,
            Sentences.open(workdir, bool(config.design.queries.files)),
            neighbours,
            Tokenizer.open(folders.tokenizer),
            folders.runner(config.design),
            config.design.examples.max_tokens or config.sequence_length,
        )

    @property
    def examples(self) -> ExamplesConfig:
        return self.config.design.examples

    @property
    def marks(self) -> Marks:
        return Marks.of(self.tokenizer)

    @property
    def between(self) -> int:
        """How many tokens each further sentence of a group adds to its own, at most."""
        return self.marks.between(self.examples.rows)

    def kept_groups(self, strategy: str) -> dict:
        """What the groups of a finished strategy that were kept were made from, as JSON."""
        inputs = read_inputs(self.folders.groups / strategy)
        return {strategy: inputs, "gain": gain_inputs(self.examples, strategy)}

    def by_shard(
        self,
        strategy: str,
        inputs: dict,
        make_shard: Callable,
        task: Callable[[str, int], tuple],
        starts,
        prepare: Callable[[Path], dict] | None = None,
    ) -> Groups:
        """Makes the shards that are missing, after what must be made once for all of them."""
        folder = self.folders.groups / strategy
        made_from = {
            "sentences": self.sentences.fingerprint,
            "tokenizer": self.tokenizer.fingerprint,
            "limit": self.limit,
            **({"between": self.between} if self.between > 1 else {}),  # older designs have none
            **inputs,
        }
        step = StepFolder(folder, made_from)
        if step.results is None:
            shards = range(len(starts) - 1)
            prepared = once(folder, prepare, folder) if prepare else {}
            make_shards(
                f"groups: {strategy}", folder, np.diff(starts),
                lambda shard: group_file(folder, shard).exists(), make_shard,
                lambda shard: task(str(folder), shard), self.runner,
            )  # fmt: skip
            step.complete(
                lambda: {
                    "shards": len(shards),
                    **prepared,
                    **add_up(read_counts(folder, shard) for shard in shards),
                }
            )
        return Groups.open(folder)
