"""Tokens per second of greedy decoding with GPT-2 base against `transformers`' generate.

Both sides hold the same random weights and continue the same prompts of 32 tokens by 64, with a
key-value cache, in float32, on all cores of this machine; rounds alternate, medians are compared,
and the tokens must be the same. Needs the extra `hf`.

Run: python benchmarks/generate.py [--rounds=7]
"""

import json
import os
import tempfile

from absl import flags
from forward_latency import alternate
import jax
import numpy as np

from icl_jax.cli import Flag, command, stop, whole
from icl_jax.evaluation.generation.generate import Generator
from icl_jax.models import huggingface

PROMPT, NEW = 32, 64  # tokens
BATCH_SIZES = (1, 32)


@command(Flag("rounds=N", "timed rounds of each side", whole(least=1), 7))
def main(given: flags.FlagValues) -> None:
    """Prints a table, and as the last line one JSON object."""
    rounds = given.rounds
    try:
        import torch
        import transformers
    except ImportError as error:
        stop(f"{error}; pip install torch==2.13.0 and then '.[hf]'")
    torch.set_num_threads(os.cpu_count())
    transformers.utils.logging.disable_progress_bar()
    peer = make_peer(torch, transformers)
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        model = huggingface.load(folder)
    results = {"prompt": PROMPT, "new": NEW, "rounds": rounds}
    results |= {"torch": torch.__version__, "jax": jax.__version__}
    print(f"{'batch':>5s} {'ours':>14s} {'transformers':>16s} {'ratio':>7s}")
    for batch in BATCH_SIZES:
        ours, theirs = (batch * NEW / seconds for seconds in measure(model, peer, batch, rounds))
        ratio = ours / theirs
        print(f"{batch:5d} {ours:8.1f} tok/s {theirs:10.1f} tok/s {ratio:6.2f}x", flush=True)
        results |= {f"tokens_per_second_{batch}": round(ours, 1)}
        results |= {f"ratio_batch_{batch}": round(ratio, 3)}
    print("ratio: our tokens per second / theirs, above 1 we are faster")
    print(json.dumps(results))


def make_peer(torch, transformers):
    """GPT-2 base with random weights, large enough that no two tokens are nearly as likely."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(bos_token_id=None, eos_token_id=None)
    peer = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return peer


def measure(model, peer, batch: int, rounds: int) -> tuple[float, float]:
    """Median seconds of ours and theirs for one batch, to the full length."""
    import torch

    tokens = np.random.default_rng(0).integers(0, 50_000, (batch, PROMPT)).astype(np.int32)
    torch_tokens = torch.as_tensor(tokens, dtype=torch.int64)
    mask = torch.ones_like(torch_tokens)
    generator = Generator(model, batch_size=batch)

    def ours() -> np.ndarray:
        return np.stack([row.tokens for row in generator.generate(tokens, NEW)])

    def theirs() -> np.ndarray:
        with torch.inference_mode():
            out = peer.generate(
                torch_tokens, attention_mask=mask, max_new_tokens=NEW, do_sample=False,
                use_cache=True, pad_token_id=0,
            )  # fmt: skip
        return out[:, PROMPT:].numpy()

    same = np.mean(ours() == theirs())
    if same < 1.0:
        stop(f"{1 - same:.1%} of the tokens differ: two different models are compared")
    return alternate(ours, theirs, rounds)


if __name__ == "__main__":
    main()
