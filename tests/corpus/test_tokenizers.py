"""Token ids equal those of the libraries; special tokens come from no text."""

from concurrent.futures import ThreadPoolExecutor
import itertools
import json
import os
from pathlib import Path
import shutil
import threading

import numpy as np
import pytest
import tokenizers as library
from tokenizers import models, normalizers, pre_tokenizers

from icl_jax.config import ConfigError
from icl_jax.corpus import tokenizers
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.corpus.train_tokenizer import NOT_IN_UTF8, train
from icl_jax.corpus.word_cache import WordCache
from tests.corpus import corpora

TEXTS = [d["text"].replace("\n", " ") for d in corpora.make_documents(60)]
NASTY = [
    "", " ", "  two  spaces  ", " leading", "trailing ", "tab\tand\nnewline\r\n",
    "\u00a0x\u2003y\u3000z",
    "it's we'll 'S 's o'clock ''' don't", "1234567 3.14 ½ ² Ⅷ ٣٤", "naïve façade e\u0301 Å Å",
    "日本語のテキスト、とても長い", "עברית العربية हिन्दी ไทย", "😀👩‍👩‍👧 🏳️‍🌈",
    "a\u200bb \ufeff x", "\x1f \x85 \x00",
    "<|endoftext|> <s> </s> <pad> <mask> <unk> [SEP] madeupword0000", "{}[]()--==++ #$%&*",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train(TEXTS, 400)


def write_vocabulary(folder: Path, tokenizer: Tokenizer, first: list[str], last: list[str]) -> Path:
    """vocab.json and merges.txt in the style of the published ones."""
    model = json.loads(tokenizer.library.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].get)[4:]
    rare = [c for c in sorted(pre_tokenizers.ByteLevel.alphabet()) if c not in ordered]
    names = [*first, *ordered, *rare, *last]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    return folder


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory, trained):
    return write_vocabulary(tmp_path_factory.mktemp("g") / "v", trained, [], ["<|endoftext|>"])


@pytest.fixture(scope="module")
def roberta_folder(tmp_path_factory, trained):
    first = ["<s>", "<pad>", "</s>", "<unk>"]
    last = ["<|endoftext|>", "madeupword0000", "madeupword0001", "<mask>"]
    return write_vocabulary(tmp_path_factory.mktemp("r") / "v", trained, first, last)


