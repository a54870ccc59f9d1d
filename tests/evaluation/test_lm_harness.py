"""lm-evaluation-harness on a model of ours, against its own class for Hugging Face models."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("lm_eval")

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

from icl_jax.config import ConfigError, StageError
from icl_jax.evaluation import lm_harness
from icl_jax.evaluation.generation.sampling import Sampling
from icl_jax.evaluation.lm_harness import IclJaxLM, read_settings
from tests.evaluation import small

ROWS = [
    {"question": "Who was born in Kersk?", "choices": ["Ada", "the ferry", "Nobody."], "gold": 0},
    {"question": "When did it sink? ", "choices": ["In 1903", "maybe", "seven"], "gold": 1},
    {"question": "One two three four " * 12, "choices": ["five", "six", "no"], "gold": 2},
    {"question": "", "choices": ["Yes", "No, they say", "maybe"], "gold": 1},
]
TASKS = {
    "choose": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: gold
doc_to_choice: choices
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "roll": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}} {{choices | join(' ')}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "answer": """
output_type: generate_until
doc_to_text: "Q: {{question}}\\nA:"
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["e", "\\n"], max_gen_toks: 11}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small.gpt_folder(tmp_path_factory.mktemp("model") / "gpt")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Three tasks of the harness, with their data, that need no network."""
    root = tmp_path_factory.mktemp("tasks")
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, text in TASKS.items():
        head = f"task: {name}\ndataset_path: json\ntest_split: test\nmetadata: {{version: 1}}\n"
        files = f"dataset_kwargs: {{data_files: {{test: {root / 'rows.jsonl'}}}}}\n"
        (root / f"{name}.yaml").write_text(head + files + text)
    return TaskManager(include_path=str(root), include_defaults=False)


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    """Compiles faster; what a mesh does is tested where it is used."""
    monkeypatch.setattr(lm_harness, "make_mesh", lambda config: small.mesh_of())


def evaluate(model, tasks):
    return simple_evaluate(
        model, tasks=[*TASKS], task_manager=tasks, bootstrap_iters=0, log_samples=True
    )


def test_the_harness_gets_the_numbers_of_its_own_class(folder, tasks):
    for library in ("torch", "transformers", "accelerate"):
        pytest.importorskip(library)
    from lm_eval.models.huggingface import HFLM

    theirs = HFLM(str(folder), device="cpu", batch_size=2, max_length=64)
    assert theirs.eot_token_id == small.subject_of(folder).tokenizer.end_of_text_id
    ours = IclJaxLM(str(folder), batch_size=4)
    found, expected = (evaluate(model, tasks) for model in (ours, theirs))
    for task, metrics in expected["results"].items():
        for name, value in metrics.items():
            if isinstance(value, float):
                np.testing.assert_allclose(found["results"][task][name], value, rtol=1e-4)
    for task in TASKS:
        for one, other in zip(found["samples"][task], expected["samples"][task], strict=True):
            assert one["arguments"] == other["arguments"]
            if task == "answer":
                assert one["resps"] == other["resps"]
                continue
            got, want = (np.array(np.ravel(_flat(s["resps"])), float) for s in (one, other))
            np.testing.assert_allclose(got, want, atol=1e-3)


def _flat(responses):
    """[[(score, greedy)], ...] or [[score]] as numbers."""
    return [np.ravel(response[0]).tolist() for response in responses]


def test_it_is_found_by_its_name_and_takes_the_harness_arguments(folder, tasks):
    found = simple_evaluate(
        "icl_jax", model_args=f"pretrained={folder},max_length=32", tasks=["choose"],
        task_manager=tasks, batch_size=2, limit=2, bootstrap_iters=0,
    )  # fmt: skip
    assert found["results"]["choose"]["sample_len"] == 2


def test_contexts_are_cut_on_the_left_and_greedy_continuations_are_known(folder, capsys):
    model = IclJaxLM(str(folder), max_length=32)
    tokens = model.tok_encode("One two")
    (told,) = model.generate_until([SimpleNamespace(args=("One two", {"max_gen_toks": 3}))])
    new = model._generator.generate([np.array(tokens)], 3)[0].tokens.tolist()
    assert told == model.tok_decode(new) and len(new) == 3
    (score, greedy), (_, other) = model._loglikelihood_tokens(
        [(None, tokens, new), (None, tokens, [9, *new])], disable_tqdm=True
    )
    assert score < 0 and greedy and not other
    long = [5, 6, 7] * 20
    cut, whole = model._loglikelihood_tokens(
        [(None, long[-30:], [8, 9]), (None, long, [8, 9])], disable_tqdm=True
    )
    short, _ = model._loglikelihood_tokens(
        [(None, long[-31:], [8, 9]), (None, [4], [5])], disable_tqdm=True
    )
    np.testing.assert_allclose(whole[0], short[0], rtol=1e-5)  # 32 are read, the last only asked
    told = "1 of 2 contexts were cut on the left to 32 tokens"
    assert capsys.readouterr().err.count(told) == 1  # of three calls
    prompts = [
        SimpleNamespace(args=(text, {"max_gen_toks": 3})) for text in ("One", "One two " * 40)
    ]
    model.generate_until(prompts, disable_tqdm=True)
    assert capsys.readouterr().err.count(told) == 1
    model.loglikelihood_rolling([SimpleNamespace(args=("One two " * 40,))], disable_tqdm=True)
    assert "cut on the left" not in capsys.readouterr().err  # windows reach every token
    assert abs(whole[0] - cut[0]) > 1e-4
    with pytest.raises(StageError, match="a continuation has 33 tokens, more than the 32"):
        model._loglikelihood_tokens([(None, [1], [5] * 33)])


def test_settings_of_generation_are_read_or_refused(folder, tmp_path):
    assert read_settings({"until": "\n"}) == (["\n"], 256, None)
    assert read_settings({"until": ["a", ""], "max_new_tokens": 7, "do_sample": False}) == (
        ["a"], 7, None,
    )  # fmt: skip
    drawn = {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "num_beams": 1}
    assert read_settings(drawn)[2] == Sampling(temperature=0.5, top_p=0.9)
    with pytest.raises(ConfigError, match="got also num_beams=4"):
        read_settings({"num_beams": 4})
    model = IclJaxLM(str(folder))
    with pytest.raises(ConfigError, match="asks for 256 new tokens, but the model reads only 64"):
        model.generate_until([SimpleNamespace(args=("One", {}))])
    with pytest.raises(ConfigError, match="max_length must be at most the 64 positions"):
        IclJaxLM(str(folder), max_length=65)
    with pytest.raises(ConfigError, match=r"^\S*/roberta predicts masked tokens and cannot gen"):
        IclJaxLM(str(small.roberta_folder(tmp_path / "roberta")))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "expected pretrained=FOLDER"),
        ("pretrained=x,dtype=float32", "expected only pretrained, .*, got also dtype=float32"),
        ("pretrained=x,max_length=many", "max_length must be a whole number .*, got many"),
    ],
)
def test_wrong_model_args_are_named(given, message):
    with pytest.raises(ConfigError, match=f"^--model_args: {message}"):
        IclJaxLM.create_from_arg_string(given, {"batch_size": 2, "device": None})


def test_the_command_stops_with_one_line(monkeypatch, capsys):
    monkeypatch.setattr(lm_harness, "cli_evaluate", lambda: IclJaxLM.create_from_arg_string(""))
    with pytest.raises(SystemExit) as stopped:
        lm_harness.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: --model_args: expected pretrained=FOLDER")
