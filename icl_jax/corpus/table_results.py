"""The totals of a sentence table's shards, and whether a run may continue with them."""

from collections import Counter
from collections.abc import Sequence
import hashlib
import json
from pathlib import Path

from icl_jax.config import CorpusConfig, StageError
from icl_jax.corpus.documents import BadDocument
from icl_jax.corpus.sentence_shards import ShardSummary
from icl_jax.files.mirror import shown
from icl_jax.files.step_folder import beside

BAD_DOCUMENTS = "bad_documents.jsonl"
# Once this many documents were read and most are bad, there is no need to read the rest.
_ENOUGH_DOCUMENTS, _MOST = 1000, 0.5
_SHOWN = 3


def add_up(summaries: Sequence[ShardSummary]) -> dict:
    """The results of a complete table."""
    digest = hashlib.sha256("".join(summary.checksum for summary in summaries).encode())
    return {
        "documents": sum(summary.documents for summary in summaries),
        "bad_documents": dict(sorted(_reasons(_bad(summaries)).items())),
        "sentences": sum(summary.sentences for summary in summaries),
        "tokens": sum(summary.tokens for summary in summaries),
        "dropped": dict(sorted(_dropped(summaries).items())),
        "long_split": sum(summary.long_split for summary in summaries),
        "shard_sentences": [summary.sentences for summary in summaries],
        "shard_documents": [summary.documents for summary in summaries],
        "fingerprint": digest.hexdigest()[:32],
    }


def check_bad_documents(
    summaries: Sequence[ShardSummary],
    config: CorpusConfig,
    folder: Path,
    complete: bool,
    field: str = "design.corpus",
) -> None:
    """Lists the bad documents in a file; stops if they are too many."""
    bad = _bad(summaries)
    file = folder / BAD_DOCUMENTS
    with beside(file) as partial, partial.open("w") as lines:
        for document in bad:
            lines.write(json.dumps(document._asdict()) + "\n")
    num_bad = _reasons(bad).total()
    read = num_bad + sum(summary.documents for summary in summaries)
    allowed = config.max_bad_share if complete else max(_MOST, config.max_bad_share)
    if num_bad > allowed * read and (complete or read >= _ENOUGH_DOCUMENTS):
        raise StageError(
            f"{num_bad} of {read} documents are bad, more than {field}.max_bad_share = "
            f"{config.max_bad_share:g} allows: {_list_bad(bad)}. All are listed in {file}. Fix "
            f"the files, or raise {field}.max_bad_share"
        )


def describe_table(results: dict, folder: Path, field: str = "design.corpus") -> str:
    """One line for the end of the step: what was read, and what was unreadable."""
    bad = sum(results["bad_documents"].values())
    listed = f", listed in {shown(folder / BAD_DOCUMENTS)}" if bad else ""
    return (
        f"{field}: {results['documents']:,} documents, {results['sentences']:,} sentences; "
        f"{bad:,} documents unreadable{listed}"
    )


def check_sentences(summaries: Sequence[ShardSummary], field: str = "design.corpus") -> None:
    """Stops if there is no sentence at all."""
    if not any(summary.sentences for summary in summaries):
        documents = sum(summary.documents for summary in summaries)
        found = no_sentences(documents, _bad(summaries), _dropped(summaries), field)
        raise StageError(f"there are no sentences in {field}.files: {found}")


def no_sentences(
    documents: int, bad: Sequence[BadDocument], dropped: Counter, field: str = "design.corpus"
) -> str:
    """What happened to the text, and what to check."""
    rules = ", ".join(f"{count} by '{rule}'" for rule, count in sorted(dropped.items()))
    others = f"{_reasons(bad).total()} documents are bad: {_list_bad(bad)}. " if bad else ""
    return (
        f"{documents} documents were read, and these of their lines and sentences were dropped: "
        f"{rules or 'none'}. {others}Check {field}.files and {field}.text_field, or set "
        f"{field}.clean to False"
    )


def _list_bad(bad: Sequence[BadDocument]) -> str:
    reasons = "; ".join(f"{count} x {reason}" for reason, count in _reasons(bad).most_common())
    first = "; ".join(f"{document.file}, {document.place}" for document in bad[:_SHOWN])
    return f"{reasons}. The first: {first}"


def _reasons(bad: Sequence[BadDocument]) -> Counter:
    return Counter(document.reason for document in bad)


def _bad(summaries: Sequence[ShardSummary]) -> list[BadDocument]:
    return [BadDocument(*entry) for summary in summaries for entry in summary.bad]


def _dropped(summaries: Sequence[ShardSummary]) -> Counter:
    return sum((Counter(summary.dropped) for summary in summaries), Counter())
