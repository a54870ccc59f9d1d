import csv
import json

import numpy as np
import pytest
from scipy import stats

from icl_jax.evaluation import bootstrap
import icl_jax.evaluation.compare.compare as compare_module
from icl_jax.evaluation.compare.compare import compare, main
from icl_jax.evaluation.compare.figure import draw_figure
from icl_jax.evaluation.compare.table import make_markdown, task_table
from icl_jax.evaluation.task import Task, task_class
from icl_jax.evaluation.tasks.sts.files import SUBSETS
from icl_jax.files.step_folder import write_json

pytestmark = pytest.mark.delicate

RESAMPLES = 300
QUESTIONS = 60


@pytest.fixture(autouse=True)
def without_figure(monkeypatch):
    """Drawing takes longer than all else here; one test does it."""
    monkeypatch.setattr(compare_module, "draw_figure", lambda result, file, kind: file.touch())


def write_task(folder, rows, results=None, **inputs):
    folder.mkdir(parents=True)
    write_json(
        folder / "inputs.json", {"model": {"checksum": str(folder.parent)}, "data": 1, **inputs}
    )
    (folder / "outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "results.json", results or {})
    return folder.parent


def question_rows(right, f1=None):
    f1 = right if f1 is None else f1
    return [
        {"number": n, "question": f"who is {n}", "answers": ["x"], "prompt": f"Q: {n}",
         "output": str(m), "exact_match": int(m), "f1": float(f)}
        for n, (m, f) in enumerate(zip(right, f1, strict=True))
    ]  # fmt: skip


def questions(folder, share, seed=0, **inputs):
    """An evaluation in which a question is answered with this probability."""
    random = np.random.default_rng(seed)
    right = random.random(QUESTIONS) < share
    f1 = np.maximum(right, 0.5 * (random.random(QUESTIONS) < 0.3))
    return write_task(folder / "nq_open", question_rows(right, f1), **inputs)


def column(folder, task, name):
    lines = (folder / task / "outputs.jsonl").read_text().splitlines()
    return np.array([json.loads(line)[name] for line in lines], float)


def test_numbers_are_computed_from_the_rows(tmp_path):
    a, b = questions(tmp_path / "a", 0.2, seed=1), questions(tmp_path / "b", 0.5, seed=2)
    result = compare({"regular": [a], "knn": [b]}, "regular", tmp_path / "out", RESAMPLES)
    right = {
        name: column(folder, "nq_open", "exact_match") for name, folder in (("a", a), ("b", b))
    }
    cell = result["arms"]["knn"]["nq_open"]["exact_match"]
    assert cell["value"] == pytest.approx(right["b"].mean())
    assert cell["right"] == pytest.approx(right["b"].sum()) and cell["items"] == QUESTIONS
    assert cell["difference"] == pytest.approx(right["b"].mean() - right["a"].mean())
    ahead, behind = np.sum(right["b"] > right["a"]), np.sum(right["b"] < right["a"])
    assert cell["p"] == stats.binomtest(ahead, ahead + behind).pvalue
    assert cell["test"] == "sign test"
    f1 = result["arms"]["knn"]["nq_open"]["f1"]
    difference = column(b, "nq_open", "f1") - column(a, "nq_open", "f1")
    drawn = bootstrap.draw(bootstrap.mean_of(difference), QUESTIONS, RESAMPLES, [0, 1])
    assert (
        f1["p"] == bootstrap.p_value(drawn, np.count_nonzero(difference))
        and f1["test"] == "paired bootstrap"
    )
    assert f1["difference_interval95"] == pytest.approx(bootstrap.interval(drawn))
    reference = result["arms"]["regular"]["nq_open"]["f1"]
    assert reference["p"] is None and reference["difference"] is None
    low, high = reference["interval95"]
    assert low < reference["value"] < high


def test_arms_without_a_right_answer_have_intervals_all_the_same(tmp_path):
    shares = {"knn": 30, "none": 0, "nothing": 0, "all": 60}
    arms = {
        arm: [write_task(tmp_path / arm / "nq_open", question_rows(np.arange(60) < count))]
        for arm, count in shares.items()
    }
    cells = compare(arms, "none", tmp_path / "out", RESAMPLES)["arms"]
    cells = {arm: cells[arm]["nq_open"]["exact_match"] for arm in arms}
    bound = stats.binomtest(0, 60).proportion_ci().high
    assert cells["none"]["interval95"] == pytest.approx([0, bound])
    assert cells["all"]["interval95"] == pytest.approx([1 - bound, 1])
    assert cells["nothing"]["difference_interval95"] == pytest.approx([-bound, bound])
    assert cells["all"]["difference_interval95"] == pytest.approx([1 - 2 * bound, 1])
    assert cells["knn"]["interval95"] == cells["knn"]["difference_interval95"]
    two = {"none": arms["none"] + arms["nothing"], "knn": arms["knn"]}
    held = compare(two, "knn", tmp_path / "out", RESAMPLES)["arms"]["none"]["nq_open"]
    assert held["exact_match"]["interval95"] == cells["none"]["interval95"]
    assert "0.0000 to 0.0596" in (tmp_path / "out" / "comparison.md").read_text()


def test_a_difference_is_called_real_only_among_all_comparisons(tmp_path):
    # against 10 right ones of 60: 40 more, 6 more (p = 0.03), and the same
    shares = {"regular": 10, "much": 50, "some": 16, "same": 10}
    arms = {
        arm: [write_task(tmp_path / arm / "nq_open", question_rows(np.arange(60) < count))]
        for arm, count in shares.items()
    }
    result = compare(arms, "regular", tmp_path / "out", RESAMPLES)
    cells = {arm: result["arms"][arm]["nq_open"]["exact_match"] for arm in arms}
    assert result["comparisons"] == 6
    assert cells["much"]["verdict"] == "better, significant at 0.05 on these items (1 seed)"
    assert [cells[arm]["real"] for arm in cells] == [None, True, False, False]
    assert cells["some"]["p"] == pytest.approx(2 * 0.5**6)
    assert cells["some"]["p_holm"] > 0.05
    assert "on these items (1 seed) only before Holm's adjustment" in cells["some"]["verdict"]
    assert cells["same"]["p"] == 1.0 and cells["same"]["verdict"] == "no difference"


def test_seeds_are_averaged_with_their_standard_deviation(tmp_path):
    rights = [np.arange(60) < 30, np.arange(60) < 36]
    seeds = [
        write_task(tmp_path / f"b{n}" / "nq_open", question_rows(right))
        for n, right in enumerate(rights)
    ]
    base = write_task(tmp_path / "a" / "nq_open", question_rows(np.arange(60) < 30))
    result = compare({"regular": [base], "knn": seeds}, "regular", tmp_path / "out", RESAMPLES)
    cell = result["arms"]["knn"]["nq_open"]["exact_match"]
    assert cell["seeds"] == pytest.approx([0.5, 0.6])
    assert cell["value"] == pytest.approx(0.55)
    assert cell["standard_deviation"] == pytest.approx(np.std([0.5, 0.6], ddof=1))
    # p: 6 items of 60 are ahead by half a point, so that few resamples are without any
    assert cell["test"] == "paired bootstrap" and cell["p"] < 0.05
    assert cell["p_seeds"] is None and "on these items (1 seed of regular)" in cell["verdict"]
    assert cell["right"] == pytest.approx(33)
    assert result["arms"]["regular"]["nq_open"]["exact_match"]["standard_deviation"] is None
    table = task_table(result, "nq_open")
    assert "(2 seeds)" in table and "33.0 of 60" in table and "| none: 1 seed |" in table


def seeds_of(folder, rights):
    return [
        write_task(folder / str(n) / "nq_open", question_rows(right))
        for n, right in enumerate(rights)
    ]


def test_one_seed_far_ahead_does_not_outvote_all_seeds_behind(tmp_path):
    # in one seed of three ahead on 60 items, in all three behind on 25: 0.3 - 0.375 of a point
    base = seeds_of(tmp_path / "a", [(np.arange(200) >= 60) & (np.arange(200) < 85)] * 3)
    new = seeds_of(tmp_path / "b", [np.arange(200) < 60] + [np.zeros(200)] * 2)
    result = compare({"a": base, "b": new}, "a", tmp_path / "out", RESAMPLES)
    cell = result["arms"]["b"]["nq_open"]["exact_match"]
    assert cell["difference"] == pytest.approx(-0.025) and cell["test"] == "paired bootstrap"
    assert cell["verdict"] == "not significant"


def test_real_needs_a_difference_over_seeds_too(tmp_path):
    values = {"a": (60, 62, 64), "clear": (80, 82, 85), "noisy": (55, 80, 120), "equal": (90,) * 3}
    values["none"] = (62, 60, 64)
    arms = {
        arm: seeds_of(tmp_path / arm, [np.arange(200) < n for n in counts])
        for arm, counts in values.items()
    }
    result = compare(arms, "a", tmp_path / "out", 1000)
    cells = {arm: result["arms"][arm]["nq_open"]["exact_match"] for arm in arms}
    for arm in ("clear", "noisy"):
        welch = stats.ttest_ind(np.array(values[arm]), np.array(values["a"]), equal_var=False)
        assert cells[arm]["p_seeds"] == pytest.approx(welch.pvalue)
        assert cells[arm]["p_holm"] < 0.05
    assert cells["clear"]["verdict"] == "better, significant at 0.05 over items and seeds"
    assert cells["equal"]["real"] and not cells["noisy"]["real"]
    assert cells["noisy"]["verdict"] == "better on these seeds, not significant over seeds"
    assert cells["none"]["verdict"] == "no difference"
    result = compare(arms | {"a": seeds_of(tmp_path / "same", [np.arange(200) < 60] * 2)}, "a",
                     tmp_path / "out", 1000)  # fmt: skip
    cell = result["arms"]["equal"]["nq_open"]["exact_match"]
    assert cell["p_seeds"] is None and not cell["real"]
    assert cell["verdict"] == "better on these seeds, not significant over seeds (they are equal)"
    assert "| none: seeds are equal |" in task_table(result, "nq_open")


def test_seeds_of_one_distribution_are_not_called_really_different(tmp_path):
    random = np.random.default_rng(0)
    real = over_items = 0
    for trial in range(20):
        arms = {
            arm: seeds_of(
                tmp_path / f"{trial}{arm}",
                [random.random(300) < 0.4 + 0.1 * random.normal() for _ in range(3)],
            )
            for arm in "ab"
        }
        result = compare(arms, "a", tmp_path / "out", 200)
        cell = result["arms"]["b"]["nq_open"]["exact_match"]
        real += cell["real"]
        over_items += cell["p_holm"] < 0.05
    assert over_items > 5 and real <= 1  # 1 of 20 is what 0.05 means


VECTORS = {"pooling": ["mean"], "special_tokens": True, "max_tokens": 512}


def sts(folder, noise, seed):
    random = np.random.default_rng(seed)
    rows, results = [], {}
    for name in SUBSETS:
        gold = np.random.default_rng(9).integers(0, 6, size=31)
        cosine = gold + noise * random.normal(size=31)
        rows += [
            {"task": name, "subset": "", "gold": float(g), "cosine": float(c)}
            for g, c in zip(gold, cosine, strict=True)
        ]
        results[name] = {"all": {"spearman": 100 * stats.spearmanr(gold, cosine).statistic}}
    results["average"] = float(np.mean([held["all"]["spearman"] for held in results.values()]))
    return write_task(
        folder / "sts", rows, results, vectors=VECTORS | {"checksum": str(folder)}
    ), results


def test_sts_compares_each_set_and_their_average(tmp_path):
    (a, of_a), (b, of_b) = sts(tmp_path / "a", 3.0, 0), sts(tmp_path / "b", 1.0, 1)
    result = compare({"a": [a], "b": [b]}, "a", tmp_path / "out", 1000)
    cells = result["arms"]["b"]["sts"]
    assert list(cells) == [*SUBSETS, "average"]
    for name in SUBSETS:
        assert cells[name]["value"] == pytest.approx(of_b[name]["all"]["spearman"])
    assert cells["average"]["items"] == 7 * 31
    assert cells["average"]["value"] == pytest.approx(of_b["average"])
    assert cells["average"]["difference"] == pytest.approx(of_b["average"] - of_a["average"])
    assert cells["average"]["verdict"] == "better, significant at 0.05 on these items (1 seed)"
    widths = [np.ptp(cells[name]["difference_interval95"]) for name in cells]
    assert widths[-1] < 0.6 * np.mean(widths[:-1])  # of seven independent ones


def test_what_an_arm_withholds_is_not_made_up_and_named(tmp_path):
    (folder, results), (other, _) = sts(tmp_path / "a", 1.0, 0), sts(tmp_path / "b", 1.0, 1)
    results |= {"average": None, "STS13": {"all": {"spearman": None}}}
    write_json(folder / "sts" / "results.json", results)
    for arms in ({"a": [folder]}, {"a": [folder], "b": [other]}, {"b": [other], "a": [folder]}):
        result = compare(arms, next(iter(arms)), tmp_path / "out", RESAMPLES)
        assert list(result["arms"]["a"]["sts"]) == [name for name in SUBSETS if name != "STS13"]
        assert result["left_out"] == [
            {"task": "sts", "metric": name, "arms": ["a"], "why": "withheld or missing"}
            for name in ("STS13", "average")
        ]
        assert "Left out: sts STS13 (withheld or missing in a); sts av" in make_markdown(result)


def test_the_other_tasks(tmp_path):
    random = np.random.default_rng(3)
    folders, held = {}, {}
    for arm, shift in (("a", 0.0), ("b", -0.5)):
        tokens = np.arange(10, 40)
        loss = tokens * (3 + shift) + random.normal(size=30)
        glue = [
            {"task": ("RTE", "WNLI")[n % 2], "sentence1": str(n), "label": "yes",
             "prediction": "yes" if n % (3 if arm == "a" else 5) else "no",
             "prediction_normalised": "yes" if n % 3 else "no"}
            for n in range(30)
        ]  # fmt: skip
        texts = [
            {"source": "documents", "document": n, "tokens": int(t), "loss": float(x),
             "text_loss": float(x), "characters": 4 * int(t), "bytes": 5 * int(t)}
            for n, (t, x) in enumerate(zip(tokens, loss, strict=True))
        ]  # fmt: skip
        gains = [
            {"query": n, "tokens": int(t), "alone": 3.0 * t, "with_random": 2.9 * t,
             "with_neighbours": float(x)}
            for n, (t, x) in enumerate(zip(tokens, loss, strict=True))
        ]  # fmt: skip
        write_task(tmp_path / arm / "glue", glue)
        write_task(
            tmp_path / arm / "perplexity",
            [*texts, {**texts[0], "tokens": 0, "loss": 0.0, "text_loss": 0.0}],
        )
        folders[arm] = [write_task(tmp_path / arm / "neighbour_gain", gains)]
        held[arm] = loss.sum() / tokens.sum()
    result = compare(folders, "a", tmp_path / "out", 3 * RESAMPLES)  # Holm's p of many are larger
    cells = result["arms"]["b"]
    right = [bool(n % 5) for n in range(0, 30, 2)]
    assert cells["glue"]["RTE accuracy"]["value"] == pytest.approx(np.mean(right))
    assert cells["glue"]["RTE accuracy"]["test"] == "sign test"
    by_token = cells["glue"]["RTE accuracy by token"]
    assert by_token["value"] == pytest.approx(2 / 3) and by_token["difference"] == 0
    loss = cells["perplexity"]["loss of documents"]
    assert loss["value"] == pytest.approx(held["b"])
    assert (loss["items"], loss["better"]) == (30, "lower")
    assert loss["difference"] == pytest.approx(held["b"] - held["a"])
    assert loss["verdict"] == "better, significant at 0.05 on these items (1 seed)"
    assert list(cells["perplexity"]) == [
        f"loss of documents{by}" for by in ("", ", by character", ", by byte")
    ]
    by_byte = cells["perplexity"]["loss of documents, by byte"]
    assert by_byte["value"] == pytest.approx(held["b"] / np.log(2) / 5)
    assert (by_byte["items"], by_byte["unit"]) == (30, "bits per byte")
    assert "loss of documents (nats per token, lower is" in task_table(result, "perplexity")
    assert result["left_out"] == [] and result["notes"] == {}
    gain = cells["neighbour_gain"]
    assert gain["gain_neighbours"]["value"] == pytest.approx(3.0 - held["b"])
    assert gain["neighbour_gain"]["value"] == pytest.approx(2.9 - held["b"])
    assert gain["neighbour_gain"]["better"] == "higher"


def test_one_text_shows_no_difference(tmp_path):
    row = {"source": "documents", "document": 0, "tokens": 900, "bytes": 9, "characters": 9}
    a, b = (
        write_task(tmp_path / arm / "perplexity", [row | {"loss": loss, "text_loss": loss}])
        for arm, loss in (("a", 2700.0), ("b", 1800.0))
    )
    result = compare({"a": [a], "b": [b]}, "a", tmp_path / "out", RESAMPLES)
    assert result["arms"]["b"]["perplexity"]["loss of documents"]["verdict"] == "not significant"
    assert "With only 1 items, intervals are too narrow" in make_markdown(result)


def test_other_tokens_are_compared_by_character_and_byte_alone(tmp_path):
    def texts(arm, tokens, first):
        rows = [
            {"source": "documents", "document": n, "tokens": tokens, "loss": 90.0 + n,
             "text_loss": 90.0 + n, "characters": 100 - first, "bytes": 120 - first}
            for n in range(4)
        ]  # fmt: skip
        nothing = dict.fromkeys(("tokens", "loss", "text_loss", "characters", "bytes"), 0)
        rows += [{"source": "documents", "document": n, **nothing} for n in (4, 5, 6)]
        rows += [{"source": "empty", "document": 0, **nothing}]
        return write_task(tmp_path / arm / "perplexity", rows)

    arms = {"a": [texts("a", 30, 0)], "b": [texts("b", 40, 0)], "c": [texts("c", 40, 4)]}
    result = compare(arms, "a", tmp_path / "out", RESAMPLES)  # some draw empty texts alone
    names = ["loss of documents, by character", "loss of documents, by byte"]
    assert list(result["arms"]["c"]["perplexity"]) == names
    cell = result["arms"]["c"]["perplexity"][names[1]]
    assert cell["value"] == pytest.approx(366 / np.log(2) / (4 * 116)) and cell["items"] == 4
    assert np.isfinite(cell["difference_interval95"]).all()
    by_token = {"task": "perplexity", "metric": "loss of documents", "arms": ["b", "c"]}
    assert by_token | {"why": "other tokens than those of a"} in result["left_out"]
    assert [left["arms"] for left in result["left_out"][1:]] == [["a", "b", "c"]] * 3  # empty
    told = make_markdown(result)
    assert "Left out: perplexity loss of documents (other tokens than those of a in b, c)" in told
    assert "does not predict the first token of a text" in told and "up to 4.0%" in told
    del arms["c"]
    assert compare(arms, "a", tmp_path / "out", RESAMPLES)["notes"] == {}


def test_every_evaluation_can_be_compared():
    from icl_jax.evaluation.tasks import TASKS

    for kind in map(task_class, TASKS):
        assert kind.metrics is not Task.metrics and kind.item and kind.units


# Files.


def test_tables_and_figures_are_the_same_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(compare_module, "draw_figure", draw_figure)
    arms = {
        arm: [questions(tmp_path / f"{arm}{n}", share, seed=n) for n in range(2)]
        for arm, share in (("regular", 0.2), ("knn", 0.6))
    }
    results = [compare(arms, "knn", tmp_path / name, RESAMPLES) for name in ("one", "two")]
    assert results[0] == results[1] == json.loads((tmp_path / "one/comparison.json").read_text())
    for kind in ("md", "csv", "json", "png", "svg"):
        one, two = (
            (tmp_path / name / f"comparison.{kind}").read_bytes() for name in ("one", "two")
        )
        assert one == two and len(one) > 100
    assert (tmp_path / "one/comparison.md").read_text() == make_markdown(results[0])
    lines = list(csv.DictReader((tmp_path / "one/comparison.csv").open()))
    assert len(lines) == 4  # two metrics of two arms
    line = next(line for line in lines if (line["arm"], line["metric"]) == ("regular", "f1"))
    cell = results[0]["arms"]["regular"]["nq_open"]["f1"]
    assert float(line["value"]) == cell["value"] and float(line["p"]) == cell["p"]
    svg = (tmp_path / "one/comparison.svg").read_text()
    for text in ("nq_open: exact match", "regular", "share of 1"):
        assert text in svg


def test_the_command_prints_the_table(tmp_path, capsys):
    a, b = questions(tmp_path / "a", 0.2, seed=1), questions(tmp_path / "run/200", 0.5, seed=2)
    main([f"--runs=regular={a}.json,knn={b.parent}", f"--to={tmp_path / 'out'}"])
    printed = capsys.readouterr().out
    assert "difference to regular" in printed and "| metric (share of 1, higher" in printed
    assert f"of {QUESTIONS} |" in printed and "all 2 comparisons" in printed
    with pytest.raises(SystemExit, match="the reference 'x' is not one of the arms: regular"):
        main([f"--runs=regular={a}", "--reference=x", f"--to={tmp_path / 'out'}"])


# What cannot be compared.


def run_of(workdir, step, start_with, begin):
    """A run that began at a step of another, and was evaluated at its end."""
    made = questions(workdir / "evaluation" / str(step), 0.5)
    write_json(
        workdir / "config.json",
        {"config": {"training": {"start_with": start_with}}, "start": begin and {"step": begin}},
    )
    return made


def test_updates_count_from_the_checkpoint_that_a_run_continues_from(tmp_path):
    arms = {
        "whole": [run_of(tmp_path / "whole", 560, "everything", 500)],
        "weights": [run_of(tmp_path / "weights", 60, "weights", 500)],
        "short": [run_of(tmp_path / "short", 57, "weights", None)],
        "trunk": [questions(tmp_path / "whole" / "evaluation" / "trunk", 0.5, seed=1)],
        "elsewhere": [questions(tmp_path / "elsewhere" / "7", 0.5, seed=2)],
    }
    result = compare(arms, "whole", tmp_path / "out", RESAMPLES)
    assert result["updates"] == {"whole": [60], "weights": [60], "short": [57]}
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert "Updates of training: whole 60, weights 60, short 57." in text
    arms["short"] = [run_of(tmp_path / "shorter", 56, "weights", None)]
    text = make_markdown(compare(arms, "whole", tmp_path / "again", RESAMPLES))
    assert "not trained for the same number of updates** (whole 60, weights 60, short 56)" in text
