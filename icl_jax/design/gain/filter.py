"""Keeps a group only if a model finds its sentences easier in context than apart.

In context the group is one example; apart, each of its pieces is one. Both ways, the model predicts
the same tokens: a GPT those that follow another token of their sentence, a RoBERTa the same masked
ones, special tokens never. The gain is the loss apart minus the loss in context, in nats a token.

A piece is a sentence. Only if a strategy puts whole documents into one context (document_path), a
piece is everything the context has of one document: the filter judges which documents came
together, not whether sentences of one document fit. A group of one piece has no gain (NaN) and is
kept.
"""

from collections.abc import Callable, Iterator
import functools
import itertools
import json
from pathlib import Path
import threading

from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ExamplesConfig, MeshConfig, StageError
from icl_jax.config.tree import from_dict, to_dict
from icl_jax.corpus.files import model_checksum
from icl_jax.corpus.tokenizers import Tokenizer, open_tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.gain.model import check_gain_model, open_gain_model
from icl_jax.design.groups import Groups, GroupShard, keep_file, read_groups
from icl_jax.design.records.layout import Marks, in_context
from icl_jax.design.sentences import Sentences, open_sentences
from icl_jax.files.arrays import save_array
from icl_jax.files.mirror import remove
from icl_jax.files.step_folder import StepFolder, once, read_inputs, write_json
from icl_jax.models.passage_losses import Passage, PassageLosses, ask
from icl_jax.sharding import make_host_mesh
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards

MASK_SHARE = 0.15  # of a sentence's tokens, at least one
_EDGES = np.round(np.linspace(-2, 2, 41), 1)  # of the histogram; beyond: the bins at its ends
_KEPT = "kept.json"
_devices = threading.Lock()  # a worker may have threads; one shard at a time has its devices


def filter_groups(
    folder: Path,
    examples: ExamplesConfig,
    limit: int,
    mesh: Mesh | None,
    sentences: Sentences,
    tokenizer: Tokenizer,
    runner: Runner | None = None,
    workdir: str = "",
    whole_documents: bool = False,
) -> dict:
    """Writes beside the groups in `folder` which are kept, and to `folder`/gain what each gains.

    The shards take turns on the devices, in a job on those of each process. Workers of Beam open
    `workdir` and a model of their own, on a mesh cut as `mesh`. `whole_documents`: the pieces are
    those of documents.
    """
    check_gain_model(examples, limit, tokenizer)
    made_from = {
        "groups": read_inputs(folder),
        "limit": limit,
        "model": model_checksum(examples.gain_model),
        "pieces": "documents" if whole_documents else "sentences",
    }
    step = StepFolder(folder / "gain", made_from)
    if step.results is None:
        groups = Groups.open(folder)
        sizes = [_count_passages(shard, sentences, whole_documents) for shard in groups.shards]
        described = _describe(examples.gain_model, limit, mesh, made_from["model"])
        task = (workdir, sentences.fingerprint, tokenizer.fingerprint, described, str(folder))
        opened = functools.cache(lambda: open_gain_model(examples.gain_model, limit, mesh))

        def here(i: int, progress: Callable[[int], None]) -> None:
            options = (whole_documents, progress)
            gains = measure(groups.shards[i], sentences, tokenizer, opened(), *options)
            save_array(gain_file(folder, i), gains)

        make_shards(
            "gain", folder / "gain", sizes, lambda i: gain_file(folder, i).exists(),
            measure_in_worker, lambda i: (*task, whole_documents, i), runner or Runner(), "passage",
            here,
        )  # fmt: skip
        step.complete(lambda: _summary(folder, len(groups.shards)))
    once(folder, _keep, folder, step.results, examples.min_gain)
    return step.results | json.loads((folder / _KEPT).read_text())


def keep_all(folder: Path) -> None:
    """Undoes a filter of the groups in `folder`; their gains stay on disk."""
    for file in (folder / _KEPT, *folder.glob("keep-*.npy")):
        remove(file)


