"""Where completions end, as lengths and masks: never by looking for a padding id."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

Tokens = Int[Array, "B L"]


@jax.jit
def first_stop(tokens: Tokens, stop_ids: Int[Array, "S"]) -> Int[Array, "B"]:
    """Index of the first token that is one of `stop_ids`; L if there is none.

    >>> first_stop(jnp.array([[5, 9, 5], [5, 5, 5]]), jnp.array([9]))
    Array([1, 3], dtype=int32)
    """
    hit = (tokens[..., None] == stop_ids[None, None, :]).any(-1)
    return jnp.where(hit.any(1), hit.argmax(1), tokens.shape[1])


@jax.jit
def truncate(
    tokens: Tokens, stop_ids: Int[Array, "S"], pad_id: Int[Array, ""] | int
) -> tuple[Tokens, Int[Array, "B"], Bool[Array, "B"]]:
    """(tokens with padding after the first stop, lengths with the stop in them, ended or not).

    A stop in the last place counts as ended. A completion of a stop alone has length 1.

    >>> truncate(jnp.array([[5, 9, 5]]), jnp.array([9]), 0)[0]
    Array([[5, 9, 0]], dtype=int32)
    """
    stop = first_stop(tokens, stop_ids)
    L = tokens.shape[1]
    after = jnp.arange(L)[None, :] > stop[:, None]
    return jnp.where(after, pad_id, tokens), jnp.minimum(stop + 1, L), stop < L


@jax.jit
def length_mask(lengths: Int[Array, "B"], like: Shaped[Array, "B L"]) -> Bool[Array, "B L"]:
    """True on the first `lengths` positions of each row."""
    return jnp.arange(like.shape[1])[None, :] < lengths[:, None]


@jax.jit
def ends_with(
    tokens: Tokens, lengths: Int[Array, "B"], stop_ids: Int[Array, "S"]
) -> Bool[Array, "B"]:
    """Is the last real token of each row one of `stop_ids`? False for an empty row."""
    last = jnp.take_along_axis(tokens, jnp.maximum(lengths - 1, 0)[:, None], 1)
    return (last == stop_ids[None, :]).any(1) & (lengths > 0)


@jax.jit
def mask_unfinished(mask: Shaped[Array, "B L"], ended: Bool[Array, "B"]) -> Shaped[Array, "B L"]:
    """Take cut-off completions out of the loss, and so out of its token count (DAPO)."""
    return jnp.where(ended[:, None], mask, jnp.zeros_like(mask))
