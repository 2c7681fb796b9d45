"""GGUF files: quantised tensors of the llama.cpp family, dequantised one at a time."""

import pathlib
import re
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from gguf.constants import Keys

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
ARCHITECTURES = ("llama", "qwen2")


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None for `rope_freqs`, which the config says."""
    if name == "rope_freqs.weight":
        return None
    if name in _NAMES:
        return _NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER:
        raise ValueError(f"GGUF tensor {name} is not known")
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"


class GgufTensors:
    """The tensors of one file under their Hugging Face names, fp32."""

    def __init__(self, path: pathlib.Path, reader: GGUFReader, heads: dict[str, int]):
        self.where = str(path)
        self._tensors = {hf_name(t.name): t for t in reader.tensors if hf_name(t.name) is not None}
        self._heads = heads  # llama.cpp permutes q and k of its `llama` architecture

    def shapes(self) -> dict[str, tuple[int, ...]]:
        # GGUF lists dimensions fastest first.
        return {name: tuple(int(d) for d in reversed(t.shape)) for name, t in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        tensor = self._tensors[name]
        x = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        x = x.reshape(self.shapes()[name])
        for part, heads in self._heads.items():
            if f".{part}." in name:
                x = _unpermute(x, heads)
        return x


def _unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k projection from llama.cpp's interleaved pairs to HF's half-split ones."""
    pairs = w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:])
    return pairs.swapaxes(1, 2).reshape(w.shape)


def open_gguf(path: pathlib.Path) -> tuple[GgufTensors, dict[str, Any]]:
    """The tensors of a .gguf file and the `config.json` that would describe them."""
    try:
        reader = GGUFReader(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a whole GGUF file ({error})") from error
    field = lambda key: reader.fields[key].contents() if key in reader.fields else None
    arch = field(Keys.General.ARCHITECTURE)
    if arch not in ARCHITECTURES:
        raise ValueError(f"{path}: GGUF architecture {arch!r} is not one of {ARCHITECTURES}")
    hf = _config(arch, field, path)
    hf["vocab_size"] = int(
        next(t for t in reader.tensors if t.name == "token_embd.weight").shape[1]
    )
    hf["tie_word_embeddings"] = not any(t.name == "output.weight" for t in reader.tensors)
    heads = {"q_proj": hf["num_attention_heads"], "k_proj": hf["num_key_value_heads"]}
    return GgufTensors(path, reader, heads if arch == "llama" else {}), hf


def _config(arch: str, field, path: pathlib.Path) -> dict[str, Any]:
    def need(key: str):
        value = field(f"{arch}.{key}")
        if value is None:
            raise ValueError(f"{path}: GGUF metadata lacks {arch}.{key}")
        return value

    scaling = field(f"{arch}.rope.scaling.type")
    if scaling not in (None, "none"):
        raise ValueError(f"{path}: GGUF rope scaling {scaling!r} is not supported")
    heads = int(need("attention.head_count"))
    hf = {
        "model_type": arch,
        "hidden_size": int(need("embedding_length")),
        "intermediate_size": int(need("feed_forward_length")),
        "num_hidden_layers": int(need("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(field(f"{arch}.attention.head_count_kv") or heads),
        # Stored as float32: 1e-5 reads 9.99999974e-06.
        "rms_norm_eps": float(f"{need('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(field(f"{arch}.rope.freq_base") or 1e4),
        "max_position_embeddings": int(need("context_length")),
        "hidden_act": "silu",
    }
    if (size := field(f"{arch}.attention.key_length")) is not None:
        hf["head_dim"] = int(size)
    for theirs, ours in {
        "bos": "bos_token_id",
        "eos": "eos_token_id",
        "padding": "pad_token_id",
    }.items():
        if (value := field(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            hf[ours] = int(value)
    return hf
