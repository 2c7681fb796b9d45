"""Supervised losses, one value per token. Average them with `mean.token_mean`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses.precision import at_least_float32

Logps = Float[Array, "*shape"]


@jax.jit
def nll(logps: Logps) -> Logps:
    """Negative log-likelihood in nats.

    >>> nll(jnp.array([-0.5, -2.0]))
    Array([0.5, 2. ], dtype=float32)
    """
    return -at_least_float32(logps)


@jax.jit
def dft(logps: Logps) -> Logps:
    """Dynamic fine-tuning (arXiv:2508.05629, eq. 9): each token's NLL times its own probability.

    The probability is a constant to the gradient.

    >>> dft(jnp.array([-0.5, -2.0]))
    Array([0.3032..., 0.2706...], dtype=float32)
    """
    logps = at_least_float32(logps)
    return -jax.lax.stop_gradient(jnp.exp(logps)) * logps


@jax.jit
def label_smoothed_nll(
    logps: Logps, mean_logps: Logps, *, label_smoothing: ScalarLike = 0.1
) -> Logps:
    """(1-ε) NLL + ε times the vocabulary mean of -log p (arXiv:1512.00567, §7).

    `mean_logps` is that mean of log p, e.g. `log_softmax(logits).mean(-1)`; a vocabulary entry at
    -inf makes it infinite.

    >>> label_smoothed_nll(jnp.array([-0.5]), jnp.array([-3.0]), label_smoothing=0.1)
    Array([0.75], dtype=float32)
    """
    logps, mean_logps = at_least_float32(logps), at_least_float32(mean_logps)
    return -(1 - label_smoothing) * logps - label_smoothing * mean_logps
