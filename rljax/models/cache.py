"""The key-value cache: an explicit pytree, written at one column for all rows."""

import dataclasses

import jax
import jax.numpy as jnp

from rljax.models.config import DecoderConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerCache:
    """One layer's keys and values (all layers' while stacked: a leading axis N)."""

    k_BSKC: jax.Array
    v_BSKC: jax.Array
    column: jax.Array  # int32 []: where the next tokens are written


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """Prompts are left-padded, so every row decodes at the same column."""

    layers: LayerCache | tuple[LayerCache, ...]  # stacked, or one per unrolled layer
    segments_BS: jax.Array  # int32: 0 where nothing was written, or padding was
    next_positions_B: jax.Array  # int32: the position of each row's next token
    column: jax.Array  # int32 []


def make(
    cfg: DecoderConfig, batch: int, length: int, dtype=jnp.float32, *, unrolled: bool = False
) -> Cache:
    """An empty cache of `length` columns; `unrolled` goes with `decoder.unstack`ed parameters."""

    def layer(*stack):
        shape = (*stack, batch, length, cfg.kv_heads, cfg.head_dim)
        # Two arrays of their own: a donated cache must not hold one buffer twice.
        return LayerCache(
            k_BSKC=jnp.zeros(shape, dtype),
            v_BSKC=jnp.zeros(shape, dtype),
            column=jnp.zeros(stack, jnp.int32),
        )

    return Cache(
        layers=tuple(layer() for _ in range(cfg.layers)) if unrolled else layer(cfg.layers),
        segments_BS=jnp.zeros((batch, length), jnp.int32),
        next_positions_B=jnp.zeros((batch,), jnp.int32),
        column=jnp.int32(0),
    )


def write(layer: LayerCache, k_BTKC: jax.Array, v_BTKC: jax.Array) -> LayerCache:
    """Put T new keys and values at columns [column, column + T)."""

    def put(old, new):
        start = (0, layer.column, 0, 0)
        return jax.lax.dynamic_update_slice(old, new.astype(old.dtype), start)

    return LayerCache(
        k_BSKC=put(layer.k_BSKC, k_BTKC),
        v_BSKC=put(layer.v_BSKC, v_BTKC),
        column=layer.column + k_BTKC.shape[1],
    )
