"""Pages whose tables are made from what experiments wrote."""

import json

import pytest

from icl_jax.config import ConfigError
from icl_jax.studies.results import fill_page, main
from tests.experiment.report.test_report import questions


def write_experiment(workdir, **right):
    (workdir / "comparison").mkdir(parents=True)
    file = workdir / "comparison" / "comparison.json"
    file.write_text(json.dumps(questions({"regular": 3, "neighbours_in_context": 90} | right)))
    (workdir / "comparison.png").write_bytes(b"figure")
    return workdir


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "docs" / "results.md"
    path.parent.mkdir()
    path.write_text("# Results\n\nBefore.\n<!-- one -->\nold\n<!-- /one -->\nAfter.\n")
    return path


def test_a_block_is_made_again_and_the_rest_stays(page, tmp_path):
    for right in (90, 100):  # the second time over the first
        workdir = write_experiment(tmp_path / str(right), neighbours_in_context=right)
        main([f"--page={page}", f"--figures={page.parent}/figures", f"one={workdir}"])
    text = page.read_text()
    assert text.startswith("# Results\n\nBefore.\n<!-- one -->\n| arm ")
    assert text.endswith("![one](figures/one.png)\n<!-- /one -->\nAfter.\n")
    assert "neighbours_in_context answers 100 of 400 questions, regular 3" in text
    assert "90 of 400" not in text and str(tmp_path) not in text
    assert (page.parent / "figures" / "one.png").read_bytes() == b"figure"


def test_a_figure_that_the_page_shows_elsewhere_is_not_shown_again(page, tmp_path):
    page.write_text(page.read_text() + "![seen](figures/one.png)\n")
    fill_page(page, page.parent / "figures", {"one": [write_experiment(tmp_path / "run")]})
    assert page.read_text().count("figures/one.png") == 1
    assert (page.parent / "figures" / "one.png").read_bytes() == b"figure"


def test_several_runs_stand_side_by_side(page, tmp_path):
    workdirs = [write_experiment(tmp_path / str(n), regular=n) for n in (1, 4)]
    fill_page(page, page.parent / "figures", {"one": workdirs})
    assert "| regular | 0.25% (1 of 400) | 1.00% (4 of 400) | < 0.001 |" in page.read_text()
    assert "| neighbours_in_context | 22.50% (90 of 400) | 22.50% (90 of 400) | reference |" in (
        page.read_text()
    )


@pytest.mark.parametrize("told", ["rounds", "table1"])
def test_what_rounds_and_table_1_wrote_is_taken_over(page, tmp_path, told):
    (tmp_path / f"{told}.md").write_text(f"# Title\n\nA table.\n\n![drawn]({told}.png)\n")
    (tmp_path / f"{told}.png").write_bytes(b"drawn")
    fill_page(page, page.parent / "figures", {"one": [tmp_path]})
    assert "<!-- one -->\nA table.\n\n![one](figures/one.png)\n<!-- /one -->" in page.read_text()
    assert (page.parent / "figures" / "one.png").read_bytes() == b"drawn"


def test_a_block_without_a_place_and_a_run_without_results_are_reported(page, tmp_path):
    with pytest.raises(ConfigError, match="has no place for two"):
        fill_page(page, page.parent / "figures", {"two": [write_experiment(tmp_path / "a")]})
    with pytest.raises(ConfigError, match=r"has no comparison\.json; complete its stage evaluate"):
        fill_page(page, page.parent / "figures", {"one": [tmp_path]})
    assert "old" in page.read_text()
