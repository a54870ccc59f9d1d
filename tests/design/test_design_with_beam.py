"""The whole design stage by Apache Beam: byte for byte what processes of this machine make."""

from importlib.util import find_spec

import pytest

from icl_jax.config import ExamplesConfig
from icl_jax.design.folders import DesignFolders
from icl_jax.design.stage import design
from icl_jax.workers.beam import LOCAL_RUNNER
from tests.design.test_find_related import experiment, write_corpus
from tests.design.test_kill_design import ARMS, assert_same

pytestmark = pytest.mark.skipif(find_spec("apache_beam") is None, reason="needs the extra beam")

THREADS = (LOCAL_RUNNER, "--direct_num_workers=2", "--direct_running_mode=multi_threading")


@pytest.mark.parametrize(
    ("people", "arms"), [(5, ARMS[1:2]), pytest.param(20, ARMS, marks=pytest.mark.slow)]
)
def test_beam_makes_the_same_records_of_every_arm(tmp_path, people, arms):
    """With two workers in one process, which share what it holds open."""
    file = write_corpus(tmp_path, people)
    examples = ExamplesConfig(
        arms=arms, evaluation_files=(str(file),), overlap_words=5, max_related_share=1.0
    )
    for runner, options in {"local": (), "beam": THREADS}.items():
        config = experiment(file, examples=examples, runner=runner, beam_options=options)
        config.sequence_length = 130
        design(config, tmp_path / runner)
    assert_same(tmp_path / "beam", tmp_path / "local")
    design_folder = DesignFolders(tmp_path / "beam").path
    assert len(list(design_folder.glob("arms/*/*.tfrecord-*-of-*[0-9]"))) > len(arms)
    assert not (design_folder / "beam").exists()  # what workers left for the launcher
