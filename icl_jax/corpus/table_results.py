"""What the shards of a sentence table add up to, and whether a run may go on with it."""

from collections import Counter
from collections.abc import Sequence
import hashlib
import json
from pathlib import Path

from icl_jax.config import CorpusConfig, StageError
from icl_jax.corpus.sentence_shards import ShardSummary
from icl_jax.step_folder import beside

BAD_DOCUMENTS = "bad_documents.jsonl"
# When this many documents were read and most are bad, the rest need not be read to know it.
_ENOUGH_DOCUMENTS, _MOST = 1000, 0.5
_SHOWN = 3


def add_up(summaries: Sequence[ShardSummary]) -> dict:
    """The results of a complete table."""
    digest = hashlib.sha256("".join(summary.checksum for summary in summaries).encode())
    bad = Counter(reason for summary in summaries for _, _, reason in summary.bad)
    return {
        "documents": sum(summary.documents for summary in summaries),
        "bad_documents": dict(sorted(bad.items())),
        "sentences": sum(summary.sentences for summary in summaries),
        "tokens": sum(summary.tokens for summary in summaries),
        "dropped": _dropped(summaries),
        "long_split": sum(summary.long_split for summary in summaries),
        "shard_sentences": [summary.sentences for summary in summaries],
        "shard_documents": [summary.documents for summary in summaries],
        "fingerprint": digest.hexdigest()[:32],
    }


def check_bad_documents(
    summaries: Sequence[ShardSummary], config: CorpusConfig, folder: Path, complete: bool
) -> None:
    """Lists the bad documents in a file; stops if they are too many."""
    bad = [entry for summary in summaries for entry in summary.bad]
    file = folder / BAD_DOCUMENTS
    with beside(file) as partial, partial.open("w") as lines:
        for entry in bad:
            lines.write(
                json.dumps(dict(zip(("file", "place", "reason"), entry, strict=True))) + "\n"
            )
    read = len(bad) + sum(summary.documents for summary in summaries)
    allowed = config.max_bad_share if complete else max(_MOST, config.max_bad_share)
    if len(bad) > allowed * read and (complete or read >= _ENOUGH_DOCUMENTS):
        reasons = Counter(reason for _, _, reason in bad).most_common()
        raise StageError(
            f"{len(bad)} of {read} documents are bad, more than design.corpus.max_bad_share = "
            f"{config.max_bad_share:g} allows: "
            + "; ".join(f"{count} x {reason}" for reason, count in reasons)
            + f". The first: {'; '.join(f'{f}, {place}' for f, place, _ in bad[:_SHOWN])}. All are "
            f"listed in {file}. Mend the files, or raise design.corpus.max_bad_share"
        )


def check_sentences(summaries: Sequence[ShardSummary]) -> None:
    """Stops if there is no sentence at all."""
    if any(summary.sentences for summary in summaries):
        return
    documents = sum(summary.documents for summary in summaries)
    rules = ", ".join(f"{count} by '{rule}'" for rule, count in _dropped(summaries).items())
    raise StageError(
        f"the corpus has no sentences: {documents} documents were read, and of their lines and "
        f"sentences were dropped: {rules or 'none'}. Look at design.corpus.files, or set "
        "design.corpus.clean to False"
    )


def _dropped(summaries: Sequence[ShardSummary]) -> dict[str, int]:
    return dict(sorted(sum((Counter(summary.dropped) for summary in summaries), Counter()).items()))
