"""What the Hugging Face formats of all families share."""

from collections.abc import Iterator
import dataclasses
from typing import ClassVar

from icl_jax.config import ModelConfig, head_dim

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "relu": "relu",
    "silu": "silu", "swish": "silu",
}  # fmt: skip

# What only our models can do, so that no folder can store it: field -> the only value of theirs.
OURS_ONLY = {
    "position": "learned", "embedding_rank": None, "position_rank": None, "norm": "layer",
    "mlp_layers": 1, "gated": False,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One of our parameters and where it is in a folder: `part` of three in a fused tensor."""

    ours: str  # path in the model, "blocks.attention.query.kernel"; without the layer's number
    theirs: str  # name without the prefix, "{layer}" where the layer's number goes
    shape: tuple[int, ...]  # as they lay it out; of this part alone
    transposed: bool = False
    part: int | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor in the folder."""
        return self.shape if self.part is None else (*self.shape[:-1], 3 * self.shape[-1])


class Format:
    """One model type of Hugging Face. A family's own format says what differs."""

    model_type: str  # in config.json
    prefix: str  # of the tensors' names in a model with a head
    head: str  # how the names of the head's tensors begin
    activation: tuple[str, str]  # field of config.json, and its default
    required: ClassVar[dict[str, object]]  # settings that change the function -> the one we have
    # Tensors that some folders hold and the model does not need: end of the name -> the reason.
    unused: ClassVar[dict[str, str]]

    def mismatch(self, config: ModelConfig) -> str:
        """Why a config of the family is not of this model type; empty: it is."""
        return ""

    def read_config(self, fields: dict, tensor_names: set[str]) -> ModelConfig:
        """Our config for the fields of a config.json; the tensors show which heads there are."""
        for name, value in self.required.items():
            if fields.get(name, value) != value:
                raise ValueError(
                    f"{self.model_type} with {name}={fields[name]} is not supported, only {value}"
                )
        activation = fields.get(*self.activation)
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"activation '{activation}' is not supported; expected one of "
                f"{', '.join(ACTIVATIONS)}"
            )
        common = {
            "activation": ACTIVATIONS[activation],
            "tie_head": fields.get("tie_word_embeddings", True),
        }
        try:
            return self.read_fields(fields, tensor_names, common)
        except KeyError as missing:
            raise ValueError(
                f"config.json of a {self.model_type} model must have the field {missing}"
            ) from None

    def read_fields(self, fields: dict, tensor_names: set[str], common: dict) -> ModelConfig:
        """The family's part of `read_config`."""
        raise NotImplementedError

    def write_config(self, config: ModelConfig) -> dict:
        """The config.json fields of our config; stops on what they cannot express."""
        ours_only = [
            f"{name}={getattr(config, name)} (theirs: {value})"
            for name, value in OURS_ONLY.items()
            if getattr(config, name, value) != value
        ]
        if config.num_heads * head_dim(config) != config.embed_dim:
            ours_only.append(
                f"num_heads x head_dim = {config.num_heads} x {head_dim(config)} "
                f"(theirs: embed_dim {config.embed_dim})"
            )
        if ours_only:
            raise ValueError(f"Hugging Face's format cannot hold {'; '.join(ours_only)}")
        return self.write_fields(config)

    def write_fields(self, config: ModelConfig) -> dict:
        """The family's part of `write_config`."""
        raise NotImplementedError

    def tensors(self, config: ModelConfig) -> Iterator[Tensor]:
        """Every tensor of a folder, in the order in which it is written."""
        raise NotImplementedError

    def second_names(self, config: ModelConfig) -> dict[str, str]:
        """Names under which a folder may hold a tensor again: second name -> first."""
        raise NotImplementedError

    def written_twice(self, config: ModelConfig) -> dict[str, str]:
        """Those of the second names that `transformers` expects to find."""
        return {}

    def stored_name(self, name: str, config: ModelConfig) -> str:
        """The name in a folder, with its prefix."""
        return name if name.startswith(self.head) else self.prefix + name


def norm(ours: str, theirs: str, width: int) -> Iterator[Tensor]:
    """The two tensors of a layer norm."""
    yield Tensor(ours + ".scale", theirs + ".weight", (width,))
    yield Tensor(ours + ".bias", theirs + ".bias", (width,))


def dense(ours: str, theirs: str, inputs: int, outputs: int, transposed=True) -> Iterator[Tensor]:
    """The two tensors of a dense layer: torch's Linear, or not transposed, GPT-2's Conv1D."""
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    yield Tensor(ours + ".kernel", theirs + ".weight", shape, transposed=transposed)
    yield Tensor(ours + ".bias", theirs + ".bias", (outputs,))
