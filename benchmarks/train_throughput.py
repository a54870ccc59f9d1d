"""Tokens per second of a float32 training step against `transformers` trained by PyTorch.

A step is forward, backward, clipping to a global norm of 1, and AdamW that decays matrices only; no
dropout on either side. Both sides start from the same weights, get the same tokens on all cores of
this machine, and their first losses must agree. Each side runs in a separate process, to have its
own peak memory; the sides take turns, a few steps each, and medians are compared. glibc's large
pages are on for every side: they cut the page faults of our step (a) from 172,000 to 400.

Input: our pipeline alone, one worker, on records of the shape of (a), against what (a) consumes.

The share of the peak: 6 * matmul parameters * tokens + 12 * layers * time * width per token for
attention (no credit for skipped halves), divided by the rate that the better of both libraries
reaches on a 2048 x 2048 x 2048 product. Needs the extra `hf`.

Run: python benchmarks/train_throughput.py [--rounds=7] [--cases=a,b,c] [--dropout=0.1]
"""

import dataclasses
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time

from absl.flags import FlagValues
import numpy as np

from icl_jax.cli import Flag, command, number, several, stop, whole

TUNABLES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
STEPS = 3  # timed in a round, after an untimed one
SIDES = ("ours", "eager", "eager fused", "compiled", "compiled fused")


@dataclasses.dataclass(frozen=True)
class Case:
    """One model and batch; `options` as in the config of transformers."""

    name: str
    masked: bool  # a masked language model, 15% of the tokens masked
    options: dict
    shape: tuple[int, int]
    layers: int
    width: int
    vocab: int

    def flops(self) -> float:
        """The flops of one step, forward and backward."""
        head = self.width * self.vocab + (self.width**2 if self.masked else 0)
        parameters = 12 * self.layers * self.width**2 + head
        attention = 12 * self.layers * self.shape[1] * self.width
        return (6 * parameters + attention) * self.shape[0] * self.shape[1]


