"""How a text becomes tokens, and their vectors one vector: everything but the network."""

import dataclasses
import hashlib

import numpy as np
from tokenizers import Tokenizer

from icl_jax.config import ConfigError

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")  # of a Dense module, names of torch.nn


@dataclasses.dataclass
class DenseLayer:
    """A sentence-transformers Dense module: activation(v kernel + bias)."""

    kernel: np.ndarray
    bias: np.ndarray | None
    activation: str  # one of ACTIVATIONS


@dataclasses.dataclass
class SentenceRecipe:
    """The defaults: the mean over all tokens of the last layer."""

    tokenizer: Tokenizer  # adds special tokens and cuts at max_tokens
    max_tokens: int | None  # None: no limit
    poolings: tuple[str, ...] = ("mean",)  # one after the other in the vector
    after: tuple[DenseLayer | str, ...] = ()  # layers on the vector, in order; or "normalize"
    prompt: str = ""  # before every text
    first_last: bool = False  # a token's vector is the mean of the first and the last layer's
    special_tokens: bool = True  # whether those that the tokenizer adds are pooled too

    def edges(self) -> tuple[int, int]:
        """How many special tokens the tokenizer puts before and behind a text."""
        mask = self.tokenizer.encode("a").special_tokens_mask
        if 0 not in mask:
            raise ConfigError("the tokenizer has no token for the letter 'a'; is its file whole?")
        return mask.index(0), mask[::-1].index(0)

    def unpooled_edges(self) -> tuple[int, int]:
        """How many tokens are left out of a pooling at the two ends of a text."""
        return (0, 0) if self.special_tokens else self.edges()

    def encode(self, texts) -> list:
        """The tokens of the texts."""
        return self.tokenizer.encode_batch_fast([self.prompt + str(text) for text in texts])

    def count_cut(self, texts) -> list[int]:
        """How many tokens of each text are cut off on the right."""
        added = self.tokenizer.num_special_tokens_to_add(is_pair=False)
        return [sum(len(o.ids) - added for o in e.overflowing) for e in self.encode(texts)]

    def digest(self) -> "hashlib._Hash":
        """Of the tokenizer, with max_tokens, and the weights of the layers after the pooling."""
        digest = hashlib.sha256(self.tokenizer.to_str().encode())
        for part in self.after:
            if isinstance(part, DenseLayer):
                bias = b"" if part.bias is None else part.bias.tobytes()
                digest.update(part.activation.encode() + part.kernel.tobytes() + bias)
        return digest

    def identity(self) -> dict:
        """JSON that differs between recipes that give other vectors with the same network."""
        return {
            "checksum": self.digest().hexdigest(),
            "pooling": list(self.poolings),
            "after": [part if isinstance(part, str) else "dense" for part in self.after],
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "first_last": self.first_last,
            "special_tokens": self.special_tokens,
        }
