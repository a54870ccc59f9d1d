"""The design stage: from files to neighbours, in steps that continue where they were stopped."""

import dataclasses
import json
from pathlib import Path
import pickle
import shutil
import subprocess
import sys
import time

import pyarrow as pa
import pytest

from icl_jax.config import (
    ConfigError,
    CorpusConfig,
    DesignConfig,
    EncoderConfig,
    ExperimentConfig,
    MeshConfig,
    SearchConfig,
    StageError,
    TokenizerConfig,
)
from icl_jax.corpus.sentence_table import SentenceTable
from icl_jax.design.folders import DesignFolders
from icl_jax.design.stage import find_related
from icl_jax.files.step_folder import read_results
from icl_jax.retrieval.show import main as show
from tests.retrieval.small_encoder import make_sentence_folder

ROOT = Path(__file__).parents[2]
TRADES = ("painter", "miller", "glazier", "surveyor", "organist", "weaver", "locksmith")
TOWNS = ("Kersk", "Ulmund", "Vashti", "Oderon", "Pellow", "Quintave", "Harrowby", "Lisk", "Tarn")


def write_corpus(folder: Path, people: int = 40) -> Path:
    """Each person has two documents, in other words; one sentence of each names person and town."""
    documents = []
    for n in range(people):
        person, town, trade = f"Mar{n}ek", TOWNS[n % len(TOWNS)], TRADES[n % len(TRADES)]
        years = f"The {trade} guild had {n + 3} members in the year {1700 + n}."
        documents.append(f"{person} was born in the harbour town of {town} long ago. {years}")
        documents.append(f"It is in {town} that {person} first saw light. Rain fell for {n} weeks.")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "people.jsonl"
    lines = (json.dumps({"title": f"page {n}", "text": text}) for n, text in enumerate(documents))
    file.write_text("\n".join(lines) + "\n")
    return file


