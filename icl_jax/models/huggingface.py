"""Reads and writes Hugging Face folders: config.json and safetensors.

`load` first checks every name and shape, then moves one tensor at a time straight to its shards;
`save` writes a folder that `transformers` opens with `from_pretrained`. `formats/` knows the names
and layouts of each family.
"""

from collections.abc import Collection
import dataclasses
import json
import os
from pathlib import Path
import re

from absl import logging
from flax import nnx
import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
import ml_dtypes  # noqa: F401  NumPy learns bfloat16
import numpy as np
import safetensors
import safetensors.numpy
from tqdm import tqdm

from icl_jax.config import ModelConfig, StageError
from icl_jax.config.tree import validate
from icl_jax.files.remote import NoFileError, check_files_in, is_remote, read_text
from icl_jax.files.step_folder import beside, write_json
from icl_jax.models import GPT, Roberta, abstract
from icl_jax.models.formats.format import Tensor
from icl_jax.models.kinds import FORMATS, format_of
from icl_jax.sharding import variable_sharding, with_auto_axes

MAX_FILE_BYTES = 2 * 10**9  # a larger model is written as several files with an index
OVERRIDES = (
    "dtype", "scan_layers", "remat", "attention", "embedding_dropout", "attention_dropout",
    "residual_dropout",
)  # fmt: skip
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class FolderError(StageError, ValueError):
    """A folder that cannot be read or written; the message says what was expected and found."""


def write_config(config: ModelConfig) -> dict:
    """The config.json fields of a config; stops on what the format cannot store."""
    return format_of(config).write_config(config)


def load(folder: str | os.PathLike, mesh: Mesh | None = None, **overrides) -> GPT | Roberta:
    """The model in a local folder, on the shards of `mesh`.

    `overrides` change how it runs, not what it is: dtype, scan_layers, remat, attention, and the
    dropout rates.
    """
    wrong = [name for name in overrides if name not in OVERRIDES]
    if wrong:
        raise ValueError(f"load can override {', '.join(OVERRIDES)}, got {', '.join(wrong)}")
    files = TensorFiles(Path(folder))
    config = dataclasses.replace(files.model_config(), **overrides)
    graphdef, shapes = abstract(config)
    sources = files.check(list(files.format.tensors(config)), config)

    mesh = None if mesh is None else with_auto_axes(mesh)
    leaves = []
    for path, variable in _progress(nnx.to_flat_state(shapes), f"load {folder}", "tensor"):
        tensor, layers = _source(path, sources, config)
        sharding = None if mesh is None else variable_sharding(variable, mesh)
        leaves.append(
            (path, variable.replace(files.read(tensor, layers, variable.shape, sharding)))
        )
    return nnx.merge(graphdef, nnx.from_flat_state(leaves))


def read_config(folder: str | os.PathLike) -> ModelConfig:
    """The config of the model in a local folder; no weights are read."""
    return TensorFiles(Path(folder)).model_config()


def network_of(folder: Path) -> Path:
    """The folder of the network itself: with sentence-transformers, that of its first module."""
    modules = folder / "modules.json"
    return folder / read_json(modules, list)[0].get("path", "") if modules.exists() else folder


def save(model: GPT | Roberta, folder: str | os.PathLike, max_file_bytes: int = MAX_FILE_BYTES):
    """Writes the model into a folder without a model in it; config.json comes last."""
    if is_remote(folder):
        raise FolderError(f"{folder}: expected a local folder; copy the result there afterwards")
    folder = Path(folder)
    fields = write_config(model.config)
    held = [*folder.glob("config.json"), *folder.glob("*.safetensors*")]
    if held:
        raise FolderError(
            f"{folder} already holds a model ({held[0].name}); delete it or choose another folder"
        )
    arrays = jax.tree.leaves(nnx.state(model))
    # A process may also write a model that is entirely on its own devices, and then waits for none.
    together = not all(getattr(array, "is_fully_addressable", True) for array in arrays)
    if together:
        multihost_utils.sync_global_devices("icl_jax: every process has seen the empty folder")
    plan = _plan_files(model.config, max_file_bytes)
    writer = jax.process_index() == 0
    if writer:
        folder.mkdir(parents=True, exist_ok=True)
    params = {_dotted(path): variable for path, variable in nnx.to_flat_state(nnx.state(model))}
    for file, names in _progress(plan.items(), f"save {folder}", "file"):
        tensors = {name: _gather(params, parts, layer) for name, (parts, layer) in names.items()}
        if writer:
            with beside(folder / file) as partial:
                safetensors.numpy.save_file(tensors, partial, metadata={"format": "pt"})
    if writer:
        if len(plan) > 1:
            write_json(folder / "model.safetensors.index.json", _index(plan))
        write_json(folder / "config.json", fields)
    if together:
        multihost_utils.sync_global_devices("icl_jax: the folder is written")


