"""Flip-flops in English: the prompts against the language, the answers against `transformers`."""

import json
import re

import jax
import numpy as np
import pytest
from scipy import stats
import tokenizers

from icl_jax.config import ConfigError, GPTConfig
from icl_jax.corpus import train_tokenizer
from icl_jax.evaluation.likelihood import Likelihood
from icl_jax.models import huggingface
from icl_jax.sandboxes.flip_flop import ask as asking
from icl_jax.sandboxes.flip_flop.ask import ask, from_prompt, main, make_questions, show
from icl_jax.sandboxes.flip_flop.language import ONE, READ, ZERO, check
from icl_jax.training.model_at import model_at
from tests.evaluation import small
from tests.models.small import make_model
from tests.training.small import experiment

SIZES = {"vocab_size": 291, "context_length": 160, "num_layers": 2, "embed_dim": 24, "num_heads": 2}
WORDS = "Alice turns the light on. Alice turns the light off. Bob eats a banana. Bob eats an apple."


def english_tokenizer():
    """A BPE in which the words of the prompts are a token each."""
    text = f"{WORDS} The light is turned on. The light is turned off."
    return train_tokenizer.train([text] * 9, SIZES["vocab_size"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random GPT-2 of ours as a Hugging Face folder."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    huggingface.save(make_model(GPTConfig(**SIZES), seed=3), path)
    english_tokenizer().save_with_model(path)
    return path


def asked(folder, tmp_path, lengths=(4, 16), rows=20):
    return ask(model_at(str(folder)), lengths, rows, tmp_path / "to", small.mesh_of())


# The prompts.


@pytest.mark.parametrize("length", [4, 16, 64])
def test_every_prompt_is_a_flip_flop_in_english(length):
    for question in make_questions(length, 30):
        rows = from_prompt(question.prompt, question.bit)
        assert [len(row_T) for row_T in rows] == [16, length]
        for row_T in rows:
            check(row_T[None])
        assert (rows[1][-2], rows[1][-1]) == (READ, question.bit)


def test_a_person_reads_the_same_in_the_prompts():
    """By patterns of the English text alone, not by the sentences that made it."""
    bits = set()
    for question in make_questions(32, 60):
        example, text = question.prompt.split("\n")
        assert len(example.split(". ")) == 8 and len(text.split(". ")) == 16
        assert example.startswith("Alice") and text.startswith("Alice")
        light, lines = None, [*re.split(r"(?<=\.) ", example), *re.split(r"(?<=\.) ", text)]
        for line in lines[:-1]:
            if written := re.fullmatch(r"Alice turns the light (on|off)\.", line):
                light = written[1]
            elif read := re.fullmatch(r"The light is turned (on|off)\.", line):
                assert read[1] == light
            else:
                assert re.fullmatch(r"Bob eats (a banana|an apple)\.", line)
        assert lines[-1] == "The light is turned"
        assert light == {ZERO: "off", ONE: "on"}[question.bit]
        bits.add(question.bit)
    assert bits == {ZERO, ONE}


def test_prompts_are_alike_in_every_run_and_differ_within_it():
    first, again, longer = make_questions(16, 5), make_questions(16, 5), make_questions(32, 5)
    assert first == again
    assert len({question.prompt for question in first}) == 5
    examples = [{q.prompt.split("\n")[0] for q in questions} for questions in (first, longer)]
    assert not examples[0] & examples[1]


def test_what_is_no_flip_flop_is_not_read_back():
    with pytest.raises(ConfigError, match=r"'Bob eats a pear on\.'"):
        from_prompt("Alice turns the light on. The light is turned on.\nBob eats a pear", ONE)
    wrong = "Alice turns the light on. The light is turned on.\nAlice turns the light on. "
    with pytest.raises(ConfigError, match="another bit than the latest write"):
        from_prompt(f"{wrong}The light is turned", ZERO)


# The answers.


def test_answers_are_those_of_transformers(folder, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
    transformers = pytest.importorskip("transformers", reason="needs transformers (extra hf)")
    torch.manual_seed(1)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=291, n_positions=160, n_embd=24, n_layer=2, n_head=3, initializer_range=0.3,
        bos_token_id=None, eos_token_id=None,
    )).eval()  # fmt: skip
    theirs.save_pretrained(tmp_path / "theirs")
    english_tokenizer().save_with_model(tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    results = asked(tmp_path / "theirs", tmp_path)
    for length in (4, 16):
        wrong, said_on = [], 0
        for n, question in enumerate(make_questions(length, 20)):
            prompt = tokenizer(question.prompt, add_special_tokens=False).input_ids
            begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
            (on,) = tokenizer(" on", add_special_tokens=False).input_ids
            (off,) = tokenizer(" off", add_special_tokens=False).input_ids
            with torch.no_grad():
                logits = theirs(torch.tensor([begin + prompt])).logits[0, -1]
            says = ONE if logits[on] > logits[off] else ZERO
            wrong += [n] * (says != question.bit)
            said_on += says == ONE
        found = results["lengths"][str(length)]
        assert (found["wrong"], found["errors"], found["said_on"]) == (wrong, len(wrong), said_on)
    assert {0, 20} - {results["lengths"]["16"]["errors"]}  # not all alike


def test_a_run_is_asked_too_and_answers_may_have_several_tokens(tmp_path):
    config = experiment(model=GPTConfig(**{**small.SIZES, "context_length": 512}), mesh=(-1, 1, 1))
    workdir = small.run_folder(tmp_path / "run", config)
    subject = model_at(str(workdir))
    results = ask(subject, (4,), 12, tmp_path / "to", small.mesh_of())
    network, wrong = subject.load(small.mesh_of()), []
    for n, question in enumerate(make_questions(4, 12)):
        losses = {}
        prompt = np.append(np.int32(subject.begin), subject.tokenizer.encode(question.prompt))
        for bit, word in ((ZERO, " off"), (ONE, " on")):
            whole = np.append(prompt, subject.tokenizer.encode(word)).astype(np.int32)
            assert len(whole) > len(prompt) + 1
            padded = np.pad(whole, (0, 512 - len(whole)))  # later tokens are not seen
            logs = np.asarray(jax.nn.log_softmax(network(padded[None]))[0])
            places = np.arange(len(prompt), len(whole))
            losses[bit] = -logs[places - 1, whole[places]].sum()
        if losses[question.bit] >= losses[ONE + ZERO - question.bit]:
            wrong.append(n)
    assert results["lengths"]["4"]["wrong"] == wrong


def test_a_model_that_always_says_on_is_wrong_where_it_is_off(tmp_path):
    model, tokenizer = make_model(GPTConfig(**SIZES)), english_tokenizer()
    (on,) = tokenizer.encode(" on")
    model.final_norm.bias[...] = 50 * model.token_embedding.rows[...][on]
    huggingface.save(model, tmp_path / "model")
    tokenizer.save_with_model(tmp_path / "model")
    found = asked(tmp_path / "model", tmp_path, (16,), 40)["lengths"]["16"]
    assert found["said_on"] == found["total"] == 40
    assert found["errors"] == 40 - found["on"] and 0 < found["errors"] < 40
    low, high = found["interval95"]  # Clopper and Pearson
    errors = found["errors"]
    assert low == pytest.approx(stats.beta.ppf(0.025, errors, 40 - errors + 1))
    assert high == pytest.approx(stats.beta.ppf(0.975, errors + 1, 40 - errors))


# The command.


def test_the_command_prints_a_table_and_writes_it_with_the_figure(folder, tmp_path, capsys):
    main([f"--model={folder}", "--lengths=4,16,64", "--rows=6", f"--to={tmp_path}"])
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "flip_flop.json").read_text())
    assert set(results["lengths"]) == {"4", "16"}
    assert results["skipped"].keys() == {"64"} and results["skipped"]["64"] > 160
    assert f"Length 64 was skipped: its prompts take up to {results['skipped']['64']}" in printed
    for length, found in results["lengths"].items():
        assert f"| {length} | {found['errors']} of 6 |" in printed
    assert show(results) in printed and show(results) in (tmp_path / "flip_flop.md").read_text()
    assert (tmp_path / "flip_flop.png").read_bytes().startswith(b"\x89PNG")


