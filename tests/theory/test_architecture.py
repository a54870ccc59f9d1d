"""Advice on depth, width and ranks: the papers' own numbers, known models, our configs."""

import dataclasses
from pathlib import Path
import runpy
import subprocess
import sys
import types

import jax
import pytest

from icl_jax import main as main_module
from icl_jax.config import ConfigError, ExperimentConfig, GPTConfig, LinearAttentionConfig
from icl_jax.models import abstract
from icl_jax.theory import architecture
from icl_jax.theory.known_models import KNOWN_MODELS, known_models_table
from icl_jax.theory.network_shape import (
    best_depth,
    border_depth,
    border_width,
    judge,
    make_shape,
    recommend,
    shape_of,
)

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.py"))


def run(*args):
    command = [sys.executable, "-m", "icl_jax.theory.architecture", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def config_of(name):
    return runpy.run_path(str(ROOT / "configs" / name))["get_config"]()


def words_on(shape):
    return architecture.findings(judge(shape))


def verdict_on(name):
    return judge(KNOWN_MODELS[name].shape)


# The border


@pytest.mark.parametrize(
    ("parameters", "depth", "width"),
    [(175e9, 80, 13_500), (1e12, 95, 30_000)],  # Levine et al. 2020
)
def test_the_border_is_where_the_paper_projects_it(parameters, depth, width):
    assert best_depth(parameters) == pytest.approx(depth, abs=0.7)
    assert border_width(best_depth(parameters)) == pytest.approx(width, rel=0.02)
    shape = recommend(parameters)
    assert abs(shape.depth - depth) <= 1  # the width was rounded first
    assert shape.width == pytest.approx(width, rel=0.02)


@pytest.mark.parametrize("depth", [0.5, 6, 23.7, 48, 131])
def test_border_depth_undoes_border_width(depth):
    assert border_depth(border_width(depth)) == pytest.approx(depth)
    parameters = 12 * depth * border_width(depth) ** 2
    assert best_depth(parameters) == pytest.approx(depth)


def test_below_154_the_border_has_no_depth():
    assert border_depth(154) is None and border_depth(155) > 0


# Recommendations


@pytest.mark.parametrize(
    ("params", "vocab"),
    [
        (params, vocab)
        for params in (4e5, 5e6, 345e6, 13e9)
        for vocab in (None, 257, 2000, 50257)
        if params > 320_000 + 164 * (vocab or 0)  # one layer of the border
    ],
)
def test_a_recommended_shape_has_the_parameters_asked_for_and_lies_on_the_border(params, vocab):
    shape = recommend(params, vocab)
    half_a_layer = shape.layer_parameters / 2
    assert abs(shape.parameters - params) <= max(half_a_layer, 0.02 * params)
    assert shape.width % 64 == 0 and shape.heads * shape.head_dim == shape.width
    assert 0.6 < judge(shape).depth_ratio < 1.6  # of small networks 64 is much of the width
    if params >= 345e6:
        assert judge(shape).advice == ""


def test_a_vocabulary_takes_its_part_of_the_parameters():
    without, full = recommend(345e6), recommend(345e6, 50257)
    factored = recommend(345e6, 50257, rank=128)
    assert (full.depth, full.width) == (31, 896)
    assert full.parameters == 31 * 12 * 896**2 + 50257 * 896
    assert factored.embedding_parameters == 50257 * 128 + 128 * factored.width
    assert full.budget < factored.budget <= without.budget


def test_the_width_is_a_multiple_of_the_heads_asked_for():
    assert recommend(345e6, heads=12).width % 12 == 0
    shape = recommend(345e6, head_dim=100)
    assert shape.width == 100 * shape.heads
    wide = recommend(345e6, heads=32, head_dim=128)
    assert wide.attention_width == 4096 > wide.width
    assert wide.parameters == pytest.approx(345e6, rel=0.05)


@pytest.mark.parametrize("params", [0, -3.0, float("nan"), float("inf"), 1e18])
def test_a_budget_is_a_positive_number(params):
    with pytest.raises(ConfigError, match=r"params must be above 0 and below 1e\+18, got"):
        recommend(params)


def test_a_budget_that_the_embedding_eats_up_is_refused_with_the_least_that_would_do():
    with pytest.raises(ConfigError, match="5,000,000 are too few with a vocabulary of 50,257") as e:
        recommend(5e6, 50257)
    assert "163 wide, has 8,517,342" in str(e.value)
    assert recommend(8_517_343, 50257).depth == 1
    assert recommend(5e6, 50257, rank=16).depth > 1


# Verdicts


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_shapes_have_the_published_parameters(name):
    shape, published, _ = KNOWN_MODELS[name]
    if shape.shared:  # the authors count heads that the theory does not look at
        assert shape.parameters < published < shape.budget
    else:
        assert shape.parameters == pytest.approx(published, rel=0.025)


@pytest.mark.parametrize(
    ("name", "best", "advice"),
    [
        ("GPT-2", 23, "deeper"),
        ("GPT-2 medium", 32, "deeper"),
        ("GPT-2 large", 38, ""),
        ("GPT-2 XL", 43, "wider"),
        ("GPT-3 175B", 80, "wider"),  # "too deep for its size", Levine et al. 2020
        ("BERT base", 23, "deeper"),
        ("BERT large", 32, "deeper"),
        ("ALBERT-xxlarge", 47, "deeper"),
        ("ESM-1b", 37, "deeper"),
        ("ViT-Huge/14", 37, "deeper"),
        ("ViT-Huge/16", 37, "deeper"),
        ("ImageGPT-L", 43, ""),  # past the border, but its rank is low
        ("T5-11B", None, ""),
    ],
)
def test_depths_of_known_models(name, best, advice):
    verdict = verdict_on(name)
    assert verdict.advice == advice
    assert (verdict.best_depth and round(verdict.best_depth)) == best
    assert bool(verdict.unknown) == (best is None)
    assert verdict.extrapolated == (name in ("GPT-3 175B", "ALBERT-xxlarge"))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("ALBERT-xxlarge", 128),
        ("ESM-1b", 33),
        ("ViT-Huge/14", 588),
        ("ViT-Huge/16", 768),  # as Wies et al. 2021 count
        ("ImageGPT-L", 512),
    ],
)
def test_low_ranks_of_known_models(name, rank):
    verdict = verdict_on(name)
    assert verdict.low_rank
    assert verdict.rank_share == rank / verdict.shape.width


