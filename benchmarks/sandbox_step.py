"""Steps per second of a sandbox's training on fresh data, against our own trainer and PyTorch.

The network is that of the miniatures: 2 layers of 64, batch 64, T = 16, one seed, on D6. `sandbox`
draws its rows on the device and makes 100 steps in one call; `trainer` is the plain GPT step of
`icl_jax.training` at the same shape, on one batch that is on the device already; PyTorch runs
GPT-2 of transformers, with fresh rows made by NumPy in every step, plain and compiled, each with
and without the fused optimiser. `5 seeds` are five networks trained at once, in steps of one seed.
All have the same clipping and AdamW. The sides take turns on all cores; medians are compared.

Needs the extra `hf`.  Run: python benchmarks/sandbox_step.py [--rounds=7]
"""

import json
import os
import subprocess
import sys
import time

from absl.flags import FlagValues
import numpy as np

from icl_jax.cli import Flag, command, several, stop, whole

SIDES = ("sandbox", "5 seeds", "trainer", "eager", "eager fused", "compiled", "compiled fused")
BATCH, LENGTH, WIDTH, LAYERS, HEADS = 64, 16, 64, 2, 4
STEPS = 200  # timed in a round
AUTOMATON = "D6"


@command(
    Flag("rounds=N", "timed rounds of each side", whole(least=1), 7),
    Flag("sides=SIDE,...", "which of " + ", ".join(SIDES), several(), SIDES),
    Flag("child=SIDE", "internal: a process that runs one side"),
)
def main(given: FlagValues) -> None:
    """Prints a table, and as the last line one JSON object."""
    if given.child:
        serve(given.child)
        return
    children = {side: start(side) for side in given.sides}
    for child in children.values():
        ask(child)  # compiles
    rates = {side: [] for side in given.sides}
    for turn in range(given.rounds):
        order = given.sides[turn % len(given.sides) :] + given.sides[: turn % len(given.sides)]
        for side in order:
            rates[side].append(ask(children[side]))
    for child in children.values():
        child.communicate("exit\n")
    found = {side: float(np.median(values)) for side, values in rates.items()}
    for side, rate in found.items():
        low, high = min(rates[side]), max(rates[side])
        tokens = rate * BATCH * LENGTH
        print(f"{side:15s} {rate:8.1f} steps/s ({low:.1f} to {high:.1f})  {tokens:10,.0f} tokens/s")
    results = {"steps_per_second": {side: round(rate, 2) for side, rate in found.items()}}
    ours = found.get("sandbox", np.nan)
    if "trainer" in found:
        results["ratio_to_the_plain_step"] = round(ours / found["trainer"], 3)
    peers = [rate for side, rate in found.items() if side.startswith(("eager", "compiled"))]
    if peers:
        results["ratio_to_the_best_of_pytorch"] = round(ours / max(peers), 3)
        if "5 seeds" in found:
            results["ratio_of_5_seeds_to_it"] = round(found["5 seeds"] / max(peers), 3)
    print(json.dumps(results))


