"""What a decoder is: every switch on which the supported families differ."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary position embedding: base and, where a checkpoint stretches its context, the rule."""

    theta: float = 1e4
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_length: int = 8192  # llama3


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder-only transformer. Defaults are Llama's; a family sets what it changes."""

    family: str = "llama"  # the `model_type` of its Hugging Face config
    vocab: int
    embed: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float = 1e-6
    rope: Rope = Rope()
    tie_embedding: bool = False
    activation: Literal["silu"] = "silu"
    qkv_bias: bool = False  # qwen2, llama with attention_bias
    o_bias: bool = False  # llama with attention_bias
    mlp_bias: bool = False  # llama with mlp_bias
    window: int | None = None  # mistral: keys i-window+1 … i
    max_length: int = 2048  # positions the checkpoint was trained for; nothing is cut by it

    def __post_init__(self):
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not divide over {self.kv_heads} kv heads")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary embedding needs pairs")


FAMILIES = ("llama", "mistral", "qwen2")

_RENAMED = {
    "vocab_size": "vocab",
    "hidden_size": "embed",
    "intermediate_size": "mlp",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "rms_norm_eps": "norm_eps",
}

# Says nothing about the forward pass of a trained decoder in evaluation mode.
_SILENT = frozenset(
    [
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bad_words_ids",
        "bos_token_id",
        "chunk_size_feed_forward",
        "classifier_dropout",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "is_decoder",
        "label2id",
        "model_type",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "return_dict_in_generate",
        "sep_token_id",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "_attn_implementation",
        "transformers.js_config",
    ]
)

_DEFAULTS = {  # of transformers' config classes, for keys that a checkpoint may leave out
    "llama": {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"},
    "mistral": {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"},
    "qwen2": {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"},
}


def from_hf(hf: dict[str, Any]) -> DecoderConfig:
    """Read a Hugging Face `config.json`. A field it does not know is an error, never a default."""
    family = hf.get("model_type")
    if "auto_map" in hf:
        raise ValueError(
            f"config.json: auto_map asks to run the checkpoint's own code, which rljax never does; "
            f"model_type {family!r} must be one of {', '.join(FAMILIES)}"
        )
    if family not in FAMILIES:
        raise ValueError(
            f"config.json: model_type {family!r} is not supported; choose among "
            f"{', '.join(FAMILIES)}"
        )
    hf = _DEFAULTS[family] | hf
    missing = [name for name in _RENAMED if hf.get(name) is None]
    if missing:
        raise ValueError(f"config.json: {family} needs {', '.join(missing)}")
    kw = {ours: hf.pop(theirs) for theirs, ours in _RENAMED.items()}
    kw["kv_heads"] = hf.pop("num_key_value_heads", None) or kw["heads"]
    kw["head_dim"] = hf.pop("head_dim", None) or kw["embed"] // kw["heads"]
    kw["rope"] = _read_rope(hf)
    kw["tie_embedding"] = hf.pop("tie_word_embeddings")
    kw["max_length"] = hf.pop("max_position_embeddings", 2048)
    if (act := hf.pop("hidden_act")) != "silu":
        raise ValueError(
            f"config.json: hidden_act {act!r} is not supported for {family}; wants 'silu'"
        )
    kw |= _read_switches(family, hf, kw["layers"])
    left = {name: value for name, value in hf.items() if name not in _SILENT}
    if left:
        raise ValueError(f"config.json: fields of {family} that rljax does not read: {left}")
    return DecoderConfig(family=family, **kw)


def _read_switches(family: str, hf: dict[str, Any], layers: int) -> dict[str, Any]:
    """The switches in which the families differ; pops what it reads."""
    if family == "llama":
        bias = hf.pop("attention_bias", False)
        return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": hf.pop("mlp_bias", False)}
    window = hf.pop("sliding_window", None)
    kinds = hf.pop("layer_types", None)
    if family == "mistral":
        return {"window": window}
    windowed = hf.pop("use_sliding_window", False)
    first = hf.pop("max_window_layers", None)
    if kinds is not None:
        windowed = "sliding_attention" in kinds
    elif windowed and first is not None and first >= layers:
        windowed = False
    if windowed and window is not None:
        raise ValueError(f"config.json: use_sliding_window of {family} is not supported yet")
    return {"qkv_bias": True}


def _read_rope(hf: dict[str, Any]) -> Rope:
    """Both dialects: `rope_theta` + `rope_scaling`, and `rope_parameters`."""
    given = dict(hf.pop("rope_scaling", None) or {}) | dict(hf.pop("rope_parameters", None) or {})
    theta = hf.pop("rope_theta", None)
    theta = given.pop("rope_theta", theta)
    kinds = {given.pop(name) for name in ("rope_type", "type") if name in given} or {"default"}
    if len(kinds) > 1:
        raise ValueError(f"config.json: rope_scaling names two types, {sorted(kinds)}")
    (kind,) = kinds
    kw: dict[str, Any] = {"theta": 1e4 if theta is None else float(theta), "kind": kind}
    wants = {
        "default": (),
        "linear": ("factor",),
        "llama3": (
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        ),
    }
    if kind not in wants:
        raise ValueError(
            f"config.json: rope type {kind!r} is not supported; choose among {list(wants)}"
        )
    for name in wants[kind]:
        if name not in given:
            raise ValueError(f"config.json: rope type {kind!r} needs {name}")
        kw[name] = given.pop(name)
    if "original_max_position_embeddings" in kw:
        kw["original_length"] = kw.pop("original_max_position_embeddings")
    if given:
        raise ValueError(f"config.json: rope type {kind!r} does not read {given}")
    return Rope(**kw)
