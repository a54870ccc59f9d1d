"""The sentences of a task: each once, none of a test file, in an order that does not change."""

import pytest

from icl_jax.config import ConfigError
from icl_jax.studies.task_sentences import main, task_sentences
from tests.evaluation.sts_data import write_senteval, write_sick, write_stsb


@pytest.fixture
def data(tmp_path):
    """Two training sets, of which three sentences are in test sets too, and one in both."""
    folder = write_senteval(tmp_path / "data")
    stsb = folder / "sts/original/STSBenchmark"
    tested = (stsb / "sts-test.csv").read_text().splitlines()[0].split("\t")[5:7]
    write_stsb(
        stsb / "sts-train.csv",
        [
            (*tested, 5.0),
            ("A  mill\u00a0stands.", "A bell rings.", 1.0),
            ("Rain fell.",) * 2 + (5.0,),
        ],
    )
    write_sick(
        folder / "sick/SICK_train.txt",
        [("A bell rings.", "Nobody sings", 2.0), (tested[0], "A dog runs", 3.0)],
    )
    return folder


FRESH = ["A mill stands.", "A bell rings.", "Rain fell.", "Nobody sings", "A dog runs"]


def test_every_sentence_of_the_training_sets_comes_once_in_the_order_of_the_files(data):
    found = task_sentences(str(data))
    assert len(found.sentences) == 7 and found.sentences[2:] == FRESH
    assert found.counts == {"STS-B": 5, "SICK-R": 2} and found.in_test == 2
    unseen = task_sentences(str(data), unseen=True)
    assert unseen.sentences == FRESH and unseen.counts == found.counts


def test_other_capitals_and_signs_make_no_unseen_sentence(data):
    tested = task_sentences(str(data)).sentences[0]
    file = data / "sick/SICK_train.txt"
    write_sick(file, [(f"{tested.upper()} !", "A dog runs", 3.0)])
    assert f"{tested.upper()} !" in task_sentences(str(data)).sentences
    assert "A dog runs" in task_sentences(str(data), unseen=True).sentences
    assert f"{tested.upper()} !" not in task_sentences(str(data), unseen=True).sentences


def test_sentences_are_compared_by_the_words_of_all_comparisons(data):
    """By which -5 is not 5, and an accent is the same however it is written."""
    tested = "It was 5 degrees at the cafe\u0301."
    sick = data / "sick/SICK_test_annotated.txt"
    write_sick(sick, [(tested, "A dog runs", 3.0)])
    other = ["It was -5 degrees at the caf\u00e9.", "It was 5 degrees at the caf\u00e9."]
    write_sick(data / "sick/SICK_train.txt", [(*other, 3.0)])
    unseen = task_sentences(str(data), unseen=True).sentences
    assert other[0] in unseen and other[1] not in unseen


def test_a_limit_draws_over_all_sets_and_always_the_same(data):
    few = task_sentences(str(data), limit=4).sentences
    assert len(set(few)) == 4 and few == task_sentences(str(data), limit=4).sentences
    everything = task_sentences(str(data)).sentences
    assert few == [sentence for sentence in everything if sentence in few] != everything[:4]


def test_the_command_writes_one_sentence_a_line_and_reports_what_they_are(data, tmp_path, capsys):
    main([f"--data={data}", f"--to={tmp_path}/new/task.txt", "--unseen"])
    assert (tmp_path / "new/task.txt").read_text().splitlines() == FRESH
    assert capsys.readouterr().out == (
        "7 different sentences (5 of STS-B, 2 of SICK-R), 2 of them in the test sets too, left "
        f"out; 5 written to {tmp_path}/new/task.txt\n"
    )


def test_what_is_missing_is_named(data, tmp_path):
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere; expected DATA/sts/"):
        task_sentences(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="--limit must be from 1 to 7 here, got 8"):
        task_sentences(str(data), limit=8)
    (data / "sick/SICK_train.txt").unlink()
    with pytest.raises(ConfigError, match=r"training sets of SICK-R are not in .*SICK_train\.txt"):
        task_sentences(str(data))
