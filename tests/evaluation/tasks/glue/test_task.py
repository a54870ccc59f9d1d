"""Zero-shot GLUE: what is read, what is filled in, and scores against `transformers`."""

import json

import numpy as np
import pytest

from icl_jax.config import ConfigError, GlueConfig
from icl_jax.evaluation.task import read_rows, run_task
from icl_jax.evaluation.tasks.glue.task import GlueZeroShot, _row
from icl_jax.evaluation.tasks.glue.templates import FILE, read_templates
from tests.evaluation import small

pytestmark = pytest.mark.delicate

PAIRS = [
    ("The mill stands at the bridge.", "The bridge has a mill. ", "entailment"),
    ("Ada lives by the river!", "Nobody lives there", "contradiction"),
    ("They say the ferry sank", "Ada was on the ferry.", "neutral"),
    ("One two three " * 9 + "seven.", "Seven.", "neutral"),  # more than the positions
]
SIDES = [("Ada lives in Kersk.", "Ada lives.", 0), ("The ferry sank. It was old.", "Old.", 1)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return small.model_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with the three tasks in the three ways that they come."""
    root = tmp_path_factory.mktemp("data")
    glue = root / "glue"
    for task in ("MNLI", "RTE", "WNLI"):
        (glue / task).mkdir(parents=True)
    head = "index\tsentence1_parse\tsentence1\tsentence2\tlabel1\tlabel2\tgold_label"
    lines = [f"{n}\t( x )\t{a}\t{b}\tneutral\tneutral\t{c}" for n, (a, b, c) in enumerate(PAIRS)]
    lines.insert(1, '9\t( x )\tNo "gold here.\tNone.\tneutral\tentailment\t-')
    (glue / "MNLI" / "dev_matched.tsv").write_text("\n".join([head, *lines]) + "\n")
    rows = [{"premise": a, "hypothesis": b, "label": c} for a, b, c in SIDES]
    (glue / "RTE" / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["index\tsentence1\tsentence2\tlabel", *(f"0\t{a}\t{b}\t{c}" for a, b, c in SIDES)]
    (glue / "WNLI" / "dev.tsv").write_text("\n".join(lines) + "\n")
    return root


def open_task(folder, data, **fields):
    config = small.evaluation(data=str(data), glue=GlueConfig(**fields))
    return GlueZeroShot(small.subject_of(folder), config)


def test_labels_are_read_as_each_task_numbers_them(folders, data):
    task = open_task(folders["GPT"], data)
    assert [pair.label for pair in task.items] == [
        *(label for _, _, label in PAIRS), "entailment", "not_entailment", "not_entailment",
        "entailment",
    ]  # fmt: skip
    assert task.items[0].sentence2 == PAIRS[0][1] and task.items[4].sentence1 == SIDES[0][0]
    assert len(open_task(folders["GPT"], data, limit=1).items) == 3


def test_templates_are_filled_as_they_say():
    cloze, harness = (read_templates("", preset) for preset in ("cloze", "harness"))
    for task in cloze:
        filled = cloze[task].fill("He left...", "The end {0}. ", "Yes")
        assert filled.text == "He left? Yes, the end {0}."
        assert filled.text[filled.start : filled.end] == "Yes"
    assert harness["MNLI"].fill("He left.", "The end ", "True").text == (
        "He left.\nQuestion: The end. True, False or Neither?\nAnswer: True"
    )
    assert harness["WNLI"].fill("He left.", "The end", "False").text == (
        "He left.\nQuestion: The end True or False?\nAnswer: False"
    )
    assert harness["RTE"].labels == cloze["RTE"].labels == ("entailment", "not_entailment")
    assert cloze["MNLI"].words == ("Yes", "Maybe", "No")


@pytest.mark.parametrize("kind", ["GPT", "RoBERTa"])
def test_scores_are_those_of_transformers(kind, folders, data, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    task = open_task(folders[kind], data)
    table = run_task(task, "glue", {}, {}, tmp_path / "out", small.mesh_of())
    rows = read_rows(tmp_path / "out")
    known = {"GPT": transformers.GPT2LMHeadModel, "RoBERTa": transformers.RobertaForMaskedLM}
    model = known[kind].from_pretrained(folders[kind]).eval()
    templates, tokenizer = read_templates("", "cloze"), small.subject_of(folders[kind]).tokenizer
    assert len(rows) == 8
    for row in rows:
        template = templates[row["task"]]
        texts = [template.fill(row["sentence1"], row["sentence2"], w) for w in template.words]
        encoded = [tokenizer.library.encode(filled.text) for filled in texts]
        room = 64 if kind == "GPT" else 63  # the small tokenizer has no begin token
        cut = max(0, max(len(found.ids) for found in encoded) - room)
        assert row["cut"] == cut
        for label, filled, found in zip(template.labels, texts, encoded, strict=True):
            ids, spans = found.ids[cut:], found.offsets[cut:]
            if kind == "GPT":
                inputs, places = ids, list(range(1, len(ids)))
            else:
                inputs, places = [*ids, tokenizer.end_of_text_id], []
                for place, (start, end) in enumerate(spans):
                    if end > filled.start and start < filled.end:
                        places.append(place)
                        inputs[place] = tokenizer.mask_id
            with torch.no_grad():
                logp = model(torch.tensor([inputs])).logits[0].log_softmax(-1).numpy()
            score = sum(logp[place - (kind == "GPT"), ids[place]] for place in places)
            np.testing.assert_allclose(row["scores"][label], score, rtol=1e-4)
            assert row["tokens"][label] == len(places) > 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    check_results(rows, results)
    assert results["MNLI"]["cut"] == 1 and results["MNLI"]["unlabelled"] == 1
    assert "MNLI 1" in table and ("masked word" in table) == (kind == "RoBERTa")
    check_table(table, results)


def check_results(rows, results):
    for task in ("MNLI", "RTE", "WNLI"):
        own = [row for row in rows if row["task"] == task]
        for end in ("", "_normalised"):
            best = []
            for row in own:
                score = row["scores"] if not end else {
                    label: value / row["tokens"][label] for label, value in row["scores"].items()
                }  # fmt: skip
                best.append(sorted(score.items(), key=lambda item: -item[1])[0][0])
            assert [row[f"prediction{end}"] for row in own] == best
            right = [guess == row["label"] for guess, row in zip(best, own, strict=True)]
            assert results[task][f"accuracy{end}"] == np.mean(right)
        told, gold = results[task], [row["label"] for row in own]
        assert told["majority_rate"] == max(map(gold.count, gold)) / len(gold)
        assert gold.count(told["majority_label"]) == max(map(gold.count, gold))
        assert sum(sum(line.values()) for line in told["confusion"].values()) == len(own)
        for row in own:
            assert told["confusion"][row["label"]][row["prediction"]] > 0
        for name in ("accuracy", "accuracy_normalised"):
            low, high = told[f"{name}_interval95"]
            assert 0 <= low <= told[name] <= high <= 1 and told["pairs"] == len(own)
        np.testing.assert_allclose(sum(told["prediction_rates"].values()), 1)


def check_table(table, results):
    assert "With only 2 items, intervals are too narrow." in table
    for task in ("MNLI", "RTE", "WNLI"):
        told, lines = results[task], table.splitlines()
        cells = next(line for line in lines if line.startswith(f"| {task} |")).split(" | ")
        for cell, name in zip(cells[2:4], ("accuracy", "accuracy_normalised"), strict=True):
            numbers = [told[name], *told[f"{name}_interval95"]]
            assert cell == "{:.1%} ({:.1%} to {:.1%})".format(*numbers)
        head = next(n for n, line in enumerate(lines) if line.startswith(f"| {task}: gold |"))
        labels = list(told["confusion"])
        assert lines[head].count("guessed") == len(labels)
        for line, label in zip(lines[head + 2 :], labels, strict=False):
            row = told["confusion"][label]
            assert line == f"| {label} | {' | '.join(str(row[guess]) for guess in labels)} |"


def test_a_single_pair_has_no_interval(folders, data):
    task = open_task(folders["GPT"], data, tasks=("RTE",))
    pair = task.items[0]._asdict() | {"prediction": "entailment", "cut": 0}
    row = pair | {"prediction_normalised": "not_entailment", "scores": {"a": -1.0, "b": -2.0}}
    results = task.results([row])
    assert results["RTE"]["accuracy_interval95"] is None
    assert "| 100.0% (-) | 0.0% (-) |" in task.table(results)


def test_ties_go_to_the_first_label_and_are_counted(folders, data, tmp_path):
    held = json.loads(FILE.read_text())
    held["presets"]["cloze"]["RTE"]["words"] = {"entailment": "Yes", "not_entailment": "Yes"}
    (tmp_path / "mine.json").write_text(json.dumps(held))
    task = open_task(folders["GPT"], data, tasks=("RTE",), templates=str(tmp_path / "mine.json"))
    run_task(task, "glue", {}, {}, tmp_path / "out", small.mesh_of())
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["RTE"]["ties"] == 2
    assert results["RTE"]["prediction_rates"] == {"entailment": 1.0, "not_entailment": 0.0}
    for row in read_rows(tmp_path / "out"):
        assert len(set(row["scores"].values())) == 1  # to the last bit


@pytest.mark.parametrize(("behind", "tied"), [(0.0, 2), (5e-5, 2), (2e-4, 0)])  # of 100 nats
def test_ties_are_judged_with_the_tolerance_that_is_stated(behind, tied, folders, data):
    task = open_task(folders["GPT"], data, tasks=("RTE",))
    scores = {"entailment": (-100.0 - behind, 10), "not_entailment": (-100.0, 10)}
    rows = [_row(pair, scores, 0) for pair in task.items]
    results = task.results(rows)
    assert results["RTE"]["ties"] == tied and results["tie_tolerance"] == 1e-6
    label = "entailment" if tied else "not_entailment"
    for row in rows:
        assert row["prediction"] == row["prediction_normalised"] == label
    assert ("differ by at most 1e-06 of their score" in task.table(results)) == bool(tied)


def test_bad_data_is_named(folders, data, tmp_path):
    def refuse(match, **fields):
        with pytest.raises(ConfigError, match=match):
            open_task(folders["GPT"], fields.pop("data", data), **fields)

    def write(name, *rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return f"RTE={tmp_path / name}"

    whole = {"sentence1": "A.", "sentence2": "B.", "label": 0}
    only = {"tasks": ("RTE",)}
    unlabelled = write("a.jsonl", whole | {"label": -1}, whole | {"label": "-"})
    refuse("no label in any of its 2 rows: a test split", files=(unlabelled,), **only)
    unknown = write("b.jsonl", whole, whole | {"label": "maybe"})
    refuse("the label 'maybe' in row 2; expected entailment, not", files=(unknown,), **only)
    refuse("the label '2' in row 1", files=(write("c.jsonl", whole | {"label": 2}),), **only)
    missing = write("d.jsonl", {"sentence1": "A.", "text": "B.", "label": 0})
    refuse("no column sentence2 or hypothesis; it has sentence1, text", files=(missing,), **only)
    empty = write("f.jsonl", whole, whole | {"sentence2": None})
    refuse("a pair without two sentences in row 2", files=(empty,), **only)
    later = write("e.jsonl", whole, {"sentence1": "A."})
    refuse("only sentence1 in row 2", files=(later,), **only)
    refuse("^expected one file .*RTE/dev.tsv .*there is none", data=tmp_path, **only)
    refuse(
        "^where is RTE.*evaluation.glue.files, or a data folder, evaluation.data", data="", **only
    )
    refuse("no template for the task 'QQP', only for MNLI, RTE, WNLI", tasks=("QQP",))
    form = r"several are written --evaluation.glue.tasks=\"\('MNLI','RTE'\)\""
    refuse(f"the task 'MNLI,RTE', only for MNLI, RTE, WNLI; {form}$", tasks=("MNLI,RTE",))
    refuse("preset must be one of cloze, harness", preset="gpt3")
    refuse("names RTE, but evaluation.glue.tasks does not", tasks=("WNLI",), files=(unlabelled,))


def test_bad_templates_are_named(folders, data, tmp_path):
    file = tmp_path / "mine.json"
    held = json.loads(FILE.read_text())
    held["presets"]["cloze"]["RTE"] |= {"template": "{sentence1} {word}", "sentence1": ["shout"]}
    del held["presets"]["cloze"]["WNLI"]["words"]["entailment"]
    file.write_text(json.dumps(held))
    with pytest.raises(ConfigError) as error:
        open_task(folders["GPT"], data, templates=str(file))
    for told in ("must have {sentence1}, {sentence2} and {word}", "got shout", "a word for each"):
        assert told in str(error.value)
    file.write_text("[]")
    with pytest.raises(ConfigError, match="is not a JSON file with labels and presets"):
        open_task(folders["GPT"], data, templates=str(file))


def test_an_encoder_without_mlm_head_is_refused(data, tmp_path):
    folder = small.roberta_folder(tmp_path / "headless", mlm_head=False)
    with pytest.raises(ConfigError, match="an encoder without MLM head"):
        open_task(folder, data)
