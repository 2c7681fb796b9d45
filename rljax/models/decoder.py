"""The decoder as three functions over a plain nested dict: `init`, `apply`, `logits`."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import sharding
from rljax.models import attention
from rljax.models.cache import Cache
from rljax.models.config import DecoderConfig
from rljax.models.layers import Block, RMSNorm

Params = Any  # nested dict of arrays; layers stacked on axis 0, or a tuple of dicts (`unstack`)


def init(rng: jax.Array, cfg: DecoderConfig, dtype=jnp.float32) -> Params:
    """Random parameters: kernels of variance 1/fan_in, embeddings of 1/embed, norms 1."""
    k_embed, k_layers, k_head = jax.random.split(rng, 3)
    x_BTD = jnp.zeros((1, 1, cfg.embed))
    positions_BT = jnp.zeros((1, 1), jnp.int32)
    visible_BTS = jnp.ones((1, 1, 1), bool)

    def layer(key):
        return Block(cfg).init(key, x_BTD, positions_BT, visible_BTS)["params"]

    std = cfg.embed**-0.5
    params = {
        "embed": {"tokens": std * jax.random.normal(k_embed, (cfg.vocab, cfg.embed))},
        "layers": jax.vmap(layer)(jax.random.split(k_layers, cfg.layers)),
        "final_norm": {"scale": jnp.ones((cfg.embed,))},
    }
    if not cfg.tie_embedding:
        params["head"] = {"kernel": std * jax.random.normal(k_head, (cfg.embed, cfg.vocab))}
    return jax.tree.map(lambda x: x.astype(dtype), params)


def shapes(cfg: DecoderConfig, dtype=jnp.float32) -> Params:
    """The parameter tree as ShapeDtypeStructs; allocates nothing."""
    return jax.eval_shape(lambda: init(jax.random.key(0), cfg, dtype))


_AXES = {
    ("embed", "tokens"): ("vocab", "embed"),
    ("head", "kernel"): ("embed", "vocab"),
    ("final_norm", "scale"): (None,),
    ("attn_norm", "scale"): ("layers", None),
    ("mlp_norm", "scale"): ("layers", None),
    ("q", "kernel"): ("layers", "embed", "heads", "head_dim"),
    ("k", "kernel"): ("layers", "embed", "kv_heads", "head_dim"),
    ("v", "kernel"): ("layers", "embed", "kv_heads", "head_dim"),
    ("o", "kernel"): ("layers", "heads", "head_dim", "embed"),
    ("q", "bias"): ("layers", "heads", "head_dim"),
    ("k", "bias"): ("layers", "kv_heads", "head_dim"),
    ("v", "bias"): ("layers", "kv_heads", "head_dim"),
    ("o", "bias"): ("layers", None),
    ("gate", "kernel"): ("layers", "embed", "mlp"),
    ("up", "kernel"): ("layers", "embed", "mlp"),
    ("down", "kernel"): ("layers", "mlp", "embed"),
    ("gate", "bias"): ("layers", "mlp"),
    ("up", "bias"): ("layers", "mlp"),
    ("down", "bias"): ("layers", None),
}


def logical_axes(cfg: DecoderConfig) -> Params:
    """A tree like the parameters, each leaf the tuple of its axes' names for `rljax.sharding`."""

    def axes(path, leaf):
        return _AXES[tuple(key.key for key in path[-2:])]

    return jax.tree_util.tree_map_with_path(axes, shapes(cfg))


def unstack(params: Params) -> Params:
    """The same parameters with one dict per layer: `apply` then unrolls, which decodes faster.

    In a scan every step copies its layer's slice out of the stack; over one token that copy costs
    more than the arithmetic.
    """
    stacked = params["layers"]
    count = jax.tree.leaves(stacked)[0].shape[0]
    layers = tuple(jax.tree.map(lambda x, i=i: x[i], stacked) for i in range(count))
    return params | {"layers": layers}


def decode_layout(params: Params, cfg: DecoderConfig) -> Params:
    """`unstack`ed, and under a mesh cut by the tensor axis alone: nothing is gathered per token."""
    params = unstack(params)
    axes = logical_axes(cfg)
    one_layer = jax.tree.map(lambda a: a[1:], axes["layers"], is_leaf=sharding.is_axes)
    axes = axes | {"layers": (one_layer,) * cfg.layers}
    return jax.tree.map(
        lambda a, x: sharding.constrain(x, a, sharding.DECODE_RULES),
        axes,
        params,
        is_leaf=sharding.is_axes,
    )


def default_positions(segments_BT: jax.Array) -> jax.Array:
    """int32 [B, T]: tokens since the document's first, whatever padding stands before it."""
    T = segments_BT.shape[1]
    index = jnp.arange(T, dtype=jnp.int32)[None, :]
    starts = jnp.pad(
        segments_BT[:, 1:] != segments_BT[:, :-1], ((0, 0), (1, 0)), constant_values=True
    )
    first = jax.lax.cummax(jnp.where(starts, index, 0), axis=1)
    return index - first


