"""Perplexity, against losses of one window at a time and against `transformers`."""

import json
import math

import numpy as np
import pytest

from icl_jax.config import ConfigError, CorpusConfig, PerplexityConfig
from icl_jax.data.tfrecord import RecordError, encode_example
from icl_jax.evaluation.likelihood import ROUNDS
from icl_jax.evaluation.task import read_rows, run_task
from icl_jax.evaluation.tasks.perplexity import texts as perplexity_texts
from icl_jax.evaluation.tasks.perplexity.task import Perplexity, windows
from icl_jax.evaluation.tasks.perplexity.texts import Documents
from icl_jax.models import huggingface
from tests.data.records import write_source
from tests.evaluation import small

pytestmark = pytest.mark.delicate

WINDOW, STRIDE = 23, 7
TEXTS = [
    "The old mill stands at the bridge. Ada lives by the river, they say, and so does the ferry.",
    "Yes.",
    "Été à Kersk — one two three four five six seven; maybe.",  # characters of several bytes
    "é",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return small.model_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "documents.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return CorpusConfig(files=(str(file),))


def open_task(folder, corpus=None, **fields):
    fields = {"window": WINDOW, "stride": STRIDE, **fields}
    if corpus is not None:
        fields["documents"] = corpus
    config = small.evaluation(perplexity=PerplexityConfig(**fields))
    return Perplexity(small.subject_of(folder), config)


def run(task, folder, **mesh):
    table = run_task(task, "perplexity", {}, {}, folder, small.mesh_of(**mesh))
    return read_rows(folder), json.loads((folder / "results.json").read_text()), table


@pytest.mark.parametrize("given", [0, 1])
def test_every_token_is_predicted_exactly_once(given):
    for count in range(40):
        for window, stride in ((2, 1), (7, 6), (7, 3), (50, 25)):
            asked = []
            for begin, end, new in windows(count, window, stride, given):
                assert 0 <= begin < new + (not given) and 0 < end - begin <= window
                assert new == given or new - begin >= window - stride
                asked += range(new, end)
            assert asked == list(range(given, count))


def token_losses(model, inputs, targets, places):
    """The losses of some targets in one window, which stands alone in its row."""
    row, group = np.zeros((2, 1, 64), np.int32)
    row[0, : len(inputs)], group[0, : len(inputs)] = inputs, 1
    logits = np.asarray(model(row, group), np.float64)[0]
    return [np.log(np.exp(logits[at]).sum()) - logits[at, token]
            for at, token in zip(places, targets, strict=True)]  # fmt: skip


def loss_by_loops(model, kind, tokens, tokenizer, special=()):
    """Each token from the first window that reaches it; of text tokens alone, too."""
    total = text = count = 0
    first = 1 if kind == "GPT" else 0
    starts = range(0, max(1, len(tokens)), STRIDE)
    rounds = {}
    for place in range(first, len(tokens)):
        start = next(s for s in starts if place < s + WINDOW)
        rounds.setdefault(start, []).append(place)
    for start, places in rounds.items():
        window = tokens[start : start + WINDOW]
        if kind == "GPT":
            asked = [(places, window, -1)]
        else:
            places = [place for place in places if tokens[place] not in special]
            asked = []
            for k in range(ROUNDS):
                hidden = [*window, tokenizer.end_of_text_id]
                for place in places[k::ROUNDS]:
                    hidden[place - start] = tokenizer.mask_id
                asked.append((places[k::ROUNDS], hidden, 0))
        for chosen, inputs, shift in asked:
            at = [place - start + shift for place in chosen]
            losses = token_losses(model, inputs, [tokens[place] for place in chosen], at)
            total += sum(losses)
            count += len(losses)
            text += sum(loss for loss, place in zip(losses, chosen) if tokens[place] not in special)
    return total, text, count


@pytest.mark.parametrize("kind", ["GPT", "RoBERTa"])
def test_losses_are_those_of_one_window_at_a_time(kind, folders, corpus, tmp_path):
    subject = small.subject_of(folders[kind])
    special = [id for id in subject.tokenizer.special_ids.values() if id is not None]
    groups = [subject.tokenizer.encode(text).tolist() for text in TEXTS[:3]]
    framed = [groups[0] + [1] + groups[1] + [0], groups[2] + [0]]  # separator, end of text
    tokens = np.concatenate([*framed, [2]])  # padding
    number = np.repeat([1, 2, 0], [len(framed[0]), len(framed[1]), 1])
    record = encode_example({"tokens": tokens, "group": number})
    source = write_source(tmp_path / "arm", [[record], [encode_example({"tokens": groups[1]})]])
    task = open_task(folders[kind], corpus, records=(source,))
    rows, results, table = run(task, tmp_path / "out", data=2)
    model = huggingface.load(folders[kind])
    given = 1 if kind == "GPT" else 0

    expected = [subject.tokenizer.encode(text).tolist() for text in TEXTS] + framed + groups[1:2]
    texts = [*TEXTS, TEXTS[0] + TEXTS[1], TEXTS[2], TEXTS[1]]
    names = ["documents"] * 4 + ["arm"] * 3
    assert [row["source"] for row in rows] == names
    for row, tokens, text in zip(rows, expected, texts, strict=True):
        total, of_text, count = loss_by_loops(model, kind, tokens, subject.tokenizer, special)
        np.testing.assert_allclose(row["loss"], total, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(row["text_loss"], of_text, rtol=1e-5, atol=1e-5)
        assert row["tokens"] == count
        left = text[len(subject.tokenizer.decode(tokens[:1])) :] if given else text
        if text != TEXTS[3] and not text.startswith("É"):  # there the first token is half a letter
            assert (row["characters"], row["bytes"]) == (len(left), len(left.encode()))
    check_results(rows, results, kind)
    assert rows[3]["tokens"] == len(subject.tokenizer.encode("é")) - given
    assert ("masked perplexity" in table) == (kind == "RoBERTa")
    assert f"| {results['all']['nats_per_token']:.3f} (" in table and "Only one text" not in table
    assert "items, intervals are too narrow." in table
    single = task.results([*rows[:1], *rows[4:]])
    assert single["sources"]["documents"]["nats_per_token_interval95"] is None
    told = task.table(single)
    assert "| documents | 1 |" in told and "(-)" in told
    assert "Only one text: documents. A text file is split into several by" in told


def check_results(rows, results, kind):
    name = "perplexity" if kind == "GPT" else "masked_perplexity"
    assert results["kind"] == name.replace("_", " ") and results["bad_documents"] == 0
    for told, own in (
        (results["all"], rows),
        (results["sources"]["documents"], rows[:4]),
        (results["sources"]["arm"], rows[4:]),
    ):
        sums = {key: sum(row[key] for row in own)
                for key in ("loss", "text_loss", "tokens", "characters", "bytes")}  # fmt: skip
        np.testing.assert_allclose(told["nats_per_token"], sums["loss"] / sums["tokens"])
        np.testing.assert_allclose(told[name], math.exp(sums["loss"] / sums["tokens"]))
        bits = sums["text_loss"] / math.log(2)
        np.testing.assert_allclose(told["bits_per_character"], bits / sums["characters"])
        np.testing.assert_allclose(told["bits_per_byte"], bits / sums["bytes"])
        low, high = told[f"{name}_interval95"]
        assert low <= told[name] <= high and told["texts"] == len(own)
        assert told["texts_predicted"] == sum(row["tokens"] > 0 for row in own)
    other = "masked_perplexity" if kind == "GPT" else "perplexity"
    assert other not in results["all"]


def test_documents_are_measured_as_the_recipe_of_transformers_does(folders, corpus, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    rows, _, _ = run(open_task(folders["GPT"], corpus), tmp_path / "out", data=2)
    model = transformers.GPT2LMHeadModel.from_pretrained(folders["GPT"]).eval()
    tokenizer = small.subject_of(folders["GPT"]).tokenizer
    for row, text in zip(rows, TEXTS, strict=True):
        ids = torch.tensor([tokenizer.encode(text).tolist()])
        total, before = 0.0, 0
        for begin in range(0, ids.size(1), STRIDE):
            end = min(begin + WINDOW, ids.size(1))
            inputs, labels = ids[:, begin:end], ids[:, begin:end].clone()
            labels[:, : before - begin if begin else 0] = -100
            asked = int((labels[:, 1:] != -100).sum())
            with torch.no_grad():
                total += model(inputs, labels=labels).loss.item() * asked if asked else 0.0
            before = end
            if end == ids.size(1):
                break
        np.testing.assert_allclose(row["loss"], total, rtol=1e-4, atol=1e-4)


def test_any_part_of_the_documents_is_found_again(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(perplexity_texts, "SHARD_BYTES", 200)
    tokenizer = small.subject_of(folders["GPT"]).tokenizer
    lines = [f"Document {n} is about the number {n * n}." for n in range(30)]
    lines.insert(7, " \x00 ")
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    config = CorpusConfig(
        files=(str(tmp_path / "a.txt"),), text_documents="line", max_bad_share=0.1
    )
    documents = Documents(config, 0, tokenizer, 1)
    lines.pop(7)
    assert len(documents) == 30 and documents.bad == 1 and len(documents._shards) > 3
    for start, stop in ((0, 30), (0, 1), (11, 12), (5, 23), (29, 30)):
        found = [tokenizer.decode(text.tokens) for (text,) in documents.read(start, stop)]
        assert found == lines[start:stop]
    assert len(Documents(config, 9, tokenizer, 1)) == 9
    config.max_bad_share = 0.01
    with pytest.raises(ConfigError, match=r"1 of 31 documents are bad.*a\.txt, .*NUL"):
        Documents(config, 0, tokenizer, 1)


def test_what_cannot_be_measured_is_named(folders, corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"window is 65, but .* has 64 positions"):
        open_task(folders["GPT"], corpus, window=65)
    with pytest.raises(ConfigError, match="stride must be below the window of 63 tokens"):
        open_task(folders["RoBERTa"], corpus, window=64, stride=63)
    with pytest.raises(ConfigError, match="there is nothing to read"):
        open_task(folders["GPT"])
    with pytest.raises(ConfigError, match="nothing found at"):
        open_task(folders["GPT"], CorpusConfig(files=(str(tmp_path / "none"),)))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"there is no document in .*empty\.jsonl"):
        open_task(folders["GPT"], CorpusConfig(files=(str(tmp_path / "empty.jsonl"),)))
    with pytest.raises(RecordError, match="it does not exist"):
        open_task(folders["GPT"], records=(str(tmp_path / "none"),))
    source = write_source(tmp_path / "big", [[encode_example({"tokens": [1, 300]})]])
    with pytest.raises(ConfigError, match="has the token 300, but the model knows only 0 to 299"):
        open_task(folders["GPT"], records=(source,))
    with pytest.raises(ConfigError, match="is not a run with a design of its own"):
        open_task(folders["GPT"], records=("design:contiguous",))
    assert PerplexityConfig(window=8, stride=8).problems()
    defaults = open_task(folders["GPT"], corpus, window=0, stride=0)
    assert (defaults.window, defaults.stride) == (64, 32)
    assert len(open_task(folders["GPT"], corpus, limit=2).items) == 2
