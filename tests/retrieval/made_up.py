"""Made-up sentences with clustered vectors, duplicates, near duplicates and ties; and the rules of
the search once more, as plain loops."""

import re

import numpy as np
import pyarrow as pa

from icl_jax.retrieval.vectors import Vectors

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe") for b in "bdfgkmnrst"]


class Table:
    """What the search needs of a sentence table."""

    def __init__(self, texts, documents, shards=3, name="table"):
        self.all, self.documents = list(texts), np.asarray(documents)
        self.num_shards = shards
        self.starts = np.linspace(0, len(texts), shards + 1).astype(np.int64)
        self.fingerprint = f"{name} {len(texts)}"

    def __len__(self):
        return len(self.all)

    def texts(self, shard):
        return pa.array(self.all[self.starts[shard] : self.starts[shard + 1]], pa.large_string())

    def text_of(self, ids):
        return [self.all[i] for i in ids]

    def vectors(self, rows):
        """The rows as `Vectors`, cut like the table."""
        return Vectors([rows[a:b] for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)])


def made_up(count, width=16, clusters=12, seed=0, dtype=np.float16, name="table"):
    """A table and vectors: a third of the sentences are varied copies of others."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, width))
    texts, rows = [], np.empty((count, width), dtype)
    for i in range(count):
        kind = rng.integers(6) if i > 5 else 5
        other = int(rng.integers(i)) if i else 0
        words = [str(word) for word in rng.choice(WORDS, rng.integers(2, 14))]
        rows[i] = centres[rng.integers(clusters)] + 0.4 * rng.normal(size=width)
        if kind == 0:  # an equal sentence, written otherwise, of (nearly) the same vector
            words = [word.upper() + "," for word in texts[other].split()]
            rows[i] = rows[other] + rng.choice([0, 0.01]) * rng.normal(size=width)
        elif kind == 1:  # one word more
            words = texts[other].split() + words[:1]
            rows[i] = rows[other] + 0.05 * rng.normal(size=width)
        elif kind == 2 and rng.random() < 0.5:  # a tie
            rows[i] = rows[other]
        elif kind == 3 and rng.random() < 0.1:
            rows[i] = 0
        texts.append(" ".join(words))
    return Table(texts, np.sort(rng.integers(0, count // 7 + 1, count)), name=name), rows


def words_of(text):
    return re.findall(r"\w+", text.lower())


def jaccard(a, b):
    a, b = ({tuple(w[i : i + 3]) for i in range(len(w) - 2)}
            for w in (["^", *words_of(text), "$"] for text in (a, b)))  # fmt: skip
    return len(a & b) / len(a | b)


def neighbours_by_loops(queries, query_rows, pool, pool_rows, config):
    """The rules in plain Python and float64: a list of (id, similarity) for each query."""
    classes = {}
    for i, text in enumerate(pool.all):
        if pool_rows[i].any():
            classes.setdefault(tuple(words_of(text)), []).append(i)
    same_table = queries.fingerprint == pool.fingerprint
    results = []
    for q, text in enumerate(queries.all):
        scored = []
        for words, members in classes.items():
            if words == tuple(words_of(text)) or not query_rows[q].any():
                continue
            if same_table and not config.same_document:
                members = [m for m in members if pool.documents[m] != queries.documents[q]]
            if members:
                scored.append((-cosine(query_rows[q], pool_rows[members[0]]), members[0]))
        taken = []
        for score, i in sorted(scored):
            others = [text, *(pool.all[j] for j, _ in taken)]
            if -score <= config.min_similarity or len(taken) == config.neighbours:
                break
            if all(jaccard(pool.all[i], other) < config.duplicate_jaccard for other in others):
                taken.append((i, -score))
        results.append(taken)
    return results


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    # Rounded, so that what is a tie in exact arithmetic is one here too.
    return round(float(a @ b / np.sqrt((a @ a) * (b @ b))), 6)


def assert_equal_to_loops(found, expected):
    """The same ids, in the same order except where similarities differ by rounding alone."""
    assert len(found) == len(expected)
    for query, wanted in enumerate(expected):
        ids, similarities = found.of(query)
        assert ids.tolist() == [i for i, _ in wanted], (query, similarities, wanted)
        np.testing.assert_allclose(similarities, [s for _, s in wanted], atol=2e-6)
