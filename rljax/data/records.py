"""Rows of a dataset as dicts, from JSONL, a prepared array_record folder or a `datasets` folder."""

import gzip
import json
import pathlib
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def read(source: str | pathlib.Path, *, split: str = "train") -> Sequence[Row]:
    """Random-access rows of `source`; ValueError naming file and line when it cannot be read.

    A .jsonl or .jsonl.gz file; a folder written by `rljax prepare` (TFDS array_record, read
    without TensorFlow); or a folder of `datasets.save_to_disk`.
    """
    path = pathlib.Path(source)
    if path.is_file():
        rows: Sequence[Row] = _read_jsonl(path)
    elif (path / "features.json").is_file():
        rows = _ArrayRecords(path, split)
    elif (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        rows = _read_datasets(path, split)
    elif path.exists():
        raise ValueError(
            f"{path}: not a dataset; wants .jsonl, .jsonl.gz, a folder of `rljax prepare` "
            f"(features.json) or of datasets.save_to_disk (state.json)"
        )
    else:
        raise ValueError(f"no dataset at {path}")
    if not len(rows):
        raise ValueError(f"{path} holds no rows")
    return rows


def _read_jsonl(path: pathlib.Path) -> list[Row]:
    if not path.name.endswith((".jsonl", ".jsonl.gz", ".json", ".json.gz")):
        raise ValueError(f"{path}: wants .jsonl or .jsonl.gz")
    opener = gzip.open if path.suffix == ".gz" else open
    rows = []
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path} line {number} is not valid JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path} line {number} is a {type(row).__name__}; wants an object")
            rows.append(row)
    return rows


class _ArrayRecords(Sequence):
    """A TFDS data source whose bytes are text and whose JSON columns are decoded."""

    def __init__(self, path: pathlib.Path, split: str):
        import tensorflow_datasets as tfds  # heavy: only for this format

        builder = tfds.builder_from_directory(str(path))
        if split not in builder.info.splits:
            raise ValueError(f"{path} has splits {sorted(builder.info.splits)}, not {split!r}")
        self._source = builder.as_data_source(split)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(index)  # what ends a `for` over a Sequence
        return decode_row(self._source[index])


JSON_SUFFIX = "__json"
"""Columns of lists and dicts are stored as JSON text under their name with this suffix."""


def encode_row(row: Row) -> dict[str, str]:
    """Flat text columns that `decode_row` turns back; strings stay readable as they are."""
    return {
        name if isinstance(value, str) else name + JSON_SUFFIX: value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
        for name, value in row.items()
    }


def decode_row(row: dict[str, Any]) -> Row:
    out = {}
    for name, value in row.items():
        value = value.decode() if isinstance(value, bytes) else value
        if name.endswith(JSON_SUFFIX):
            name, value = name.removesuffix(JSON_SUFFIX), json.loads(value)
        out[name] = value
    return out


def _read_datasets(path: pathlib.Path, split: str) -> Sequence[Row]:
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError as error:
        raise ValueError(
            f"{path} needs the package `datasets`: pip install 'rljax[datasets]'"
        ) from error
    data = load_from_disk(str(path))
    if isinstance(data, DatasetDict):
        if split not in data:
            raise ValueError(f"{path} has splits {sorted(data)}, not {split!r}")
        data = data[split]
    return _Columns(data)


class _Columns(Sequence):
    """A `datasets.Dataset` as rows by index."""

    def __init__(self, data):
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._data[index]
