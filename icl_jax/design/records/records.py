"""The records of an arm: its groups in one global shuffle, as sharded TFRecords with an index.

In context, a record is a row: groups that fit share it, with ids 1, 2, ... in `group`, or it holds
one group, if one query a row is requested, which `results.json` then states. In batch, a record is
one sentence; those of a group follow each other with the same `batch_group`. Besides tokens, a
record has the sentences it holds: `sentence_ids`, `document_ids`, `similarities` (to the first of
the group; NaN: none), and `sentence_starts`, where in `tokens` each begins.
"""

from collections.abc import Iterator, Sequence
import functools
import json
from pathlib import Path
import zlib

from etils import epath
import numpy as np

from icl_jax.config import StageError
from icl_jax.config.design import ONE_QUERY, PACKED
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.data.packing import count_rows
from icl_jax.data.shard_index import ShardIndex, load_indexes
from icl_jax.data.tfrecord import encode_example, write_records
from icl_jax.design.folders import DesignFolders
from icl_jax.design.groups import Groups, read_keep
from icl_jax.design.records.layout import Example, Marks, in_batch, in_context
from icl_jax.design.records.rows import Piece, join, pack_rows
from icl_jax.design.records.tfds_metadata import write_metadata
from icl_jax.design.sentences import Sentences, open_sentences
from icl_jax.files.arrays import save_array
from icl_jax.files.step_folder import StepFolder, once, read_inputs, write_json
from icl_jax.retrieval.neighbours import SIMILARITY_EDGES
from icl_jax.retrieval.search.signatures import mix
from icl_jax.workers.local import Runner
from icl_jax.workers.shards import make_shards

LAYOUTS = {"in_context": in_context, "in_batch": in_batch}
_BYTES_PER_TOKEN = 4  # of text, about
_LENGTH_BINS = 32
_SHUFFLE = "shuffle.npy"  # the numbers of all groups that were kept, in the order of the records


def write_arm(
    workdir: str,
    sentences: Sentences,
    groups_folder: Path,
    arm: str,
    layout: str,
    row_length: int,
    seed: int,
    shard_bytes: int,
    runner: Runner,
    folder: Path,
    row_holds: str = PACKED,
) -> dict:
    """Writes what is missing of an arm's records; its results.

    `groups_folder` is that of a strategy, `layout` a key of LAYOUTS, `row_length` the most tokens
    of a record, `row_holds` one of ROWS. A shard has about `shard_bytes` of text.
    """
    groups = Groups.open(groups_folder)
    tokenizer = Tokenizer.open(DesignFolders(workdir).tokenizer)
    kept = [read_keep(groups_folder, i, len(shard)) for i, shard in enumerate(groups.shards)]
    kept = np.concatenate([np.empty(0, bool), *kept])
    inputs = {
        "groups": read_inputs(groups_folder),
        "kept": {"groups": int(kept.sum()), "crc": f"{zlib.crc32(np.packbits(kept)):08x}"},
        "sentences": sentences.fingerprint,
        "tokenizer": tokenizer.fingerprint,
        "layout": layout,
        "row_length": row_length,
        "seed": seed,
        "shard_bytes": shard_bytes,
    }
    if row_holds != PACKED:  # older designs do not have it
        inputs["row_holds"] = row_holds
    step = StepFolder(folder, inputs)
    if step.results is None:
        num_shards = _count_shards(sentences, groups.sizes[kept], shard_bytes)
        once(folder, _shuffle, np.flatnonzero(kept), seed, folder)
        marks, key = Marks.of(tokenizer), f"{zlib.crc32(json.dumps(inputs).encode()):08x}"
        cuts = kept.sum() * np.arange(num_shards + 1) // num_shards
        make_shards(
            f"records: {arm}", folder, np.diff(cuts),
            lambda index: _counts_file(folder, index).exists(), make_record_shard,
            lambda index: (
                workdir, sentences.fingerprint, str(groups_folder), key, layout, marks, row_length,
                row_holds, seed, str(record_file(folder, arm, index, num_shards)), index,
                num_shards,
            ),
            runner, "group",
        )  # fmt: skip

        rest = {"groups_left_out": len(kept) - int(kept.sum()), "row_holds": row_holds}
        step.complete(lambda: _finish(folder, arm, layout, row_length, num_shards) | rest)
    return step.results


