"""What the processes of a job send each other: JSON, which runs nothing when it is opened.

A pickle could run any code. Here a message can only name classes and functions of this package.
"""

import base64
from collections.abc import Callable
import dataclasses
import functools
import importlib
import json
import os
from pathlib import Path
import re
import types

from etils import epath

from icl_jax.config import StageError

CLASSES_OF = ("icl_jax",)
# Where the tasks of all steps are. Elsewhere in the package are functions that open pickles or
# start processes: a call of these would again be any code.
FUNCTIONS_OF = ("icl_jax.corpus", "icl_jax.design", "icl_jax.retrieval")

_PLAIN = (type(None), bool, int, float, str)  # as JSON has them; NaN and infinity as Python's has
_GROUPS = (tuple, set, frozenset)
_NUMBERS = re.compile(r"[<>|][biufc]\d+")  # types of arrays: no objects, no records


class MessageError(StageError):
    """A message that cannot be read here, or that names what no process may name."""


def encode(value: object) -> bytes:
    """A TypeError names what cannot be sent."""
    return json.dumps(_pack(value, {}), separators=(",", ":")).encode()


def decode(message: bytes) -> object:
    """What was encoded, or a `MessageError`."""
    try:
        return _unpack(json.loads(message), [])
    except MessageError:
        raise
    except Exception as error:  # whoever wrote it chose what goes wrong
        why = f"{type(error).__name__}: {error}"
        raise MessageError(f"a message of another process cannot be read ({why})") from error


def _pack(value: object, seen: dict[int, int]) -> object:
    """A list stays one; what JSON does not have is {kind: what it is made from}.

    `seen` numbers the objects, for all tasks of a step may hold one large config.
    """
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [_pack(part, seen) for part in value]
    if id(value) in seen:
        return {"again": seen[id(value)]}
    kind, held = _take_apart(value) or _take_apart_named(value) or _take_apart_numbers(value)
    packed = {kind: _pack(held, seen)}
    if kind == "object":
        seen[id(value)] = len(seen)
    return packed


def _take_apart(value: object) -> tuple[str, object] | None:
    kind = type(value)
    if kind in _GROUPS:
        return kind.__name__, list(value)
    if kind is dict:
        return "dict", [[key, part] for key, part in value.items()]
    if kind is bytes:
        return "bytes", base64.b64encode(value).decode()
    if isinstance(value, epath.Path):
        return "epath", os.fspath(value)
    return ("path", str(value)) if kind is type(Path()) else None


def _take_apart_named(value: object) -> tuple[str, object] | None:
    """What is known by the name of a function or a class."""
    if isinstance(value, types.FunctionType):
        return "function", _name(value, FUNCTIONS_OF)
    if type(value) is functools.partial:
        return "partial", [_name(value.func, FUNCTIONS_OF), value.args, value.keywords]
    if isinstance(value, Exception):
        return "error", [_name(type(value), CLASSES_OF), str(value)]
    fields = _fields(type(value))
    if fields is None:
        return None
    held = [[field, getattr(value, field)] for field in fields]
    return "object", [_name(type(value), CLASSES_OF), held]


def _take_apart_numbers(value: object) -> tuple[str, object]:
    import numpy as np  # not before a job needs it: commands start without

    kind = "array" if type(value) is np.ndarray else "number"
    if kind == "number" and not isinstance(value, np.generic):
        named = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"a {named} cannot be sent to another process")
    if not _NUMBERS.fullmatch(value.dtype.str):
        raise TypeError(f"an array of {value.dtype} cannot be sent to another process")
    held = base64.b64encode(value.tobytes()).decode()
    return kind, [value.dtype.str, list(value.shape), held]