def experiment(file: Path, **design) -> ExperimentConfig:
    return ExperimentConfig(
        mesh=MeshConfig(data=8),
        design=DesignConfig(
            **{
                "corpus": CorpusConfig(files=(str(file),)),
                "tokenizer": TokenizerConfig(vocab_size=300),
                "search": SearchConfig(min_similarity=0.3, neighbours=3),
                "shard_megabytes": 0.003,
                "workers": 1,
            }
            | design
        ),
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(file, workdir) of a complete design stage."""
    folder = tmp_path_factory.mktemp("built")
    file = write_corpus(folder)
    find_related(experiment(file), folder / "run")
    return file, folder / "run"


def contents(workdir: Path) -> dict[str, bytes]:
    """Every file that is not about the run itself."""
    design = DesignFolders(workdir).path
    files = sorted(path for path in design.rglob("*") if path.is_file())
    kept = {str(path.relative_to(design)): path.read_bytes() for path in files}
    return {name: content for name, content in kept.items() if not name.endswith("cost.json")}


def different(workdir: Path, other: Path) -> list[str]:
    """The files that are not the same in two workdirs."""
    a, b = contents(workdir), contents(other)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def test_a_sentence_finds_what_another_document_says_in_other_words(built):
    _, workdir = built
    folders = DesignFolders(workdir)
    table = SentenceTable.open(folders.corpus)
    assert table.num_shards > 2 and table.num_documents == 80
    neighbours = find_related(experiment(built[0]), workdir)
    for sentence in range(len(table)):
        if "was born in" in table.text(sentence):
            person = table.text(sentence).split()[0]
            ids, similarities = neighbours.of(sentence)
            assert f"that {person} first saw light" in table.text(int(ids[0]))
            assert similarities[0] > 0.3
            assert table.documents[sentence] not in table.documents[ids]


def test_a_complete_stage_is_not_run_again(built, capsys):
    file, workdir = built
    before = {
        path: path.stat().st_mtime_ns for path in DesignFolders(workdir).path.rglob("*.arrow")
    }
    assert before
    find_related(experiment(file), workdir)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert "160 sentences of 80 documents" in capsys.readouterr().out


def test_the_files_do_not_depend_on_the_number_of_workers(built, tmp_path):
    file, workdir = built
    find_related(experiment(file, workers=3), tmp_path / "run")
    assert different(workdir, tmp_path / "run") == ["config.json"]  # says how many workers


def test_a_changed_corpus_is_named_and_nothing_is_mixed(built, tmp_path):
    file = write_corpus(tmp_path)
    find_related(experiment(file), tmp_path / "run")
    write_corpus(tmp_path, people=41)
    with pytest.raises(StageError, match=r"made from other inputs.*people\.jsonl\.bytes"):
        find_related(experiment(file), tmp_path / "run")
    write_corpus(tmp_path)
    search = SearchConfig(min_similarity=0.4, neighbours=3)
    with pytest.raises(StageError, match=r"search\.min_similarity: 0\.3 there, 0\.4 here"):
        find_related(experiment(file, search=search), tmp_path / "run")


def test_a_tokenizer_trained_on_other_sentences_is_not_taken(built, tmp_path):
    find_related(experiment(built[0]), tmp_path / "run")
    for step in ("corpus", "encoder", "corpus_vectors", "neighbours"):
        shutil.rmtree(DesignFolders(tmp_path / "run").path / step)
    corpus = CorpusConfig(files=(str(built[0]),), text_field="title")
    with pytest.raises(StageError, match=r"tokenizer was made from.*text_field: 'text' there"):
        find_related(experiment(built[0], corpus=corpus), tmp_path / "run")


def test_an_encoder_fitted_to_another_width_or_by_another_seed_is_not_taken(built):
    file, workdir = built
    narrow = experiment(file, encoder=EncoderConfig(tfidf_dim=7))
    with pytest.raises(StageError, match=r"encoder was made from.*dim: \d+ there, 7 here"):
        find_related(narrow, workdir)
    with pytest.raises(StageError, match=r"encoder was made from.*seed: 0 there, 1 here"):
        find_related(dataclasses.replace(experiment(file), seed=1), workdir)


def test_a_task_asks_and_the_corpus_answers(built, tmp_path, capsys):
    file, _ = built
    questions = tmp_path / "questions.txt"
    questions.write_text("Who was born in the harbour town? Mar7ek.\nMar12ek first saw light.\n")
    queries = CorpusConfig(files=(str(questions),), text_documents="line", clean=False)
    neighbours = find_related(experiment(file, queries=queries), tmp_path / "run")
    folders = DesignFolders(tmp_path / "run")
    asked, corpus = SentenceTable.open(folders.queries), SentenceTable.open(folders.corpus)
    assert len(neighbours) == len(asked) >= 2
    last = len(asked) - 1
    assert "Mar12ek" in asked.text(last)
    assert "Mar12ek" in corpus.text(int(neighbours.of(last)[0][0]))

    capsys.readouterr()
    show([f"--workdir={tmp_path}/run", f"--sentence={last}", "--count=1"])
    assert "Mar12ek first saw light." in capsys.readouterr().out.splitlines()[1]
    # The corpus asks now: what is left of the questions is not taken for it.
    shutil.rmtree(folders.neighbours)
    find_related(experiment(file), tmp_path / "run")
    show([f"--workdir={tmp_path}/run", f"--sentence={last}", "--count=1"])
    assert corpus.text(last) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corpus": CorpusConfig()}, r"design\.corpus\.files is empty"),
        ({"corpus": CorpusConfig(files=("nowhere/*.txt",))}, "nothing found at 'nowhere"),
        ({"queries": CorpusConfig(files=("nowhere.txt",))}, r"design\.queries\.files: nothing"),
        ({"search": SearchConfig(min_similarity=1.1)}, "min_similarity must be a cosine"),
        ({"search": SearchConfig(index="IVF100,Flat")}, "IVF100.*160"),
        ({"search": SearchConfig(index="IFV4")}, "factory string"),
    ],
)
def test_what_cannot_work_stops_before_vectors_are_made(built, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        find_related(experiment(built[0], **change), tmp_path / "run")
    assert not DesignFolders(tmp_path / "run").corpus_vectors.exists()


def test_a_vocabulary_that_the_model_does_not_have_is_refused(built, tmp_path):
    config = experiment(built[0])
    config.model = dataclasses.replace(config.model, vocab_size=299)
    with pytest.raises(ConfigError, match=r"tokenizer has 300 ids.*--config.model.vocab_size=300"):
        find_related(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_corpus_of_one_document_is_refused_with_the_way_out(tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("\n\n".join(f"Chapter {n} tells of the {n} roads to Kersk." for n in range(60)))
    with pytest.raises(ConfigError, match=r"one document of 60 sentences.*text_documents=block"):
        find_related(experiment(text), tmp_path / "run")


def test_a_task_may_ask_a_corpus_of_one_document(tmp_path):
    text, task = tmp_path / "book.txt", tmp_path / "task.txt"
    text.write_text("\n\n".join(f"Chapter {n} tells of the {n} roads to Kersk." for n in range(60)))
    task.write_text("Which chapter tells of the roads to Kersk?\n")
    queries = CorpusConfig(files=(str(task),), text_documents="line", clean=False)
    neighbours = find_related(experiment(text, queries=queries), tmp_path / "run")
    assert len(neighbours.of(0)[0]) > 0


def test_an_empty_corpus_is_reported(tmp_path):
    text = tmp_path / "list.txt"
    text.write_text("* one\n* two\n")
    corpus = CorpusConfig(files=(str(text),))
    tokenizer = TokenizerConfig(vocab_size=257)
    with pytest.raises((ConfigError, StageError), match=r"no sentences|so short"):
        find_related(experiment(text, corpus=corpus, tokenizer=tokenizer), tmp_path / "run")


KILLED = """
import pickle, sys
from icl_jax.design.stage import find_related

if __name__ == "__main__":
    find_related(pickle.loads(bytes.fromhex(sys.argv[1])), sys.argv[2])
"""


def kill_at(mark: Path, config: ExperimentConfig, workdir: Path) -> None:
    """Runs the stage in a process of its own, and kills it as soon as a file is there."""
    command = [sys.executable, "-c", KILLED, pickle.dumps(config).hex(), str(workdir)]
    run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 120
    while not mark.exists():
        assert run.poll() is None, run.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.0002)
    run.kill()
    run.communicate()


def test_a_stage_killed_anywhere_continues_to_the_same_files(built, tmp_path):
    file, workdir = built
    folders = DesignFolders(tmp_path / "run")
    for mark in ("corpus_vectors/vectors-00001.npy", "neighbours/neighbours-00001.arrow"):
        kill_at(folders.path / mark, experiment(file), tmp_path / "run")
    find_related(experiment(file), tmp_path / "run")
    assert json.loads((folders.neighbours / "cost.json").read_text())["resumed"]
    assert different(workdir, tmp_path / "run") == []


@pytest.mark.slow
def test_beam_makes_the_same_files_and_continues_when_it_is_killed(built, tmp_path):
    pytest.importorskip("apache_beam")
    file, workdir = built
    config, folders = experiment(file, runner="beam"), DesignFolders(tmp_path / "run")
    kill_at(folders.corpus_vectors / "vectors-00001.npy", config, tmp_path / "run")
    assert not read_results(folders.corpus_vectors)
    find_related(config, tmp_path / "run")
    assert different(workdir, tmp_path / "run") == ["config.json"]  # says which runner


@pytest.mark.slow
def test_beam_runs_networks_and_searches_with_the_sentences_of_a_task(built, tmp_path):
    pytest.importorskip("apache_beam")
    questions = tmp_path / "questions.txt"
    questions.write_text("Was Mar7ek born in Kersk?\nMar12ek first saw light.\n")
    network = make_sentence_folder(tmp_path / "bert", {"pooling_mode_mean_tokens": True})
    design = {
        "queries": CorpusConfig(files=(str(questions),), text_documents="line", clean=False),
        "encoder": EncoderConfig(folder=str(network)),
        "search": SearchConfig(min_similarity=-0.9, neighbours=3, engine="jax"),
    }
    for runner in ("local", "beam"):
        config = experiment(built[0], **design, runner=runner)
        found = find_related(config, tmp_path / runner)
        assert found.results["queries_with_neighbours"] == 2
    assert different(tmp_path / "local", tmp_path / "beam") == ["config.json"]


def test_show_prints_the_nearest_to_a_text_with_scores_and_documents(built, capsys):
    show([f"--workdir={built[1]}", "--query=Was Mar9ek born in a harbour town?", "--count=2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Was Mar9ek born in a harbour town?"
    assert "page 18" in lines[1] and "people.jsonl" in lines[1]
    assert 0.3 < float(lines[1].split()[0]) < 1
    assert "Mar9ek was born in the harbour town of Kersk" in lines[2]
    assert sum("#" in line for line in lines) == 2


def test_show_refuses_an_encoder_that_did_not_make_the_vectors(built, tmp_path):
    shutil.copytree(built[1], tmp_path / "run")
    terms = DesignFolders(tmp_path / "run").encoder / "terms.json"
    terms.write_text(terms.read_text().replace("harbour", "harbor"))
    with pytest.raises(SystemExit, match="is not the encoder that made the vectors"):
        show([f"--workdir={tmp_path}/run", "--query=Was Mar9ek born in a harbour town?"])


def test_show_prints_a_sentence_and_its_stored_neighbours(built, capsys):
    show([f"--workdir={built[1]}", "--sentence=0"])
    out = capsys.readouterr().out
    assert "Mar0ek was born" in out and "stored neighbours:" in out
    assert "It is in Kersk that Mar0ek first saw light." in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sentence=160"], "from 0 to 159, got 160"),
        (["--query= "], "--query is empty"),
        (["--query=x", "--workdir=nowhere"], "holds no complete sentence table"),
    ],
)
def test_show_reports_in_one_line_what_is_wrong(built, flags, message):
    with pytest.raises(SystemExit) as stopped:
        show([f"--workdir={built[1]}", *flags])
    assert message in str(stopped.value)


def test_other_tools_read_the_tables(built):
    folders = DesignFolders(built[1])
    sentences = pa.ipc.open_file(folders.corpus / "sentences-00000.arrow").read_all()
    assert sentences.column_names == ["text", "tokens", "document", "position"]
    neighbours = pa.ipc.open_file(folders.neighbours / "neighbours-00000.arrow").read_all()
    assert neighbours.column_names == ["ids", "similarities"]
    assert len(sentences) == len(neighbours)
