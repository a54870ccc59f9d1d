"""The model that is evaluated: a run of ours, a Hugging Face folder or a sentence-transformers one.

What it is and which tokenizer it has is known before any of its weights are read.
"""

import dataclasses
import functools

from etils import epath
from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, ExperimentConfig, GPTConfig, RobertaConfig
from icl_jax.config.tree import to_dict
from icl_jax.corpus import tokenizers
from icl_jax.corpus.files import files_checksum, model_checksum
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import design_workdir, is_arm
from icl_jax.files import mirror
from icl_jax.files.remote import files_below
from icl_jax.models import GPT, Roberta, huggingface
from icl_jax.models.huggingface import read_json
from icl_jax.training import checkpoint
from icl_jax.training.checks import is_huggingface


@dataclasses.dataclass(frozen=True)
class Subject:
    """One model with its tokenizer."""

    path: str  # as the user gave it
    kind: str  # run, model folder or sentence-transformers
    network: epath.PathLike  # the folder of the weights
    config: GPTConfig | RobertaConfig
    tokenizer: Tokenizer
    identity: dict  # JSON: what tells it from other models
    ema: bool = False

    @property
    def begin(self) -> list[int]:
        """What stands before every text: the begin token, where the tokenizer has one."""
        begin = self.tokenizer.begin_of_text_id
        return [] if begin is None else [begin]

    @property
    def end_ids(self) -> list[int]:
        """What ends a text that is generated: a token that no text contains, but the separator."""
        ids = {*self.tokenizer.special_ids.values()} - {None, self.tokenizer.separator_id}
        return sorted(ids)

    def said(self, tokens: np.ndarray) -> tuple[np.ndarray, bool]:
        """The first sentence of what was generated, and whether it has ended.

        A model that was trained on sentences with separators between them may begin with one.
        """
        places = np.flatnonzero(tokens != self.tokenizer.separator_id)
        tokens = tokens[places[0] :] if len(places) else tokens[:0]
        ends = np.flatnonzero(tokens == self.tokenizer.separator_id)
        return (tokens[: ends[0]], True) if len(ends) else (tokens, False)

    @property
    def masked(self) -> bool:
        """Whether it predicts masked tokens and not the next one."""
        return isinstance(self.config, RobertaConfig)

    def own_workdir(self, field: str) -> epath.Path:
        """The workdir with a run's design; other models have none: `field` takes another source."""
        if self.kind != "run":
            raise ConfigError(
                f"{self.path} is no run with a design of its own; name another in {field}"
            )
        return design_workdir(epath.Path(self.network).parents[2])

    def load(self, mesh: Mesh) -> GPT | Roberta:
        """The model itself, on the shards of `mesh`; read once."""
        return _load(self, mesh)

    def __hash__(self) -> int:
        return hash((self.path, self.ema, str(self.identity)))


def open_subject(path: str, tokenizer: str = "", ema: bool = False) -> Subject:
    """The model at `path`: a workdir, WORKDIR/checkpoints/STEP or a folder.

    `tokenizer` is a folder; without one it is the model's own, or that of the run's design.
    """
    expected = (
        "expected a run's workdir, WORKDIR/checkpoints/STEP, or a Hugging Face or "
        "sentence-transformers folder"
    )
    if not epath.Path(path).exists():
        raise ConfigError(f"there is no model at {path}; {expected}")
    if (epath.Path(path) / "modules.json").exists():
        kind, folder = "sentence-transformers", mirror.fetched(path)
        network = folder / read_json(folder / "modules.json", list)[0].get("path", "")
    elif is_huggingface(path):
        kind, network = "model folder", mirror.fetched(path)
    else:
        try:
            folder, step = checkpoint.find(path)
        except ConfigError as error:
            raise ConfigError(f"{error}; {expected}") from None
        return _open_run(path, folder, step, tokenizer, ema)
    if ema:
        raise ConfigError(f"{path} is a {kind}, which has no moving average of its weights")
    config = huggingface.read_config(network)
    found = open_tokenizer(tokenizer or str(network))
    checksum = model_checksum(str(network))
    identity = {"kind": kind, "checksum": checksum, "tokenizer": found.fingerprint}
    return _checked(Subject(path, kind, network, config, found, identity))


