"""Typed configuration: frozen dataclasses, filled from YAML, then from `a.b=value`."""

import dataclasses
import difflib
import pathlib
import types
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml

T = TypeVar("T")


class ConfigError(ValueError):
    """A value that the user can mend; its text names the field and what would be right."""


def load(cls: type[T], path: str | pathlib.Path, overrides: Sequence[str] = ()) -> T:
    """Read YAML at `path` into `cls`; each `a.b=value` of `overrides` replaces a field."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise ConfigError(f"no config file at {path}")
    try:
        tree = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}; wants `field: value` lines")
    for item in overrides:
        _override(tree, item)
    return build(cls, tree)


def _override(tree: dict[str, Any], item: str) -> None:
    dotted, sep, text = item.partition("=")
    if not sep or not dotted:
        raise ConfigError(f"override {item!r} is not of the form a.b=value")
    *parents, leaf = dotted.split(".")
    node = tree
    for depth, name in enumerate(parents):
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            raise ConfigError(f"override {item!r}: {'.'.join(parents[: depth + 1])} has no fields")
    node[leaf] = yaml.safe_load(text)


def build(cls: type[T], tree: Any, where: str = "") -> T:
    """Make `cls` from nested dicts. Unknown, missing or ill-typed fields are errors."""
    if not isinstance(tree, dict):
        raise ConfigError(f"{where.rstrip('.')}={tree!r}; wants the fields of {cls.__name__}")
    hints = typing.get_type_hints(cls)
    for name in tree:
        if name not in hints:
            near = difflib.get_close_matches(str(name), hints, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(hints)}"
            raise ConfigError(f"unknown field {where}{name}; {hint}")
    kwargs = {name: coerce(hints[name], value, where + name) for name, value in tree.items()}
    for field in dataclasses.fields(cls):
        if (
            field.name not in kwargs
            and field.default is field.default_factory is dataclasses.MISSING
        ):
            raise ConfigError(f"missing field {where}{field.name}")
    try:
        return cls(**kwargs)
    except ConfigError as error:  # raised by __post_init__, which does not know where it stands
        raise ConfigError(f"{where}{error}") from None


def coerce(kind: Any, value: Any, where: str) -> Any:
    """Check `value` against the annotation `kind`; `where` is its dotted name."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return build(kind, value, where + ".")
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _coerce_union(args, value, where)
    if origin is typing.Literal:
        if value not in args:
            raise ConfigError(f"{where}={value!r}; choose one of {', '.join(map(repr, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}={value!r}; wants a list")
        kinds = [args[0]] * len(value) if args[-1] is ... else args
        if len(kinds) != len(value):
            raise ConfigError(f"{where}={value!r}; wants {len(kinds)} values")
        return tuple(coerce(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value)))
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}={value!r}; wants `name: value` lines")
        return {
            coerce(args[0], k, where): coerce(args[1], v, f"{where}.{k}") for k, v in value.items()
        }
    return _coerce_scalar(kind, value, where)


def _coerce_union(args: tuple, value: Any, where: str) -> Any:
    if value is None and type(None) in args:
        return None
    errors = []
    for kind in args:
        if kind is not type(None):
            try:
                return coerce(kind, value, where)
            except ConfigError as error:
                errors.append(error)
    raise errors[0]


def _coerce_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)  # YAML 1.1 reads 1e-6 as a string
        except ValueError:
            pass
    if type(value) is not kind:
        raise ConfigError(f"{where}={value!r} is {type(value).__name__}, wants {kind.__name__}")
    return value


def to_dict(config: Any) -> dict[str, Any]:
    """The nested dict that `build` would read back: plain lists, no tuples."""
    return _plain(dataclasses.asdict(config))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def dump(config: Any) -> str:
    """The resolved configuration as YAML, every field written out."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
