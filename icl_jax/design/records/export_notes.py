"""What goes along with an exported arm: its tokenizer, and the settings that a trainer needs."""

import json
from pathlib import Path

from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.files.step_folder import beside, write_json

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


def write_notes(
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
