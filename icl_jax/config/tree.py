"""Functions on any tree of config dataclasses: check it, write it as JSON, compare two."""

import dataclasses
import types
import typing

from icl_jax import config as config_classes
from icl_jax.config import ConfigError


def validate(config: object) -> None:
    """Raises one ConfigError that lists everything wrong with `config` and its nested parts."""
    found = find_problems(config)
    if found:
        raise ConfigError("; ".join(found))


def find_problems(config: object) -> list[str]:
    """Everything wrong with `config` and its nested parts."""
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"expected a config of icl_jax.config, got {config!r}")
    return type_problems(config) or _nested_problems(config, "")  # these compute with values


def to_dict(config: object) -> dict:
    """The config as plain JSON values; `class` names the dataclass of each part."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = {
        name: to_dict(value) if dataclasses.is_dataclass(value) else _as_lists(value)
        for name, value in values.items()
    }
    return {"class": type(config).__name__, **plain}


def from_dict(values: dict) -> object:
    """The config that `to_dict` wrote; fields that are missing have their defaults."""
    values = dict(values)
    name = values.pop("class")
    cls = getattr(config_classes, name, None)
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"unknown config class '{name}'; was this written by a later version?")
    unknown = values.keys() - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        raise ConfigError(
            f"{name} has no field {', '.join(sorted(unknown))}; was it written by a later version?"
        )
    parts = {
        key: from_dict(value) if isinstance(value, dict) else _as_tuples(value)
        for key, value in values.items()
    }
    return cls(**parts)


def differences(theirs: dict, ours: dict, prefix: str = "") -> list[str]:
    """`field: value there, value here` of every field in which two dict forms differ."""
    found = []
    for name in [*theirs, *(name for name in ours if name not in theirs)]:
        there, here = theirs.get(name, "absent"), ours.get(name, "absent")
        if isinstance(there, dict) and isinstance(here, dict):
            found += differences(there, here, f"{prefix}{name}.")
        elif there != here:
            found.append(f"{prefix}{name}: {there!r} there, {here!r} here")
    return found


def _as_lists(value: object) -> object:
    return [_as_lists(part) for part in value] if isinstance(value, tuple) else value


def _as_tuples(value: object) -> object:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, list) else value


def type_problems(config: object, prefix: str = "") -> list[str]:
    """Fields with values of the wrong type, which no other check can compute with."""
    found = []
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value, expected = prefix + field.name, getattr(config, field.name), hints[field.name]
        if not _is_of_type(value, expected):
            found.append(f"{name} must be {_type_name(expected)}, got {value!r}")
        elif dataclasses.is_dataclass(value):
            found += type_problems(value, name + ".")
    return found


def _is_of_type(value: object, expected: object) -> bool:
    if typing.get_origin(expected) in (typing.Union, types.UnionType):
        return any(_is_of_type(value, option) for option in typing.get_args(expected))
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if typing.get_origin(expected) is tuple:
        parts = typing.get_args(expected)
        if not isinstance(value, tuple):
            return False
        if parts[-1] is Ellipsis:
            return all(_is_of_type(item, parts[0]) for item in value)
        return len(value) == len(parts) and all(map(_is_of_type, value, parts))
    return isinstance(value, expected)


def _type_name(expected: object) -> str:
    if typing.get_origin(expected) is tuple:
        return str(expected)
    options = typing.get_args(expected) or (expected,)
    return " or ".join("None" if o is types.NoneType else o.__name__ for o in options)


def _nested_problems(config: object, prefix: str) -> list[str]:
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            found += _nested_problems(value, f"{prefix}{field.name}.")
    return found + [prefix + problem for problem in config.problems()]
