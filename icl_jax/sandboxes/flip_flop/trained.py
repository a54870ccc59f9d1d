"""Networks that must learn to read: one training of several seeds, and how often each misreads.

Clean (as published): only reads are learnt from; generative: every token is. A read is wrong if
another of the five tokens is likelier than the bit that was written last. Shape suffixes: B batch,
T tokens, N pairs, H heads, S keys.
"""

from collections.abc import Callable
import dataclasses
import functools
from pathlib import Path
import time
from typing import NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from icl_jax.config import ConfigError, GPTConfig, LSTMConfig, ModelConfig, OptimizerConfig
from icl_jax.models.gpt import GPT
from icl_jax.sandboxes.fit import UNFINISHED, Draw, Fitted, Loss, Network, Recipe, fit, mean_loss
from icl_jax.sandboxes.flip_flop.language import (
    TOKENS,
    Mixture,
    density,
    distance,
    ffl,
    is_read,
    memory,
)
from icl_jax.training.objectives import Task

TEST_SEED, SHARED_SEED = 1_000_003, 1_000_033  # no training has them
TOKENS_AT_ONCE = 12_800  # of a test
WAVES = 10  # of an oscillating strength in one training: 1,000 of 10,000 steps each
DENSITIES = (2, 5, 10, 20, 40, 100)  # writes in 100 instructions: upper ends


class Trial(NamedTuple):
    """New rows of FFL(p_i) on which errors are counted, the same for all networks."""

    name: str
    ignore: float
    rows: int


@dataclasses.dataclass(frozen=True)
class Training:
    """A network, the languages it reads, and how long it is trained."""

    length: int
    ignore: tuple[float, ...]  # p_i of the languages, each row of one of them
    tests: tuple[Trial, ...]
    network: str = "gpt"  # or lstm
    layers: int = 2
    width: int = 64
    heads: int = 4
    hidden: int = 64  # of the LSTM
    position: str = "alibi"
    gated: bool = False
    generative: bool = False  # learns every token, not the reads alone
    batches: int = 0  # different ones, each drawn again and again; 0: every batch is new
    shared: str = "nothing"  # or weights (the first ones) or data: the same for all seeds
    sharpen: str = ""  # entropy, norm or max of the attention, added to the loss
    strength: float = 0.0  # lambda
    schedule: str = "constant"  # or linear (from 0), oscillating
    sharpen_from: int = 0  # the step
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    steps: int = 800
    batch: int = 32
    learning_rate: float = 2e-3
    b1: float = 0.9
    b2: float = 0.999
    weight_decay: float = 0.1
    warmup: int = 50
    seeds: int = 5

    def language(self) -> Mixture:
        """What it is trained on."""
        return Mixture(tuple(ffl(self.length, ignore) for ignore in self.ignore))

    def model(self) -> ModelConfig:
        """The network's config."""
        if self.network == "lstm":
            return LSTMConfig(len(TOKENS), embed_dim=self.width, hidden_dim=self.hidden,
                              num_layers=self.layers)  # fmt: skip
        return GPTConfig(
            vocab_size=len(TOKENS), context_length=self.length, num_layers=self.layers,
            embed_dim=self.width, num_heads=self.heads, position=self.position, gated=self.gated,
            # PyTorch's linear layers start with this deviation; a fixed 0.02 is too small here.
            init_stddev=(3 * self.width) ** -0.5, activation="gelu", tie_head=False,
            attention="plain", embedding_dropout=self.embedding_dropout,
            attention_dropout=self.attention_dropout, residual_dropout=self.residual_dropout,
        )  # fmt: skip

    def starting(self) -> Network:
        """The network with weights of each seed, or with the same ones for all."""
        if self.shared != "weights":
            return self.model()
        return lambda rngs: GPT(self.model(), rngs=nnx.Rngs(params=SHARED_SEED))

    def recipe(self) -> Recipe:
        """AdamW with a short warm-up, then linear to zero (Liu 2024, 3.5.6.2)."""
        optimizer = OptimizerConfig(
            learning_rate=self.learning_rate, b1=self.b1, b2=self.b2, clip_norm=0.0,
            weight_decay=self.weight_decay, warmup=self.warmup, schedule="linear",
        )  # fmt: skip
        rates = self.embedding_dropout, self.attention_dropout, self.residual_dropout
        return Recipe(self.steps, optimizer, dropout=max(rates) > 0)

    def flops(self) -> float:
        """The operations of all seeds' matrix products in training and tests."""
        if self.network == "lstm":
            weights = self.layers * 4 * self.hidden * (self.hidden + self.width)
        else:
            weights = self.layers * (12 + 4 * self.gated) * self.width**2
            weights += self.layers * self.length * self.width  # causal attention, on average
        rows = 3 * self.batch * self.steps + sum(test.rows for test in self.tests)
        return 2.0 * weights * self.length * rows * self.seeds