def start(side: str) -> subprocess.Popen:
    """A process that runs one side."""
    pipe = subprocess.PIPE
    command = [sys.executable, __file__, f"--child={side}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)


def ask(child: subprocess.Popen) -> float:
    """Steps per second of one round."""
    child.stdin.write("time\n")
    child.stdin.flush()
    while (line := child.stdout.readline()) and not line.startswith("answer "):
        pass
    if not line:
        stop(f"{' '.join(child.args)} ended early, with code {child.wait()}")
    return json.loads(line.removeprefix("answer "))


def serve(side: str) -> None:
    """Answers each line with the steps per second of a round, until it is told to exit."""
    make = {"sandbox": make_sandbox, "5 seeds": make_sandbox, "trainer": make_trainer}
    run, steps = make.get(side, make_torch)(side)
    for line in sys.stdin:
        if line.strip() == "exit":
            return
        begin = time.perf_counter()
        run()
        print("answer " + json.dumps(steps / (time.perf_counter() - begin)), flush=True)


def training(seeds: int):
    """The settings of the miniatures."""
    from icl_jax.sandboxes.automata.trained import Training

    return Training(
        AUTOMATON, LENGTH, (), layers=LAYERS, width=WIDTH, hidden=WIDTH, heads=HEADS, seeds=seeds,
        position="learned", batch=BATCH, steps=1_000_000, ema_decay=0.0,
    )  # fmt: skip


def make_sandbox(side: str):
    """STEPS steps of `sandboxes.fit`; as many steps of each of five seeds count five times."""
    import jax

    from icl_jax.sandboxes.automata.trained import make_draw
    from icl_jax.sandboxes.fit import STEPS_PER_CALL, prepare

    settings = training(5 if side == "5 seeds" else 1)
    prepared = prepare(
        settings.model(), make_draw(settings), settings.recipe(), range(settings.seeds)
    )
    state, done = prepared.state, 0

    def run() -> None:
        nonlocal state, done
        for _ in range(STEPS // STEPS_PER_CALL):
            state, losses = prepared.call(state, done)
            done += STEPS_PER_CALL
        jax.block_until_ready(losses)

    return run, STEPS * settings.seeds


def make_trainer(side: str):
    """STEPS steps of `icl_jax.training` on a batch that is there."""
    import jax

    from icl_jax.config import ExperimentConfig, MeshConfig, TrainingConfig
    from icl_jax.sharding import make_mesh
    from icl_jax.training import train_state
    from icl_jax.training.optimizer import learning_rate, make_optimizer

    settings = training(1)
    config = ExperimentConfig(
        batch_size=BATCH, sequence_length=LENGTH, model=settings.model(),
        optimizer=settings.recipe().optimizer, training=TrainingConfig(steps=1, dropout=False),
    )  # fmt: skip
    mesh = make_mesh(MeshConfig())
    schedule = learning_rate(config.optimizer, 1_000_000)
    optimizer = make_optimizer(config.optimizer, schedule)
    step = train_state.compile_train_step(config, optimizer, schedule, mesh)
    state = train_state.init_state(config, optimizer, mesh)
    tokens = np.random.default_rng(0).integers(0, 2, (BATCH, LENGTH)).astype(np.int32)
    like = train_state.abstract_batch(config, mesh)
    placed = {"tokens": tokens, "group": np.ones_like(tokens)}
    placed = {name: jax.device_put(x, like[name].sharding) for name, x in placed.items()}

    def run() -> None:
        nonlocal state
        for _ in range(STEPS):
            state, metrics = step(state, placed)
        jax.block_until_ready(metrics)

    return run, STEPS


def make_torch(side: str):
    """STEPS steps of GPT-2 by PyTorch, with rows by NumPy."""
    import torch
    import transformers

    from icl_jax.sandboxes.automata import make

    torch.set_num_threads(os.cpu_count())
    automaton, settings = make(AUTOMATON), training(1)
    delta_SQ, first = automaton.delta_SQ, automaton.num_letters
    config = transformers.GPT2Config(
        vocab_size=settings.model().vocab_size, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS,
        n_head=HEADS, n_inner=WIDTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay,
        fused=True if "fused" in side else None,
    )  # fmt: skip
    forward = torch.compile(model) if "compiled" in side else model
    random = np.random.default_rng(0)

    def step() -> None:
        letters_BT = random.integers(0, first, (BATCH, LENGTH))
        states_BT, state_B = np.empty_like(letters_BT), np.full(BATCH, automaton.start)
        for t in range(LENGTH):
            state_B = states_BT[:, t] = delta_SQ[letters_BT[:, t], state_B]
        optimizer.zero_grad(set_to_none=True)
        logits = forward(torch.from_numpy(letters_BT), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.from_numpy(states_BT).flatten() + first
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def run() -> None:
        for _ in range(STEPS):
            step()

    return run, STEPS


if __name__ == "__main__":
    main()
