"""JSONL -> a TFDS dataset of array_record files, for fast random access without TensorFlow."""

import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Literal

from rljax.data import records, rows
from rljax.data.records import Row

Format = Literal["columns", "hh"]


def prepare(source: str, output: str, *, format: Format = "columns") -> int:
    """Write the rows of `source` as split `train` of a dataset in `output`; returns their count.

    `columns` keeps every row as it is; `hh` turns HH-RLHF dialogues into prompt, chosen and
    rejected messages. All rows must have the same columns. `output` must be empty or absent; it
    appears only when it is complete.
    """
    out = pathlib.Path(output)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty; name a new folder")
    data = [
        _converted(row, format, f"{source} row {i}") for i, row in enumerate(records.read(source))
    ]
    flat = [records.encode_row(row) for row in data]
    for i, row in enumerate(flat):
        if set(row) != set(flat[0]):
            odd = sorted(set(row) ^ set(flat[0]))[0].removesuffix(records.JSON_SUFFIX)
            raise ValueError(
                f"{source} row {i}: column {odd!r} is missing, or of another type, in some rows"
            )
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        written = _write(flat, scratch)
        if out.exists():
            out.rmdir()
        shutil.move(written, out)
    return len(flat)


def _converted(row: Row, format: Format, where: str) -> Row:
    if format == "columns":
        return row
    example = rows.normalise(row, "preference", where=where)
    if not isinstance(example.prompt, str):
        raise ValueError(f"{where}: --format hh wants dialogues as text, not messages")
    answer = lambda text: [{"role": "assistant", "content": text.strip()}]
    return {
        "prompt": rows.dialogue_messages(example.prompt),
        "chosen": answer(example.chosen),
        "rejected": answer(example.rejected),
    }


def _write(flat: Sequence[dict[str, str]], folder: str) -> str:
    import tensorflow_datasets as tfds  # heavy: only here and for reading

    # A builder of this call alone: the catalogue of dataset names is not ours to fill.
    with tfds.core.registered.skip_registration():

        class Rows(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")

            def _info(self):
                text = {name: tfds.features.Text() for name in flat[0]}
                # Rows keep their order: shuffling belongs to training, where it has a seed.
                return tfds.core.DatasetInfo(
                    builder=self, features=tfds.features.FeaturesDict(text), disable_shuffling=True
                )

            def _split_generators(self, dl_manager):
                return {"train": enumerate(flat)}

            def _generate_examples(self):
                raise NotImplementedError  # every split brings its own generator

    builder = Rows(data_dir=folder, file_format="array_record")
    builder.download_and_prepare()
    return str(builder.data_path)