def test_no_error_is_shown_as_an_upper_limit():
    length = {"errors": 0, "total": 500, "interval95": [0.0, 0.0074], "said_on": 250, "on": 250}
    results = {"model": "m", "lengths": {"16": length}, "skipped": {}, "positions": 9}
    assert "| 0 of 500 | < 3/500 | 0 to 0.0074 |" in show(results)


def test_what_was_asked_is_not_asked_again(folder, tmp_path, monkeypatch):
    first = asked(folder, tmp_path, (4,))
    opened, open_model = [], Likelihood.open
    monkeypatch.setattr(
        asking.Likelihood, "open", lambda *given: opened.append(1) or open_model(*given)
    )
    assert asked(folder, tmp_path, (4,)) == first and not opened
    both = asked(folder, tmp_path, (16, 4))
    assert len(opened) == 1 and both["lengths"]["4"] == first["lengths"]["4"]


def test_results_of_another_model_are_not_mixed_in(folder, tmp_path):
    asked(folder, tmp_path, (4,), 3)
    huggingface.save(make_model(GPTConfig(**SIZES), seed=4), tmp_path / "other")
    english_tokenizer().save_with_model(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"made from other inputs.*choose another --to"):
        asked(tmp_path / "other", tmp_path, (4,), 3)


# Refusals.


def test_a_model_without_a_causal_mask_is_refused(tmp_path):
    roberta = small.roberta_folder(tmp_path / "roberta", context_length=512)
    with pytest.raises(ConfigError, match=r"roberta has no causal mask: .*choose a GPT"):
        asked(roberta, tmp_path)


def test_a_missing_folder_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([f"--model={tmp_path / 'nothing'}"])
    assert capsys.readouterr().err.startswith(f"error: there is no model at {tmp_path / 'nothing'}")


def test_a_tokenizer_that_cannot_tell_the_answers_apart_is_refused(folder, tmp_path):
    vocabulary = {"[UNK]": 0, "<|endoftext|>": 1, "light": 2, "[unused0]": 3}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["[UNK]", "<|endoftext|>", "[unused0]"])
    words.save(str(tmp_path / "tokenizer.json"))
    subject = model_at(str(folder), tokenizer=str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot tell ' on' from ' off': both .* \[0, 0, 0\]"):
        ask(subject, (4,), 3, tmp_path / "to", small.mesh_of())


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((64, 128), r"has 160 positions, but prompts of length 64 take up to \d+ tokens"),
        ((4, 4), r"different lengths, at least one, got \[4, 4\]"),
        ((), r"at least one, got \[\]"),
        ((5,), "even number of tokens, at least 4"),
    ],
)
def test_lengths_that_cannot_be_asked_are_refused(folder, tmp_path, lengths, message):
    with pytest.raises(ConfigError, match=message):
        asked(folder, tmp_path, lengths, 3)


def test_a_model_of_nan_is_reported(folder, tmp_path):
    model = make_model(GPTConfig(**SIZES))
    model.final_norm.bias[...] = model.final_norm.bias[...] * np.float32("nan")
    huggingface.save(model, tmp_path / "model")
    english_tokenizer().save_with_model(tmp_path / "model")
    with pytest.raises(Exception, match="no finite likelihood"):
        asked(tmp_path / "model", tmp_path, (4,), 3)
