"""What slices cost: tables from numbers, cells that are kept, and libtpu's word on small steps."""

import importlib.util
import json
from pathlib import Path

import jax
import pytest

from icl_jax.config import ConfigError, RobertaConfig, SearchConfig
from icl_jax.experiment.branches import plan_branches
from icl_jax.studies.pods import cells as pods_cells
from icl_jax.studies.pods import measure as pods_measure
from icl_jax.studies.pods import pods
from icl_jax.studies.pods import tables as pods_table
from icl_jax.studies.pods.cells import CONFIGS, Cell, inputs_of, read_config, write_cell
from icl_jax.tpu.chips import generation_of, num_chips, one_chip, slice_of, slices, tpus
from icl_jax.tpu.compile import GB

ROOT = Path(__file__).parents[2]
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu")


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    """As a user runs it; the versions are made up, for libtpu may not be there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(pods_cells, "version", lambda name: f"{name} 1")
    monkeypatch.setattr(pods, "version", lambda name: "1.2.3")


@pytest.fixture
def compiles_again():
    """A program for chips that are not there cannot be read back from the cache."""
    jax.config.update("jax_enable_compilation_cache", False)
    yield
    jax.config.update("jax_enable_compilation_cache", True)


def numbers_of(topology="v5e:4x4", cycles=0.09, network=0.01, **more):
    both = {"cycles_or_collectives": cycles, "cycles_and_collectives": cycles + network}
    return {
        "fits": True,
        "topology": topology,
        "parameters": 1234,
        "memory": {"total": 3 * GB, "available": 15.75 * GB},
        "sent": {"all-gather": 0.0, "all-reduce": 2.0 * 2**20, "all-to-all": 0.0},
        "seconds": {
            "products": 0.02, "memory": 0.05, "collectives": network, "largest": 0.05, **both,
        },
        "utilisation": {name: 0.03 / seconds for name, seconds in both.items()},
        **more,
    }  # fmt: skip


def test_every_slice_has_the_chips_that_its_name_says():
    chips = {name: num_chips(topology) for name, topology in slices().items()}
    for name, count in chips.items():
        generation, _, sold = name.partition("-")
        assert count == int(sold) // (2 if generation in ("v4", "v5p") else 1)
        assert slices()[name].count("x") + 1 == tpus()[generation].dimensions
        assert slice_of(generation, count) == name
    assert {generation_of(name) for name in chips} == set(one_chip()) == set(tpus())
    assert max(chips.values()) == 256 and len(chips) == 26


def test_steps_are_those_of_the_configs_and_of_the_papers_examples():
    steps = {name: pods_table.count_steps(read_config(name)) for name in CONFIGS}
    assert steps["gpt_base_knn"][0] == 200_000 + 40_000
    assert steps["gpt_medium_knn"][0] == 200_000 + 20_000
    assert steps["roberta_base_knn_tapt"][0] == 3320  # 5 x 170,000 / 256
    assert "5 epochs of the paper's 170,000" in steps["roberta_base_knn_tapt"][1]


@pytest.mark.parametrize("name", ["gpt_base_knn", "gpt_medium_knn"])
def test_both_phases_of_a_run_have_the_same_step(name, tmp_path):
    config = read_config(name)
    (branch,) = plan_branches(config, tmp_path)
    for field in ("batch_size", "sequence_length", "model", "mesh"):
        assert getattr(branch.config, field) == getattr(config, field)
    assert branch.config.training.accumulate == config.training.accumulate
    assert branch.config.training.objective == config.training.objective


def test_a_training_line_is_hours_of_all_steps_and_a_slice_that_is_too_large_says_why():
    found = {
        "v5e-16": numbers_of(),
        "v5e-32": {"fits": False, "topology": "v5e:4x8", "why": "batch_size 8 is not divisible"},
    }
    config = read_config("gpt_base_knn")
    text = pods_table.training_table("gpt_base_knn", config, lambda cell: found.get(cell.place)
                                     if cell.kind == "training" else None)  # fmt: skip
    intro, table = text.split("\n\n")
    assert "1,234 parameters, 512 rows of 256 tokens" in intro and "(24 lines" in intro
    header, _, line, refused = table.splitlines()
    assert "all-reduce, MB" in header and "all-gather" not in header
    # 240,000 steps of 0.09 to 0.1 s.
    assert line == ("| v5e-16 | 16 | 32 | 3.00 of 15.75 | 2 | 90-100 | 30-33% | 6.0-6.7 | 96-107 |")
    assert "does not fit: batch_size 8 is not divisible" in refused
    assert refused.count("|") == header.count("|")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cell_is_the_step_as_it_is_trained_dropout_included(name):
    step = inputs_of(Cell("training", name, "v5e-16"))["step"]
    assert step["training"]["dropout"] and step["model"]["attention_dropout"] == 0.1


def test_vectors_and_join_are_counted_from_sentences_and_queries_of_a_step():
    def read(cell):
        if cell.kind == "encode" and cell.subject == "MiniLM-L6" and cell.place == "v4":
            return numbers_of("v4:1x1x1", network=0.0, sentences=9000)
        if cell.kind == "search" and cell.place == "v5e" and cell.subject == "MiniLM-L6-exact":
            return numbers_of(queries=1024, passes=6)

    *_, line = pods_table.sentences_table(read).splitlines()
    # 9,000 sentences in 0.09 s, at best in 0.05: 1e8 take 1,000 s and 555 s.
    assert line == "| MiniLM-L6 | v4 | 100,000 | 180,000 | 0.15-0.28 | v4-32: 0.0096-0.017 |"
    *_, line = pods_table.join_table(read).splitlines()
    # Six passes of 0.02 s, then 0.05 s for memory and 0.01 s for links: 97,656 blocks of queries.
    assert line == (
        "| MiniLM-L6, 384 wide | exact | v5e-16 | 3.00 of 15.75 | 356-533 | 3.3-4.9 | 52-78 |"
    )


def fake_process(made, fail=()):
    def run_process(names, to):
        for name in names:
            if name in fail:
                return
            cell = Cell(*name.split("/"))
            made.append(name)
            write_cell(cell, to, numbers_of(sentences=1))
            yield name, 60.0

    return run_process


def test_what_is_there_is_not_measured_again_until_the_compiler_or_config_changes(
    monkeypatch, tmp_path, capsys
):
    made = []
    (tmp_path / "cells").mkdir()
    monkeypatch.setattr(pods, "run_process", fake_process(made))
    cells = [Cell("training", "gpt_base_knn", x) for x in ("v5e-4", "v5e-8", "v5e-16")]
    assert pods.measure_cells(cells[:2], tmp_path) == []
    assert "[1/2] training/gpt_base_knn/v5e-4: 60 s, about 1 min left" in capsys.readouterr().out
    assert pods.measure_cells(cells, tmp_path) == []
    assert made == [cell.name for cell in cells]  # each once
    monkeypatch.setattr(pods_cells, "version", lambda name: "2")
    assert pods_cells.read_cell(cells[0], tmp_path) is None
    pods.measure_cells(cells[:1], tmp_path)
    assert made[3:] == [cells[0].name]
    config = read_config("gpt_base_knn")
    config.batch_size = 256
    monkeypatch.setattr(pods_cells, "read_config", lambda name: config)
    assert pods_cells.read_cell(cells[0], tmp_path) is None


def test_only_code_that_can_change_the_numbers_makes_a_cell_again():
    source = '"""Says."""\nimport os\ndef f(x):\n    """Doubles."""\n    return 2 * x  # twice\n'
    reworded = 'def f(x):\n    """Twice."""\n    import sys\n\n    return (2\n        * x)\n'
    counts = pods_cells.code_that_counts
    assert counts(source) == counts(reworded) != counts(source.replace("2", "3"))
    refused = "if x < 0:\n    raise ValueError('{}')"
    assert counts(refused.format("negative")) == counts(refused.format("below 0"))
    assert counts(refused) != counts(refused.replace("< 0", "< 1"))


@needs_libtpu
def test_what_was_measured_is_kept_beside_the_page_for_who_has_no_cells(monkeypatch, tmp_path):
    made, cells = [], [Cell("training", "gpt_base_knn", x) for x in ("v5e-4", "v5e-8")]
    monkeypatch.setattr(pods, "run_process", fake_process(made))
    page = tmp_path / "pods.md"
    page.write_text((ROOT / "docs" / "pods.md").read_text())
    pattern = "--only=training/gpt_base_knn/v5e-[48]"
    for to in ("first", "second"):
        pods.main([f"--page={page}", f"--to={tmp_path / to}", pattern])
    assert made == [cell.name for cell in cells]  # only the first time
    kept = json.loads((tmp_path / "pods.json").read_text())
    assert [*kept] == made and kept[made[0]]["numbers"] == numbers_of(sentences=1)
    monkeypatch.setattr(pods_cells, "version", lambda name: "2")
    pods.main([f"--page={page}", f"--to={tmp_path / 'third'}", pattern])
    assert made == 2 * [cell.name for cell in cells]


def test_a_process_that_dies_costs_the_cell_that_it_died_of(monkeypatch, tmp_path):
    (tmp_path / "cells").mkdir()
    made, cells = [], [Cell("encode", "MiniLM-L6", x) for x in one_chip()]
    monkeypatch.setattr(pods, "run_process", fake_process(made, fail=[cells[1].name]))
    assert pods.measure_cells(cells, tmp_path) == [cells[1].name]
    assert made == [cell.name for cell in (cells[0], *cells[2:])]


def test_the_page_keeps_its_prose_and_gets_the_tables_between_its_markers(tmp_path, capsys):
    cell = Cell("training", "gpt_base_knn", "v5e-16")
    cell.file(tmp_path).parent.mkdir()
    write_cell(cell, tmp_path, numbers_of())
    page, before = tmp_path / "page.md", (ROOT / "docs" / "pods.md").read_text()
    page.write_text(before)
    pods.fill(page, tmp_path)
    filled = page.read_text()
    assert "Compiled by libtpu 1.2.3, jax 1.2.3." in filled
    assert "| v5e-16 | 16 | 32 | 3.00 of 15.75 | 2 | 90-100 | 30-33% |" in filled
    prose = [line for line in before.splitlines() if line.startswith(("#", "-", "No TPU"))]
    assert set(prose) <= set(filled.splitlines())
    pods.fill(page, tmp_path)
    assert page.read_text() == filled


def test_a_pattern_that_names_nothing_is_refused_and_others_choose():
    cells = pods.all_cells()
    assert len(set(cells)) == len(cells) == 12 + 24 + 3 * 26
    chosen = pods.choose(cells, ["training/*/v5e-4", "encode/MiniLM-L6/v4"])
    assert [cell.place for cell in chosen] == ["v4", *["v5e-4"] * 3]
    with pytest.raises(ConfigError, match="--only=train/x matches no cell; expected KIND/SUBJECT"):
        pods.choose(cells, ["train/x"])


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("index", ["approximate", "exact"])
def test_a_search_on_two_chips_is_compiled_and_counted(monkeypatch, compiles_again, index):
    small = RobertaConfig(embed_dim=128, num_layers=1, num_heads=2)
    monkeypatch.setattr(pods_measure, "ENCODERS", {"small": small})
    monkeypatch.setattr(pods_measure, "SENTENCES", 4096)
    monkeypatch.setattr(pods_measure, "search_config", lambda: SearchConfig(neighbours=4))
    monkeypatch.setattr(pods_cells, "slices", lambda: {"v5e-2": "v5e:1x2"})
    numbers = pods_measure.measure_cell(Cell("search", f"small-{index}", "v5e"))
    assert numbers["fits"] and numbers["unknown_loops"] == 0
    # Each chip sends its queries to the other, compares all of them with its half of the pool, and
    # sends back the best 40, scores and rows.
    assert numbers["compiled_flops"] == 2 * numbers["queries"] * 2048 * 128
    assert numbers["compiled_flops"] == numbers["model_flops"]
    half, size = numbers["queries"] // 2, 4 if index == "exact" else 2
    assert numbers["sent"]["all-gather"] == half * 128 * size
    assert numbers["sent"]["all-to-all"] == half * 40 * 2 * 4


@needs_libtpu
@pytest.mark.slow
def test_an_encoder_without_weights_is_compiled_and_counted(monkeypatch, compiles_again):
    small = RobertaConfig(vocab_size=512, embed_dim=128, num_layers=2, num_heads=2, mlm_head=False)
    monkeypatch.setattr(pods_measure, "ENCODERS", {"small": small})
    numbers = pods_measure.measure_cell(Cell("encode", "small", "v5e"))
    assert numbers["sentences"] == 8192 // 32
    weights = 2 * 12 * 128 * 128
    assert numbers["model_flops"] == 2 * 8192 * (weights + 2 * 2 * 64 * 128)
    # Pooling, in float32, is the rest.
    assert 1 <= numbers["compiled_flops"] / numbers["model_flops"] < 1.2
    assert 0 < numbers["seconds"]["largest"] <= numbers["seconds"]["cycles"]
    assert set(numbers["sent"].values()) == {0.0}


@needs_libtpu
@pytest.mark.slow
def test_a_batch_with_fewer_rows_than_chips_says_so(monkeypatch, compiles_again):
    config = read_config("gpt_base_knn")
    config.batch_size = 128
    monkeypatch.setattr(pods_cells, "read_config", lambda name: config)
    numbers = pods_measure.measure_cell(Cell("training", "gpt_base_knn", "v5e-256"))
    assert not numbers["fits"]
    assert "batch_size 128 is not divisible by mesh.data 256" in numbers["why"]


def test_the_tables_of_the_page_are_made_of_the_numbers_beside_it():
    page, kept = ROOT / "docs" / "pods.md", json.loads((ROOT / "docs" / "pods.json").read_text())

    def read(cell):
        return kept.get(cell.name, {}).get("numbers")

    for name in CONFIGS:
        assert pods_table.training_table(name, read_config(name), read) in page.read_text()
    assert pods_table.sentences_table(read) in page.read_text()
    assert pods_table.join_table(read) in page.read_text()