def rows(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    tokens, offsets = tokenizer.encode_batch(texts)
    assert tokens.dtype == np.int32 and offsets.dtype == np.int64
    return [tokens[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def assert_ids_equal(folder: Path, name: str, texts: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = getattr(transformers, name).from_pretrained(folder, split_special_tokens=True)
    ours = tokenizers.load(folder)
    for text, row in zip(texts, rows(ours, texts), strict=True):
        assert row == theirs(text, add_special_tokens=False)["input_ids"], repr(text)
        assert row == rows(ours, [text])[0] == ours.encode(text).tolist(), repr(text)


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "GPT2TokenizerFast"])
def test_ids_of_gpt2_files_equal_those_of_transformers(gpt2_folder, name):
    assert_ids_equal(gpt2_folder, name, NASTY + TEXTS)


@pytest.mark.parametrize("name", ["RobertaTokenizer", "RobertaTokenizerFast"])
def test_ids_of_roberta_files_equal_those_of_transformers(roberta_folder, name):
    assert_ids_equal(roberta_folder, name, NASTY + TEXTS)


@pytest.mark.skipif("ICL_JAX_TRIAL_DATA" not in os.environ, reason="ICL_JAX_TRIAL_DATA is not set")
@pytest.mark.parametrize(
    ("name", "folder"), [("GPT2TokenizerFast", "gpt2"), ("RobertaTokenizerFast", "roberta-base")]
)
def test_ids_of_the_published_files_equal_those_of_transformers(name, folder):
    data = Path(os.environ["ICL_JAX_TRIAL_DATA"])
    real = (data / "wikitext103" / "wiki.test.tokens").read_text().splitlines()[:500]
    assert_ids_equal(data / "tokenizers" / folder, name, NASTY + TEXTS + real)
    special = tuple(tokenizers.load(data / "tokenizers" / folder).special_ids.values())
    expected = {"gpt2": (50257, None, 50256, None, None), "roberta-base": (50261, 0, 2, 1, 50264)}
    assert special == expected[folder]


def test_words_encoded_once_have_the_ids_of_whole_texts(trained):
    odd = [chr(i) for i in range(0x3100) if not chr(i).isspace()]
    texts = [f"a{c}b {c} {c}1 'S{c}'s '{c} re" for c in odd] + TEXTS + [""]
    texts += [f" {c}" for c in odd] + [f" {text}" for text in texts[:-1]]  # as in running text
    whole = trained.library.encode_batch_fast(texts, add_special_tokens=False)
    found = trained._words.encode(texts)
    assert found is not None
    assert found[0].tolist() == [token for row in whole for token in row.ids]
    assert np.diff(found[1]).tolist() == [len(row.ids) for row in whole]


def test_texts_of_any_letters_and_spaces_have_the_ids_of_the_library(trained):
    rng, letters, by_words = np.random.RandomState(0), [*"aZé1½'\u2019s.-日\u0301😀<|>"], 0
    for _ in range(2000):
        texts = []
        for _ in range(rng.randint(1, 4)):
            text = "".join(rng.choice(letters + [" "] * 6, rng.randint(0, 12)))
            texts.append(" " * rng.randint(0, 2) + " ".join(text.split()))
        whole = trained.library.encode_batch_fast(texts, add_special_tokens=False)
        assert rows(trained, texts) == [row.ids for row in whole], texts
        by_words += trained._words.encode(texts) is not None
    assert by_words > 1500  # the others hold a space that is alone


def test_threads_may_encode_at_the_same_time(trained):
    """As workers of Beam do, which share one tokenizer."""
    together = threading.Barrier(2)

    class Slow:
        """Lets go while it encodes, until another one does so too, if it can."""

        def encode_batch_fast(self, texts, **options):
            try:
                together.wait(0.1)
            except threading.BrokenBarrierError:
                together.reset()
            return trained.library.encode_batch_fast(texts, **options)

    cache, parts = WordCache(Slow()), [TEXTS[i::4] for i in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(cache.encode, parts))
    for part, (tokens, offsets) in zip(parts, found, strict=True):
        expected = WordCache(trained.library).encode(part)
        assert tokens.tolist() == expected[0].tolist()
        assert offsets.tolist() == expected[1].tolist()


def test_words_are_not_encoded_alone_where_neighbours_could_matter(trained):
    for text in ("two  spaces", "  leading", " ", "trailing ", "a\tb", "a\nb", "a\u00a0b"):
        assert trained._words.encode([text]) is None
    normalised = library.Tokenizer.from_str(trained.library.to_str())
    normalised.normalizer = normalizers.NFKC()
    assert Tokenizer(normalised, **trained.special_ids)._words is None
    added = library.Tokenizer.from_str(trained.library.to_str())
    added.add_tokens(["by the"])
    assert Tokenizer(added, **trained.special_ids)._words is None


def test_a_full_word_cache_begins_again_with_the_same_ids(trained, monkeypatch):
    from icl_jax.corpus import word_cache

    expected = rows(trained, TEXTS)
    monkeypatch.setattr(word_cache, "_MAX_WORDS", 10)
    assert [rows(trained, [text])[0] for text in TEXTS] == expected


def test_no_text_becomes_a_special_token(trained, roberta_folder):
    for tokenizer in (trained, tokenizers.load(roberta_folder)):
        for text in [*NASTY[-2:], "x<|separator|>y <|padding|><|mask|>"]:
            assert not set(tokenizer.special_ids.values()) & set(tokenizer.encode(text).tolist())
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_separator_is_an_unused_token_or_a_new_one(gpt2_folder, roberta_folder):
    size = len(json.loads((gpt2_folder / "vocab.json").read_text()))
    new = tokenizers.load(gpt2_folder)
    assert (new.separator_id, new.vocab_size) == (size, size + 1)
    assert new.decode([new.separator_id]) == "<|separator|>"
    unused = tokenizers.load(roberta_folder)
    assert unused.library.id_to_token(unused.separator_id) == "madeupword0000"
    assert (unused.end_of_text_id, unused.padding_id) == (2, 1)
    assert unused.mask_id == unused.vocab_size - 1
    chosen = tokenizers.load(roberta_folder, "madeupword0001")
    assert chosen.separator_id == unused.separator_id + 1


@pytest.mark.parametrize("separator", ["</s>", "<pad>", "<mask>"])
def test_a_separator_with_another_meaning_is_refused(roberta_folder, separator):
    with pytest.raises(ConfigError, match=f"design.tokenizer.separator: '{separator}'"):
        tokenizers.load(roberta_folder, separator)


def test_special_tokens_are_those_the_folder_names(trained, tmp_path):
    folder = write_vocabulary(tmp_path / "t", trained, ["<a>", "<b>"], ["<c>"])
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<c>"}}')
    (folder / "config.json").write_text('{"eos_token_id": 7, "pad_token_id": 1}')
    loaded = tokenizers.load(folder)
    last = json.loads((folder / "vocab.json").read_text())["<c>"]
    assert (loaded.end_of_text_id, loaded.padding_id, loaded.mask_id) == (last, 1, None)


def test_a_special_token_that_text_can_become_is_refused(gpt2_folder, tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.separator: '!' also comes from text"):
        tokenizers.load(gpt2_folder, "!")
    shutil.copytree(gpt2_folder, tmp_path / "t")
    (tmp_path / "t" / "special_tokens_map.json").write_text('{"eos_token": "Ġthe"}')
    with pytest.raises(ConfigError, match="the end-of-text token 'Ġthe' is an ordinary piece"):
        tokenizers.load(tmp_path / "t")
    pieces = [("<unk>", 0.0), ("</s>", -1.0), ("a", -2.0), ("▁", -2.0)]
    unigram = library.Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.add_special_tokens(["</s>"])
    unigram.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match=r"'</s>' is an ordinary piece .* text could contain it"):
        tokenizers.load(tmp_path)


def test_added_tokens_have_their_ids_before_the_separator_gets_one(gpt2_folder, tmp_path):
    folder = tmp_path / "t"
    shutil.copytree(gpt2_folder, folder)
    size = len(json.loads((folder / "vocab.json").read_text()))
    added = {"<end>": size + 1, "zebra crossing": size, "<role>": size + 2}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    names = {"eos_token": "<end>", "additional_special_tokens": ["<role>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    loaded = tokenizers.load(folder)
    assert (loaded.end_of_text_id, loaded.separator_id) == (size + 1, size + 3)
    found = loaded.encode("a zebra crossing <end> <role>").tolist()
    assert size in found and not {size + 1, size + 2} & set(found)
    (folder / "added_tokens.json").write_text(json.dumps({"<end>": size + 7}))
    with pytest.raises(ConfigError, match=f"gives the id {size + 7} to '<end>'"):
        tokenizers.load(folder)


def test_a_bert_tokenizer_loads_with_its_own_ids(tmp_path):
    words = [
        "[PAD]",
        "[unused0]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "otter",
        "swim",
        "##s",
    ]
    bert = library.Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    bert.normalizer = normalizers.BertNormalizer()
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    bert.enable_truncation(3)
    bert.enable_padding(length=8)
    bert.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizers.load(tmp_path)
    assert tuple(tokenizer.special_ids.values()) == (1, 3, 4, 0, 5)
    assert rows(tokenizer, ["The otter swims", "[SEP]"]) == [[6, 7, 8, 9], [2, 2, 2]]


@pytest.mark.parametrize("size", [257, 263, 400])
def test_a_trained_tokenizer_has_exactly_the_size_asked_for(size):
    tokenizer = train(TEXTS, size)
    vocabulary = tokenizer.library.get_vocab()
    assert sorted(vocabulary.values()) == list(range(size)) and tokenizer.vocab_size == size
    assert len({*tokenizer.special_ids.values()} & set(range(4))) == 4
    assert len(json.loads(tokenizer.library.to_str())["model"]["merges"]) == size - 4 - 243
    for text in NASTY:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_byte_that_utf8_can_hold_and_no_other_has_an_id():
    possible = {b for i in range(0x110000) if not 0xD800 <= i < 0xE000 for b in chr(i).encode()}
    assert set(range(256)) - possible == set(NOT_IN_UTF8)


def test_training_twice_gives_the_same_tokenizer(trained):
    assert train(iter(TEXTS), 400).fingerprint == trained.fingerprint
    assert train(iter(TEXTS[1:]), 400).fingerprint != trained.fingerprint


def test_too_little_text_for_the_vocabulary_says_what_can_be_reached():
    with pytest.raises(ConfigError, match=r"vocab_size is 5000, .* only (\d+) tokens") as stop:
        train(["too little"], 5000)
    assert "at most" not in str(stop.value)  # fewer than can be set
    with pytest.raises(ConfigError, match=r"add text, or set it to at most \d+"):
        train(TEXTS, 5000)


def test_a_saved_tokenizer_opens_here_and_in_transformers(trained, tmp_path):
    trained.save(tmp_path)
    again = Tokenizer.open(tmp_path)
    assert again.special_ids == trained.special_ids and again.fingerprint == trained.fingerprint
    assert rows(again, NASTY + TEXTS) == rows(trained, NASTY + TEXTS)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert [theirs(text)["input_ids"] for text in TEXTS] == rows(trained, TEXTS)


@pytest.mark.parametrize("content", [{}, {"tokenizer.json": "{"}, {"vocab.json": "{}"}])
def test_a_folder_without_a_tokenizer_is_named(tmp_path, content):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        tokenizers.load(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "tokenizer_config.json"])
def test_a_pipe_in_a_tokenizer_folder_is_refused_and_not_waited_for(gpt2_folder, tmp_path, name):
    folder = shutil.copytree(gpt2_folder, tmp_path / "folder")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match=f"{name} is a named pipe"):
        tokenizers.load(folder)
