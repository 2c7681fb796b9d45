"""Which Hugging Face tensor is which of our leaves: one table, read by import and by export."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from rljax.models.config import DecoderConfig

Transform = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One HF tensor (one per layer where the name holds `{n}`) and the way there and back."""

    name: str
    path: tuple[str, ...]
    shape: tuple[int, ...]  # in the file
    load: Transform  # file layout -> ours
    save: Transform  # ours -> file layout

    @property
    def per_layer(self) -> bool:
        return "{n}" in self.name

    def names(self, layers: int) -> list[str]:
        return [self.name.format(n=n) for n in range(layers)] if self.per_layer else [self.name]


def _same(x: np.ndarray) -> np.ndarray:
    return x


def vector(name: str, path: tuple[str, ...], *shape: int) -> Tensor:
    """A norm scale or a flat bias, stored as it is."""
    return Tensor(name, path, shape, _same, _same)


def linear(name: str, path: tuple[str, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]):
    """nn.Linear [out, in] -> kernel [*inputs, *outputs]."""
    n_in, n_out = int(np.prod(inputs)), int(np.prod(outputs))
    return Tensor(
        name,
        path,
        (n_out, n_in),
        lambda w: w.T.reshape(*inputs, *outputs),
        lambda kernel: kernel.reshape(n_in, n_out).T,
    )


def bias(name: str, path: tuple[str, ...], outputs: tuple[int, ...]) -> Tensor:
    n_out = int(np.prod(outputs))
    return Tensor(name, path, (n_out,), lambda b: b.reshape(outputs), lambda b: b.reshape(n_out))


def _projection(stem: str, path: tuple[str, ...], inputs, outputs, with_bias) -> Iterator[Tensor]:
    yield linear(f"{stem}.weight", (*path, "kernel"), inputs, outputs)
    if with_bias:
        yield bias(f"{stem}.bias", (*path, "bias"), outputs)


def table(cfg: DecoderConfig) -> list[Tensor]:
    """Every tensor of the checkpoint of `cfg`; a tied head is not one of them."""
    D, F, C = cfg.embed, cfg.mlp, cfg.head_dim
    layer, attn = "model.layers.{n}", ("layers", "attn")
    heads = {"q": (cfg.heads, C), "k": (cfg.kv_heads, C), "v": (cfg.kv_heads, C)}
    rows = [vector("model.embed_tokens.weight", ("embed", "tokens"), cfg.vocab, D)]
    for name, out in heads.items():
        rows += _projection(
            f"{layer}.self_attn.{name}_proj", (*attn, name), (D,), out, cfg.qkv_bias
        )
    rows += _projection(f"{layer}.self_attn.o_proj", (*attn, "o"), heads["q"], (D,), cfg.o_bias)
    for name, (n_in, n_out) in {"gate": (D, F), "up": (D, F), "down": (F, D)}.items():
        path = ("layers", "mlp", name)
        rows += _projection(f"{layer}.mlp.{name}_proj", path, (n_in,), (n_out,), cfg.mlp_bias)
    rows += [
        vector(f"{layer}.input_layernorm.weight", ("layers", "attn_norm", "scale"), D),
        vector(f"{layer}.post_attention_layernorm.weight", ("layers", "mlp_norm", "scale"), D),
        vector("model.norm.weight", ("final_norm", "scale"), D),
    ]
    if not cfg.tie_embedding:
        rows.append(linear("lm_head.weight", ("head", "kernel"), (D,), (cfg.vocab,)))
    return rows


def head_table(stem: str, embed: int, labels: int, with_bias: bool) -> list[Tensor]:
    """`score` of ...ForSequence/TokenClassification, or TRL's `v_head.summary`."""
    return list(_projection(stem, (), (embed,), (labels,), with_bias))
