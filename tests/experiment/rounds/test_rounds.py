"""Self-improving rounds: train, search with the model just trained, continue."""

import dataclasses
import json
from pathlib import Path
import shutil

from etils import epath
import numpy as np
import pyarrow as pa
import pytest

from icl_jax.config import (
    BranchesConfig,
    ConfigError,
    CorpusConfig,
    DataConfig,
    DesignConfig,
    EncoderConfig,
    EvaluationConfig,
    ExamplesConfig,
    ExperimentConfig,
    GPTConfig,
    MeshConfig,
    NeighbourGainConfig,
    OptimizerConfig,
    PerplexityConfig,
    QuestionsConfig,
    SearchConfig,
    StageError,
    TokenizerConfig,
    TrainingConfig,
)
from icl_jax.experiment.rounds.config import first_round, later_round, unchanged_branches
from icl_jax.experiment.rounds.rounds import run_rounds
from icl_jax.experiment.rounds.search import choose_threshold, compare_neighbours
from icl_jax.experiment.stages import run_stages
from icl_jax.models import huggingface
from icl_jax.retrieval.neighbours import Neighbours
from tests.design.test_find_related import write_corpus

STAGES = ["design", "train", "evaluate"]
ARMS = ("regular", "neighbours_in_context")


def small(corpus: Path, questions: Path, **fields) -> ExperimentConfig:
    """4 steps, then two rounds of 2 steps."""
    return ExperimentConfig(
        **{
            "batch_size": 8,
            "sequence_length": 61,
            "mesh": MeshConfig(data=8),
            "model": GPTConfig(
                vocab_size=300, context_length=61, num_layers=1, embed_dim=16, num_heads=2
            ),
            "design": DesignConfig(
                corpus=CorpusConfig(files=(str(corpus),), max_sentence_tokens=40),
                tokenizer=TokenizerConfig(vocab_size=300),
                search=SearchConfig(min_similarity=0.3, neighbours=3),
                examples=ExamplesConfig(arms=("contiguous", ARMS[1]), card_samples=2),
                shard_megabytes=0.001,
                workers=1,
            ),
            "data": DataConfig(sources=("design:contiguous",)),
            "optimizer": OptimizerConfig(learning_rate=1e-2, warmup=2),
            "training": TrainingConfig(steps=4, dropout=False, checkpoint_every=4),
            "branches": BranchesConfig(arms=ARMS, steps=2),
            "rounds": 2,
            "evaluation": EvaluationConfig(
                tasks=("nq_open",),
                resamples=20,
                questions=QuestionsConfig(
                    file=str(questions), template="{question}", max_new_tokens=2
                ),
            ),
        }
        | fields
    )


def plan(**fields):
    """The first two rounds of a config, in a workdir that is not there."""
    config = small(Path("corpus.jsonl"), Path("questions.jsonl"), rounds=3, **fields)
    first = first_round(config, epath.Path("work"))
    return first, later_round(first, first, 0.9)


def table(*neighbours: list[int]) -> Neighbours:
    """Neighbours of each query, two queries in a shard."""
    shards = [neighbours[i : i + 2] for i in range(0, len(neighbours), 2)]
    ids = pa.list_(pa.int64())
    return Neighbours([pa.record_batch({"ids": pa.array(s, ids)}) for s in shards], {})


def test_a_round_continues_where_the_reference_of_the_round_before_ended():
    first, second = plan()
    third = later_round(first, second, 0.8)
    assert [r.config.training.steps for r in (first, second, third)] == [4, 6, 8]
    assert {r.config.optimizer.schedule_steps for r in (first, second, third)} == {10}
    assert str(third.workdir) == "work/rounds/3"
    assert third.config.training.start_from == "work/rounds/2/branches/neighbours_in_context"
    assert third.config.training.start_with == "everything"
    last = third.references[0].config
    assert last.training.steps == 10
    assert last.training.start_from == third.config.training.start_from
    assert last.data.phases == ((0, (1.0, 0.0)), (8, (0.5, 0.5)))
    assert second.config.rounds == 1


def test_a_round_searches_with_the_model_and_measures_what_round_1_measured():
    evaluation = EvaluationConfig(
        tasks=("perplexity", "neighbour_gain"),
        perplexity=PerplexityConfig(records=("design:contiguous", "elsewhere")),
        neighbour_gain=NeighbourGainConfig(queries=7),
    )
    design = DesignConfig(encoder=EncoderConfig(folder="minilm", max_tokens=512))
    first, second = plan(evaluation=evaluation, design=design)
    found = second.config
    assert found.design.encoder.folder == "work/rounds/2/encoder"
    assert found.design.encoder.max_tokens == 0  # of another network
    assert found.design.search.min_similarity == 0.9
    assert found.evaluation.perplexity.records == ("work/design/arms/contiguous", "elsewhere")
    assert found.evaluation.neighbour_gain == NeighbourGainConfig("work", 7)
    assert first.config.evaluation == evaluation


