"""Why a group holds no further sentence: what would have come next, and what kept it out."""

import functools
from pathlib import Path
import textwrap

import numpy as np

from icl_jax.cli import suggest
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.explain.left_out import Candidate, LeftOut
from icl_jax.design.folders import DesignFolders
from icl_jax.design.records.layout import Marks
from icl_jax.design.sentences import Sentences
from icl_jax.design.strategies.running_text import running_tokens
from icl_jax.files.step_folder import read_inputs
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.show import plain

_MOST_COMPARED = 2_000_000  # sentences of a corpus, for each group that is told about: seconds
_SHOWN = 60  # characters of a sentence


class Reasons:
    """Tells it for the groups of one strategy."""

    def __init__(self, workdir: str, strategy: str, sentences: Sentences):
        self.workdir, self.folders, self.strategy = workdir, DesignFolders(workdir), strategy
        self.limit = read_inputs(self.folders.groups / strategy)["limit"]  # tokens of an example
        self.sentences = sentences
        self.tokenizer = Tokenizer.open(self.folders.tokenizer)
        self.marks = Marks.of(self.tokenizer)

    def tell(self, ids: np.ndarray, num_tokens: int) -> str:
        """For a group of these sentences, which is an example of so many tokens in context."""
        return getattr(self, f"_{self.strategy}")(ids.tolist(), self.limit - num_tokens)

    def _task_only(self, ids: list[int], left: int) -> str:
        return "this arm has each query alone"

    def _neighbours(self, ids: list[int], left: int) -> str:
        found, scores = self._stored(self.folders.neighbours, ids[0])
        taken = len(ids) - 1
        if len(self.sentences.corpus) > _MOST_COMPARED:
            return self._did_not_fit(found, scores, taken, left) or (
                f"all {taken} that were stored are here; what else is near: "
                + suggest("retrieval.show", workdir=self.workdir, query="TEXT")
            )
        row = ids[0] - self.sentences.first_query
        nearer, following = self._left_out.around(row, taken)
        told = self._did_not_fit(found, scores, taken, left)
        if not told and following is None:
            told = "no other sentence is among the nearest"
        told = told or f"the next by similarity, {self._describe(row, following)}"
        if nearer:
            more = f"; and {len(nearer) - 1:,} more" if len(nearer) > 1 else ""
            told += f"\nnearer, but left out: {self._describe(row, nearer[0])}{more}"
        return told

    def _shared_entity(self, ids: list[int], left: int) -> str:
        folder, taken = self.folders.entity_neighbours, len(ids) - 1
        found, scores = self._stored(folder, ids[0])
        most = read_inputs(folder)["search"]["neighbours"]
        if len(found) >= most:
            rest = f"all that were stored are here: design.search.neighbours = {most}"
        else:
            rest = (
                f"no further sentence was stored ({len(found)} found): none shares a rare name or "
                "term with the query, or those that do have its words, are in its document, or "
                "nearly repeat it or a sentence that is here"
            )
        return self._did_not_fit(found, scores, taken, left) or rest

    def _random(self, ids: list[int], left: int) -> str:
        found, scores = self._stored(self.folders.neighbours, ids[0])
        taken = len(ids) - 1
        replaced = ", ".join(f"#{i} ({s:.3f})" for i, s in zip(found[:taken], scores[:taken]))
        own = [ids[0], *found[:taken].tolist()]
        used = int(self.sentences.lengths_of(own).sum()) + taken + self.marks.ends
        return (
            "dealt at random from the neighbours of all queries, as many as the query's own, in "
            f"place of {replaced or 'none'}\nno more of its own: "
            + self._neighbours(own, self.limit - used)
        )

    def _stored(self, folder: Path, query: int) -> tuple[np.ndarray, np.ndarray]:
        return Neighbours.open(folder).of(query - self.sentences.first_query)

    def _did_not_fit(self, found: np.ndarray, scores: np.ndarray, taken: int, left: int) -> str:
        """The next that was stored did not fit; empty if all are here."""
        if taken == len(found):
            return ""
        length = int(self.sentences.lengths_of(found[taken]))
        return (
            f"the next neighbour #{found[taken]} ({scores[taken]:.3f}) has {length} tokens and a "
            f"separator, but only {left} of {self.limit} were left"
        )

    @functools.cached_property
    def _left_out(self) -> LeftOut:
        own_queries = self.sentences.queries is not None
        return LeftOut(self.folders, self.sentences.corpus, own_queries)

    def _describe(self, row: int, candidate: Candidate) -> str:
        text = textwrap.shorten(plain(self.sentences.text(candidate.id)), _SHOWN, placeholder="...")
        rule = self._left_out.rule(row, candidate)
        return f'#{candidate.id} ({candidate.cosine:.3f}, "{text}"), {rule}'

    def _contiguous(self, ids: list[int], left: int) -> str:
        last, documents = ids[-1], self.sentences.corpus.documents
        if last + 1 == len(documents) or documents[last + 1] != documents[last]:
            return "the document ends here"
        return self._too_long("the next sentence of the document", last + 1, left)

    def _document_path(self, ids: list[int], left: int) -> str:
        last, documents = ids[-1], self.sentences.corpus.documents
        if last + 1 < len(documents) and documents[last + 1] == documents[last]:
            return self._too_long("the next sentence of the document", last + 1, left)
        path = np.load(self.folders.groups / "document_path" / "path" / "path.npy", mmap_mode="r")
        place = int(np.flatnonzero(path["document"] == documents[last])[0])
        if place + 1 == len(path):
            return "the path ends here"
        first = int(path["first"][place + 1])
        # A separator stands between documents: in place of the end that was counted, if there is.
        room = left if self.marks.begin is None else left - 1
        if sum(self._running_length(first)) <= room:
            return "a part of the path ends here: each part is cut into contexts by itself"
        return self._too_long("the first sentence of the next document of the path", first, room)

    def _too_long(self, what: str, sentence: int, left: int) -> str:
        length, end = self._running_length(sentence)
        ended = " and ends its document with one more" if end else ""
        return (
            f"{what}, #{sentence}, has {length} tokens{ended}, but only {left} of {self.limit} "
            "were left"
        )

    def _running_length(self, sentence: int) -> tuple[int, int]:
        """The tokens of a sentence in running text, and of the document's end behind it."""
        corpus = self.sentences.corpus
        tokens, _ = running_tokens(corpus, sentence, sentence + 1, self.tokenizer)
        documents = corpus.documents
        ends = sentence + 1 == len(corpus) or documents[sentence + 1] != documents[sentence]
        return len(tokens), int(ends and self.marks.begin is None)
