"""Writes an arm as Parquet for trainers that cut attention by their own rules.

python -m icl_jax.design.export --workdir=DIR --arm=ARM --to=FOLDER --rules=eos \\
    --row_length=1024

Our records have one group id per token; these trainers have none and work out by rules of their
own which tokens see each other. The export relies on these, by --rules:

eos: rows of exactly --row_length tokens. The token after an end-of-text opens a new segment, the
  end-of-text itself closes the one before, a row's first token opens one too; attention stays
  within segments. So Levanter: data format `prebuilt` (a row is one example), with
  block_cross_document_attention and the tokenizer's eos id; Megatron's reset_attention_mask is
  alike. Trainers that join all rows and cut every --row_length tokens get the same rows back. A
  group has its only end-of-text at its end (none if it fills its row); what is left of a row is
  filled with end-of-text tokens, each a segment of its own. `loss_weights` is 0 where the next
  token is of another segment.
segments: the same rows with `inputs_segmentation` (1, 2, ...; 0: padding) and `inputs_position`
  (from 0 in every segment), the names of MaxText's batches; for input pipelines that pass them on.
rows: one group in a row of its own, not padded. MaxText's own pipelines (dataset_type hf, or grain
  with parquet; tokenize_train_data=False, packing=True) take one column of tokens, make every row
  one segment, and pack whole rows up to max_target_length.
"""

from collections.abc import Iterator
import json
from pathlib import Path
import shutil

from absl import flags
from etils import epath
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icl_jax.cli import Flag, command, one_of, whole
from icl_jax.config import StageError
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.data.shards import find_shards
from icl_jax.data.tfrecord import decode_example, scan_records
from icl_jax.design.folders import DesignFolders, arm_folder
from icl_jax.design.records.rows import pack_rows
from icl_jax.files.remote import is_remote
from icl_jax.files.step_folder import beside, read_inputs, read_results, write_json
from icl_jax.workers.local import progress_bar

RULES = ("eos", "segments", "rows")
_SETTINGS = {
    "eos": """\
Every row has exactly {row_length} tokens in `input_ids`; `loss_weights` is 0 where the next token
belongs to another group. A group ends with the end-of-text token {eos}, and attention must be cut
there; without the cut, groups that share a row see each other.

Levanter: a data component with `format: {{type: prebuilt, input_ids_key: input_ids,
loss_weights_key: loss_weights}}`, `block_cross_document_attention: true`, the tokenizer in this
folder, and a model of {row_length} positions. Other trainers: attention mask and positions reset
at end-of-text; blocks of {row_length} tokens where rows are joined and cut again.
""",
    "segments": """\
Every row has {row_length} tokens in `inputs`, with `inputs_segmentation` (0: padding) and
`inputs_position`, the names of MaxText's batches. Attention must stay within a segment, and the
loss must leave out segment 0. For input pipelines that pass these columns on as they are.
""",
    "rows": """\
Every row is one group, in `tokens`, at most {row_length} of them. The trainer must make each row a
segment of its own; it may pack whole rows, never cut one.

MaxText, with the path of this folder for FOLDER: `dataset_type=hf hf_path=parquet
hf_train_files=FOLDER/data/*.parquet` (or `dataset_type=grain grain_file_type=parquet
grain_train_files=FOLDER/data/*.parquet`), `train_data_columns=['tokens'] tokenize_train_data=False
packing=True max_target_length={row_length} vocab_size={vocab_size}` (or more), and
`tokenizer_path=FOLDER/tokenizer`.
""",
}


@command(
    Flag("workdir=DIR", "the workdir of a run with --stages=design", required=True),
    Flag("arm=ARM", "one of design.examples.arms", required=True),
    Flag("to=FOLDER", "the folder to write, new or empty", required=True),
    Flag("rules=RULES", f"one of {', '.join(RULES)}: see above", one_of(*RULES), required=True),
    Flag("row_length=N", "how many tokens the trainer takes", whole(), required=True),
)
def main(given: flags.FlagValues) -> None:
    """Exports, and says what was written."""
    counts = export(given.workdir, given.arm, given.to, given.rules, given.row_length)
    print(
        f"{counts['groups']:,} groups in {counts['rows']:,} rows of {given.arm} written to "
        f"{given.to}; {counts['filled']:.1%} of the places hold their tokens. The settings for the "
        f"trainer are in {Path(given.to) / 'README.md'}"
    )


def export(workdir: str, arm: str, to: str | Path, rules: str, row_length: int) -> dict:
    """Writes the folder `to`, whole or not at all; how many groups, rows and tokens it has."""
    folder = arm_folder(workdir, arm)
    _check(folder, arm, to, row_length)
    to = Path(to)
    tokenizer = Tokenizer.open(DesignFolders(workdir).tokenizer)
    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    (partial / "data").mkdir(parents=True)
    shards = find_shards(str(folder))
    counts = {"groups": 0, "rows": 0, "tokens": 0}
    total = sum(path.stat().length for path in shards)
    with progress_bar(total=total, unit="B", unit_scale=True, desc=f"export: {arm}") as bar:
        for index, shard in enumerate(shards):
            groups = list(read_groups(shard))
            rows = _ROWS[rules](groups, row_length, tokenizer, index)
            file = partial / "data" / f"{arm}-train-{index:05d}-of-{len(shards):05d}.parquet"
            with beside(file) as place:
                pq.write_table(pa.table(rows), place)
            counts["groups"] += len(groups)
            counts["rows"] += len(next(iter(rows.values())))
            counts["tokens"] += sum(map(len, groups))
            bar.update(shard.stat().length)
    places = counts["tokens"] if rules == "rows" else counts["rows"] * row_length
    counts["filled"] = round(counts["tokens"] / places, 4)
    _write_notes(partial, arm, rules, row_length, tokenizer, counts)
    if to.exists():
        to.rmdir()  # empty
    partial.replace(to)
    return counts


