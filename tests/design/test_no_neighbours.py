"""A design whose queries have no neighbour at all stops: its arms would all be the same."""

from pathlib import Path

import pytest

from icl_jax.config import CorpusConfig, ExamplesConfig, SearchConfig, StageError
from icl_jax.design.stage import design
from tests.design.small_build import small_config


def task_config(folder: Path, **examples):
    """Three sentences of a task of words that the corpus has, each in other company."""
    (folder / "task.txt").write_text(
        "Rain fell on the guild.\nTwo members were born in rain.\nThe harbour saw weeks.\n"
    )
    config = small_config(
        folder,
        queries=CorpusConfig(files=(str(folder / "task.txt"),), text_documents="line", clean=False),
        search=SearchConfig(min_similarity=0.9999, neighbours=3),
        examples=ExamplesConfig(**examples),
    )
    config.sequence_length = 130
    return config


@pytest.mark.parametrize("least", [0, 1])
def test_a_task_without_a_sentence_above_the_threshold_stops_the_design(tmp_path, least):
    config = task_config(
        tmp_path, arms=("task_only", "neighbours_in_context"), min_neighbours=least
    )
    with pytest.raises(StageError) as stopped:
        design(config, tmp_path / "run")
    told = str(stopped.value)
    assert told.startswith(
        "none of the 3 sentences of design.queries has a neighbour in the corpus above "
        "design.search.min_similarity = 0.9999, the nearest of a sample is at 0."
    )
    assert ": of 3 sampled queries 0 have a neighbour above 0.9999, and would have " in told
    assert (
        "; lower design.search.min_similarity. What is near: python -m icl_jax.retrieval.s" in told
    )
    assert f"--workdir={tmp_path}/run --query=TEXT" in told
    assert not (tmp_path / "run" / "design" / "arms").exists()
