"""Prints one record of an arm as text, with scores, and why it holds no more.

python -m icl_jax.design.explain --workdir=DIR --arm=neighbours_in_context --index=17
python -m icl_jax.design.explain --workdir=DIR --arm=random_in_context --sentence=1234
"""

import textwrap

from absl import flags
import numpy as np

from icl_jax.cli import Flag, command, expect_one, whole
from icl_jax.config import StageError
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.data.shards import Shards, find_shards
from icl_jax.design.arms import ARMS, has_queries
from icl_jax.design.explain.group_text import GroupReader
from icl_jax.design.explain.reasons import Reasons
from icl_jax.design.folders import DesignFolders, arm_folder
from icl_jax.design.sentences import Sentences
from icl_jax.files.step_folder import read_inputs
from icl_jax.retrieval.show import print_sentence, print_text
from icl_jax.workers.local import progress_bar

_SHOWN = 20  # records that hold a sentence


@command(
    Flag("workdir=DIR", "the workdir of a run with --stages=design", required=True),
    Flag("arm=ARM", "one of design.examples.arms", required=True),
    Flag("index=N", "the number of a record, from 0", whole()),
    Flag("sentence=ID", "prints which records hold this sentence", whole()),
)
def main(given: flags.FlagValues) -> None:
    """Prints a record, or where a sentence is."""
    expect_one(given, "index=N", "sentence=ID")
    records = ArmRecords(given.workdir, given.arm)
    if given.index is not None:
        show_record(records, given.index)
    else:
        find_sentence(records, given.sentence)


class ArmRecords:
    """The records of a finished arm, with what it takes to show them."""

    def __init__(self, workdir: str, name: str):
        folder = arm_folder(workdir, name)
        self.name, self.arm = name, ARMS[name]
        made_from = read_inputs(folder)
        self.row_length = made_from["row_length"]
        self.records = Shards(find_shards(str(folder)))
        own_queries = " " in made_from["sentences"]  # two fingerprints
        self.sentences = Sentences.open(workdir, own_queries)
        self.reader = GroupReader(self.sentences, Tokenizer.open(DesignFolders(workdir).tokenizer))
        self.reasons = Reasons(workdir, self.arm.strategy, self.sentences)

    def __len__(self) -> int:
        return len(self.records)

    def batch_group(self, index: int) -> range | None:
        """The records that share a batch with one, itself among them; None in context."""
        number = self.records[index].get("batch_group")
        if number is None:
            return None
        first, last = index, index + 1
        while first > 0 and self.records[first - 1]["batch_group"] == number:
            first -= 1
        while last < len(self) and self.records[last]["batch_group"] == number:
            last += 1
        return range(first, last)


def show_record(records: ArmRecords, index: int) -> None:
    """Prints the place of a record, its groups with all sentences, and why each holds no more."""
    if not 0 <= index < len(records):
        raise StageError(f"--index must be from 0 to {len(records) - 1}, got {index}")
    record = records.records[index]
    groups = np.unique(record["group"])
    print(f"{records.name}, record {index:,} of {len(records):,}")
    print(records.records.place(index))
    together = records.batch_group(index)
    if together is None:
        used = len(record["tokens"])
        print(f"{used} tokens of at most {records.row_length}; groups in this row: {len(groups)}")
        for group in groups.tolist():
            _show_group(records, record, group, len(groups))
        return
    number, last = int(record["batch_group"][0]), together[-1]
    print(f"{len(record['tokens'])} tokens, one sentence")
    print(f"\ngroup {number:,}: records {together[0]:,} to {last:,}, always in one batch")
    for other in together:
        _show_sentences(records, records.records[other], 1, other == together[0],
                        f"record {other:,}{' (this one)' * (other == index)}")  # fmt: skip
    parts = [records.records[other] for other in together]
    ids = np.concatenate([part["sentence_ids"] for part in parts])
    marks = records.reader.marks.ends  # in context there would be one frame, and separators
    in_context = sum(len(part["tokens"]) - marks + 1 for part in parts) - 1 + marks
    _show_reason(records, ids, in_context)


def find_sentence(records: ArmRecords, sentence: int) -> None:
    """Prints which records hold a sentence; reads all of them."""
    if not 0 <= sentence < len(records.sentences):
        last = len(records.sentences) - 1
        raise StageError(f"--sentence must be from 0 to {last}, got {sentence}")
    found = 0
    with progress_bar(total=len(records), unit="record", leave=False) as bar:
        for index in range(len(records)):
            record = records.records[index]
            places = np.flatnonzero(record["sentence_ids"] == sentence)
            for place in places.tolist():
                found += 1
                if found <= _SHOWN:
                    group = int(record["group"][record["sentence_starts"][place]])
                    bar.write(f"record {index}, group {group}  {_score(record, place)}")
            bar.update()
    shown = f"; the first {_SHOWN} are shown" if found > _SHOWN else ""
    print(f"#{sentence} occurs {found:,} times in {records.name}{shown}")
    print_text(records.sentences.text(sentence))


def _show_group(records: ArmRecords, record: dict, group: int, num_groups: int) -> None:
    tokens = np.flatnonzero(record["group"] == group)
    ids = record["sentence_ids"][record["group"][record["sentence_starts"]] == group]
    number = "1 sentence" if len(ids) == 1 else f"{len(ids)} sentences"
    print(f"\ngroup {group} of {num_groups}: {number}, {len(tokens)} tokens")
    _show_sentences(records, record, group, True)
    _show_reason(records, ids, len(tokens))


def _show_sentences(
    records: ArmRecords, record: dict, group: int, has_first: bool, label: str = ""
) -> None:
    inside = np.flatnonzero(record["group"] == group)
    places = np.flatnonzero(record["group"][record["sentence_starts"]] == group)
    starts = record["sentence_starts"][places]
    parts = records.reader.split(record["tokens"][inside], starts - inside[0])
    print("".join(f"        {name}\n" for name in parts["before"]), end="")
    for i, place in enumerate(places.tolist()):
        id = int(record["sentence_ids"][place])
        document = records.sentences.document(int(record["document_ids"][place]))
        is_query = i == 0 and has_first and has_queries(records.arm.strategy)
        score = "query" if is_query else _score(record, place)
        count = f"{parts['lengths'][i]} tokens from {starts[i]}"
        print_sentence(score, id, document, records.sentences.position(id),
                       records.sentences.text(id), label or count)  # fmt: skip
        print("".join(f"        {name}\n" for name in parts["after"][i]), end="")


def _score(record: dict, place: int) -> str:
    similarity = record["similarities"][place]
    return "" if np.isnan(similarity) else f"{similarity:.3f}"


def _show_reason(records: ArmRecords, ids: np.ndarray, num_tokens: int) -> None:
    for line in f"no more: {records.reasons.explain(ids, num_tokens)}".splitlines():
        print(textwrap.fill(line, 100))