def read_groups(shard: epath.Path) -> Iterator[np.ndarray]:
    """The tokens of every group of a shard, in the order of its records."""
    for _, payload in scan_records(shard):
        features = decode_example(payload)
        starts = np.flatnonzero(np.diff(features["group"])) + 1
        yield from np.split(features["tokens"].astype(np.int32), starts)


def _check(folder: epath.Path, arm: str, to: str | Path, row_length: int) -> None:
    if read_inputs(folder)["layout"] == "in_batch":
        raise StageError(
            f"the arm {arm} keeps a group's sentences together in a batch, which other trainers "
            "would shuffle apart, so that nothing of its design would be left; export an arm whose "
            "groups share a context, or train this one here"
        )
    longest = read_results(folder)["longest_group"]
    if row_length < longest:
        raise StageError(
            f"--row_length must be at least {longest}, the tokens of the longest group of {arm}, "
            f"got {row_length}; a longer row also holds several groups"
        )
    if is_remote(to):
        raise StageError(f"--to must be a local folder, got {to}; copy it from there afterwards")
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StageError(f"--to must be a new or an empty folder, got {to}, which is not empty")


def _cut_at_eos(
    groups: list[np.ndarray], row_length: int, tokenizer: Tokenizer, index: int
) -> dict[str, pa.Array]:
    eos = tokenizer.end_of_text_id
    groups = [_end_once(tokens, tokenizer, row_length) for tokens in groups]
    tokens, segments = _fill_rows(groups, row_length, eos, index)
    same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    weights = np.pad(same, ((0, 0), (0, 1))).astype(np.float32)
    return {"input_ids": _lists(tokens), "loss_weights": _lists(weights)}


def _cut_by_segment(
    groups: list[np.ndarray], row_length: int, tokenizer: Tokenizer, index: int
) -> dict[str, pa.Array]:
    padding = tokenizer.end_of_text_id if tokenizer.padding_id is None else tokenizer.padding_id
    tokens, segments = _fill_rows(groups, row_length, padding, index)
    place = np.broadcast_to(np.arange(row_length, dtype=np.int32), tokens.shape)
    begins = np.diff(segments, axis=1, prepend=-1) != 0
    positions = place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    positions[segments == 0] = 0
    return {
        "inputs": _lists(tokens),
        "inputs_segmentation": _lists(segments),
        "inputs_position": _lists(positions),
    }


def _cut_by_row(
    groups: list[np.ndarray], row_length: int, tokenizer: Tokenizer, index: int
) -> dict[str, pa.Array]:
    del row_length, tokenizer, index
    offsets = np.cumsum([0, *map(len, groups)], dtype=np.int32)
    return {"tokens": pa.ListArray.from_arrays(offsets, np.concatenate(groups))}


_ROWS = {"eos": _cut_at_eos, "segments": _cut_by_segment, "rows": _cut_by_row}


def _end_once(tokens: np.ndarray, tokenizer: Tokenizer, row_length: int) -> np.ndarray:
    """A group with end-of-text at its end alone; within it, the separator takes its place."""
    eos = tokenizer.end_of_text_id
    inside = tokens[:-1]
    tokens = np.append(np.where(inside == eos, tokenizer.separator_id, inside), tokens[-1])
    if tokens[-1] != eos and len(tokens) < row_length:
        tokens = np.append(tokens, eos)
    return tokens.astype(np.int32)


def _fill_rows(
    groups: list[np.ndarray], row_length: int, filler: int, index: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and segments, both (rows, row_length); segment 0 is filled up."""
    rows = pack_rows(np.array([len(tokens) for tokens in groups]), row_length, (index,))
    tokens_RT = np.full((len(rows), row_length), filler, np.int32)
    segments_RT = np.zeros((len(rows), row_length), np.int32)
    for r, row in enumerate(rows):
        held = np.concatenate([groups[i] for i in row])
        tokens_RT[r, : len(held)] = held
        segments_RT[r, : len(held)] = np.repeat(
            np.arange(1, len(row) + 1), [len(groups[i]) for i in row]
        )
    return tokens_RT, segments_RT


def _lists(values_RT: np.ndarray) -> pa.ListArray:
    offsets = np.arange(0, values_RT.size + 1, values_RT.shape[1], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, values_RT.ravel())


def _write_notes(
    folder: Path, arm: str, rules: str, row_length: int, tokenizer: Tokenizer, counts: dict
) -> None:
    """Writes README.md, export.json and the tokenizer as `transformers` opens it."""
    facts = {
        "arm": arm,
        "rules": rules,
        "row_length": row_length,
        "vocab_size": tokenizer.vocab_size,
        **tokenizer.special_ids,
        **counts,
    }
    write_json(folder / "export.json", facts)
    _write_tokenizer(folder / "tokenizer", tokenizer)
    settings = _SETTINGS[rules].format(
        row_length=row_length, eos=tokenizer.end_of_text_id, vocab_size=tokenizer.vocab_size
    )
    with beside(folder / "README.md") as partial:
        partial.write_text(
            f"# {arm}\n\n{counts['groups']:,} groups in {counts['rows']:,} rows: `data/*.parquet`. "
            f"The model needs a vocabulary of {tokenizer.vocab_size} ids;\n"
            f"{tokenizer.separator_id} is the separator between the sentences of a group.\n\n"
            f"{settings}"
        )


def _write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    folder.mkdir()
    write_json(folder / "tokenizer.json", json.loads(tokenizer.library.to_str()))
    write_json(folder / "tokenizer_config.json", tokenizer.settings)


if __name__ == "__main__":
    main()