def _unpack(told: object, seen: list) -> object:
    if isinstance(told, list):
        return [_unpack(part, seen) for part in told]
    if not isinstance(told, dict):
        return told
    ((kind, held),) = told.items()
    if kind == "again":
        return seen[held]
    if kind in _OF_TEXT:
        return _OF_TEXT[kind](held)
    if kind not in _OF_VALUES or not isinstance(held, list):
        raise MessageError(f"a message of another process has an unknown kind of value, '{kind}'")
    made = _OF_VALUES[kind](_unpack(held, seen))
    if kind == "object":
        seen.append(made)
    return made


def _make_dict(held: list) -> dict:
    # An object would be asked what it holds.
    if type(held) is not list or not all(type(pair) is list for pair in held):
        raise MessageError("a message of another process has no pairs in a dict")
    return dict(held)


def _make_partial(held: list) -> functools.partial:
    name, arguments, options = held
    if type(arguments) is not tuple or type(options) is not dict:
        raise MessageError(f"a message of another process has no arguments for {name}")
    return functools.partial(_find_function(name), *arguments, **options)


def _make_error(held: list) -> Exception:
    name, text = held
    kind = _find(name, CLASSES_OF, type)
    if not issubclass(kind, Exception):
        raise MessageError(f"a message of another process has {name} for an error")
    return Exception.__new__(kind, str(text))


def _make_object(held: list) -> object:
    """Field by field: no code of the class runs."""
    name, values = held[0], _make_dict(held[1])
    kind = _find(name, CLASSES_OF, type)
    fields = _fields(kind)
    if fields is None or {*fields} != {*values}:
        raise MessageError(
            f"a message of another process has the fields {', '.join(values)} for {name}, which "
            "has others here; run the same version of icl_jax on all hosts"
        )
    if issubclass(kind, tuple):
        return tuple.__new__(kind, [values[field] for field in fields])
    made = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(made, field, value)
    return made


def _make_array(held: list):
    import numpy as np

    dtype, shape, content = held
    if not _NUMBERS.fullmatch(dtype):
        raise MessageError(f"a message of another process has an array of '{dtype}'")
    content = base64.b64decode(content, validate=True)
    return np.frombuffer(content, dtype).reshape(shape).copy()  # what is in bytes cannot be changed


def _fields(kind: type) -> tuple[str, ...] | None:
    """Of a dataclass or a NamedTuple; None of any other class."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "_fields", None) if issubclass(kind, tuple) else None


def _name(thing: Callable, packages: tuple[str, ...]) -> str:
    """By which another process finds the same class or function."""
    name = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', repr(thing))}"
    try:
        found = _find(name, packages, object)
    except MessageError:
        found = None
    if found is not thing:
        raise TypeError(
            f"{name} cannot be sent to another process; expected what a module of "
            f"{', '.join(packages)} defines outside of functions and classes"
        )
    return name


def _find(name: str, packages: tuple[str, ...], kind: type) -> object:
    """What a module of these packages defines itself; nothing else is even imported."""
    module, _, own = str.partition(name, ":")
    inside = any(f"{module}.".startswith(f"{package}.") for package in packages)
    if not inside or not all(part.isidentifier() for part in (*module.split("."), own)):
        raise MessageError(
            f"a message of another process names '{name}'; expected one of {', '.join(packages)}"
        )
    found = vars(importlib.import_module(module)).get(own)
    origin = (getattr(found, "__module__", None), getattr(found, "__qualname__", None))
    if origin != (module, own) or not isinstance(found, kind):
        raise MessageError(
            f"a message of another process names '{name}', which that module does not define; run "
            "the same version of icl_jax on all hosts"
        )
    return found


def _find_function(name: str) -> Callable:
    return _find(name, FUNCTIONS_OF, types.FunctionType)


_OF_TEXT: dict[str, Callable] = {
    "bytes": functools.partial(base64.b64decode, validate=True),
    "path": Path,
    "epath": epath.Path,
    "function": _find_function,
    "error": _make_error,
    "array": _make_array,
    "number": lambda held: _make_array(held)[()],
}
_OF_VALUES: dict[str, Callable] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": _make_dict,
    "partial": _make_partial,
    "object": _make_object,
}
