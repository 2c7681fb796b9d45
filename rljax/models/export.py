"""Parameters -> a folder that transformers loads: the import's name table, backwards."""

import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, Literal

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from rljax.models import decoder, names
from rljax.models.config import DecoderConfig
from rljax.models.files import INDEX

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def export(
    params: decoder.Params,
    cfg: DecoderConfig,
    out: str | pathlib.Path,
    *,
    tokenizer: Any = None,
    generation_config: dict[str, Any] | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    max_shard_bytes: int = 5 * 10**9,
) -> pathlib.Path:
    """Write config, safetensors (sharded with an index above `max_shard_bytes`) and tokenizer.

    The folder appears only when it is complete, and replaces an earlier export; any other
    non-empty folder is refused. One file's tensors are on the host at a time.
    """
    out = pathlib.Path(out)
    if out.exists() and any(out.iterdir()) and not (out / "config.json").is_file():
        raise ValueError(f"{out} is not empty and holds no export; name a new folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        _write_weights(params, cfg, scratch, DTYPES[dtype], max_shard_bytes)
        config = to_hf(cfg) | {"dtype": dtype} | _special_ids(tokenizer)
        _write_json(scratch / "config.json", config)
        if tokenizer is not None:
            tokenizer.save_pretrained(str(scratch))
            generation_config = generation_config or _special_ids(tokenizer)
        if generation_config:
            _write_json(scratch / "generation_config.json", generation_config)
        if out.exists():
            shutil.rmtree(out)
        scratch.chmod(0o755)  # mkdtemp's is for its owner alone
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return out


def to_hf(cfg: DecoderConfig) -> dict[str, Any]:
    """The `config.json` of `cfg`, with rope in both the old and the new spelling."""
    hf: dict[str, Any] = {
        "architectures": [CLASSES[cfg.family]],
        "model_type": cfg.family,
        "vocab_size": cfg.vocab,
        "hidden_size": cfg.embed,
        "intermediate_size": cfg.mlp,
        "num_hidden_layers": cfg.layers,
        "num_attention_heads": cfg.heads,
        "num_key_value_heads": cfg.kv_heads,
        "head_dim": cfg.head_dim,
        "rms_norm_eps": cfg.norm_eps,
        "hidden_act": cfg.activation,
        "max_position_embeddings": cfg.max_length,
        "tie_word_embeddings": cfg.tie_embedding,
    }
    if cfg.family == "llama":
        hf |= {"attention_bias": cfg.qkv_bias, "mlp_bias": cfg.mlp_bias}
    elif cfg.family == "mistral":
        hf["sliding_window"] = cfg.window
    elif cfg.family == "qwen2":
        hf["use_sliding_window"] = False
    scaling: dict[str, Any] = {"rope_type": cfg.rope.kind}
    if cfg.rope.kind != "default":
        scaling["factor"] = cfg.rope.factor
    if cfg.rope.kind == "llama3":
        scaling |= {
            "low_freq_factor": cfg.rope.low_freq_factor,
            "high_freq_factor": cfg.rope.high_freq_factor,
            "original_max_position_embeddings": cfg.rope.original_length,
        }
    hf["rope_theta"] = cfg.rope.theta
    hf["rope_scaling"] = None if cfg.rope.kind == "default" else scaling
    hf["rope_parameters"] = scaling | {"rope_theta": cfg.rope.theta}
    return hf


def _special_ids(tokenizer: Any) -> dict[str, int]:
    ids = {
        name: getattr(tokenizer, name, None)
        for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    return {name: value for name, value in ids.items() if value is not None}


def _write_json(path: pathlib.Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _tensors(params: decoder.Params, cfg: DecoderConfig, dtype) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor under its Hugging Face name, one at a time; added vocabulary rows trimmed."""
    for row in names.table(cfg):
        leaf = params
        for key in row.path:
            leaf = leaf[key]
        for n, name in enumerate(row.names(cfg.layers)):
            x = jax.device_get(leaf[n] if row.per_layer else leaf)
            if name in ("model.embed_tokens.weight",):
                x = x[: cfg.vocab]
            elif name == "lm_head.weight":
                x = x[:, : cfg.vocab]
            yield name, np.ascontiguousarray(row.save(np.asarray(x))).astype(dtype)


def _write_weights(params, cfg, folder: pathlib.Path, dtype, limit: int) -> None:
    shards: list[list[str]] = []
    total, held, pending = 0, 0, {}

    def flush():
        nonlocal held, pending
        if pending:
            shards.append(list(pending))
            save_file(pending, folder / f"part-{len(shards)}", metadata={"format": "pt"})
            held, pending = 0, {}

    for name, x in _tensors(params, cfg, dtype):
        if pending and held + x.nbytes > limit:
            flush()
        pending[name], held, total = x, held + x.nbytes, total + x.nbytes
    flush()
    if len(shards) == 1:
        (folder / "part-1").rename(folder / "model.safetensors")
        return
    weight_map = {}
    for i, tensors in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        (folder / f"part-{i}").rename(folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