def test_language_models_have_full_rank_and_only_t5_too_wide_an_attention():
    full = [name for name in KNOWN_MODELS if not verdict_on(name).low_rank]
    assert [name.split()[0] for name in full] == ["GPT-2"] * 4 + ["GPT-3"] + ["BERT"] * 2 + [
        "T5-11B"
    ]
    ratios = {name: verdict_on(name).attention_ratio for name in KNOWN_MODELS}
    assert ratios.pop("T5-11B") == 16
    assert set(ratios.values()) == {1}


def test_a_bottleneck_is_reported_with_its_size_and_the_way_out():
    albert = words_on(KNOWN_MODELS["ALBERT-xxlarge"].shape)
    assert "rank 128 in a width of 4,096, so 96.9% of the width is above" in albert["rank"]
    assert "Raise the rank to 4,096, or go deeper and narrower" in albert["rank"]
    t5 = words_on(KNOWN_MODELS["T5-11B"].shape)
    assert "128 x 128 = 16,384 is 16 times the width of 1,024" in t5["attention"]
    assert t5["rank"].startswith("no bottleneck")
    assert t5["depth"].startswith("no verdict: the fit is for networks with one stack")


def test_a_low_rank_excuses_depth_but_not_shallowness():
    deep, shallow = make_shape(96, 768, vocab=256), make_shape(6, 768, vocab=256)
    assert judge(deep).advice == "" and judge(make_shape(96, 768, vocab=50257)).advice == "wider"
    assert "do not widen" in words_on(deep)["depth"]
    assert judge(shallow).advice == "deeper"