class TensorFiles:
    """The config and the safetensors files of one folder, read lazily."""

    def __init__(self, folder: Path):
        self.folder = folder
        if not folder.is_dir():
            raise FolderError(
                f"{folder} is not a folder; expected config.json and model.safetensors in it"
            )
        check_files_in(folder)
        self.config = read_json(folder / "config.json")
        model_type = self.config.get("model_type")
        if model_type not in FORMATS:
            raise FolderError(
                f"{folder}: model type '{model_type}' is not supported; expected one of "
                f"{', '.join(FORMATS)}"
            )
        self.format = FORMATS[model_type]
        self._handles = {path: self._open(path) for path in self._find_files()}
        self.names: dict[str, tuple[Path, str]] = {}  # name without prefix -> file, name in it
        for path, handle in self._handles.items():
            for stored in handle.keys():  # noqa: SIM118  a file handle, no dict
                name = stored.removeprefix(self.format.prefix)
                name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)  # of old BERT folders
                name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
                if name in self.names:
                    first = self.names[name]
                    raise FolderError(
                        f"{folder} holds {name} twice, in {first[0].name} and in {path.name}"
                    )
                self.names[name] = (path, stored)

    def model_config(self) -> ModelConfig:
        """The folder's config.json as a config of ours."""
        try:
            config = self.format.read_config(self.config, set(self.names))
            validate(config)
        except ValueError as error:
            raise FolderError(f"{self.folder}: {error}") from None
        return config

    def check(self, tensors: list[Tensor], config) -> dict[str, Tensor]:
        """Our paths -> tensors, once every name and shape of the folder is as expected."""
        problems, expected = [], {}
        for tensor in tensors:
            count = config.num_layers if "{layer}" in tensor.theirs else 1
            for layer in range(count):
                expected[tensor.theirs.format(layer=layer)] = tensor.stored_shape
        for name, shape in expected.items():
            if name not in self.names:
                problems.append(f"missing {name}: expected shape {shape}")
            elif self._shape(name) != shape:
                problems.append(
                    f"{name} has the wrong shape: expected {shape}, got {self._shape(name)}"
                )
        seconds = self.format.second_names(config)
        for name in seconds.keys() & self.names.keys():
            problems += self._compare(name, seconds[name], config.tie_head)
        for name in self.names.keys() - expected.keys() - seconds.keys():
            reason = [why for end, why in self.format.unused.items() if name.endswith(end)]
            if reason:
                logging.info("%s: skipped %s: %s", self.folder, name, reason[0])
            else:
                problems.append(f"unexpected {name} of shape {self._shape(name)}")
        if problems:
            shown = "\n  ".join(sorted(problems)[:20])
            more = f"\n  and {len(problems) - 20} more" if len(problems) > 20 else ""
            raise FolderError(
                f"{self.folder}: the tensors do not match its config.json "
                f"({self.config['model_type']}):\n  {shown}{more}"
            )
        return {tensor.ours: tensor for tensor in tensors}

    def _compare(self, second: str, first: str, tied: bool) -> list[str]:
        """A tensor stored under two names must be the same, unless the second is unused."""
        if (
            not tied
            or first not in self.names
            or np.array_equal(self._get(second), self._get(first))
        ):
            return []
        return [
            f"{second} differs from {first}, but config.json ties them; "
            "if the head has its own matrix, set tie_word_embeddings to false there"
        ]

    def read(self, tensor: Tensor, layers: list[int] | None, shape, sharding) -> jax.Array:
        """One parameter; `layers` are the layers stacked in it, None if it is not stacked."""
        whole = tuple(slice(None) for _ in shape)
        indices = (
            {None: whole} if sharding is None else sharding.addressable_devices_indices_map(shape)
        )
        shards = {}  # equal parts share one buffer
        for index in indices.values():
            part = tuple(range(*cut.indices(size)) for cut, size in zip(index, shape, strict=True))
            shards.setdefault(str(index), (index, np.empty([len(cut) for cut in part], np.float32)))
        for place, layer in enumerate([None] if layers is None else layers):
            ours = self._read_layer(tensor, layer, shape if layers is None else shape[1:])
            for index, buffer in shards.values():
                if layers is None:
                    buffer[...] = ours[index]
                elif place in (held := range(*index[0].indices(len(layers)))):
                    buffer[held.index(place)] = ours[index[1:]]
            del ours  # before the copy to the device is made
        if sharding is None:
            return jax.numpy.asarray(shards[str(whole)][1])
        arrays = [
            jax.device_put(shards[str(index)][1], device) for device, index in indices.items()
        ]
        array = jax.make_array_from_single_device_arrays(tuple(shape), sharding, arrays)
        return array.block_until_ready()  # so that only one tensor at a time is in memory twice

    def _read_layer(self, tensor: Tensor, layer: int | None, shape: tuple[int, ...]) -> np.ndarray:
        x = self._get(tensor.theirs.format(layer=layer))
        if tensor.part is not None:
            width = tensor.shape[-1]
            x = x[..., tensor.part * width : (tensor.part + 1) * width]
        return (x.T if tensor.transposed else x).reshape(shape).astype(np.float32, copy=False)

    def _get(self, name: str) -> np.ndarray:
        path, stored = self.names[name]
        return self._handles[path].get_tensor(stored)

    def _shape(self, name: str) -> tuple[int, ...]:
        path, stored = self.names[name]
        return tuple(self._handles[path].get_slice(stored).get_shape())

    def _find_files(self) -> list[Path]:
        index = self.folder / "model.safetensors.index.json"
        if index.exists() and not (self.folder / "model.safetensors").exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise FolderError(f"{index} has no weight_map; download the folder again")
            files = [self.folder / name for name in sorted(set(weight_map.values()))]
        else:
            files = [self.folder / "model.safetensors"]
        missing = [path.name for path in files if not path.exists()]
        if not missing:
            return files
        pickled = sorted(p.name for p in self.folder.iterdir() if p.suffix in _PICKLED)
        if pickled:
            raise FolderError(
                f"{self.folder} holds pickled weights ({pickled[0]}); opening a pickle can run any "
                'code, so it is refused. If you trust it, convert it once: python -c "from '
                "transformers import AutoModelForPreTraining as M; M.from_pretrained('FOLDER')"
                ".save_pretrained('NEW_FOLDER')\" writes model.safetensors"
            )
        raise FolderError(f"{self.folder} has no {', '.join(missing)}; is the download complete?")

    def _open(self, path: Path):
        try:
            return safetensors.safe_open(path, framework="np")
        except (safetensors.SafetensorError, OSError) as error:
            raise FolderError(f"{path} is not a readable safetensors file ({error})") from None