def measure(
    shard: GroupShard,
    sentences: Sentences,
    tokenizer: Tokenizer,
    model: PassageLosses,
    whole_documents: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> np.ndarray:
    """The gain of each group in nats per token (float32); NaN if there is nothing to compare."""
    begins, pieces = _pieces(shard, sentences, whole_documents)
    reader = _Reader(shard, sentences, begins, tokenizer, model.masked)
    rows = np.flatnonzero(pieces > 1).tolist()
    together = model.losses(map(reader.together, rows), len(shard), progress)
    apart = itertools.chain.from_iterable(map(reader.apart, rows))
    apart = model.losses(apart, len(shard), progress)
    lost = apart.sums - together.sums
    wrong = np.flatnonzero(~np.isfinite(lost))
    if len(wrong):
        raise StageError(
            f"design.examples.gain_model gives no finite loss to {len(wrong)} of {len(shard)} "
            "groups; check its weights"
        )
    with np.errstate(invalid="ignore"):  # 0 / 0
        return (lost / together.counts).astype(np.float32)


def measure_in_worker(
    workdir: str,
    fingerprint: str,
    tokenizer: str,
    model: str,
    folder: str,
    whole_documents: bool,
    index: int,
) -> None:
    """As `measure`, of names alone, into the file of the gains; the model stays for the next shard.

    `fingerprint` is that of the sentences, `tokenizer` that of the workdir's.
    """
    with _devices:
        sentences = open_sentences(workdir, fingerprint)
        reader = open_tokenizer(str(DesignFolders(workdir).tokenizer), tokenizer)
        shard = read_groups(Path(folder), index)
        gains = measure(shard, sentences, reader, _open_model(model), whole_documents)
        save_array(gain_file(Path(folder), index), gains)


class _Reader:
    """The groups of a shard as the model reads them; `begins`: which sentences begin a piece."""

    def __init__(
        self,
        shard: GroupShard,
        sentences: Sentences,
        begins: np.ndarray,
        tokenizer: Tokenizer,
        masked: bool,
    ):
        self.shard, self.sentences, self.begins = shard, sentences, begins
        self.marks, self.masked = Marks.of(tokenizer), masked
        self.mask_id = tokenizer.mask_id if masked else None

    def together(self, row: int) -> Passage:
        """The group as one example."""
        tokens, chosen, _ = self._choose(row)
        return ask(tokens, chosen, row, self.mask_id)

    def apart(self, row: int) -> Iterator[Passage]:
        """Each of its pieces as an example."""
        tokens, chosen, spans = self._choose(row)
        begin = [] if self.marks.begin is None else [self.marks.begin]
        for start, end in spans:
            framed = np.concatenate([begin, tokens[start:end], [self.marks.end]]).astype(np.int32)
            asked = np.zeros(len(framed), bool)
            asked[len(begin) : -1] = chosen[start:end]
            yield ask(framed, asked, row, self.mask_id)

    def _choose(self, row: int) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
        """The tokens of the example, which of them to predict, and the span of each piece."""
        tokens, starts = in_context(self.sentences, self.shard, row, self.marks)
        special = np.isin(tokens, [mark for mark in self.marks if mark is not None])
        members = slice(self.shard.offsets[row], self.shard.offsets[row + 1])
        ends, chosen, spans = [*starts[1:], len(tokens)], np.zeros(len(tokens), bool), []
        for sentence, begins, start, end in zip(
            self.shard.ids[members], self.begins[members], starts, ends, strict=True
        ):
            while end > start and special[end - 1]:
                end -= 1
            chosen[start:end] = self._asked(sentence, end - start)
            spans.append((start, end) if begins else (spans.pop()[0], end))
        return tokens, chosen, spans

    def _asked(self, sentence: int, length: int) -> np.ndarray:
        """Which tokens of a sentence to predict: the same wherever it is."""
        if not self.masked:
            return np.arange(length) > 0
        draw = np.random.RandomState(sentence % 2**32).random_sample(length)
        return (draw < MASK_SHARE) | (draw == draw.min(initial=1))


def gain_file(folder: Path, shard: int) -> Path:
    """The file of the gains of a shard of the groups in `folder`."""
    return folder / "gain" / f"gain-{shard:05d}.npy"


def _pieces(
    shard: GroupShard, sentences: Sentences, whole_documents: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each sentence begins a piece, and how many pieces each group has."""
    begins = np.ones(len(shard.ids), bool)
    if whole_documents:
        documents = sentences.documents_of(shard.ids)
        begins[1:] = documents[1:] != documents[:-1]
        begins[shard.offsets[:-1]] = True
    return begins, np.diff(np.append(0, np.cumsum(begins))[shard.offsets])


def _count_passages(shard: GroupShard, sentences: Sentences, whole_documents: bool) -> int:
    """The number of groups with more than one piece, plus the number of their pieces."""
    _, pieces = _pieces(shard, sentences, whole_documents)
    return int((pieces[pieces > 1] + 1).sum())


def _describe(folder: str, limit: int, mesh: Mesh | None, checksum: str) -> str:
    """JSON with all that a worker needs to open the same model on its own devices."""
    axes = None if mesh is None else MeshConfig(-1, mesh.shape["fsdp"], mesh.shape["tensor"])
    settings = {"folder": folder, "limit": limit, "mesh": axes and to_dict(axes)}
    return json.dumps(settings | {"checksum": checksum})


@functools.lru_cache(maxsize=1)
def _open_model(described: str) -> PassageLosses:
    settings = json.loads(described)
    if model_checksum(settings["folder"]) != settings["checksum"]:
        raise StageError(
            f"{settings['folder']} holds another model for a worker than for the process that "
            "started it; expected the same files under that path on every machine"
        )
    mesh = settings["mesh"] and make_host_mesh(from_dict(settings["mesh"]))
    return open_gain_model(settings["folder"], settings["limit"], mesh)


def _keep(folder: Path, results: dict, min_gain: float) -> None:
    """Writes which groups gain enough, only into files that change; stops if there are none."""
    shards = range(results["shards"])
    keep = [~(np.load(gain_file(folder, shard)) <= min_gain) for shard in shards]
    kept = sum(int(part.sum()) for part in keep)
    if not kept and results["groups"]:
        raise StageError(
            f"of {results['groups']:,} groups in {folder} none gains more than {min_gain} nats a "
            f"token; the median is {results['median_gain']}, the best {results['best_gain']}; "
            "lower design.examples.min_gain, or choose another design.examples.gain_model"
        )
    for shard in shards:
        file = keep_file(folder, shard)
        if not (file.exists() and np.array_equal(np.load(file), keep[shard])):
            save_array(file, keep[shard])
    write_json(folder / _KEPT, {"min_gain": min_gain, "kept": kept})


def _summary(folder: Path, num_shards: int) -> dict:
    gains = [np.load(gain_file(folder, shard)) for shard in range(num_shards)]
    gains = np.concatenate([np.empty(0, np.float32), *gains])
    compared = gains[~np.isnan(gains)].astype(np.float64)
    counts, _ = np.histogram(np.clip(compared, _EDGES[0], _EDGES[-1]), _EDGES)
    measures = {"mean_gain": np.mean, "median_gain": np.median, "best_gain": np.max}
    return {
        "shards": num_shards,
        "groups": len(gains),
        "not_compared": len(gains) - len(compared),
        **{name: round(float(of(compared)), 4) if len(compared) else None
           for name, of in measures.items()},
        "gain_edges": _EDGES.tolist(),
        "gain_counts": counts.tolist(),
    }  # fmt: skip