def _finish(folder: Path, arm: str, layout: str, row_length: int, num_shards: int) -> dict:
    """Describes the finished shards as a data set; their counts together."""
    files = [_counts_file(folder, index) for index in range(num_shards)]
    counts = [json.loads(file.read_text()) for file in files]
    description = f"Training examples of the arm {arm}, at most {row_length} tokens each."
    write_metadata(folder, arm, layout, description, counts)
    return add_up(counts, row_length)


def record_file(folder: Path, arm: str, index: int, num_shards: int) -> Path:
    """The file of the records of a shard."""
    return folder / f"{arm}-train.tfrecord-{index:05d}-of-{num_shards:05d}"


def make_record_shard(
    workdir: str,
    sentences_fingerprint: str,
    groups_folder: str,
    groups_fingerprint: str,
    layout: str,
    marks: Marks,
    row_length: int,
    row_holds: str,
    seed: int,
    file: str,
    index: int,
    num_shards: int,
) -> None:
    """Writes the records of one slice of the shuffled groups, their index and their counts."""
    sentences = open_sentences(workdir, sentences_fingerprint)
    groups = _open_groups(groups_folder, groups_fingerprint)
    path = Path(file)
    order = np.load(path.parent / _SHUFFLE, mmap_mode="r")
    cuts = [len(order) * i // num_shards for i in (index, index + 1)]
    numbers = order[slice(*cuts)].tolist()
    pieces = [_pieces(sentences, groups, number, layout, marks, row_length) for number in numbers]
    if layout == "in_context" and row_holds == ONE_QUERY:
        records = (encode_example(join(group)) for group in pieces)
    elif layout == "in_context":
        records = _rows(pieces, row_length, (seed, index))
    else:
        records = _sentences_alone(numbers, pieces)
    write_records(path, records)
    # Reads the whole file again, and so checks it.
    (shard,) = load_indexes([epath.Path(path)], show_progress=False)
    rows = len(shard)
    if layout == "in_batch":
        rows = _rows_of_training(shard, row_length, row_holds, seed)
    counts = count_groups(pieces, row_length)
    counts |= {"records": len(shard), "rows": rows, "bytes": shard.size}
    write_json(_counts_file(path.parent, index), counts)


def _count_shards(sentences: Sentences, sizes: np.ndarray, shard_bytes: int) -> int:
    """By the number of sentences, taken to be of average length."""
    if not len(sizes):
        raise StageError(
            "the gain filter left no group at all; lower design.examples.min_gain, or choose "
            "another design.examples.gain_model"
        )
    mean_tokens = 1 + sentences.num_tokens / len(sentences)
    size = int(sizes.sum()) * mean_tokens * _BYTES_PER_TOKEN
    return max(1, min(len(sizes), round(size / shard_bytes)))


def _shuffle(numbers: np.ndarray, seed: int, folder: Path) -> None:
    """Stores these groups in random order, the same for all arms with as many groups."""
    if not (folder / _SHUFFLE).exists():
        save_array(folder / _SHUFFLE, np.random.RandomState(seed).permutation(numbers))


def _counts_file(folder: Path, index: int) -> Path:
    """The counts of a shard; written last, so a shard is done if this file exists."""
    return folder / f"counts-{index:05d}.json"


@functools.lru_cache(maxsize=1)
def _open_groups(folder: str, fingerprint: str) -> Groups:
    """As `Groups.open`, kept from shard to shard."""
    del fingerprint  # a new one means that the folder was made again
    return Groups.open(Path(folder))


def _pieces(
    sentences: Sentences, groups: Groups, number: int, layout: str, marks: Marks, row_length: int
) -> list[Piece]:
    """The examples of a group."""
    shard, row = groups.place(number)
    ids, similarities = groups.of(number)
    facts = (ids, sentences.documents_of(ids), similarities)
    examples = LAYOUTS[layout](sentences, shard, row, marks)
    if isinstance(examples, Example):
        pieces = [Piece(examples, *facts)]
    else:
        pieces = [
            Piece(example, *(values[i : i + 1] for values in facts))
            for i, example in enumerate(examples)
        ]
    longest = max(len(piece.example.tokens) for piece in pieces)
    if longest > row_length:
        raise StageError(
            f"group {number}, with the sentences {ids.tolist()}, makes an example of {longest} "
            f"tokens, more than {row_length}; delete the folder of its groups and build them again"
        )
    return pieces


def _rows(groups: list[list[Piece]], row_length: int, seed: tuple[int, int]) -> Iterator[bytes]:
    lengths = np.array([len(piece.example.tokens) for (piece,) in groups])
    for row in pack_rows(lengths, row_length, seed):
        yield encode_example(join([groups[i][0] for i in row]))


def _sentences_alone(numbers: list[int], groups: list[list[Piece]]) -> Iterator[bytes]:
    for number, pieces in zip(numbers, groups, strict=True):
        for piece in pieces:
            yield encode_example({**join([piece]), "batch_group": [number]})


def _rows_of_training(shard: ShardIndex, row_length: int, row_holds: str, seed: int) -> int:
    """How many rows training makes of sentences in batch, by data.pack=True or a query a row."""
    return count_rows(shard.tokens, shard.batch_group, row_length, row_holds == PACKED, seed)


def count_groups(groups: Sequence[Sequence[Piece]], row_length: int) -> dict:
    """The counts of some groups, each a list of its examples."""
    pieces = [piece for group in groups for piece in group]
    ids = [piece.sentence_ids for piece in pieces]
    sizes = [sum(len(piece.sentence_ids) for piece in group) for group in groups]
    tokens = np.array([sum(len(piece.example.tokens) for piece in group) for group in groups])
    first = np.cumsum([0, *sizes[:-1]])  # of each group: its query
    scores = np.delete(np.concatenate([piece.similarities for piece in pieces]), first)
    # Rounding may take a cosine above 1.
    scores = np.clip(scores[~np.isnan(scores)], -1, 1)
    lengths = np.bincount(_length_bin(tokens, row_length), minlength=_LENGTH_BINS)
    return {
        "groups": len(groups),
        "sentences": sum(sizes),
        "tokens": int(tokens.sum()),
        "longest_group": int(tokens.max()),
        "sentence_multiset": multiset(np.concatenate(ids)),
        "sentences_per_group": np.bincount(sizes).tolist(),
        "tokens_per_group": lengths.tolist(),
        "similarities": np.histogram(scores, SIMILARITY_EDGES)[0].tolist(),
    }


def add_up(counts: Sequence[dict], row_length: int) -> dict:
    """The results of an arm from the counts of its shards, `records` and `rows` among them."""
    total = {
        name: sum(shard[name] for shard in counts)
        for name in ("groups", "records", "rows", "sentences", "tokens")
    }
    total["filled"] = round(total["tokens"] / (total["rows"] * row_length), 4)
    total["shards"] = len(counts)
    total["longest_group"] = max(shard["longest_group"] for shard in counts)  # tokens
    checksum = sum(int(shard["sentence_multiset"], 16) for shard in counts) % 2**64
    total["sentence_multiset"] = f"{checksum:016x}"
    # Entry n: groups of n sentences.
    total["sentences_per_group"] = _add_lists([shard["sentences_per_group"] for shard in counts])
    # Bin i: above edge i, up to edge i + 1.
    total["tokens_per_group_edges"] = [
        row_length * i / _LENGTH_BINS for i in range(_LENGTH_BINS + 1)
    ]
    total["tokens_per_group_counts"] = _add_lists([shard["tokens_per_group"] for shard in counts])
    # Only of sentences that were chosen by similarity: not of queries, nor of running text.
    total["similarity_edges"] = SIMILARITY_EDGES.tolist()
    total["similarity_counts"] = _add_lists([shard["similarities"] for shard in counts])
    return total


def multiset(ids: np.ndarray) -> str:
    """A checksum of ids, each as often as it occurs, in any order."""
    mixed = mix(ids.astype(np.uint64))  # sums of plain ids would collide
    return f"{int(mixed.sum(dtype=np.uint64)):016x}"


def _length_bin(tokens: np.ndarray, row_length: int) -> np.ndarray:
    # In batch, each sentence has special tokens of its own: their sum may pass a row.
    return np.minimum((tokens - 1) * _LENGTH_BINS // row_length, _LENGTH_BINS - 1)


def _add_lists(lists: Sequence[list[int]]) -> list[int]:
    total = np.zeros(max(map(len, lists)), np.int64)
    for values in lists:
        total[: len(values)] += values
    return total.tolist()