def _open_run(path: str, checkpoints: epath.Path, step: int, tokenizer: str, ema: bool) -> Subject:
    config = checkpoint.read_config(path)
    if ema and not config.training.ema_decay:
        raise ConfigError(f"{path} keeps no moving average of its weights (training.ema_decay)")
    if not isinstance(config.model, GPTConfig | RobertaConfig):
        raise ConfigError(
            f"{path} holds a {type(config.model).__name__.removesuffix('Config')}; GPT and "
            "RoBERTa models can be evaluated"
        )
    found = open_tokenizer(tokenizer or _tokenizer_of_run(path, checkpoints.parent, config))
    network = checkpoints / str(step) / ("ema" if ema else "params")
    checksum = files_checksum(files_below(network))
    identity = {"kind": "run", "step": step, "ema": ema, "checksum": checksum}
    identity |= {"model": to_dict(config.model), "tokenizer": found.fingerprint}
    return _checked(Subject(path, "run", network, config.model, found, identity, ema))


def planned_subject(config: ExperimentConfig, workdir: epath.Path) -> Subject:
    """What a run will be evaluated as, before it is trained; it cannot be loaded."""
    folder = config.evaluation.tokenizer or _tokenizer_of_run(str(workdir), workdir, config)
    network = epath.Path(workdir) / "checkpoints" / str(config.training.steps) / "params"
    tokenizer = open_tokenizer(folder)
    return _checked(Subject(str(workdir), "run", network, config.model, tokenizer, {}))


def open_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer that a design stage made, or a published one."""
    local = mirror.fetched(folder)
    if (local / "special_ids.json").exists():
        return Tokenizer.open(local)
    try:
        return tokenizers.load(local)
    except ConfigError as error:
        raise ConfigError(str(error).replace("design.tokenizer.folder", "tokenizer")) from None


def _tokenizer_of_run(path: str, workdir: epath.PathLike, config: ExperimentConfig) -> str:
    """That of the design whose records the run read."""
    candidates = [design_workdir(workdir) / "design"]
    for source in config.data.sources:
        if not is_arm(source) and epath.Path(source).parent.name == "arms":
            candidates.append(epath.Path(source).parent.parent)
    for design in candidates:
        if (design / "tokenizer" / "special_ids.json").exists():
            return str(design / "tokenizer")
    raise ConfigError(
        f"the tokenizer of {path} is not known: expected {candidates[0] / 'tokenizer'}, which a "
        "design stage makes; name the folder of the tokenizer in evaluation.tokenizer (--tokenizer "
        "of icl_jax.evaluation.run)"
    )


def _checked(subject: Subject) -> Subject:
    """Stops where the tokenizer has tokens that the model does not know, the separator apart."""
    vocabulary = set(subject.tokenizer.library.get_vocab(with_added_tokens=True).values())
    highest = max(vocabulary - {subject.tokenizer.separator_id})
    if highest >= subject.config.vocab_size:
        raise ConfigError(
            f"the tokenizer of {subject.path} has tokens up to {highest}, but the model knows only "
            f"{subject.config.vocab_size}; name the folder of its own tokenizer in "
            "evaluation.tokenizer (--tokenizer of icl_jax.evaluation.run)"
        )
    return subject


@functools.lru_cache(maxsize=1)
def _load(subject: Subject, mesh: Mesh) -> GPT | Roberta:
    if subject.kind == "run":
        return checkpoint.load_model(subject.path, mesh, ema=subject.ema)
    return huggingface.load(subject.network, mesh)
