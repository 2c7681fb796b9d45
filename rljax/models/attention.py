"""Attention of any grouping over full rows or a cache; which keys a query sees is one mask."""

import jax
import jax.numpy as jnp

# Finite, so that a row that sees no key gives finite values and gradients (then masked anyway).
HIDDEN = -1e30


def visible(
    q_segments_BT: jax.Array,
    k_segments_BS: jax.Array,
    *,
    q_columns_T: jax.Array,
    window: int | None = None,
) -> jax.Array:
    """bool [B, T, S]: key in the same document (segment 0 is padding), not later, in the window.

    Columns are array indices of the keys' axis; a window of w sees w keys, the query's too.
    """
    k_columns_S = jnp.arange(k_segments_BS.shape[1])
    distance_TS = q_columns_T[:, None] - k_columns_S[None, :]
    near_TS = distance_TS >= 0
    if window is not None:
        near_TS &= distance_TS < window
    same_BTS = q_segments_BT[:, :, None] == k_segments_BS[:, None, :]
    return same_BTS & (k_segments_BS > 0)[:, None, :] & near_TS[None]


def attend(
    q_BTHC: jax.Array, k_BSKC: jax.Array, v_BSKC: jax.Array, visible_BTS: jax.Array, *, scale: float
) -> jax.Array:
    """softmax(q·k · scale) · v in grouped form, [B, T, H, C]; scores and softmax in fp32.

    Keys and values are read as they are: query head h uses kv head h // G, nothing is repeated.
    """
    B, T, H, C = q_BTHC.shape
    K = k_BSKC.shape[2]
    q_BTKGC = q_BTHC.reshape(B, T, K, H // K, C)
    scores = jnp.einsum("BTKGC,BSKC->BKGTS", q_BTKGC, k_BSKC, preferred_element_type=jnp.float32)
    scores = jnp.where(visible_BTS[:, None, None], scores * scale, HIDDEN)
    probs = jax.nn.softmax(scores, axis=-1).astype(v_BSKC.dtype)
    return jnp.einsum("BKGTS,BSKC->BTKGC", probs, v_BSKC).reshape(B, T, H, C)
