"""Per-token estimates of KL(policy || reference) from the sampled token's log-probabilities.

Schulman, "Approximating KL divergence" (2020). As a term of the loss their gradients differ from
their names: E[grad k1] = 0, grad k2 is the KL's gradient on policy, grad k3 is that of the
reverse KL. In the reward no gradient is taken and k1 is the usual choice.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def k1(logps: Float[Array, "*S"], ref_logps: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """log-ratio: unbiased, signed, high variance."""
    return logps - ref_logps


def k2(logps: Float[Array, "*S"], ref_logps: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Half the squared log-ratio: biased, low variance."""
    return 0.5 * (logps - ref_logps) ** 2


def k3(logps: Float[Array, "*S"], ref_logps: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """exp(r) - r - 1 with r = ref - policy: unbiased and never negative.

    The exponent is capped at 80, where fp32 overflows near 88; below it the value is exact.
    """
    r = ref_logps - logps
    return jnp.expm1(jnp.minimum(r, 80.0)) - r


def absolute(logps: Float[Array, "*S"], ref_logps: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Magnitude of the log-ratio."""
    return jnp.abs(logps - ref_logps)


def full(logps: Float[Array, "*S V"], ref_logps: Float[Array, "*S V"]) -> Float[Array, "*S"]:
    """Exact KL over the vocabulary; entries the policy gives no probability count 0."""
    p = jnp.exp(logps)
    return jax.numpy.where(p > 0, p * (logps - ref_logps), 0.0).sum(-1)
