"""Checkpoint -> parameters on their devices, one tensor at a time. Nothing is ever made up."""

import dataclasses
import pathlib
import warnings
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from rljax import sharding
from rljax.models import config, decoder, gguf, names
from rljax.models.config import DecoderConfig
from rljax.models.files import SafetensorsFiles, Source, read_json

# Buffers that old files hold beside the weights.
_BUFFERS = ("rotary_emb.inv_freq",)


def open_checkpoint(path: str | pathlib.Path) -> tuple[Source, dict[str, Any]]:
    """The tensors of an HF folder or .gguf file, and its (HF-like) config."""
    path = pathlib.Path(path)
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1 and not (path / "config.json").is_file():
            path = found[0]
    if path.suffix == ".gguf" and path.is_file():
        return gguf.open_gguf(path)
    if not path.is_dir():
        raise ValueError(f"no model at {path}: wants a folder with config.json, or a .gguf file")
    if not (path / "config.json").is_file():
        raise ValueError(f"{path} holds no config.json")
    return SafetensorsFiles(path), read_json(path / "config.json")


def generation_config(path: str | pathlib.Path | None) -> dict[str, Any] | None:
    """The checkpoint's `generation_config.json`, which is read for stop ids and never applied."""
    file = pathlib.Path(path or "") / "generation_config.json"
    return read_json(file) if path and file.is_file() else None


def load(path: str | pathlib.Path, *, mesh: Mesh | None = None, dtype=np.float32):
    """(params, cfg) of a causal language model, every leaf placed by its logical axes on `mesh`.

    The host holds the local shards of one leaf plus one tensor at a time. Missing, extra and
    misshapen tensors raise ValueError naming tensor and file.
    """
    source, hf = open_checkpoint(path)
    cfg = config.from_hf(hf)
    return _load_decoder(source, cfg, mesh, dtype, heads=()), cfg


def load_reward(path: str | pathlib.Path, *, mesh: Mesh | None = None, dtype=np.float32):
    """({"decoder", "head"}, cfg) of a reward, value-head or token-classification checkpoint.

    The head is `score` (...ForSequenceClassification, ...ForTokenClassification) or TRL's
    `v_head.summary`; its kernel is [D, labels], with a bias where the file has one.
    """
    source, hf = open_checkpoint(path)
    cfg = config.from_hf(hf)
    shapes = source.shapes()
    stems = [stem for stem in ("score", "v_head.summary") if f"{stem}.weight" in shapes]
    if len(stems) != 1:
        raise ValueError(
            f"{source.where} holds no score.weight or v_head.summary.weight to read as head"
        )
    (stem,) = stems
    labels = shapes[f"{stem}.weight"][0]
    rows = names.head_table(stem, cfg.embed, labels, f"{stem}.bias" in shapes)
    if stem == "score":  # these classes have no language-model head at all
        cfg = dataclasses.replace(cfg, tie_embedding=True)
    params = _load_decoder(source, cfg, mesh, dtype, heads=rows)
    head = {}
    for row in rows:
        _check(row.name, shapes, row.shape, source)
        head[row.path[-1]] = _place([row.name], row, source, (None,) * len(row.load(
            np.empty(row.shape)).shape), mesh, np.float32)  # fmt: skip
    return {"decoder": params, "head": head}, cfg


def _load_decoder(source: Source, cfg: DecoderConfig, mesh, dtype, heads) -> decoder.Params:
    shapes = source.shapes()
    rows = names.table(cfg)
    wanted = {name: row.shape for row in rows for name in row.names(cfg.layers)}
    for name, shape in wanted.items():
        _check(name, shapes, shape, source)
    known = set(wanted) | {row.name for row in heads}
    extra = [n for n in shapes if n not in known and not n.endswith(_BUFFERS)]
    if cfg.tie_embedding and "lm_head.weight" in extra:
        _check_tied(source)
        extra.remove("lm_head.weight")
    if extra:
        raise ValueError(
            f"{source.where}: {len(extra)} tensors that {cfg.family} does not have, e.g. {extra[0]}"
        )
    axes = decoder.logical_axes(cfg)
    params: dict[str, Any] = {}
    for row in rows:
        node, leaf_axes = params, axes
        for key in row.path[:-1]:
            node, leaf_axes = node.setdefault(key, {}), leaf_axes[key]
        leaf = row.path[-1]
        node[leaf] = _place(row.names(cfg.layers), row, source, leaf_axes[leaf], mesh, dtype)
    return params


def _check(name: str, shapes, shape: tuple[int, ...], source: Source) -> None:
    if name not in shapes:
        raise ValueError(f"{source.where}: tensor {name} is missing")
    if tuple(shapes[name]) != shape:
        raise ValueError(f"{source.where}: tensor {name} is {tuple(shapes[name])}, wants {shape}")


def _check_tied(source: Source) -> None:
    head, embed = source.read("lm_head.weight"), source.read("model.embed_tokens.weight")
    if not np.array_equal(head, embed):
        raise ValueError(
            f"{source.where}: tie_word_embeddings is true, yet lm_head.weight differs from "
            f"model.embed_tokens.weight; set tie_word_embeddings to false to keep both"
        )


def _place(files: list[str], row: names.Tensor, source: Source, axes, mesh, dtype) -> jax.Array:
    """One leaf, stacked over `files` where it has one tensor a layer, cut into device shards."""
    shape = row.load(np.empty(row.shape, np.uint8)).shape
    shape = (len(files), *shape) if row.per_layer else shape
    if mesh is None:
        placement = SingleDeviceSharding(jax.local_devices()[0])
    else:
        placement = sharding.named(mesh, axes, shape)
    where = placement.addressable_devices_indices_map(shape)
    buffers: dict[tuple, np.ndarray] = {}
    for n, file in enumerate(files):
        tensor = row.load(source.read(file))
        _warn_not_finite(file, tensor, source)
        for index in where.values():
            spans = tuple(s.indices(size)[:2] for s, size in zip(index, shape))
            if spans not in buffers:
                buffers[spans] = np.empty([stop - start for start, stop in spans], dtype)
            if not row.per_layer:
                buffers[spans][...] = tensor[index]
            elif spans[0][0] <= n < spans[0][1]:
                buffers[spans][n - spans[0][0]] = tensor[index[1:]]
    shards = [
        jax.device_put(buffers[tuple(s.indices(size)[:2] for s, size in zip(index, shape))], device)
        for device, index in where.items()
    ]
    return jax.make_array_from_single_device_arrays(shape, placement, shards)


def _warn_not_finite(name: str, tensor: np.ndarray, source: Source) -> None:
    bad = int(np.size(tensor) - np.count_nonzero(np.isfinite(tensor)))
    if bad:
        warnings.warn(f"{source.where}: {name} holds {bad} NaN or infinite values", stacklevel=2)
