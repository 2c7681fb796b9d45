"""Statistics over the positions where a mask is nonzero. Everything else may be inf or NaN.

`axis=None` takes the whole batch. Under `jit` over a mesh that is the global batch; inside
`shard_map` it is the local one. An empty selection gives 0, in value and gradient.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses.precision import at_least_float32

Axis = int | tuple[int, ...] | None


@jax.jit
def clean(x: Float[Array, "*shape"], mask: Shaped[Array, "*shape"]) -> Float[Array, "*shape"]:
    """x at the mask, 0 elsewhere, in value and gradient: a product would let NaN through."""
    return jnp.where(mask != 0, x, 0.0)


@functools.partial(jax.jit, static_argnames=("axis", "keepdims"))
def mean(
    x: Float[Array, "*shape"],
    mask: Shaped[Array, "*shape"],
    *,
    axis: Axis = None,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """sum(x * mask) / sum(mask). A fractional mask weighs.

    >>> mean(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1, 1, 0]))
    Array(2., dtype=float32)
    """
    x = jnp.where(mask != 0, at_least_float32(x), 0.0)
    weight = mask.sum(axis, keepdims=keepdims, dtype=x.dtype)
    return (x * mask).sum(axis, keepdims=keepdims) / jnp.where(weight == 0, 1.0, weight)


@functools.partial(jax.jit, static_argnames=("axis", "keepdims", "ddof"))
def var(
    x: Float[Array, "*shape"],
    mask: Shaped[Array, "*shape"],
    *,
    ddof: int,
    axis: Axis = None,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """The variance with divisor n - ddof; 0 where n <= ddof.

    `ddof` has no default: torch and TRL mean 1, OpenAI's code and OpenRLHF 0.

    >>> var(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1, 1, 0]), ddof=1)
    Array(2., dtype=float32)
    """
    centre = mean(x, mask, axis=axis, keepdims=True)
    # Garbage is replaced before it is squared: an inf there would give NaN gradients.
    gap = jnp.where(mask != 0, at_least_float32(x) - centre, 0.0)
    n = mask.sum(axis, keepdims=keepdims, dtype=gap.dtype)
    defined = n > ddof
    divisor = jnp.where(defined, n - ddof, 1.0)
    return jnp.where(defined, (gap * gap * mask).sum(axis, keepdims=keepdims), 0.0) / divisor


@functools.partial(jax.jit, static_argnames=("axis", "keepdims", "ddof"))
def std(
    x: Float[Array, "*shape"],
    mask: Shaped[Array, "*shape"],
    *,
    ddof: int,
    axis: Axis = None,
    keepdims: bool = False,
) -> Float[Array, "..."]:
    """The root of `var`, with gradient 0 (not inf) at zero spread."""
    variance = var(x, mask, ddof=ddof, axis=axis, keepdims=keepdims)
    flat = variance == 0
    return jnp.where(flat, 0.0, jnp.sqrt(jnp.where(flat, 1.0, variance)))


@functools.partial(jax.jit, static_argnames=("axis", "ddof", "shift_mean", "everywhere"))
def whiten(
    x: Float[Array, "*shape"],
    mask: Shaped[Array, "*shape"],
    *,
    ddof: int = 1,
    shift_mean: bool = True,
    eps: ScalarLike = 1e-8,
    axis: Axis = None,
    everywhere: bool = False,
) -> Float[Array, "*shape"]:
    """(x - mean) / sqrt(var + eps) at the mask, 0 elsewhere.

    `shift_mean=False` rescales around the mean and keeps it, as PPO does with rewards. One valid
    position alone gives 0, where the peers give NaN (ddof 1). `everywhere` transforms the positions
    outside the mask too, as TRL does.

    >>> whiten(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1, 1, 0]))
    Array([-0.7071...,  0.7071...,  0.        ], dtype=float32)
    """
    centre = mean(x, mask, axis=axis, keepdims=True)
    spread = var(x, mask, ddof=ddof, axis=axis, keepdims=True)
    out = (at_least_float32(x) - centre) * jax.lax.rsqrt(spread + eps)
    out = out if shift_mean else out + centre
    return out if everywhere else jnp.where(mask != 0, out, 0.0)


@jax.jit
def quantile(
    x: Float[Array, "*shape"], mask: Shaped[Array, "*shape"], q: ScalarLike
) -> Float[Array, ""]:
    """The q-quantile of all positions at the mask, linearly interpolated; 0 if there is none.

    >>> quantile(jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1, 1, 0]), 0.25)
    Array(1.5, dtype=float32)
    """
    x = at_least_float32(x)
    rank = jnp.sort(jnp.where(mask != 0, x, jnp.inf).ravel())
    n = (mask != 0).sum()
    position = q * jnp.maximum(n - 1, 0).astype(x.dtype)
    low = jnp.floor(position).astype(jnp.int32)
    high = jnp.minimum(low + 1, jnp.maximum(n - 1, 0))
    left = jnp.where(n == 0, 0.0, rank[low])
    right = jnp.where(n == 0, 0.0, rank[high])
    return left + (position - low) * (right - left)


@functools.partial(jax.jit, static_argnames="axis")
def extrema(
    x: Float[Array, "*shape"], mask: Shaped[Array, "*shape"], *, axis: Axis = None
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """(min, max) over the positions at the mask; (0, 0) if there is none."""
    x, chosen = at_least_float32(x), mask != 0
    some = chosen.any(axis)
    low = jnp.where(chosen, x, jnp.inf).min(axis)
    high = jnp.where(chosen, x, -jnp.inf).max(axis)
    return jnp.where(some, low, 0.0), jnp.where(some, high, 0.0)
