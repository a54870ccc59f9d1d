"""Forward and forward + backward time of GPT-2 base and RoBERTa-base against `transformers`.

Both sides have the same weights and get the same 2 x 256 tokens, in float32 without dropout, on all
cores of this machine; rounds alternate and medians are compared. Needs the extra `hf`.

Run: python benchmarks/forward_latency.py [--rounds=7]
"""

from collections.abc import Callable
import json
import os
import tempfile
import time

from absl import flags
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.cli import Flag, command, stop, whole
from icl_jax.models import huggingface

SHAPE = (2, 256)


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
    results = {"shape": SHAPE, "rounds": rounds, "torch": torch.__version__, "jax": jax.__version__}
    print(f"{'model':14s} {'pass':18s} {'ours':>10s} {'transformers':>13s} {'ratio':>7s}")
    for name, make in {"gpt2-base": gpt2_peer, "roberta-base": roberta_peer}.items():
        for label, (ours, theirs) in measure(make(transformers), rounds).items():
            ratio = theirs / ours
            print(
                f"{name:14s} {label:18s} {ours:8.3f} s {theirs:11.3f} s {ratio:6.2f}x", flush=True
            )
            results[f"ratio_{name}_{label}"] = round(ratio, 3)
    print("ratio: their time / ours, above 1 we are faster")
    print(json.dumps(results))


def gpt2_peer(transformers):
    """GPT-2 base with random weights."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def roberta_peer(transformers):
    """RoBERTa-base with random weights."""
    config = transformers.RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
    )
    return transformers.RobertaForMaskedLM(config)


def measure(peer, rounds: int) -> dict[str, tuple[float, float]]:
    """Pass -> median seconds of ours and theirs."""
    import torch

    peer.eval()  # no dropout; gradients still flow
    with tempfile.TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        model = huggingface.load(folder)
    tokens = np.random.default_rng(0).integers(3, 50_000, SHAPE).astype(np.int32)
    torch_tokens = torch.as_tensor(tokens, dtype=torch.int64)
    graphdef, params = nnx.split(model)

    def loss(params, tokens):
        log_probabilities = jax.nn.log_softmax(nnx.merge(graphdef, params)(tokens))
        return -jnp.mean(jnp.take_along_axis(log_probabilities, tokens[..., None], axis=-1))

    value_and_grad = jax.jit(jax.value_and_grad(loss))

    def peer_forward() -> np.ndarray:
        with torch.no_grad():
            return peer(torch_tokens).logits.numpy()

    def peer_both() -> None:
        peer.zero_grad(set_to_none=True)
        logits = peer(torch_tokens).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch_tokens.flatten()).backward()

    difference = np.abs(np.asarray(model(tokens)) - peer_forward()).max()
    if difference > 1e-3:
        stop(f"logits differ by {difference}: this would compare different models")
    forward = lambda: jax.block_until_ready(model(tokens))  # noqa: E731
    both = lambda: jax.block_until_ready(value_and_grad(params, tokens))  # noqa: E731
    return {
        "forward": alternate(forward, peer_forward, rounds),
        "forward_backward": alternate(both, peer_both, rounds),
    }


def alternate(ours: Callable, theirs: Callable, rounds: int) -> tuple[float, float]:
    """Median seconds of each, in turns, after one round that does not count."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for side, run in enumerate((ours, theirs)):
            start = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - start)
    return float(np.median(times[0][1:])), float(np.median(times[1][1:]))


if __name__ == "__main__":
    main()