def test_narrow_networks_get_no_verdict_on_depth_but_the_reason():
    narrow = words_on(make_shape(4, 128))
    assert narrow["depth"].startswith("no verdict: the border begins at a width of 154, and 128")
    assert narrow["border"].startswith("unknown")
    assert "fit is of depths 6 to 48" in words_on(make_shape(4, 192))["border"]
    assert "fit is of" not in words_on(make_shape(12, 768))["border"]


def test_heads_that_do_not_divide_the_width_need_their_size():
    with pytest.raises(ConfigError, match="width 700 is not a multiple of heads 12; give head_dim"):
        make_shape(12, 700, heads=12)
    with pytest.raises(ConfigError, match="width 700 is not a multiple of head_dim 64; give heads"):
        make_shape(12, 700, head_dim=64)
    assert make_shape(12, 700, heads=12, head_dim=64).attention_width == 768


def test_the_network_of_a_config_is_judged_as_it_is_built():
    shape = shape_of(GPTConfig(embedding_rank=64, num_heads=12, head_dim=128, tie_head=False))
    assert (shape.embedding_rank, shape.attention_width) == (64, 1536)
    assert shape.parameters == shape.budget + 50257 * 64 + 64 * 768 + 50257 * 768
    for rank in (8, 16, 24):  # a factored embedding has both its matrices, whatever the rank
        small = GPTConfig(
            vocab_size=50, context_length=4, num_layers=1, embed_dim=16, num_heads=2,
            embedding_rank=rank,
        )  # fmt: skip
        embedding = abstract(small)[1]["token_embedding"]
        stored = sum(x.size for x in jax.tree.leaves(embedding))
        assert shape_of(small).embedding_parameters == stored == 50 * rank + rank * 16
    analysed = LinearAttentionConfig(
        embedding="convolution", input_dim=3, kernel_size=5, tie_head=False
    )
    assert shape_of(analysed).embedding_rank == 15
    assert "feed-forward" in words_on(shape_of(analysed))["depth"]


# The command


def test_the_command_recommends_and_judges_the_known_models():
    shown = run("--params=345e6", "--vocab=50257")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "Recommended for 345,000,000 parameters with a vocabulary of 50,257:"
    assert lines[1].startswith("  31 layers, 896 wide, 14 heads of 64: 343,677,824 parameters")
    assert any(line.startswith("depth      in balance: 31 layers are 0.98") for line in lines)
    assert known_models_table() in shown.stdout
    assert max(map(len, lines)) <= 100


def test_the_table_is_aligned_and_quotes_what_was_measured():
    table, notes = known_models_table().split("\n\n")
    header, *rows = table.splitlines()
    assert len(rows) == len(KNOWN_MODELS)
    for column in ("border", "depth", "r / d_x", "H d_a / d_x"):
        place = header.index(column)
        assert all(row[place - 1] == " " != row[place] for row in rows), column
    assert "T5-11B" in rows[8] and rows[8].endswith("16 high")
    flat = " ".join(notes.split())
    assert all(number in flat for number in ("16/680", "25%", "75%", "55%", "588", "768"))


