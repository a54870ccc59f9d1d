"""Prints the sentences nearest to a text or a sentence of the corpus, with scores.

python -m icl_jax.retrieval.show --workdir=DIR --query="Which city is the capital of France?"
python -m icl_jax.retrieval.show --workdir=DIR --sentence=1234
"""

import json
import textwrap

from absl import flags
import numpy as np

from icl_jax.cli import Flag, command, expect_one, whole
from icl_jax.config import MeshConfig, StageError
from icl_jax.config.tree import from_dict
from icl_jax.corpus.sentence_table import DocumentInfo, SentenceTable
from icl_jax.design.folders import DesignFolders
from icl_jax.files.step_folder import read_inputs
from icl_jax.retrieval.neighbours import Neighbours
from icl_jax.retrieval.vectors import Vectors, normalise

# Control characters of a text must not reach the terminal, which would obey them.
_CONTROLS = dict.fromkeys([*range(32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}")


@command(
    Flag("workdir=DIR", "the workdir of a run with --stages=design", required=True),
    Flag("query=TEXT", "any text"),
    Flag("sentence=ID", "the id of a sentence that was a query", whole()),
    Flag("count=N", "how many to print", whole(least=1), 10),
)
def main(given: flags.FlagValues) -> None:
    """Prints what is near the text, or near the sentence."""
    expect_one(given, "query=TEXT", "sentence=ID")
    if given.query is not None:
        show_text(DesignFolders(given.workdir), given.query, given.count)
    else:
        show_sentence(DesignFolders(given.workdir), given.sentence, given.count)


def show_text(folders: DesignFolders, text: str, count: int) -> None:
    """The sentences of the corpus that are nearest to any text, by exact search."""
    if not text.strip():
        raise StageError("--query is empty; expected a text to search for")
    corpus, vectors = SentenceTable.open(folders.corpus), Vectors.open(folders.corpus_vectors)
    if not folders.config.exists():
        raise StageError(f"{folders.path} is not finished; run --stages=design to its end")
    from icl_jax.retrieval.encoders.encoder import open_encoder  # takes seconds: not for --help
    from icl_jax.sharding import make_mesh

    config = from_dict(json.loads(folders.config.read_text()))
    encoder = open_encoder(config.encoder, make_mesh(MeshConfig()), folders.encoder)
    if encoder.identity != read_inputs(folders.corpus_vectors)["encoder"]:
        raise StageError(
            f"{config.encoder.folder or folders.encoder} is not the encoder that made the vectors "
            f"in {folders.corpus_vectors}; its files changed. Restore the old ones, or delete "
            "that folder and run --stages=design again"
        )
    query = normalise(encoder.encode([text]))[0]
    if not query.any():
        print("the encoder knows no word of this text, so nothing is near it")
        return
    print(plain(text))
    print_found(corpus, *nearest(vectors, query, count))


def show_sentence(folders: DesignFolders, sentence: int, count: int) -> None:
    """The neighbours that were stored for a sentence; if there are none, the nearest sentences."""
    corpus = SentenceTable.open(folders.corpus)
    neighbours = Neighbours.open(folders.neighbours)
    made_from = read_inputs(folders.neighbours)
    own_queries = made_from["queries"] != made_from["pool"]
    queries = SentenceTable.open(folders.queries) if own_queries else corpus
    if not 0 <= sentence < len(queries):
        raise StageError(f"--sentence must be from 0 to {len(queries) - 1}, got {sentence}")
    ids, similarities = neighbours.of(sentence)
    print_found(queries, [sentence], None)
    if len(ids):
        print(f"stored neighbours: {len(ids)}")
        print_found(corpus, ids[:count], similarities[:count])
        return
    print("no stored neighbours; the nearest, with what the rules of the search leave out:")
    place = folders.query_vectors if own_queries else folders.corpus_vectors
    query = Vectors.open(place).take(np.array([sentence]))[0]
    ids, similarities = nearest(Vectors.open(folders.corpus_vectors), query, count + 1)
    others = np.flatnonzero((ids != sentence) | own_queries)[:count]
    print_found(corpus, ids[others], similarities[others])


def nearest(vectors: Vectors, query: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and cosines of the nearest rows, best first; all rows are compared."""
    ids, scores = np.empty(0, np.int64), np.empty(0, np.float32)
    for shard, start in enumerate(vectors.starts[:-1]):
        found = vectors.shard(shard) @ query
        ids = np.concatenate([ids, np.arange(start, start + len(found))])
        scores = np.concatenate([scores, found])
        best = np.lexsort((ids, -scores))[:count]
        ids, scores = ids[best], scores[best]
    return ids, scores


def print_found(table: SentenceTable, ids, similarities) -> None:
    """Each sentence with its score, its id, and its place."""
    for row, sentence in enumerate(map(int, ids)):
        score = "" if similarities is None else f"{similarities[row]:.3f}"
        document = table.document(int(table.documents[sentence]))
        position = int(table.positions[sentence])
        print_sentence(score, sentence, document, position, table.text(sentence))


def print_sentence(
    score: str, id: int, document: DocumentInfo, position: int, text: str, more: str = ""
) -> None:
    """One sentence below a line with its place; `more` is added to that line."""
    title = f"{document.title}, " if document.title else ""
    place = plain(f"{title}{document.file} {document.place}, sentence {position}")
    print(f"{score:>6}  #{id}  {place}{more and f'; {more}'}")
    print_text(text)


def print_text(text: str) -> None:
    """A text, indented, in lines that are not too long."""
    print(textwrap.indent(textwrap.fill(plain(text), 92), " " * 8))


def plain(text: str) -> str:
    """A text without control characters, which a terminal would obey."""
    return text.translate(_CONTROLS)


if __name__ == "__main__":
    main()
