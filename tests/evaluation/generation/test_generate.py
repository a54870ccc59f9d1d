"""Generation: the tokens of decoding without a cache and of `transformers`, whatever the batch."""

import dataclasses

import jax
import numpy as np
import pytest

from icl_jax.config import ConfigError, GPTConfig, LinearAttentionConfig, MeshConfig, RobertaConfig
from icl_jax.evaluation.generation import generate as module
from icl_jax.evaluation.generation.generate import Generator, Sampling
from icl_jax.models import huggingface
from icl_jax.sharding import make_mesh, use_mesh_of
from tests.models.small import make_model

pytestmark = pytest.mark.delicate

CONFIG = GPTConfig(48, 47, num_layers=2, embed_dim=24, num_heads=4, tie_head=False)
PROMPTS = [np.random.default_rng(n).integers(0, 48, n) for n in (3, 17, 1, 16, 5, 30, 9)]
SHORT = [prompt for prompt in PROMPTS if len(prompt) <= 16]
NEW = 13


@pytest.fixture(scope="module")
def model():
    """A random model that does not say the same token again and again."""
    model = make_model(CONFIG)
    model.token_embedding.rows[...] *= 5
    model.positions.table.rows[...] *= 5
    return model


@pytest.fixture(scope="module")
def greedy(model):
    """What comes after each prompt, by reading the whole row again for every token."""
    rows = np.zeros((len(PROMPTS), 47), np.int32)
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    for row, prompt in zip(rows, PROMPTS, strict=True):
        row[: len(prompt)] = prompt
    every = np.arange(len(PROMPTS))
    for step in range(NEW):
        logits = np.asarray(model(rows))
        rows[every, lengths + step] = logits[every, lengths + step - 1].argmax(axis=-1)
    new = [row[n : n + NEW].tolist() for row, n in zip(rows, lengths, strict=True)]
    assert len(np.unique(new)) > 12
    return new


def tokens_of(results):
    return [result.tokens.tolist() for result in results]


def compiled():
    return module.prefill._cache_size(), module.decode._cache_size()


def test_greedy_tokens_are_those_without_a_cache_in_one_compilation_per_bucket(model, greedy):
    module.prefill.clear_cache(), module.decode.clear_cache()
    generator = Generator(model, batch_size=4)
    finished = []
    results = generator.generate(PROMPTS, NEW, progress=finished.append)
    assert tokens_of(results) == greedy
    assert finished == [4, 1, 2] and all(result.cut == 0 for result in results)
    assert compiled() == (2, 2)  # prompts up to 16 tokens, and up to 32
    generator.generate([PROMPTS[1][:n] for n in (2, 11, 17, 14)], NEW - 5)
    Generator(model, batch_size=4).generate(PROMPTS[:1], NEW, stop_when=lambda tokens: False)
    assert compiled() == (2, 2)


def test_on_a_mesh_the_tokens_are_the_same_and_every_device_has_its_part(model, greedy):
    generator = Generator(model, make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)), batch_size=6)
    before = compiled()
    results = generator.generate(SHORT, NEW, stop_when=lambda tokens: False)
    assert tokens_of(results) == [row for row, p in zip(greedy, PROMPTS) if len(p) <= 16]
    laid = generator._model
    kernel = laid.blocks[0].mlp.up.kernel[...]
    assert kernel.sharding.shard_shape(kernel.shape) == (12, 48)
    with use_mesh_of(laid):
        state = module.prefill(
            laid, np.array([-1], np.int32), None, np.zeros((8, 16), np.int32), np.full(8, 16),
            new_slots=16,
        )  # fmt: skip
    for kept in jax.tree.leaves(state.cache):
        assert kept.shape == (8, 4, 32, 6)
        assert kept.sharding.shard_shape(kept.shape) == (2, 2, 32, 6)
    assert [after - once for after, once in zip(compiled(), before)] == [1, 1]


@pytest.mark.parametrize("scan", [False, True], ids=["unrolled", "scanned"])
def test_decoding_writes_the_cache_in_place(scan):
    model = make_model(GPTConfig(48, 64, 2, 24, 4, scan_layers=scan))
    fixed = model, np.array([-1], np.int32), None
    inputs = np.zeros((5, 16), np.int32), np.full(5, 16)
    state = jax.eval_shape(lambda: module.prefill(*fixed, *inputs, new_slots=16))
    program = module.decode.lower(*fixed, state, np.int32(9)).compile().as_text()
    written = [line.split(" = ")[1] for line in program.splitlines() if " = f32[" in line]
    written = [line for line in written if "5,4,32,6]" in line.split("{")[0]]
    assert any("dynamic-update-slice" in line for line in written)
    assert not any(" copy(" in line for line in written)


def test_an_end_token_ends_a_row_and_is_not_part_of_it(model, greedy):
    end = next(token for token in greedy[0][4:] if token not in greedy[0][:4])
    results = Generator(model, end_ids={end}, batch_size=4).generate(SHORT, NEW)
    rows = [row for row, prompt in zip(greedy, PROMPTS) if len(prompt) <= 16]
    expected = [row[: row.index(end)] if end in row else row for row in rows]
    assert tokens_of(results) == expected and 0 < len(expected[0]) < NEW


