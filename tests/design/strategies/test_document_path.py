"""Documents in the order of a walk: the graph, the walk, near duplicates, and the contexts."""

import itertools
import json
from pathlib import Path
import shutil

import numpy as np
import pytest

from icl_jax.config import ConfigError, ExamplesConfig, StageError
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import DesignFolders
from icl_jax.design.records.layout import Marks, in_context
from icl_jax.design.sentences import Sentences
from icl_jax.design.stage import find_related
from icl_jax.design.strategies import document_graph
from icl_jax.design.strategies.document_graph import Graph, add_sides, join_shards, relate_shard
from icl_jax.design.strategies.document_path import cut, make_document_path
from icl_jax.design.strategies.path_walk import walk
from icl_jax.files.step_folder import StepFolder
from icl_jax.retrieval.neighbours import Neighbours, write_shard
from icl_jax.retrieval.search.search import SearchFolders
from icl_jax.retrieval.search.signatures import load_signatures
from icl_jax.workers.local import Runner
from tests.design.made_up import experiment, write_documents

LIMIT = 83


def prepare(workdir: Path, file: Path, begin: bool = False, seed: int = 0) -> Neighbours:
    """Tables of a file, with made-up neighbours that make clusters of documents."""
    find_related(experiment(file), workdir, neighbours=False)
    folders, rng = DesignFolders(workdir), np.random.RandomState(seed)
    tokenizer = Tokenizer.open(folders.tokenizer)
    ids = {"separator_id": 1, "end_of_text_id": 0, "begin_of_text_id": 2 if begin else None}
    Tokenizer(tokenizer.library, **ids).save(folders.tokenizer)
    corpus = Sentences.open(workdir, False).corpus
    step = StepFolder(folders.neighbours, {"made": "up", "seed": seed})
    for shard in range(corpus.num_shards):
        lengths, found, scores = [], [], []
        for sentence in range(corpus.starts[shard], corpus.starts[shard + 1]):
            far = np.abs(corpus.documents - corpus.documents[sentence])
            near = np.flatnonzero((far > 0) & (far < 4))
            near = rng.choice(near, rng.choice([0, 0, 1, 3]), replace=False)
            lengths.append(len(near))
            found += near.tolist()
            scores += np.sort(rng.uniform(-0.1, 1, len(near)))[::-1].tolist()
        write_shard(
            folders.neighbours, shard, np.array(lengths), np.array(found, np.int64),
            np.array(scores, np.float32), {},
        )  # fmt: skip
    step.complete({"shards": corpus.num_shards})
    load_signatures(corpus, SearchFolders(folders.neighbours).signatures)
    return Neighbours.open(folders.neighbours)