def train(folder: Path, **fields) -> dict:
    """Trains the seeds and counts the errors of each; returns what `results.json` holds of it."""
    fields["tests"] = tuple(Trial(*test) for test in fields["tests"])
    training = Training(**fields | {"ignore": tuple(fields["ignore"])})
    check(training)
    started = time.perf_counter()
    fitted = fit(
        training.starting(), make_draw(training), training.recipe(), range(training.seeds), folder,
        make_loss(training),
    )  # fmt: skip
    seconds = time.perf_counter() - started
    results = {
        "seconds": round(seconds, 1),
        "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(fitted.params)),
        "losses": np.round(fitted.losses, 5).tolist(),
        "tests": {test.name: measure(training, test, fitted) for test in training.tests},
    }
    (folder / UNFINISHED).unlink(missing_ok=True)
    return results


def check(training: Training) -> None:
    """Stops on fields that contradict each other."""
    for what, options in {
        "network": ("gpt", "lstm"), "shared": ("nothing", "weights", "data"),
        "sharpen": ("", *SHARPENERS), "schedule": tuple(SCHEDULES),
    }.items():  # fmt: skip
        if getattr(training, what) not in options:
            expected = " or ".join(map(repr, options))
            raise ConfigError(f"{what} must be {expected}, got '{getattr(training, what)}'")
    if training.network == "lstm" and (training.sharpen or training.shared == "weights"):
        raise ConfigError("sharpen and shared='weights' are for network='gpt', got 'lstm'")
    if bool(training.sharpen) != (training.strength > 0):
        raise ConfigError(
            f"sharpen needs a strength above 0, and only it; got sharpen='{training.sharpen}' and "
            f"strength={training.strength}"
        )
    if training.batches and training.shared == "data":
        raise ConfigError("batches that come again are shared already; set shared='nothing'")
    training.language()  # stops on what is no language


# What a network learns from.


def make_draw(training: Training) -> Draw:
    """A batch from a key, made on the device."""
    language = training.language()

    def draw(key: jax.Array) -> Task:
        if training.batches:
            number = jax.random.randint(key, (), 0, training.batches)
            key = jax.random.fold_in(jax.random.key(SHARED_SEED), number)
        return make_task(language.sample(key, training.batch), training.generative)

    return draw


def make_task(tokens_BT: jax.Array, generative: bool) -> Task:
    """Each token predicts the next; what is learnt are the bits of reads, or all."""
    inputs_BT = tokens_BT[:, :-1]
    counted_BT = jnp.ones(inputs_BT.shape, bool) if generative else is_read(inputs_BT)
    return Task(inputs_BT, None, tokens_BT[:, 1:], counted_BT.astype(jnp.float32))


def make_loss(training: Training) -> Loss:
    """The cross-entropy, and the strength of the step times the mean of what sharpens."""
    draw, strength = make_draw(training), make_strength(training)

    def loss(model, task: Task, dropout_key: jax.Array | None, n: jax.Array) -> jax.Array:
        if training.shared == "data":
            task = draw(jax.random.fold_in(jax.random.key(SHARED_SEED), n))
        if not training.sharpen:
            return mean_loss(model(task.inputs_BT, dropout_key=dropout_key), task)
        logits_BTV, readings = model(
            task.inputs_BT, dropout_key=dropout_key, read_attention=SHARPENERS[training.sharpen]
        )
        return mean_loss(logits_BTV, task) + strength(n) * jnp.mean(readings)

    return loss


# Attention sharpening (Liu 2024, 3.5.4.2): means over rows and heads of a layer.


def attention_entropy(weights_BHTS: jax.Array) -> jax.Array:
    """H(a), in nats."""
    positive = jnp.where(weights_BHTS > 0, weights_BHTS, 1.0)  # the slope of 0 log 0 is infinite
    return -jnp.mean(jnp.sum(weights_BHTS * jnp.log(positive), axis=-1))


def minus_attention_norm(weights_BHTS: jax.Array) -> jax.Array:
    """-||a||_2."""
    return -jnp.mean(jnp.sqrt(jnp.sum(jnp.square(weights_BHTS), axis=-1)))