SMALL = {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 8192, "n_positions": 256,
         "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
CASES = {
    "a": Case("a_gpt_6x384", False, SMALL, (8, 256), 6, 384, 8192),
    "b": Case("b_gpt2_base", False, {}, (2, 256), 12, 768, 50257),
    "c": Case("c_roberta_base_mlm", True, ROBERTA, (2, 256), 12, 768, 50265),
}


@command(
    Flag("rounds=N", "timed rounds of each side", whole(least=1), 7),
    Flag("cases=CASE,...", "which of a, b, c", several(), ("a", "b", "c")),
    Flag("dropout=SHARE", "on both sides alike", number, 0.0),
    Flag("sides=SIDE,...", "which of " + ", ".join(SIDES), several(), SIDES),
    Flag("child=CASE,SIDE,FOLDER", "internal: a process that runs one side", several()),
)
def main(flags: FlagValues) -> None:
    """Prints a table, and as the last line one JSON object."""
    if flags.child:
        key, side, folder = flags.child
        serve(CASES[key], side, folder, flags.dropout)
        return
    results: dict = {"rounds": flags.rounds, "dropout": flags.dropout, **TUNABLES}
    # Other jobs slow the two sides differently: PyTorch's threads spin while they wait.
    results["load_before"] = round(os.getloadavg()[0], 2)
    if results["load_before"] > 0.5:
        print(f"warning: load {results['load_before']} from other jobs; ratios will not be fair")
    peak = max(ask(start("a", side, "", 0.0), "peak") for side in ("ours", "eager"))
    results["peak_gflops"] = round(peak / 1e9, 1)
    print(f"largest product: {peak / 1e9:.0f} GFLOP/s")
    print(f"{'case':20s} {'side':15s} {'tokens/s':>9s} {'of peak':>8s} {'memory':>9s} {'loss':>9s}")
    for key in flags.cases:
        results |= measure(key, list(flags.sides), flags.rounds, flags.dropout, peak)
    print("ratio: our tokens/s / theirs at their best, above 1 we are faster")
    if "a" in flags.cases:
        rate = input_rate(CASES["a"])
        consumed = results["tokens_per_second_a_gpt_6x384"].get("ours", math.nan)
        results["tokens_per_second_input"] = round(rate)
        results["ratio_input_pipeline_to_step_a"] = round(rate / consumed, 1)
        print(f"input pipeline, one worker: {rate:,.0f} tokens/s, {rate / consumed:.0f} x step (a)")
    print(json.dumps(results))


def measure(key: str, sides: list[str], rounds: int, dropout: float, peak: float) -> dict:
    """One case: all sides in turns."""
    case = CASES[key]
    tokens = case.shape[0] * case.shape[1]
    with tempfile.TemporaryDirectory() as folder:
        ask(start(key, "save", folder, dropout), "exit")
        children = {side: start(key, side, folder, dropout) for side in sides}
        losses = {side: ask(child, "step") for side, child in children.items()}
        times = {side: [] for side in sides}
        for number in range(rounds + 1):  # the first round does not count
            for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                times[side].append(ask(children[side], "time"))
        memory = {side: ask(child, "memory") for side, child in children.items()}
        for child in children.values():
            ask(child, "exit")
    rates = {side: tokens / float(np.median(times[side][1:])) for side in sides}
    for side, rate in rates.items():
        share = case.flops() * rate / tokens / peak
        print(
            f"{case.name:20s} {side:15s} {rate:9.0f} {share:8.0%} {memory[side] / 1e6:6.0f} MB "
            f"{losses[side]:9.5f}"
        )
    apart = max(losses.values()) - min(losses.values())
    if dropout == 0.0 and apart > 1e-3:
        stop(f"first losses differ by {apart}: this would compare different steps")
    results = {f"tokens_per_second_{case.name}": {s: round(rate, 1) for s, rate in rates.items()}}
    results[f"memory_mb_{case.name}"] = {s: round(size / 1e6) for s, size in memory.items()}
    peers = [rate for side, rate in rates.items() if side != "ours"]
    if peers and "ours" in rates:
        results[f"ratio_{case.name}"] = round(rates["ours"] / max(peers), 3)
        print(f"{case.name:20s} ratio {results[f'ratio_{case.name}']:.2f}", flush=True)
    return results


# A child answers each line that it is sent with one line of JSON.


def start(key: str, side: str, folder: str, dropout: float) -> subprocess.Popen:
    """A process that runs one side of one case."""
    command = [sys.executable, __file__, f"--dropout={dropout}", f"--child={key},{side},{folder}"]
    pipe = subprocess.PIPE
    environment = {**os.environ, **TUNABLES, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)


def ask(child: subprocess.Popen, question: str):
    """The child's answer; a child ends after it is asked for the peak or to exit."""
    child.stdin.write(question + "\n")
    child.stdin.flush()
    while (line := child.stdout.readline()) and not line.startswith("answer "):
        pass
    if not line:
        stop(f"{' '.join(child.args)} ended early, with code {child.wait()}")
    if question in ("peak", "exit"):
        child.communicate()
    return json.loads(line.removeprefix("answer "))


def serve(case: Case, side: str, folder: str, dropout: float) -> None:
    """Runs one side on commands from standard input."""
    step = None
    for line in sys.stdin:
        question, answer = line.strip(), None
        if question == "peak":
            answer = peak_of_jax() if side == "ours" else peak_of_torch()
        elif question == "exit":
            if side == "save":
                make_peer(case).save_pretrained(folder)
        elif question == "memory":
            answer = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        else:
            if step is None:
                make = make_our_step if side == "ours" else make_peer_step
                step = make(case, side, folder, dropout)
            loss = step()  # a step before the timed ones, because idle memory is cold
            begin = time.perf_counter()
            for _ in range(STEPS if question == "time" else 0):
                step()
            answer = (time.perf_counter() - begin) / STEPS if question == "time" else loss
        print("answer " + json.dumps(answer), flush=True)


def batch(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, the targets, and the weight of each target."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, case.vocab, case.shape).astype(np.int32)
    if case.masked:
        return tokens, tokens, (rng.random(case.shape) < 0.15).astype(np.float32)
    weights = np.ones(case.shape, np.float32)
    weights[:, -1] = 0  # the last token of a row has no next token
    return tokens, np.roll(tokens, -1, axis=1), weights


def make_our_step(case: Case, side: str, folder: str, dropout: float):
    """A function that makes one step of `icl_jax.training` and returns the loss before it."""
    import jax

    from icl_jax.config import ExperimentConfig, MeshConfig, OptimizerConfig, TrainingConfig
    from icl_jax.models import huggingface
    from icl_jax.sharding import make_mesh
    from icl_jax.training import train_state
    from icl_jax.training.optimizer import learning_rate, make_optimizer

    rates = dict.fromkeys(("embedding_dropout", "attention_dropout", "residual_dropout"), dropout)
    mesh = make_mesh(MeshConfig())
    model = huggingface.load(folder, mesh, **rates)
    config = ExperimentConfig(
        batch_size=case.shape[0],
        sequence_length=case.shape[1],
        model=model.config,
        optimizer=OptimizerConfig(learning_rate=1e-4, schedule="constant", warmup=0, b2=0.999),
        training=TrainingConfig(steps=1, dropout=dropout > 0),
    )
    inputs, targets, weights = batch(case)
    # Both sides get the masks that `batch` has drawn, not those of the objective.
    train_state.make_task = lambda config, batch, key: train_state.Task(
        batch["tokens"], batch["group"], targets, weights
    )
    if case.masked:
        config.training.objective = "masked_token"
    schedule = learning_rate(config.optimizer, 1)
    optimizer = make_optimizer(config.optimizer, schedule)
    step = train_state.compile_train_step(config, optimizer, schedule, mesh)
    state = train_state.init_state(config, optimizer, mesh, model)
    del model
    placed = {"tokens": inputs, "group": np.ones_like(inputs)}
    like = train_state.abstract_batch(config, mesh)
    placed = {name: jax.device_put(x, like[name].sharding) for name, x in placed.items()}

    def run() -> float:
        nonlocal state
        state, metrics = jax.block_until_ready(step(state, placed))
        return float(metrics["loss"])

    return run


def input_rate(case: Case, batches: int = 400) -> float:
    """Tokens per second of the input pipeline with one worker, in steady state."""
    from icl_jax.config import DataConfig
    from icl_jax.data.input_pipeline import make_batches, open_data
    from icl_jax.data.tfrecord import encode_example, write_records

    rows, length = case.shape
    tokens = np.random.default_rng(0).integers(0, case.vocab, (2_000, length))
    with tempfile.TemporaryDirectory() as folder:
        write_records(f"{folder}/x.tfrecord", (encode_example({"tokens": row}) for row in tokens))
        data = open_data(DataConfig(sources=(folder,)), rows, length, seed=0)
        iterator = make_batches(data, steps=batches + 50, workers=1)
        for _ in range(50):  # the worker has started and its buffer was full
            next(iterator)
        begin = time.perf_counter()
        for _ in range(batches):
            next(iterator)
        seconds = time.perf_counter() - begin
        iterator.close()
    return batches * rows * length / seconds


def make_peer(case: Case, dropout: float = 0.0):
    """The model of transformers, with random weights."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if case.masked:
        config = transformers.RobertaConfig(
            **case.options, layer_norm_eps=1e-5, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )  # fmt: skip
        return transformers.RobertaForMaskedLM(config)
    config = transformers.GPT2Config(
        **case.options, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout
    )
    return transformers.GPT2LMHeadModel(config)


def make_peer_step(case: Case, side: str, folder: str, dropout: float):
    """The same as `make_our_step`, by PyTorch."""
    import torch

    torch.set_num_threads(os.cpu_count())
    model = make_peer(case, dropout)
    model.load_state_dict(type(model).from_pretrained(folder).state_dict())
    model.train()
    tokens, targets, weights = (torch.as_tensor(a) for a in batch(case))
    tokens, targets = tokens.long(), targets.long()
    # transformers itself shifts the labels of a causal model.
    labels = torch.where(weights > 0, targets, -100) if case.masked else tokens
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True if "fused" in side else None)
    forward = torch.compile(model) if "compiled" in side else model

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    return run


def peak_of_jax() -> float:
    """Floating-point operations per second of a large product."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((2048, 2048), jnp.float32)
    product = jax.jit(jnp.matmul)
    return best_rate(lambda: jax.block_until_ready(product(x, x)))


def peak_of_torch() -> float:
    """The same by PyTorch."""
    import torch

    torch.set_num_threads(os.cpu_count())
    x = torch.ones(2048, 2048)
    return best_rate(lambda: x @ x)


def best_rate(run, rounds: int = 15) -> float:
    """The flops of a product of 2048 x 2048 matrices."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 2 * 2048**3 / min(times)


if __name__ == "__main__":
    main()