def make(workdir, examples=None, jaccard=0.6, limit=LIMIT, workers=1, seed=0, to=None):
    folders = DesignFolders(workdir)
    return make_document_path(
        str(workdir), Sentences.open(workdir, False),
        examples or ExamplesConfig(), jaccard, limit, seed, Runner(workers),
        to or folders.groups / "document_path",
    )  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A workdir with some documents that repeat others, nearly or wholly."""
    folder = tmp_path_factory.mktemp("path")
    file = write_documents(folder / "documents.jsonl", 60)
    documents = [json.loads(line) for line in file.read_text().splitlines()]
    texts = [document["text"] for document in documents]
    long = [text for text in texts if len(text.split()) > 40]
    changed = [text.split() for text in long]
    for words in changed:
        words[20] = words[21] = "other"
    more = " Nothing else has ever been said about this."
    texts += [long[0], long[1] + more, *map(" ".join, changed), long[0]]
    texts[17:17] = [long[4] + more]  # comes before what it repeats, or after
    file.write_text("".join(json.dumps({"title": "", "text": text}) + "\n" for text in texts))
    prepare(folder / "run", file)
    return folder / "run"


def texts_of(workdir):
    """Document -> text, of those that have any."""
    corpus = Sentences.open(workdir, False).corpus
    sentences = np.array(corpus.text_of(range(len(corpus))))
    return {d: sentences[corpus.documents == d].tolist() for d in np.unique(corpus.documents)}


def path_of(folder):
    return np.load(folder / "path" / "path.npy")


def random_graph(rng, count, edges):
    a, b = rng.randint(0, count, (2, edges))
    a, b = a[a != b], b[a != b]
    return Graph.of(a, b, rng.random_sample(len(a)).astype(np.float32), count)


def walk_slowly(graph, members, tokens, limit, diversity, seed):
    """The rules of the walk as plain loops over a dense matrix."""
    matrix = np.zeros((len(graph), len(graph)), np.float32)
    for document in range(len(graph)):
        others, weights = graph.related(document)
        matrix[document, others] = weights
    degree = (matrix > 0).sum(axis=1)
    left, order, came, starts, end = set(members.tolist()), [], [], [], 0
    alone = [m for m in members if degree[m] == 0]
    left -= set(alone)
    while left:
        near = sorted(left & set(np.flatnonzero(matrix[order[-1]]))) if order else []
        if near:
            begin = end // limit * limit  # of the context in which the next document begins
            before = [
                d
                for d, first in zip(order[:-1], starts[:-1])
                if first < begin and first + tokens[d] > begin - limit
            ]
            if not before and starts[-1] < begin and len(order) > 1:
                before = order[-2:-1]
            penalty = [max([matrix[n, d] for d in before], default=0) for n in near]
            scores = [matrix[order[-1], n] - diversity * p for n, p in zip(near, penalty)]
            chosen = near[int(np.argmax(scores))]
            came.append(matrix[order[-1], chosen])
        else:
            chosen = min(left, key=lambda d: (degree[d], d))
            came.append(np.nan)
        left.discard(chosen)
        order.append(chosen)
        starts.append(end)
        end += tokens[chosen]
    alone = np.random.RandomState(seed).permutation(alone)
    return [*order, *alone], [*came, *[np.nan] * len(alone)]


@pytest.mark.parametrize("diversity", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("limit", [7, 50, 1000])
def test_the_walk_follows_its_rules_written_as_loops(limit, diversity):
    for seed in range(8):
        rng = np.random.RandomState(seed)
        graph = random_graph(rng, 47, 90)
        members = np.sort(rng.choice(47, 47, replace=False))
        tokens = rng.randint(3, 30, 47)
        order, weights = walk(graph, members, tokens, limit, diversity, seed)
        expected, came = walk_slowly(graph, members, tokens, limit, diversity, seed)
        assert order.tolist() == expected
        np.testing.assert_allclose(weights, came, rtol=1e-6)


def test_every_document_is_on_the_path_once_and_ties_go_to_the_lower_id():
    graph = Graph.of(np.array([2, 2, 2, 5]), np.array([1, 3, 4, 3]), np.full(4, 0.5, np.float32), 8)
    order, weights = walk(graph, np.array([1, 2, 3, 4, 5, 7]), np.ones(8), 100, 0.0, 0)
    assert order.tolist() == [1, 2, 3, 5, 4, 7]
    assert np.isnan(weights).tolist() == [True, False, False, False, True, True]


def test_diversity_keeps_adjacent_contexts_apart():
    """Two clusters of much alike documents, loosely tied; a context holds five documents."""
    rng = np.random.RandomState(0)
    count = 40
    matrix = np.triu(rng.uniform(0.05, 0.15, (count, count)), 1)
    matrix[: count // 2, : count // 2] *= 6
    matrix[count // 2 :, count // 2 :] *= 6
    a, b = np.nonzero(matrix)
    graph = Graph.of(a, b, matrix[a, b].astype(np.float32), count)
    tokens, members = np.full(count, 10), np.arange(count)

    def likeness_of_adjacent_contexts(diversity):
        order, _ = walk(graph, members, tokens, 50, diversity, 0)
        assert sorted(order) == members.tolist()
        contexts = order.reshape(-1, 5)
        full = matrix + matrix.T
        return np.mean(
            [full[np.ix_(c, d)].max(axis=0).mean() for c, d in itertools.pairwise(contexts)]
        )

    plain, mild, strong = (likeness_of_adjacent_contexts(d) for d in (0.0, 0.5, 1.0))
    assert plain > 0.6
    assert strong < mild <= plain
    assert strong < 0.75 * plain


def graph_of(workdir, folder):
    """Of all documents, made shard by shard."""
    sentences, neighbours = Sentences.open(workdir, False), str(DesignFolders(workdir).neighbours)
    corpus, first = sentences.corpus, (str(workdir), sentences.fingerprint)
    folder.mkdir(exist_ok=True)
    for shard in range(corpus.num_shards):
        relate_shard(*first, neighbours, str(folder), shard)
    for shard in range(corpus.num_shards):
        add_sides(*first, str(folder), shard)
    members = np.unique(corpus.documents)
    graph = join_shards(folder, corpus.num_shards, members, corpus.num_documents)
    return {(a, b): weight for a in members for b, weight in zip(*graph.related(a))}


def test_weights_are_the_mean_similarity_of_the_nearest_sentences(prepared, tmp_path):
    corpus = Sentences.open(prepared, False).corpus
    stored = Neighbours.open(DesignFolders(prepared).neighbours)
    expected = {}
    for a in np.unique(corpus.documents):
        for sentence in np.flatnonzero(corpus.documents == a):
            ids, scores = stored.of(sentence)
            best = {}
            for b, score in zip(corpus.documents[ids], scores):
                best[b] = max(best.get(b, 0), score)
            for b, score in best.items():
                size = np.isin(corpus.documents, [a, b]).sum()
                for pair in ((a, b), (b, a)):
                    expected[pair] = expected.get(pair, 0) + score / size
    found = graph_of(prepared, tmp_path)
    assert corpus.num_shards > 1 and found.keys() == expected.keys()
    for pair, weight in expected.items():
        np.testing.assert_allclose(found[pair], weight, rtol=1e-5)
    assert min(found.values()) >= 0 and max(found.values()) <= 1


def test_an_edge_is_cut_by_what_both_sides_add_and_keeps_it_whole(prepared, tmp_path, monkeypatch):
    whole = graph_of(prepared, tmp_path / "whole")
    monkeypatch.setattr(document_graph, "MOST_RELATED", 2)
    found = graph_of(prepared, tmp_path / "cut")
    strongest = set()
    for document in {a for a, _ in whole}:
        own = sorted((-weight, b) for (a, b), weight in whole.items() if a == document)
        strongest |= {(document, b) for _, b in own[:2]}
    assert found.keys() == strongest | {(b, a) for a, b in strongest} != whole.keys()
    assert strongest != {(b, a) for a, b in strongest}  # some are strong for one side only
    assert all(found[pair] == whole[pair] == found[pair[::-1]] for pair in found)


def test_near_duplicates_of_a_kept_document_are_left_out(prepared, tmp_path):
    texts = {d: " ".join(text) for d, text in texts_of(prepared).items()}
    words = {d: sentence_sets(text) for d, text in texts_of(prepared).items()}
    kept, repeated = [], []
    for document in texts:
        like = [k for k in kept if index_of(words[document], words[k]) >= 0.6]
        if like:
            repeated.append([document, like[0]])
        else:
            kept.append(document)
    assert len(repeated) > 9
    groups = make(prepared, to=tmp_path / "groups")
    assert groups.results["near_duplicates"] == len(repeated)
    assert groups.results["near_duplicates_first"] == repeated
    assert sorted(path_of(tmp_path / "groups")["document"]) == kept
    equal = make(prepared, jaccard=1.1, to=tmp_path / "equal")  # only equal ones
    assert equal.results["near_duplicates"] == len(texts) - len(set(texts.values())) == 2


def test_a_document_that_is_like_one_left_out_alone_is_kept(tmp_path):
    file = write_documents(tmp_path / "documents.jsonl", 20)
    with file.open("a") as more:  # neighbours in this chain have an index of 0.7, its ends 0.45
        for first in (0, 5, 10):
            text = " ".join(f"chain{i}" for i in range(first, first + 30))
            more.write(json.dumps({"title": "", "text": text}) + "\n")
    prepare(tmp_path / "run", file)
    groups = make(tmp_path / "run", limit=999)
    assert groups.results["near_duplicates_first"] == [[21, 20]]


def sentence_sets(sentences):
    return {shingle for text in sentences for shingle in shingles(text)}


def shingles(text):
    words = ["^", *text.lower().replace(".", " ").split(), "$"]
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def index_of(a, b):
    return len(a & b) / len(a | b)


@pytest.mark.parametrize("begin", [False, True], ids=["GPT", "RoBERTa"])
def test_contexts_hold_the_path_sentence_by_sentence_up_to_the_limit(begin, tmp_path):
    file = write_documents(tmp_path / "documents.jsonl", 40)
    prepare(tmp_path / "run", file, begin)
    groups = make(tmp_path / "run")
    sentences = Sentences.open(tmp_path / "run", False)
    corpus = sentences.corpus
    tokenizer = Tokenizer.open(DesignFolders(tmp_path / "run").tokenizer)
    marks = Marks.of(tokenizer)
    path = path_of(DesignFolders(tmp_path / "run").groups / "document_path")
    expected = [(i, stop) for stop in path for i in range(stop["first"], stop["last"])]
    ids = np.concatenate([groups.of(group)[0] for group in range(len(groups))])
    assert ids.tolist() == [i for i, _ in expected]
    scores = np.concatenate([groups.of(group)[1] for group in range(len(groups))])
    np.testing.assert_array_equal(scores, [stop["weight"] for _, stop in expected])

    last_of_shard = {int(start) - 1 for start in groups.starts[1:]}
    several = 0
    for group in range(len(groups)):
        shard, row = groups.place(group)
        example = in_context(sentences, shard, row, marks)
        assert len(example.tokens) <= LIMIT
        members, _ = groups.of(group)
        wanted, starts = [marks.begin] if begin else [], []
        for place, sentence in enumerate(members):
            starts.append(len(wanted))
            follows = corpus.positions[sentence] > 0
            wanted += tokenizer.encode(" " * int(follows) + corpus.text(sentence)).tolist()
            ends = sentence + 1 == len(corpus) or corpus.positions[sentence + 1] == 0
            if ends and place + 1 < len(members):
                wanted.append(marks.separator)
                several += 1
            elif place + 1 == len(members) and (ends or begin):
                wanted.append(marks.end)
        assert example.tokens.tolist() == wanted
        assert example.starts.tolist() == starts
        if group not in last_of_shard:  # the next sentence would not have fitted
            first = groups.of(group + 1)[0][0]
            more = len(
                tokenizer.encode(" " * int(corpus.positions[first] > 0) + corpus.text(first))
            )
            ends = first + 1 == len(corpus) or corpus.positions[first + 1] == 0
            assert len(wanted) + more + (0 if begin else int(ends)) + 1 > LIMIT
    assert several > 5


def test_a_context_that_begins_with_a_document_has_no_separator_before_it():
    """Room for 10 tokens: the second and third sentence fill it exactly."""
    ends_document = np.array([True, False, False, True])
    offsets = cut(np.array([10, 6, 4, 3]), ends_document, 12, Marks(6, 7, 8))
    assert offsets.tolist() == [0, 1, 3, 4]


def test_what_is_finished_stays_and_workers_change_no_byte(prepared, tmp_path):
    examples = ExamplesConfig(path_diversity=0.5)
    whole, again = tmp_path / "whole", tmp_path / "again"
    make(prepared, examples, to=whole)
    shutil.copytree(whole, again)
    for name in ("groups-00000.arrow", "groups-00001.arrow", "results.json", "path/results.json",
                 "path/path.npy", "path/edges-00000.npy", "path/sides-00001.npy",
                 "path/sketches-00001.npy"):  # fmt: skip
        (again / name).unlink()
    make(prepared, examples, workers=2, to=again)
    files = sorted(file for file in whole.rglob("*") if file.is_file() and file.name != "cost.json")
    assert len(files) > 8
    for file in files:
        assert (again / file.relative_to(whole)).read_bytes() == file.read_bytes(), file
    with pytest.raises(StageError, match="path_diversity"):
        make(prepared, to=whole)


def test_the_seed_orders_only_what_is_related_to_none(prepared, tmp_path):
    one, two = (make(prepared, seed=s, to=tmp_path / str(s)).results for s in (0, 1))
    assert one["documents"] == two["documents"]
    paths = [path_of(tmp_path / str(s))["document"] for s in (0, 1)]
    linked = one["documents"] - one["related_to_none"]
    assert paths[0][:linked].tolist() == paths[1][:linked].tolist()
    assert sorted(paths[0]) == sorted(paths[1])


def test_a_sentence_longer_than_a_context_is_named(prepared, tmp_path):
    with pytest.raises(StageError, match=r"a context has room for 20; raise design\.examples"):
        make(prepared, limit=20, to=tmp_path / "groups")


def test_queries_of_a_task_have_no_document_path(prepared, tmp_path):
    table = Sentences.open(prepared, False).corpus
    with pytest.raises(ConfigError, match=r"document_path .* leave design\.queries\.files empty"):
        make_document_path(
            str(prepared), Sentences(table, table), ExamplesConfig(), 0.6, LIMIT, 0, Runner(1),
            tmp_path / "groups",
        )  # fmt: skip
