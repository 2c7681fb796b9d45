"""Statistics over the valid entries of an array; an empty mask gives 0, value and gradient."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num


def clean(x: Float[Array, "*S"], mask: Num[Array, "*S"]) -> Float[Array, "*S"]:
    """x where the mask is set, else 0 with no gradient, whatever garbage stood there."""
    return jnp.where(mask > 0, x, 0.0)


def total(x: Float[Array, "*S"], mask: Num[Array, "*S"], axis=None) -> Float[Array, "..."]:
    return clean(x, mask).sum(axis)


def mean(x: Float[Array, "*S"], mask: Num[Array, "*S"], axis=None) -> Float[Array, "..."]:
    """Mean over the valid entries of `axis` (all axes by default)."""
    count = (mask > 0).sum(axis).astype(x.dtype)
    return total(x, mask, axis) / jnp.maximum(count, 1.0)


def variance(x: Float[Array, "*S"], mask: Num[Array, "*S"], *, ddof: int = 0) -> Float[Array, ""]:
    """Variance over all valid entries; 0 when there are no more than `ddof` of them."""
    count = (mask > 0).sum().astype(x.dtype)
    centred = clean(x - mean(x, mask), mask)
    # count - ddof is 0 for a single entry: guard the divisor, the sum of squares is 0 anyway.
    return (centred**2).sum() / jnp.maximum(count - ddof, 1.0)


def whiten(
    x: Float[Array, "*S"],
    mask: Num[Array, "*S"],
    *,
    shift_mean: bool = True,
    ddof: int = 1,
    eps: float = 1e-8,
) -> Float[Array, "*S"]:
    """(x - mean) / sqrt(var + eps) over all valid entries; others give 0.

    ddof 1 and eps inside the root are TRL's and verl's; OpenAI's code has ddof 0. With
    `shift_mean=False` the mean is added back, as for rewards in PPO.
    """
    centre = mean(x, mask)
    y = (x - centre) * jax.lax.rsqrt(variance(x, mask, ddof=ddof) + eps)
    return clean(y if shift_mean else y + centre, mask)
