"""Coefficients that follow a measured quantity from one batch to the next."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def adaptive_kl(
    coef: Float[Array, ""],
    kl: Float[Array, ""],
    *,
    target: float,
    horizon: float,
    batch: Float[Array, ""] | float,
    clip: float = 0.2,
) -> Float[Array, ""]:
    """coef * (1 + clip(kl/target - 1, ±clip) * batch/horizon) (arXiv:1909.08593, §2.2).

    `kl` is nats per sequence, `batch` and `horizon` count sequences.
    """
    error = jnp.clip(kl / target - 1, -clip, clip)
    return coef * (1 + error * batch / horizon)
