import json

import numpy as np
import pytest

from icl_jax.config import ConfigError, QuestionsConfig
from icl_jax.config.tree import validate
from icl_jax.evaluation.generation.generate import Generated, Generator
from icl_jax.evaluation.task import read_rows, run_task
from icl_jax.evaluation.tasks.questions import task as natural_questions
from icl_jax.evaluation.tasks.questions.prompts import PRESETS, Prompts, Question
from icl_jax.evaluation.tasks.questions.task import NaturalQuestions
from tests.evaluation import small

QUESTIONS = [
    {"question": "who lives by the river", "answer": ["Ada", "Ada of Kersk"]},
    {"question": "when did the ferry sink?", "answer": ["1903", "in 1903"]},
    {"question": "where does the mill stand", "answers": ["at the bridge"]},
]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    return small.subject_of(small.gpt_folder(tmp_path_factory.mktemp("gpt")))


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "questions.jsonl", QUESTIONS)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def task_of(subject, file, **fields):
    questions = QuestionsConfig(file=file, **{"max_new_tokens": 11, **fields})
    config = small.evaluation(questions=questions)
    validate(config)
    return NaturalQuestions(subject, config)


class Says:
    """In place of a generator: continues every prompt with the next of some texts."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts = tokenizer, iter(texts)

    def __call__(self, model, mesh, *, end_ids, batch_size):
        self.end_ids = end_ids
        return self

    def generate(self, prompts, max_new_tokens, *, stop_when, first, progress):
        self.stop_when = stop_when
        progress(len(prompts))
        return [Generated(self._tokens(next(self.texts)), 0) for _ in prompts]

    def _tokens(self, text):
        """A | in the text becomes the separator."""
        tokens = [self.tokenizer.encode(text.split("|")[0])]
        for part in text.split("|")[1:]:
            tokens += [np.int32([self.tokenizer.separator_id]), self.tokenizer.encode(part)]
        return np.concatenate(tokens)


def run_with_answers(monkeypatch, subject, task, texts):
    says = Says(subject.tokenizer, texts)
    monkeypatch.setattr(natural_questions, "Generator", says)
    return task.run(task.items, 0, small.mesh_of(), lambda count: None), says


# Prompts.


def prompts_of(**fields):
    return Prompts(QuestionsConfig(**fields), 0, [])


def test_presets_put_a_question_as_published():
    question = Question("who lives by the river", ["Ada"])
    assert prompts_of().fill(question, 0) == "Q: who lives by the river?\n\nA:"
    assert (
        prompts_of(preset="harness").fill(question, 0)
        == "Answer these questions:\n\nQ: who lives by the river?\nA:"
    )
    assert set(PRESETS) == {"gpt3", "harness"}


def test_no_question_gets_two_question_marks():
    assert prompts_of().fill(Question("who? ", ["Ada"]), 0) == "Q: who?\n\nA:"
    assert prompts_of(template="{question} ->").fill(Question("who?", ["Ada"]), 0) == "who? ->"


def test_template_and_stop_of_the_user_replace_those_of_the_preset():
    prompts = prompts_of(preset="harness", template=r"{question}\nAnswer:", stop=(r"\n", "END"))
    assert prompts.fill(Question("{} who", ["Ada"]), 0) == "{} who\nAnswer:"
    assert prompts.cut(" Ada. He END x\ny") == "Ada. He"


def test_an_answer_ends_before_the_first_stop():
    assert prompts_of().cut(" Ada, of Kersk.\nQ: who") == "Ada, of Kersk."
    assert prompts_of(preset="harness").cut(" Ada of Kersk. Or, not\n") == "Ada of Kersk"
    assert prompts_of().cut("\nAda") == ""
    assert prompts_of().cut(" Ada ") == "Ada"


def test_examples_are_drawn_by_seed_and_number_and_are_never_the_question(tmp_path):
    pool = [{"question": f"what is {n}?", "answer": [f"it is {n}", "no"]} for n in range(5)]
    shots_file = write(tmp_path / "shots.jsonl", [*pool, pool[0]])
    config = QuestionsConfig(shots=4, shots_file=shots_file, preset="harness")
    asked = Question("What is 0", ["it is 0"])
    prompts = Prompts(config, 7, [asked])
    texts = [prompts.fill(asked, number) for number in range(20)]
    for text in texts:
        examples = text.removeprefix("Answer these questions:\n\n").split("Q: ")[1:]
        assert examples[-1] == "What is 0?\nA:"
        assert sorted(examples[:-1]) == [f"what is {n}?\nA: it is {n}\n" for n in range(1, 5)]
    assert len(set(texts)) > 10  # in other orders
    assert texts == [Prompts(config, 7, []).fill(asked, number) for number in range(20)]
    assert texts != [Prompts(config, 8, []).fill(asked, number) for number in range(20)]
    with pytest.raises(ConfigError, match=r"5 examples are wanted .* only 4 other questions"):
        Prompts(QuestionsConfig(shots=5, shots_file=shots_file), 7, [asked])


# Scores.


def test_answers_are_cut_and_scored(monkeypatch, gpt, file):
    task = task_of(gpt, file)
    texts = [" Ada.\nQ: who", " 1903 they say", "\nat the bridge"]
    rows, says = run_with_answers(monkeypatch, gpt, task, texts)
    assert [row["output"] for row in rows] == texts
    assert [row["answer"] for row in rows] == ["Ada.", "1903 they say", ""]
    assert [row["exact_match"] for row in rows] == [1, 0, 0]
    assert [row["f1"] for row in rows] == pytest.approx([1.0, 0.5, 0.0])
    assert rows[2]["answers"] == ["at the bridge"]
    results = task.results(rows)
    assert (results["correct"], results["total"], results["empty_answers"]) == (1, 3, 1)
    assert results["exact_match"] == pytest.approx(1 / 3)
    assert results["f1"] == pytest.approx(0.5)
    assert results["exact_match_interval95"] == [0.0, 1.0]
    assert "harness_exact_match" not in results
    table = task.table(results)
    assert "1 of 3 answers" in table and "With only 3 items, intervals are too narrow." in table
    single = task.results(rows[:1])
    assert single["exact_match_interval95"] is single["f1_interval95"] is None
    assert "| exact match | 1.0000 | - |" in task.table(single)
    assert says.stop_when(gpt.tokenizer.encode(" Ada\n"))
    assert not says.stop_when(gpt.tokenizer.encode(" Ada."))


def test_the_harness_preset_adds_its_own_exact_match(monkeypatch, gpt, file):
    task = task_of(gpt, file, preset="harness")
    rows, _ = run_with_answers(
        monkeypatch, gpt, task, [" ada. Or", " the 1903,", " at  the bridge"]
    )
    assert [row["harness_exact_match"] for row in rows] == [1, 1, 0]  # it folds no white space
    assert [row["exact_match"] for row in rows] == [1, 1, 1]
    results = task.results(rows)
    assert results["harness_exact_match"] == pytest.approx(2 / 3)
    assert results["harness_exact_match_interval95"] == [0.0, 1.0]


def test_none_right_of_so_many_has_an_interval_all_the_same(gpt, file):
    task = task_of(gpt, file)
    row = {"exact_match": 0, "f1": 0.0, "answer": "no", "cut": 0}
    few, enough = (task.results([row] * count) for count in (29, 600))
    assert enough["exact_match_interval95"] == enough["f1_interval95"]
    assert enough["exact_match_interval95"] == pytest.approx([0.0, 0.00613], abs=1e-5)
    assert "| exact match | 0.0000 | 0.0000 to 0.0061 |" in task.table(enough)
    assert "With only 29 items" in task.table(few) and "With only" not in task.table(enough)


def test_an_answer_begins_after_separators_and_ends_at_the_next(monkeypatch, gpt, file):
    mark = gpt.tokenizer.library.id_to_token(gpt.tokenizer.separator_id)
    task = task_of(gpt, file)
    rows, says = run_with_answers(monkeypatch, gpt, task, ["| Ada|The mill", "Ada|", "|"])
    assert [row["answer"] for row in rows] == ["Ada", "Ada", ""]
    assert rows[0]["output"] == f"{mark} Ada{mark}The mill"  # raw, as it came
    assert gpt.tokenizer.end_of_text_id in says.end_ids


# With a model.


def test_rows_hold_the_likeliest_continuation_and_prompts_cut_are_counted(gpt, tmp_path):
    long = {"question": "when " * 30 + "was it", "answer": ["never"]}
    file = write(tmp_path / "questions.jsonl", [*QUESTIONS, long])
    task = task_of(gpt, file)
    folder = tmp_path / "nq_open"
    table = run_task(task, "nq_open", gpt.identity, {}, folder, small.mesh_of())
    rows = read_rows(folder)
    tokens = [gpt.tokenizer.encode(row["prompt"]) for row in rows]
    options = {"end_ids": gpt.end_ids, "batch_size": 4}
    generator = Generator(gpt.load(small.mesh_of()), small.mesh_of(), **options)
    expected = [gpt.tokenizer.decode(new.tokens) for new in generator.generate(tokens, 11)]
    assert any(expected)
    for row, output, prompt in zip(rows, expected, tokens, strict=True):
        assert output.startswith(row["output"])
        assert row["output"] == output or "\n" in row["output"]
        assert row["cut"] == max(0, len(prompt) - (64 - 11))
    results = json.loads((folder / "results.json").read_text())
    assert [row["cut"] > 0 for row in rows] == [False, False, False, True]
    assert results["prompts_cut"] == 1
    assert results == json.loads(json.dumps(task.results(rows))) | {"bootstrap": {}}
    assert "1 prompts were too long" in table


# Bad input.


def test_questions_without_text_or_answers_are_named(gpt, tmp_path):
    bad = [
        {"question": " ", "answer": ["Ada"]},
        {"question": "who", "answer": []},
        {"question": "when", "answer": [""]},
        {"answer": ["Ada"]},
        {"question": "where"},
        {"question": "why", "answer": None},
    ]
    file = write(tmp_path / "questions.jsonl", [QUESTIONS[0], *bad])
    with pytest.raises(ConfigError) as error:
        task_of(gpt, file)
    for text in (
        "question 2 has no text",
        "question 3 ('who') has no answer",
        "question 4 ('when')",
    ):
        assert text in str(error.value)
    assert "question 7" not in str(error.value) and "and 1 more" in str(error.value)
    with pytest.raises(ConfigError, match="holds no question"):
        task_of(gpt, write(tmp_path / "empty.jsonl", []))
    (tmp_path / "list.csv").write_text("question,answer\nhow many,\"['14', 'fourteen']\"\n")
    with pytest.raises(ConfigError, match="the answer to question 1 is the text"):
        task_of(gpt, str(tmp_path / "list.csv"))


def test_what_cannot_work_stops_early(gpt, file, tmp_path):
    with pytest.raises(ConfigError, match="below the 64 positions"):
        task_of(gpt, file, max_new_tokens=64)
    with pytest.raises(ConfigError, match=r"^no questions: expected evaluation.data \(--data of"):
        task_of(gpt, "")
    with pytest.raises(ConfigError, match="there is no file"):
        task_of(gpt, str(tmp_path / "none.jsonl"))
    encoder = small.subject_of(small.roberta_folder(tmp_path / "roberta"))
    with pytest.raises(ConfigError, match=r"^\S*/roberta predicts masked tokens and cannot gen"):
        task_of(encoder, file)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"template": "Q: question"}, "template must hold {question}"),
        ({"shots": 2}, "shots=2 needs shots_file"),
        ({"stop": ("\n", "")}, "stop must not contain an empty text"),
        ({"preset": "gpt4"}, "preset must be one of gpt3, harness"),
    ],
)
def test_wrong_settings_are_named(fields, message):
    with pytest.raises(ConfigError) as error:
        validate(QuestionsConfig(**fields))
    assert message in str(error.value)


def test_results_depend_on_every_setting(gpt, file, tmp_path):
    plain = task_of(gpt, file).inputs
    shots = {"shots": 1, "shots_file": write(tmp_path / "shots.jsonl", QUESTIONS)}
    for fields in ({"limit": 2}, {"preset": "harness"}, {"template": "{question}"}, shots,
                   {"stop": ("x",)}, {"max_new_tokens": 5}):  # fmt: skip
        assert task_of(gpt, file, **fields).inputs != plain
    assert len(task_of(gpt, file, limit=2).items) == 2
