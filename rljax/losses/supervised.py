"""Supervised losses, one value per token."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def nll(logps: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Negative log-likelihood in nats."""
    return -logps


def dft(logps: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Dynamic fine-tuning (arXiv:2508.05629, eq. 9): each token's NLL times its own probability.

    The probability is a constant to the gradient.
    """
    return -jax.lax.stop_gradient(jnp.exp(logps)) * logps