def test_a_row_that_is_asked_to_stop_has_the_tokens_so_far(model, greedy):
    asked = []

    def stop_when(tokens):
        asked.append(tokens.tolist())
        return tokens.tolist() != greedy[3][:8]

    results = Generator(model, batch_size=4).generate(PROMPTS, NEW, stop_when=stop_when)
    assert sorted(asked) == sorted(row[:8] for row in greedy)
    assert tokens_of(results) == [row if n == 3 else row[:8] for n, row in enumerate(greedy)]


def test_a_long_prompt_is_cut_on_the_left_and_says_so(model):
    long = np.resize(PROMPTS[5], 50)
    generator = Generator(model, batch_size=4)
    cut, same, other = generator.generate([long, long[-31:], long[-30:]], 16)  # of 47 positions
    assert (cut.cut, same.cut, other.cut) == (19, 0, 0)
    assert cut.tokens.tolist() == same.tokens.tolist() != other.tokens.tolist()


def test_draws_depend_on_the_number_of_the_prompt_and_not_on_its_batch():
    # Rotary positions have no limit, so no prompt is cut.
    options = {"position": "rotary", "context_length": 7, "num_layers": 1}
    model = make_model(dataclasses.replace(CONFIG, **options))
    generator, sampling = Generator(model, batch_size=4), Sampling(seed=7)
    drawn = generator.generate(SHORT, NEW, sampling=sampling)
    assert all(result.cut == 0 for result in drawn)
    one = Generator(model, batch_size=1).generate(SHORT[:2], NEW, sampling=sampling)
    assert tokens_of(one) == tokens_of(drawn[:2])
    later = generator.generate(SHORT[2:], NEW, sampling=sampling, first=2)
    assert tokens_of(later) == tokens_of(drawn[2:])
    again = generator.generate([SHORT[0]] * 2, NEW, sampling=sampling)
    assert again[0].tokens.tolist() == drawn[0].tokens.tolist() != again[1].tokens.tolist()
    other = generator.generate(SHORT, NEW, sampling=Sampling(seed=8))
    assert tokens_of(other) != tokens_of(drawn)


@pytest.mark.parametrize(
    ("prompts", "new", "sampling", "words"),
    [
        (PROMPTS, 47, None, "max_new_tokens must be at least 1 and below the 47 positions"),
        (PROMPTS, 0, None, "got 0"),
        ([PROMPTS[0], np.zeros(0, int)], 3, None, "prompt 1 is empty; begin it with the end-of"),
        ([np.array([3, 48])], 3, None, r"within 0\.\.47, got 3 to 48 in prompt 0"),
        ([np.array([[3]])], 3, None, "a row of token ids, got int64"),
        ([np.array([0.5])], 3, None, "a row of token ids, got float64"),
        (PROMPTS, 3, Sampling(temperature=0.0), "temperature must be above 0, got 0.0"),
        (PROMPTS, 3, Sampling(top_p=0.0), "top_p above 0"),
        (PROMPTS, 3, Sampling(top_k=-1), "top_k must be 0"),
    ],
)
def test_what_cannot_be_continued_is_refused(model, prompts, new, sampling, words):
    with pytest.raises(ValueError, match=words):
        Generator(model, batch_size=4).generate(prompts, new, sampling=sampling)


def test_no_prompts_give_nothing(model):
    assert Generator(model).generate([], 3) == []


def test_models_that_cannot_generate_are_refused():
    small = {"vocab_size": 31, "num_layers": 1, "embed_dim": 6, "num_heads": 2}
    with pytest.raises(ConfigError, match=r"Roberta model predicts masked tokens .* choose a GPT"):
        Generator(make_model(RobertaConfig(**small)))
    with pytest.raises(ConfigError, match="LinearAttention model cannot generate; choose a GPT"):
        Generator(make_model(LinearAttentionConfig(**small)))


@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_tokens_are_those_of_transformers_on_prompts_padded_on_the_left(seed, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch (extra hf)")
    transformers = pytest.importorskip("transformers", reason="needs transformers (extra hf)")
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=53, n_embd=21, n_layer=2, n_head=3, n_positions=64,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # large matrices: many tokens come, and no two are nearly as likely
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.6 if parameter.ndim > 1 else 0.05))
    theirs.save_pretrained(tmp_path)
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 53, n) for n in (2, 31, 8, 19, 16)]
    tokens, mask = np.zeros((2, 5, 31), np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, 31 - len(prompt) :], mask[row, 31 - len(prompt) :] = prompt, 1
    with torch.inference_mode():
        expected = theirs.generate(
            torch.as_tensor(tokens), attention_mask=torch.as_tensor(mask), max_new_tokens=20,
            do_sample=False, pad_token_id=0,
        )[:, 31:]  # fmt: skip
    ours = huggingface.load(tmp_path)
    results = Generator(ours, batch_size=4).generate(prompts, 20)
    assert tokens_of(results) == expected.tolist()
    assert len(np.unique(expected)) > 10