def minus_attention_max(weights_BHTS: jax.Array) -> jax.Array:
    """-max(a)."""
    return -jnp.mean(jnp.max(weights_BHTS, axis=-1))


SHARPENERS = {
    "entropy": attention_entropy, "norm": minus_attention_norm, "max": minus_attention_max,
}  # fmt: skip


def make_strength(training: Training) -> Callable[[jax.Array], jax.Array]:
    """Number of the step -> lambda then; 0 before the step from which it acts."""
    course = functools.partial(SCHEDULES[training.schedule], training)

    def strength(n: jax.Array) -> jax.Array:
        acts = n >= training.sharpen_from
        return training.strength * jnp.where(acts, course(n - training.sharpen_from), 0.0)

    return strength


def _constant(training: Training, n: jax.Array) -> jax.Array:
    return jnp.ones_like(n, jnp.float32)


def _linear(training: Training, n: jax.Array) -> jax.Array:
    return n / jnp.float32(max(1, training.steps - training.sharpen_from))


def _oscillating(training: Training, n: jax.Array) -> jax.Array:
    wave = training.steps / WAVES
    return (1 - jnp.cos(2 * jnp.pi * n / wave)) / 2


SCHEDULES = {"constant": _constant, "linear": _linear, "oscillating": _oscillating}


# How often reads are wrong.


def measure(training: Training, test: Trial, fitted: Fitted) -> dict:
    """Reads, and the errors of every seed: all, by distance to the write, by density of writes."""
    found = fitted.of_each_seed(make_test(training, test))()
    results: dict = {}
    for name, up_to in _groups(training.length).items():
        reads_G, errors_SG = found[name]["reads"][0], found[name]["errors"]
        results = results or {
            "rows": int(np.prod(_parts(training, test))), "reads": int(reads_G.sum()),
            "errors": errors_SG.sum(axis=1).tolist(),
        }  # fmt: skip
        kept = reads_G > 0
        results[name] = {
            "up_to": np.array(up_to)[kept].tolist(),
            "reads": reads_G[kept].tolist(),
            "errors": errors_SG[:, kept].tolist(),
        }
    return results


def make_test(training: Training, test: Trial) -> Callable:
    """(model) -> the counts of its rows, which depend on the test alone."""
    language = ffl(training.length, test.ignore)
    parts, rows = _parts(training, test)
    first = jax.random.fold_in(jax.random.key(TEST_SEED), round(1000 * test.ignore))
    keys = jax.vmap(lambda n: jax.random.fold_in(first, n))(jnp.arange(parts))

    def of_some(model: nnx.Module, key: jax.Array) -> dict:
        tokens_BT = language.sample(key, rows)
        logits_BTV = model(tokens_BT[:, :-1])
        return count(tokens_BT, jnp.argmax(logits_BTV[:, ::2], axis=-1))

    def run(model: nnx.Module) -> dict:
        found = jax.lax.map(functools.partial(of_some, model), keys)
        return jax.tree.map(lambda each: jnp.sum(each, axis=0), found)

    return run


def _parts(training: Training, test: Trial) -> tuple[int, int]:
    """In how many parts the rows are made, and how many rows each has; together at least all."""
    rows = max(1, TOKENS_AT_ONCE // training.length)
    return -(-test.rows // rows), rows


def count(tokens_BT: jax.Array, chosen_BN: jax.Array) -> dict:
    """Reads and errors in groups; `chosen_BN`: the token that is likeliest after each instruction.

    A group holds what is at most its `up_to`, and more than that of the group before.
    """
    read_BN = is_read(tokens_BT)[:, ::2]
    wrong_BN = read_BN & (chosen_BN != memory(tokens_BT))
    values = {"by_distance": distance(tokens_BT), "by_density": density(tokens_BT)}
    found = {}
    for name, up_to in _groups(tokens_BT.shape[1]).items():
        group_BN = jnp.searchsorted(jnp.array(up_to), values[name])
        zeros_G = jnp.zeros(len(up_to), jnp.int32)
        found[name] = {
            "reads": zeros_G.at[group_BN].add(read_BN.astype(jnp.int32)),
            "errors": zeros_G.at[group_BN].add(wrong_BN.astype(jnp.int32)),
        }
    return found


def _groups(length: int) -> dict[str, tuple]:
    distances = tuple(1 << n for n in range((length // 2 - 1).bit_length() + 1))
    return {"by_distance": distances, "by_density": DENSITIES}
