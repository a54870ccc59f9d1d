"""What every strategy is given to make its groups with."""

from collections.abc import Callable
import dataclasses
import os
from pathlib import Path

from icl_jax.config import ExamplesConfig, ExperimentConfig
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.gain.model import gain_inputs
from icl_jax.design.groups import Groups, group_file, read_counts
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import Sentences
from icl_jax.files.step_folder import StepFolder, read_inputs
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.workers.local import Runner, progress_bar, run_shards


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
            sizes = [int(starts[shard + 1] - starts[shard]) for shard in shards]
            missing = [shard for shard in shards if not group_file(folder, shard).exists()]
            results = {"shards": len(shards)}
            label = {"unit": "sentence", "unit_scale": True, "desc": f"groups: {strategy}"}
            done = sum(sizes) - sum(sizes[shard] for shard in missing)
            with progress_bar(total=sum(sizes), initial=done, **label) as bar:
                results |= prepare(folder) if prepare else {}
                tasks = [task(str(folder), shard) for shard in missing]
                run_shards(make_shard, tasks, bar, [sizes[s] for s in missing], self.runner)
            for shard in shards:
                for name, count in read_counts(folder, shard).items():
                    results[name] = results.get(name, 0) + count
            step.complete(results)
        return Groups.open(folder)