def test_the_command_judges_a_shape_or_a_config_with_overrides():
    shape = architecture.asked_shape(None, {"depth": 24, "width": 1024, "vocab": 500})
    assert shape == ("This network:", make_shape(24, 1024, 500))
    config = ["--config=configs/mini_gpt_knn.py", "--config.model.embedding_rank=48"]
    shown = run(*config)
    assert shown.returncode == 0, shown.stderr
    assert "4 layers, 192 wide, 6 heads of 32: 2,171,904 parameters" in shown.stdout
    assert "rank 48 in a width of 192, so 75% of the width" in shown.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--params=0"], "params must be above 0"),
        (["--config=configs/none.py"], "config file 'configs/none.py' does not exist"),
        (
            ["--config=configs/tiny.py", "--config.model.num_heads=3"],
            "embed_dim 128 is not a multiple of num_heads 3",
        ),
    ],
)
def test_what_is_wrong_with_a_command_is_reported_in_one_line(args, message):
    stopped = run(*args)
    assert stopped.returncode == 2
    assert stopped.stderr.startswith(f"error: {message}") and stopped.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [
        (None, {}, "expected one of --params=NUMBER, .*, got none"),
        (None, {"params": 1e8, "width": 768}, "got --params=NUMBER and --depth=LAYERS"),
        (None, {"depth": 12, "vocab": 5}, "--depth and --width go together, got --depth, --vocab"),
        (ExperimentConfig(), {"rank": 5}, "--config determines the shape: remove --rank"),
        (ExperimentConfig(model=GPTConfig(num_layers=0)), {}, "num_layers must be at least 1"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(config, given, message):
    with pytest.raises(ConfigError, match=message):
        architecture.asked_shape(config, {"params": None, **given})


def test_help_needs_no_jax():
    code = "import icl_jax.theory.architecture, sys; print({'jax', 'numpy'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert shown.stdout.strip() == "set()"


# The line before a training


UNBALANCED = GPTConfig(num_layers=2, embed_dim=1024, num_heads=16)


@pytest.fixture
def start(monkeypatch, capsys):
    """What `icl_jax.main` prints before the stages, which do not run."""

    def printed(config, stages=None):
        job = dict.fromkeys(("coordinator", "num_processes", "process_id"))
        given = types.SimpleNamespace(config=config, workdir="unused", stages=stages, **job)
        begun = []
        monkeypatch.setattr(main_module, "run_stages", lambda *given: begun.append(given))
        main_module.main.__wrapped__(given)
        assert len(begun) == 1
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("name", CONFIGS)
def test_our_configs_are_not_out_of_balance(start, name):
    assert start(config_of(name)) == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "2 layers of width 1024 are out of balance: too shallow (the best of this size are "),
        (
            {"num_layers": 48, "embed_dim": 256},
            "too deep (the best of this size are 18 layers of 418)",
        ),
        ({"num_layers": 24, "vocab_size": 400}, ": embedding of rank 400, 39% of the width. More:"),
        (
            {"num_layers": 24, "head_dim": 200},
            "attention 3.12 times as wide as the network. More: python -m",
        ),
        ({"num_layers": 2, "embed_dim": 128, "embedding_rank": 8}, "embedding of rank 8, 6.2%"),
    ],
)
def test_a_training_begins_with_one_line_about_a_badly_unbalanced_network(start, change, message):
    model = dataclasses.replace(UNBALANCED, **change)
    told = start(ExperimentConfig(model=model))
    assert told.startswith("note: ") and message in told and told.count("\n") == 1


def test_nothing_is_said_within_a_factor_of_two(start):
    assert start(ExperimentConfig(model=GPTConfig(num_layers=24, vocab_size=384))) == ""
    assert start(ExperimentConfig(model=GPTConfig(num_layers=24, head_dim=128))) == ""
    assert (
        start(ExperimentConfig(model=GPTConfig(num_layers=128, embed_dim=128, num_heads=4))) == ""
    )


def test_only_the_first_process_reports_and_only_before_a_training(start, monkeypatch):
    config = ExperimentConfig(model=UNBALANCED)
    assert start(config, ["design", "evaluate"]) == ""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert start(config, ["train"]) == ""


def test_a_wrong_config_is_left_to_the_stage(start):
    assert start(ExperimentConfig(model=dataclasses.replace(UNBALANCED, num_layers=0))) == ""


@pytest.mark.parametrize("heads", [{"heads": 5000}, {"head_dim": 3000}])
def test_heads_that_no_network_of_the_budget_can_have_are_refused(heads):
    with pytest.raises(
        ConfigError, match="no network of about 5,000,000 parameters has such heads"
    ):
        recommend(5e6, **heads)
