"""Tensors of a checkpoint folder, read one at a time: safetensors, sharded safetensors or GGUF."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import ml_dtypes  # noqa: F401  (numpy learns bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open

INDEX = "model.safetensors.index.json"


@runtime_checkable
class Source(Protocol):
    """What `load` needs of a file format."""

    where: str  # for error messages

    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str) -> np.ndarray: ...


def read_json(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


class SafetensorsFiles:
    """One or several .safetensors files, memory-mapped; tensors are read on demand."""

    def __init__(self, folder: pathlib.Path):
        self.where = str(folder)
        files = _weight_files(folder)
        self._home: dict[str, Any] = {}
        for path, names in files.items():
            handle = _open(path)
            held = set(handle.keys())
            for name in held if names is None else names:
                if name not in held:
                    raise ValueError(
                        f"{folder / INDEX} places {name} in {path.name}, which lacks it"
                    )
                if name in self._home:
                    raise ValueError(f"{folder}: tensor {name} is stored in two files")
                self._home[name] = handle

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(f.get_slice(name).get_shape()) for name, f in self._home.items()}

    def read(self, name: str) -> np.ndarray:
        return self._home[name].get_tensor(name)


def _open(path: pathlib.Path):
    try:
        return safe_open(path, "np")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({error}); copy it again"
        ) from error


def _weight_files(folder: pathlib.Path) -> dict[pathlib.Path, list[str] | None]:
    """The files of a folder and, with an index, the tensors each must hold."""
    index, single = folder / INDEX, folder / "model.safetensors"
    if index.is_file():
        files: dict[pathlib.Path, list[str] | None] = {}
        for name, file in read_json(index)["weight_map"].items():
            files.setdefault(folder / file, []).append(name)
        absent = sorted(path.name for path in files if not path.is_file())
        if absent:
            raise ValueError(f"{index} names {', '.join(absent)}, which {folder} lacks")
        return files
    if single.is_file():
        return {single: None}
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    if shards:
        raise ValueError(f"{folder} holds {', '.join(shards[:3])} but no {INDEX}; copy it too")
    pickles = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for path in folder.glob("*.pt*")
    )
    if pickles:
        raise ValueError(
            f"{folder} holds only torch pickles ({pickles[0]}), which can run code when opened and "
            f"are refused; save it as model.safetensors"
        )
    raise ValueError(
        f"{folder} holds no weights: wants model.safetensors, shards with {INDEX}, or a .gguf"
    )