def test_rounds_of_epochs_start_from_weights():
    branches = BranchesConfig(arms=("task_only", ARMS[1]), epochs=2.0)
    first, second = plan(branches=branches)
    assert first.config.training.steps == 4
    reference = second.references[0].config.training
    assert (reference.steps, reference.epochs, reference.start_with) == (0, 2.0, "weights")
    assert reference.start_from == "work/branches/neighbours_in_context"


def test_the_threshold_leaves_as_many_neighbours_as_asked_for():
    similarities = np.array([[0.9, 0.7, -np.inf], [0.8, 0.6, 0.5], [0.4, 0.3, 0.2]], np.float32)
    for wanted, count in ((1.0, 3), (2.0, 6), (0.34, 1)):
        threshold = choose_threshold(similarities, wanted)
        assert (similarities > threshold).sum() == count
    assert choose_threshold(similarities, 3.0) == -1  # all there are
    assert not (similarities > choose_threshold(similarities, 0.0)).any()


def test_overlap_counts_neighbours_that_are_still_there_by_query():
    before = table([5, 7], [3], [], [1, 2, 4])
    now = table([7, 9], [3, 5], [8], [])
    found = compare_neighbours(before, now)
    assert found["kept"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found["same_nearest"] == pytest.approx(1 / 3)
    assert (found["had_neighbours"], found["without_neighbours_now"]) == (3, 1)
    same = compare_neighbours(before, before)
    assert (same["kept"], same["same_nearest"]) == (1, 1)
    nothing = compare_neighbours(table([], []), table([1], []))
    assert (nothing["kept"], nothing["same_nearest"]) == (None, None)
    with pytest.raises(StageError, match="same sentences"):
        compare_neighbours(before, table([1]))


@pytest.mark.parametrize(
    ("fields", "stages", "message"),
    [
        ({"branches": BranchesConfig()}, STAGES, "at least two branches.arms"),
        (
            {"branches": BranchesConfig(arms=ARMS, reference="regular", steps=2)},
            STAGES,
            "no search changes",
        ),
        (
            {"branches": BranchesConfig(arms=("task_only", ARMS[1]), epochs=1.0,
                                        learning_rates=(1e-3, 1e-4))},
            STAGES,
            "choose one of them",
        ),
        ({}, ["train"], "design and evaluate would not run"),
        (
            {"model": GPTConfig(vocab_size=300, context_length=61, embed_dim=16, num_heads=2,
                                position="rotary")},
            STAGES,
            "position=rotary",
        ),
    ],
)  # fmt: skip
def test_what_would_stop_a_later_round_stops_the_first(tmp_path, fields, stages, message):
    config = small(tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl", **fields)
    with pytest.raises(ConfigError, match=message):
        run_rounds(config, epath.Path(tmp_path), stages)
    assert not any(tmp_path.iterdir())


@pytest.fixture(scope="module")
def two_rounds(tmp_path_factory):
    """(config, workdir) of two finished rounds, without the figures of the comparisons."""
    patch = pytest.MonkeyPatch()
    patch.setattr(
        "icl_jax.evaluation.compare.compare.draw_figure", lambda c, file, kind: file.touch()
    )
    patch.setattr(
        "icl_jax.experiment.report.report.draw_report", lambda c, file, kind: file.touch()
    )
    patch.setattr("icl_jax.training.hardware.measured_gemm_flops", lambda dtype: 1e9)
    folder = tmp_path_factory.mktemp("rounds")
    questions = folder / "questions.jsonl"
    rows = [{"question": f"Where is Mar{n}ek from?", "answer": ["Kersk"]} for n in range(4)]
    questions.write_text("\n".join(map(json.dumps, rows)) + "\n")
    config = small(write_corpus(folder, people=12), questions)
    run_stages(config, epath.Path(folder / "work"), STAGES)
    yield config, folder / "work"
    patch.undo()


def test_the_second_round_searches_with_the_model_of_the_first(two_rounds):
    _, workdir = two_rounds
    own = workdir / "rounds/2"
    assert huggingface.read_config(own / "encoder").embed_dim == 16
    made_from = json.loads((own / "design/neighbours/inputs.json").read_text())
    assert made_from["vectors"]["kind"] == "model folder"
    for step in ("tokenizer", "corpus", "groups/contiguous", "arms/contiguous"):
        assert (own / "design" / step).is_symlink()
        assert (own / "design" / step).resolve() == (workdir / "design" / step).resolve()
    for step in ("neighbours", "groups/neighbours", "arms/neighbours_in_context"):
        assert not (own / "design" / step).is_symlink()
    checkpoints = [int(p.name) for p in (own / "branches/regular/checkpoints").iterdir()
                   if p.name.isdigit()]  # fmt: skip
    assert checkpoints == [8]


def test_rounds_are_reported_with_all_arms_and_the_overlap(two_rounds):
    _, workdir = two_rounds
    found = json.loads((workdir / "rounds.json").read_text())
    assert found["reference"] == "neighbours_in_context"
    assert [set(r["arms"]) for r in found["rounds"]] == [{*ARMS}, {*ARMS, "unchanged"}]
    first, second = found["rounds"]
    assert first["encoder"] == "TF-IDF"
    assert first["overlap"] is None
    assert second["min_similarity"] != first["min_similarity"]
    assert second["mean_neighbours"] == pytest.approx(first["mean_neighbours"], abs=0.1)
    tables = [Neighbours.open(d / "design/neighbours") for d in (workdir, workdir / "rounds/2")]
    assert second["overlap"] == compare_neighbours(*tables)
    assert {*found["reference_against_round_1"]} == {"round 1", "round 2"}
    text = (workdir / "rounds.md").read_text()
    assert "exact match: unchanged" in text
    assert (workdir / "rounds.png").stat().st_size > 1000


def test_the_unchanged_arm_trains_on_the_examples_of_the_round_before(two_rounds):
    config, workdir = two_rounds
    first = first_round(config, epath.Path(workdir))
    chosen = json.loads((workdir / "rounds/2/threshold/results.json").read_text())
    second = later_round(first, first, chosen["min_similarity"])
    (unchanged,) = unchanged_branches(second, first)
    held = json.loads((workdir / "rounds/2/branches/unchanged/config.json").read_text())
    assert held["config"]["data"]["sources"] == list(unchanged.config.data.sources)
    assert unchanged.config.data.sources[1] == str(workdir / "design/arms/neighbours_in_context")
    other = second.references[0].config
    assert dataclasses.replace(unchanged.config, data=other.data) == other


def files_of(workdir):
    """When each file was written; compiled code and locks apart."""
    files = [path for path in workdir.rglob("*") if path.is_file() and path.name != "lock"]
    return {p: p.stat().st_mtime_ns for p in files if "compiled" not in p.parts}


def test_complete_rounds_are_taken_as_they_are(two_rounds, capsys):
    config, workdir = two_rounds
    before = files_of(workdir)
    run_stages(config, epath.Path(workdir), STAGES)
    assert files_of(workdir) == before
    told = capsys.readouterr().out
    assert "all 2 rounds are complete" in told
    assert "exact match: unchanged" in told


def test_what_a_round_lost_is_made_again_and_the_rest_is_kept(two_rounds, capsys):
    config, workdir = two_rounds
    before, table = files_of(workdir), (workdir / "rounds.md").read_text()
    own = workdir / "rounds/2"
    encoder = (own / "encoder/model.safetensors").read_bytes()
    (own / "encoder/results.json").unlink()  # killed while it was written
    (own / "encoder/config.json").unlink()
    (own / "comparison.json").unlink()
    shutil.rmtree(own / "branches/unchanged/evaluation")
    run_stages(config, epath.Path(workdir), STAGES)
    told = capsys.readouterr().out
    assert "round 2 of 2" in told
    assert "round 1 of 2" not in told
    assert (own / "comparison.json").exists()
    assert (own / "encoder/model.safetensors").read_bytes() == encoder
    assert (workdir / "rounds.md").read_text() == table
    kept = [
        own / "branches/regular/evaluation/8/nq_open/outputs.jsonl",
        own / "branches/unchanged/checkpoints/8/params/manifest.ocdbt",
        own / "design/corpus_vectors/vectors-00000.npy",
        own / "design/neighbours/results.json",
        own / "threshold/results.json",
    ]
    assert all(path.stat().st_mtime_ns == before[path] for path in kept)


def test_a_round_of_another_config_is_not_taken_for_complete(two_rounds):
    config, workdir = two_rounds
    other = dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=2e-2, warmup=2))
    with pytest.raises(ConfigError, match="learning_rate"):
        run_stages(other, epath.Path(workdir), STAGES)
