"""The model at a path: a run of ours, a Hugging Face folder or a sentence-transformers one.

Its config, its tokenizer and what identifies it are known before any of its weights are read.
"""

from collections.abc import Sequence
import dataclasses
import functools

from etils import epath
from jax.sharding import Mesh
import numpy as np

from icl_jax.config import ConfigError, ExperimentConfig, GPTConfig, ModelConfig, RobertaConfig
from icl_jax.config.tree import to_dict
from icl_jax.corpus import tokenizers
from icl_jax.corpus.files import files_checksum, model_checksum
from icl_jax.corpus.tokenizers import Tokenizer
from icl_jax.design.folders import design_workdir, is_arm
from icl_jax.files import mirror
from icl_jax.files.remote import files_below
from icl_jax.models import GPT, Model, Roberta, huggingface
from icl_jax.models.kinds import kind_of, predicts_masked
from icl_jax.training import checkpoint

RUN, FOLDER, SENTENCE_FOLDER = "run", "model folder", "sentence-transformers"
_TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a model is, and in which form."""

    path: str  # as the user gave it
    kind: str  # RUN, FOLDER or SENTENCE_FOLDER
    checkpoints: epath.Path | None = None  # of a run
    step: int | None = None  # of its checkpoint

    @property
    def is_run(self) -> bool:
        """Whether it was trained here, and not exported or published."""
        return self.kind == RUN

    @property
    def workdir(self) -> epath.Path:
        """Of a run."""
        return self.checkpoints.parent

    def network(self, ema: bool = False) -> epath.PathLike:
        """The folder of the weights; of a model folder at a URL, its local copy."""
        if self.is_run:
            return self.checkpoints / str(self.step) / ("ema" if ema else "params")
        return huggingface.network_of(mirror.fetched(self.path))

    def config(self) -> ModelConfig:
        """The model's config; reads no weights."""
        if self.is_run:
            return checkpoint.read_config(self.path).model
        return huggingface.read_config(self.network())

    def checksum(self, ema: bool = False) -> str:
        """Of the files of the weights."""
        if self.is_run:
            return files_checksum(files_below(self.network(ema)))
        return model_checksum(str(self.network()))

    def tokenizer(self) -> epath.PathLike | None:
        """The folder of the tokenizer that the model was trained with; None: it is not known."""
        if self.is_run:
            return _tokenizer_of_run(checkpoint.read_config(self.path), self.workdir)
        if self.kind == FOLDER and not _has_tokenizer(epath.Path(self.path)):
            return None  # and nothing is fetched for it
        network = self.network()
        return network if _has_tokenizer(epath.Path(network)) else None

    def load(self, mesh: Mesh, *, ema: bool = False, config: ModelConfig | None = None) -> Model:
        """The model, on the shards of `mesh`; `config` says how it runs."""
        if self.is_run:
            return checkpoint.load_model(self.path, mesh, ema=ema, config=config)
        how = {} if config is None else {n: getattr(config, n) for n in huggingface.OVERRIDES}
        return huggingface.load(self.network(), mesh, **how)


def find_model(path: str) -> Place:
    """The model at `path`: a workdir, WORKDIR/checkpoints/STEP or a model folder."""
    folder = epath.Path(path)
    if (folder / "modules.json").exists():
        return Place(path, SENTENCE_FOLDER)
    if (folder / "config.json").exists() and not (folder / "checkpoints").exists():
        return Place(path, FOLDER)  # a workdir has a config.json too
    return Place(path, RUN, *checkpoint.find(path))


def tokenizer_of_records(sources: Sequence[str], workdir: epath.PathLike) -> epath.Path | None:
    """The tokenizer of the design that made the records of a run; None: they are of no design."""
    for source in sources:
        path = epath.Path(source)
        if is_arm(source):
            design = design_workdir(workdir) / "design"
        elif path.parent.name == "arms":
            design = path.parent.parent
        else:
            continue
        if (design / "tokenizer" / "special_ids.json").exists():
            return design / "tokenizer"
    return None


def read_tokenizer(folder: epath.PathLike, separator: str = "") -> Tokenizer:
    """The tokenizer that a design stage made, or a published one, also at a URL."""
    local = mirror.fetched(folder)
    if (local / "special_ids.json").exists():
        return Tokenizer.open(local)
    return tokenizers.load(local, separator)


@dataclasses.dataclass(frozen=True)
class ModelAt:
    """A model that can be evaluated, with its tokenizer."""

    place: Place
    config: GPTConfig | RobertaConfig
    tokenizer: Tokenizer
    identity: dict  # JSON: distinguishes it from other models
    ema: bool = False

    @property
    def path(self) -> str:
        """As the user gave it."""
        return self.place.path

    @property
    def begin(self) -> list[int]:
        """What comes before every text: the begin token, if the tokenizer has one."""
        begin = self.tokenizer.begin_of_text_id
        return [] if begin is None else [begin]

    @property
    def end_ids(self) -> list[int]:
        """Tokens that end a generated text: those that no text contains, except the separator."""
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
        return predicts_masked(self.config)

    def own_workdir(self, field: str) -> epath.Path:
        """The workdir with a run's design; other models have none: `field` takes another source."""
        if not self.place.is_run:
            raise ConfigError(
                f"{self.path} is not a run with a design of its own; name another in {field}"
            )
        return design_workdir(self.place.workdir)

    def load(self, mesh: Mesh) -> GPT | Roberta:
        """The model itself, on the shards of `mesh`; read once."""
        return _load(self, mesh)

    def __hash__(self) -> int:
        return hash((self.path, self.ema, str(self.identity)))