def read_json(file: Path, kind: type = dict):
    """The content of a JSON file in a folder: an object or a list."""
    try:
        content = json.loads(read_text(file))
    except FileNotFoundError:
        raise FolderError(f"{file.parent} has no {file.name}; is it a model folder?") from None
    except NoFileError:
        raise
    except ValueError as error:
        raise FolderError(f"{file} is not valid JSON ({error})") from None
    if not isinstance(content, kind):
        raise FolderError(f"{file} must hold a JSON {'list' if kind is list else 'object'}")
    return content


def _source(path: tuple, sources: dict[str, Tensor], config):
    """The tensor of a parameter, and the layers stacked in it (None: it is not stacked)."""
    dotted = _dotted(path)
    numbered = re.match(r"blocks\.(\d+)\.(.*)", dotted)
    if numbered:
        tensor = sources["blocks." + numbered[2]]
        return dataclasses.replace(tensor, theirs=tensor.theirs.format(layer=numbered[1])), None
    tensor = sources[dotted]
    return tensor, list(range(config.num_layers)) if "{layer}" in tensor.theirs else None


def _plan_files(
    config, max_file_bytes: int
) -> dict[str, dict[str, tuple[list[Tensor], int | None]]]:
    """File -> name in it -> (the parameters that make up the tensor, its layer)."""
    stored = format_of(config)
    names: dict[str, tuple[list[Tensor], int | None]] = {}
    for tensor in stored.tensors(config):
        stacked = "{layer}" in tensor.theirs
        for layer in range(config.num_layers) if stacked else [None]:
            name = stored.stored_name(tensor.theirs.format(layer=layer), config)
            names.setdefault(name, ([], layer))[0].append(tensor)
    for second, first in stored.written_twice(config).items():
        names[second] = names[first]
    files, size = [{}], 0
    for name, (parts, layer) in names.items():
        wanted = 4 * int(np.prod(parts[0].stored_shape))
        if files[-1] and size + wanted > max_file_bytes:
            files.append({})
            size = 0
        files[-1][name] = (parts, layer)
        size += wanted
    if len(files) == 1:
        return {"model.safetensors": files[0]}
    return {
        f"model-{n:05d}-of-{len(files):05d}.safetensors": file
        for n, file in enumerate(files, start=1)
    }


def _index(plan: dict) -> dict:
    """The content of model.safetensors.index.json."""
    parts = [parts for names in plan.values() for parts, _ in names.values()]
    return {
        "metadata": {"total_size": sum(4 * int(np.prod(p[0].stored_shape)) for p in parts)},
        "weight_map": {name: file for file, names in plan.items() for name in names},
    }


def _gather(params: dict, parts: list[Tensor], layer: int | None) -> np.ndarray:
    """One tensor of a folder on the host, in their layout."""
    laid_out = []
    for tensor in parts:
        if layer is None:
            value = params[tensor.ours][...]
        elif tensor.ours in params:
            value = params[tensor.ours][...][layer]
        else:
            value = params[tensor.ours.replace("blocks.", f"blocks.{layer}.", 1)][...]
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            value = multihost_utils.process_allgather(value, tiled=True)
        shape = tensor.shape[::-1] if tensor.transposed else tensor.shape
        value = np.asarray(value, np.float32).reshape(shape)
        laid_out.append(value.T if tensor.transposed else value)
    whole = laid_out[0] if len(laid_out) == 1 else np.concatenate(laid_out, axis=-1)
    return np.ascontiguousarray(whole)  # safetensors writes the raw buffer


def _progress(items: Collection, what: str, unit: str):
    """On a terminal, shows the rate and time left if this takes more than a few seconds."""
    return tqdm(items, what, unit=unit, delay=3, leave=False, disable=None)


def _dotted(path: tuple) -> str:
    return ".".join(str(part) for part in path)
