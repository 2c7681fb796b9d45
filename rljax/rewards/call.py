"""Reward functions of the user: found by name, called with what they ask for, and checked."""

import importlib
import importlib.util
import inspect
import math
import numbers
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

RewardFn = Callable[..., Sequence[float | None]]
"""TRL's signature: `fn(prompts, completions, **columns) -> list of a number or None per row`."""


def load_function(name: str) -> RewardFn:
    """`pkg.module.fn`, or `path/to/file.py:fn`. ValueError naming what is missing."""
    if ":" in name:
        file, _, attribute = name.rpartition(":")
        path = pathlib.Path(file)
        if not path.is_file():
            raise ValueError(f"reward {name}: no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module_name, _, attribute = name.rpartition(".")
        try:
            module = importlib.import_module(module_name)
        except (ImportError, ValueError) as error:
            raise ValueError(f"reward {name}: cannot import {module_name!r} ({error})") from error
    fn = getattr(module, attribute, None)
    if not callable(fn):
        raise ValueError(f"reward {name}: {module.__name__} has no function {attribute!r}")
    return fn


def check_signature(name: str, fn: RewardFn, columns: Sequence[str]) -> None:
    """ValueError at the start of a run when `fn` asks for a column that the data lacks."""
    known = {"prompts", "completions", "completion_ids", *columns}
    for parameter in inspect.signature(fn).parameters.values():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and parameter.name not in known:
            raise ValueError(
                f"reward {name} asks for {parameter.name!r}; the data has "
                f"{', '.join(sorted(known))}"
            )


def score(
    functions: Mapping[str, RewardFn],
    *,
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]],
    columns: Mapping[str, Sequence[Any]],
) -> np.ndarray:
    """Rewards float64 [rows, functions]; NaN where a function said None: not applicable.

    A function gets the arguments that its signature names (all, if it takes **kwargs). ValueError
    naming function, row and completion when it raises, returns the wrong count, NaN or no number.
    """
    offered = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids}
    offered |= columns
    out = [_call(name, fn, offered, completions) for name, fn in functions.items()]
    return np.asarray(out, np.float64).T


def _call(name: str, fn: RewardFn, offered: Mapping[str, Any], completions) -> list[float]:
    parameters = inspect.signature(fn).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = offered
    else:
        arguments = {key: value for key, value in offered.items() if key in parameters}
    try:
        values = fn(**arguments)
    except Exception as error:
        raise ValueError(f"reward {name} raised {type(error).__name__}: {error}") from error
    if values is None or not hasattr(values, "__len__"):
        raise ValueError(f"reward {name} returned {values!r}; wants a list of {len(completions)}")
    if len(values) != len(completions):
        raise ValueError(f"reward {name} returned {len(values)} values for {len(completions)} rows")
    return [_number(name, row, value, completions[row]) for row, value in enumerate(values)]


def _number(name: str, row: int, value: Any, completion: Any) -> float:
    if value is None:
        return math.nan
    number = isinstance(value, numbers.Real | np.number | np.bool_)
    if not number or not math.isfinite(value):
        raise ValueError(
            f"reward {name} gave {value!r} for row {row} (completion {str(completion)[:60]!r}); "
            f"wants a finite number, or None for not applicable"
        )
    return float(value)


def combine(rewards: np.ndarray, weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """(scores [rows], applicable [rows]): the weighted sum of those that apply.

    A row that no function applies to scores 0 and must carry no weight in the loss.
    """
    total = np.nansum(rewards * np.asarray(weights)[None, :], axis=1)
    return total, ~np.isnan(rewards).all(axis=1)