def model_at(path: str, tokenizer: str = "", ema: bool = False) -> ModelAt:
    """The model at `path`, to be evaluated.

    `tokenizer` is a folder; without one it is the model's own, or that of the run's design.
    """
    expected = (
        "expected a run's workdir, WORKDIR/checkpoints/STEP, or a Hugging Face or "
        "sentence-transformers folder"
    )
    if not epath.Path(path).exists():
        raise ConfigError(f"there is no model at {path}; {expected}")
    try:
        place = find_model(path)
    except ConfigError as error:
        raise ConfigError(f"{error}; {expected}") from None
    if place.is_run:
        return _run_at(place, tokenizer, ema)
    if ema:
        raise ConfigError(f"{path} is a {place.kind}, which has no moving average of its weights")
    config = place.config()
    found = _read_own_tokenizer(tokenizer or place.network())
    identity = {"kind": place.kind, "checksum": place.checksum(), "tokenizer": found.fingerprint}
    return _checked(ModelAt(place, config, found, identity))


def planned_model(config: ExperimentConfig, workdir: epath.Path) -> ModelAt:
    """The model of a run as it will be evaluated, before it is trained; it cannot be loaded."""
    place = Place(str(workdir), RUN, epath.Path(workdir) / "checkpoints", config.training.steps)
    tokenizer = _open_tokenizer(place, config, config.evaluation.tokenizer)
    return _checked(ModelAt(place, config.model, tokenizer, {}))


def _run_at(place: Place, tokenizer: str, ema: bool) -> ModelAt:
    path, config = place.path, checkpoint.read_config(place.path)
    if ema and not config.training.ema_decay:
        raise ConfigError(f"{path} keeps no moving average of its weights (training.ema_decay)")
    if not kind_of(config.model).objective:
        raise ConfigError(
            f"{path} holds a {type(config.model).__name__.removesuffix('Config')}; GPT and "
            "RoBERTa models can be evaluated"
        )
    found = _open_tokenizer(place, config, tokenizer)
    identity = {"kind": RUN, "step": place.step, "ema": ema, "checksum": place.checksum(ema)}
    identity |= {"model": to_dict(config.model), "tokenizer": found.fingerprint}
    return _checked(ModelAt(place, config.model, found, identity, ema))


def _tokenizer_of_run(config: ExperimentConfig, workdir: epath.Path) -> epath.PathLike | None:
    """That of the design whose records the run read; else of the design in its workdir."""
    own = design_workdir(workdir) / "design" / "tokenizer"
    found = tokenizer_of_records(config.data.sources, workdir)
    return found or (own if (own / "special_ids.json").exists() else None)


def _open_tokenizer(place: Place, config: ExperimentConfig, given: str) -> Tokenizer:
    """The tokenizer of a run, unless another one is given."""
    folder = given or _tokenizer_of_run(config, place.workdir)
    if folder is None:
        expected = design_workdir(place.workdir) / "design" / "tokenizer"
        raise ConfigError(
            f"the tokenizer of {place.path} is not known: expected {expected}, which a design "
            "stage makes; name the folder of the tokenizer in evaluation.tokenizer (--tokenizer of "
            "icl_jax.evaluation.run)"
        )
    return _read_own_tokenizer(folder)


def _has_tokenizer(folder: epath.Path) -> bool:
    return any(all((folder / name).exists() for name in names) for names in _TOKENIZER_FILES)


def _read_own_tokenizer(folder: epath.PathLike) -> Tokenizer:
    try:
        return read_tokenizer(folder)
    except ConfigError as error:
        raise ConfigError(str(error).replace("design.tokenizer.folder", "tokenizer")) from None


def _checked(model: ModelAt) -> ModelAt:
    """Stops if the tokenizer has tokens that the model does not know, except the separator."""
    vocabulary = set(model.tokenizer.library.get_vocab(with_added_tokens=True).values())
    highest = max(vocabulary - {model.tokenizer.separator_id})
    if highest >= model.config.vocab_size:
        raise ConfigError(
            f"the tokenizer of {model.path} has tokens up to {highest}, but the model knows only "
            f"{model.config.vocab_size}; name the folder of its own tokenizer in "
            "evaluation.tokenizer (--tokenizer of icl_jax.evaluation.run)"
        )
    return model


@functools.lru_cache(maxsize=1)
def _load(model: ModelAt, mesh: Mesh) -> GPT | Roberta:
    return model.place.load(mesh, ema=model.ema)
