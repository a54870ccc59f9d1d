"""Regular pretraining: documents cut into consecutive chunks of whole sentences."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from icl_jax.corpus.tokenizers import open_tokenizer
from icl_jax.design.groups import NO_SCORE, Groups, GroupShard, write_groups
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import open_sentences
from icl_jax.design.strategies.running_text import (
    check_room,
    running_tokens,
    sentence_does_not_fit,
)
from icl_jax.design.strategies.strategy import Strategy

if TYPE_CHECKING:
    from icl_jax.design.build import Build
    from icl_jax.design.explain.reasons import Reasons


def make_groups(build: "Build") -> Groups:
    """The chunks of the whole corpus."""
    tokenizer = (str(build.folders.tokenizer), build.tokenizer.fingerprint)
    first = (build.workdir, build.sentences.fingerprint, tokenizer, build.limit)
    starts = build.sentences.corpus.starts
    return build.by_shard("contiguous", {}, make_shard, lambda *place: (*first, *place), starts)


def why_no_more(reasons: "Reasons", ids: list[int], left: int) -> str:
    """The document ends, or its next sentence is too long."""
    last, documents = ids[-1], reasons.sentences.corpus.documents
    if last + 1 == len(documents) or documents[last + 1] != documents[last]:
        return "the document ends here"
    return sentence_does_not_fit(reasons, "the next sentence of the document", last + 1, left)


def make_shard(
    workdir: str, fingerprint: str, tokenizer: tuple[str, str], limit: int, folder: str, index: int
) -> None:
    """The chunks of all documents of one shard of the corpus.

    `tokenizer` is the folder of one and its fingerprint.
    """
    corpus = open_sentences(workdir, fingerprint).corpus
    first, last = corpus.starts[index], corpus.starts[index + 1]
    reader = open_tokenizer(*tokenizer)
    marks = Marks.of(reader)
    tokens, starts = running_tokens(corpus, first, last, reader)
    documents = corpus.documents[first:last]
    ends_document = np.append(documents[1:] != documents[:-1], True)[: len(documents)]
    room = limit
    if marks.begin is None:  # the end of a document is a token of the text
        tokens = np.insert(tokens, starts[1:][ends_document], marks.end)
        starts = starts + np.append(0, np.cumsum(ends_document))
    else:
        room -= marks.ends
    offsets = cut(np.diff(starts), ends_document, room)
    groups = GroupShard(
        offsets,
        np.arange(first, last),
        np.full(last - first, NO_SCORE),
        tokens,
        starts[offsets],
        starts[:-1] - np.repeat(starts[offsets[:-1]], np.diff(offsets)),
    )
    check_room(np.diff(groups.token_offsets).max(initial=0), room)
    write_groups(Path(folder), index, groups)


def cut(lengths: np.ndarray, ends_document: np.ndarray, limit: int) -> np.ndarray:
    """The first sentence of each chunk, and the end; a chunk takes what fits of one document."""
    offsets, used = [0], 0
    for i, (length, ends) in enumerate(zip(lengths.tolist(), ends_document.tolist())):
        if used and used + length > limit:
            offsets.append(i)
            used = 0
        used += length
        if ends:
            offsets.append(i + 1)
            used = 0
    return np.array(offsets if len(lengths) else [0], np.int64)


STRATEGY = Strategy(make_groups, why_no_more, score="")
