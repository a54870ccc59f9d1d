"""Records of a random language with known entropy, to try training without a corpus."""

from etils import epath
import numpy as np

from icl_jax.config import ConfigError
from icl_jax.data.tfrecord import encode_example, write_records

PREFIX = "synthetic:"  # the source synthetic:2000 has that many records
CHOICES = (0.55, 0.25, 0.12, 0.08)  # each token has four followers with these probabilities
ENTROPY = -sum(p * np.log(p) for p in CHOICES)  # 1.13 nats: no model can do better


def is_synthetic(source: str) -> bool:
    """Whether a source is generated on the spot."""
    return source.startswith(PREFIX)


def make_source(
    source: str, workdir: epath.Path, vocab_size: int, length: int, seed: int
) -> epath.Path:
    """The folder of `synthetic:COUNT` in the workdir; missing records are generated."""
    count = source.removeprefix(PREFIX)
    if not count.isdigit() or int(count) < 1:
        raise ConfigError(f"expected {PREFIX}COUNT with a number of records, got '{source}'")
    folder = workdir / f"synthetic-{count}-records-of-{length}-vocabulary-{vocab_size}-seed-{seed}"
    path = folder / "synthetic.tfrecord-00000-of-00001"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rows = draw_tokens(int(count), length, vocab_size, seed)
        write_records(path, (encode_example({"tokens": tokens_T}) for tokens_T in rows))
    return folder


def draw_tokens(count: int, length: int, vocab_size: int, seed: int) -> np.ndarray:
    """Token ids (count, length) of a Markov chain in which all tokens are equally common."""
    rng = np.random.default_rng(seed)
    # A shuffle of the vocabulary, rotated by four different amounts, gives four followers.
    shuffled_V, turns_C = rng.permutation(vocab_size), rng.permutation(vocab_size)[: len(CHOICES)]
    tokens_NT = np.empty((count, length), np.int64)
    tokens_NT[:, 0] = rng.integers(0, vocab_size, count)
    for t in range(1, length):
        turn_N = rng.choice(turns_C, size=count, p=CHOICES)
        tokens_NT[:, t] = shuffled_V[(tokens_NT[:, t - 1] + turn_N) % vocab_size]
    return tokens_NT
