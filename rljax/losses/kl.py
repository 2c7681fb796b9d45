"""Estimates of KL(policy || reference), per token and in nats, from log-probabilities.

Schulman, "Approximating KL divergence" (2020). As a term of the loss, on tokens that the policy
sampled, their gradients differ from their names: k1's is zero on average, k2's is that of
KL(policy || reference), k3's is that of KL(reference || policy). A penalty in the reward takes no
gradient, and k1 is the usual choice there.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses.precision import at_least_float32

Logps = Float[Array, "*shape"]


def _log_ratio(logps, ref_logps):
    return at_least_float32(logps) - at_least_float32(ref_logps)


@jax.jit
def k1(logps: Logps, ref_logps: Logps) -> Logps:
    """The log-ratio: unbiased, signed, of high variance.

    >>> k1(jnp.array([-1.0]), jnp.array([-1.5]))
    Array([0.5], dtype=float32)
    """
    return _log_ratio(logps, ref_logps)


@jax.jit
def k2(logps: Logps, ref_logps: Logps) -> Logps:
    """Half the squared log-ratio: biased, of low variance; the KL's gradient as a loss term.

    >>> k2(jnp.array([-1.0]), jnp.array([-1.5]))
    Array([0.125], dtype=float32)
    """
    return 0.5 * _log_ratio(logps, ref_logps) ** 2


@jax.jit
def k3(logps: Logps, ref_logps: Logps, *, max_log_ratio: ScalarLike = 80.0) -> Logps:
    """exp(d) - d - 1 with d = reference - policy: unbiased and never negative.

    d is capped inside the exponent, which overflows fp32 near 88. verl caps d at 20 and the value
    at 10.

    >>> k3(jnp.array([-1.0]), jnp.array([-1.5]))
    Array([0.1065...], dtype=float32)
    """
    d = -_log_ratio(logps, ref_logps)
    return jnp.expm1(jnp.minimum(d, max_log_ratio)) - d


@jax.jit
def absolute(logps: Logps, ref_logps: Logps) -> Logps:
    """The magnitude of the log-ratio.

    >>> absolute(jnp.array([-1.5]), jnp.array([-1.0]))
    Array([0.5], dtype=float32)
    """
    return jnp.abs(_log_ratio(logps, ref_logps))


@jax.jit
def full(logps: Float[Array, "*shape V"], ref_logps: Float[Array, "*shape V"]) -> Logps:
    """The exact KL(policy || reference) of whole distributions, normalised log-probabilities.

    Entries of no probability under the policy count 0. Swap the arguments for the reverse KL.

    >>> full(jnp.log(jnp.array([0.5, 0.5])), jnp.log(jnp.array([0.25, 0.75])))
    Array(0.1438..., dtype=float32)
    """
    possible = logps > -jnp.inf
    log_p = jnp.where(possible, at_least_float32(logps), 0.0)
    gap = log_p - jnp.where(possible, at_least_float32(ref_logps), 0.0)
    return jnp.where(possible, jnp.exp(log_p) * gap, 0.0).sum(-1)


@jax.jit
def straight_through(value: Logps, gradient_of: Logps) -> Logps:
    """The first argument's value with the second one's gradient."""
    # Added to an exact zero, so that the value is kept to the last bit.
    return jax.lax.stop_gradient(value) + (gradient_of - jax.lax.stop_gradient(gradient_of))


@jax.jit
def k1_straight_through(logps: Logps, ref_logps: Logps) -> Logps:
    """k1's value with k2's gradient, that of KL(policy || reference) (`k1+` in verl)."""
    return straight_through(k1(logps, ref_logps), k2(logps, ref_logps))


@jax.jit
def k3_straight_through(logps: Logps, ref_logps: Logps) -> Logps:
    """k3's value with k2's gradient, that of KL(policy || reference) (`k3+` in verl)."""
    return straight_through(k3(logps, ref_logps), k2(logps, ref_logps))


@jax.jit
def off_policy_k3(logps: Logps, ref_logps: Logps, ratio: Logps) -> Logps:
    """ratio * k3: unbiased for tokens of an older policy (DeepSeek-V3.2, arXiv:2512.02556).

    `ratio` is π/π_old and is differentiated, so the gradient differs from k3's on policy too. TRL
    1.16 does this by default, DeepSeekMath's GRPO does not.

    >>> off_policy_k3(jnp.array([-1.0]), jnp.array([-1.5]), jnp.array([2.0]))
    Array([0.2130...], dtype=float32)
    """
    return ratio * k3(logps, ref_logps)