def apply(
    params: Params,
    cfg: DecoderConfig,
    tokens_BT: jax.Array | np.ndarray,
    *,
    segments_BT: jax.Array | np.ndarray | None = None,
    positions_BT: jax.Array | np.ndarray | None = None,
    cache: Cache | None = None,
    dtype=None,
    remat: Literal["none", "full"] = "none",
    collect: bool = False,
):
    """Hidden states after the final norm [B, T, D], and the advanced cache (None without one).

    `segments_BT`: 0 is padding, other values number the documents packed in a row; None is all 1.
    `dtype` is that of the computation (None: the parameters'). With `collect` the hidden states
    are instead [N+1, B, T, D]: the embeddings, then the residual stream after each layer, the last
    one normed.
    """
    tokens_BT = jnp.asarray(tokens_BT)
    if segments_BT is None:
        segments_BT = jnp.ones(tokens_BT.shape, jnp.int32)
    segments_BT = jnp.asarray(segments_BT)
    if positions_BT is None:
        positions_BT = default_positions(segments_BT)
        if cache is not None:
            positions_BT = positions_BT + cache.next_positions_B[:, None]
    dtype = params["embed"]["tokens"].dtype if dtype is None else dtype
    x_BTD = params["embed"]["tokens"][tokens_BT].astype(dtype)
    x_BTD = sharding.constrain(x_BTD, ("batch", "time", None))

    if cache is None:
        columns, keys_BS = jnp.arange(tokens_BT.shape[1]), segments_BT
    else:
        columns = cache.column + jnp.arange(tokens_BT.shape[1])
        keys_BS = jax.lax.dynamic_update_slice(cache.segments_BS, segments_BT, (0, cache.column))
    visible_BTS = attention.visible(segments_BT, keys_BS, q_columns_T=columns, window=cfg.window)

    block = lambda x, p, past: Block(cfg).apply({"params": p}, x, positions_BT, visible_BTS, past)
    past = None if cache is None else cache.layers
    run = _unrolled if isinstance(params["layers"], tuple) else _scanned
    y_BTD, layers, streams = run(block, x_BTD, params["layers"], past, remat=remat, collect=collect)

    y_BTD = RMSNorm(cfg.norm_eps).apply({"params": params["final_norm"]}, y_BTD)
    hidden = jnp.concatenate([x_BTD[None], *streams, y_BTD[None]]) if collect else y_BTD
    if cache is not None:
        cache = _advance(cache, layers, keys_BS, segments_BT, positions_BT)
    return hidden, cache


def _scanned(block, x_BTD, layers, past, *, remat, collect):
    def step(x, scanned):
        x, new = block(x, *scanned)
        return x, (new, x if collect else None)

    if remat == "full":
        step = jax.checkpoint(step, prevent_cse=False)
    x_BTD, (new, streams) = jax.lax.scan(step, x_BTD, (layers, past))
    return x_BTD, new, () if streams is None else (streams[:-1],)


def _unrolled(block, x_BTD, layers, past, *, remat, collect):
    block = jax.checkpoint(block) if remat == "full" else block
    news, streams = [], []
    for i, layer in enumerate(layers):
        x_BTD, new = block(x_BTD, layer, None if past is None else past[i])
        news.append(new)
        streams.append(x_BTD[None])
    return x_BTD, tuple(news), tuple(streams[:-1]) if collect else ()


def _advance(cache: Cache, layers, keys_BS, segments_BT, positions_BT) -> Cache:
    # A row that brought only padding keeps its position: the next token is its first.
    real = jnp.where(segments_BT > 0, positions_BT + 1, 0).max(axis=1)
    return Cache(
        layers=layers,
        segments_BS=keys_BS,
        next_positions_B=jnp.maximum(cache.next_positions_B, real),
        column=cache.column + segments_BT.shape[1],
    )


def head_weight(params: Params, cfg: DecoderConfig) -> jax.Array:
    """[D, V], the transposed embedding where the two are tied.

    Rows added to the vocabulary so that it divides over devices are left out: they must take no
    probability and never be sampled.
    """
    head = params["embed"]["tokens"].T if cfg.tie_embedding else params["head"]["kernel"]
    return head if head.shape[1] == cfg.vocab else head[:, : cfg.vocab]


def logits(params: Params, cfg: DecoderConfig, hidden: jax.Array) -> jax.Array:
    """fp32 [..., V]. For training use `losses.logprobs`: this array is large."""
    head = head_weight(params, cfg).astype(hidden.dtype)
    return jnp.einsum("...D,DV->...V", hidden, head, preferred_element_type=jnp.float32)
