"""Convex functions of a margin, and score functions: the parts that pair losses are made of.

Nearly every offline method is F(β (s_w - s_l - m)): F one of these, s a score of the chosen (w) and
the rejected (l) response, m a margin. GPO (arXiv:2402.05749) is the family with s the log-ratio to
the reference and m = 0. Elementwise on arrays of any shape.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses.precision import at_least_float32

X = Float[Array, "*shape"]
MAX_EXPONENT = 80.0  # exp overflows fp32 near 88


def bounded_exp(x: X) -> X:
    """exp(min(x, 80)): finite, with gradient 0 beyond."""
    return jnp.exp(jnp.minimum(x, MAX_EXPONENT))


@jax.jit
def logistic(x: X, *, label_smoothing: ScalarLike | X = 0.0) -> X:
    """-(1-ε) log σ(x) - ε log σ(-x): DPO, cDPO. ε, for all or one each, is P(label is wrong).

    >>> logistic(jnp.array([0.0, 1.0]))
    Array([0.6931..., 0.3132...], dtype=float32)
    """
    x = at_least_float32(x)
    right, wrong = -jax.nn.log_sigmoid(x), -jax.nn.log_sigmoid(-x)
    return (1 - label_smoothing) * right + label_smoothing * wrong


@jax.jit
def hinge(x: X) -> X:
    """max(0, 1 - x): SLiC and RSO."""
    return jax.nn.relu(1 - at_least_float32(x))


@jax.jit
def square(x: X) -> X:
    """(1 - x)²: IPO, up to a factor: with x = β h it is β² (h - 1/β)²."""
    return (1 - at_least_float32(x)) ** 2


@jax.jit
def exponential(x: X) -> X:
    """exp(-x), held at e^80."""
    return bounded_exp(-at_least_float32(x))


@jax.jit
def truncated_square(x: X) -> X:
    """max(0, 1 - x)²."""
    return jax.nn.relu(1 - at_least_float32(x)) ** 2


@jax.jit
def savage(x: X) -> X:
    """1/(1 + e^x)²: bounded, so an outlier has no pull.

    >>> savage(jnp.array([0.0]))
    Array([0.25], dtype=float32)
    """
    return jax.nn.sigmoid(-at_least_float32(x)) ** 2


@jax.jit
def reverse_kl_score(log_ratio: X) -> X:
    """log t, t = π/ref: DPO's score, from f = KL(π||ref)."""
    return at_least_float32(log_ratio)


@jax.jit
def forward_kl_score(log_ratio: X) -> X:
    """1 - 1/t: f'(t) of the forward KL (f-DPO, arXiv:2309.16240)."""
    return 1 - bounded_exp(-at_least_float32(log_ratio))


@jax.jit
def js_score(log_ratio: X) -> X:
    """log(2t/(1+t)): f'(t) of the Jensen-Shannon divergence (arXiv:2309.16240)."""
    return jnp.log(2.0) + jax.nn.log_sigmoid(at_least_float32(log_ratio))


@jax.jit
def alpha_score(log_ratio: X, *, alpha: ScalarLike = 0.5) -> X:
    """(t^(α-1) - 1)/(α-1): f'(t) of the α-divergence; the limit at α = 1 is log t.

    TRL up to 0.28 calls 1 - α its coefficient.

    >>> alpha_score(jnp.array([0.5]), alpha=2.0)
    Array([0.6487...], dtype=float32)
    """
    log_ratio = at_least_float32(log_ratio)
    power = jnp.asarray(alpha, log_ratio.dtype) - 1
    limit = jnp.abs(power) < 1e-6
    safe = jnp.where(limit, 1.0, power)
    curved = jnp.expm1(jnp.minimum(safe * log_ratio, MAX_EXPONENT)) / safe
    return jnp.where(limit, log_ratio, curved)


def score(log_ratio: X, divergence: str, alpha: ScalarLike = 0.5) -> X:
    """The score of a response from its log-ratio, by the name of the divergence."""
    if divergence == "alpha":
        return alpha_score(log_ratio, alpha=alpha)
    scores = {"reverse_kl": reverse_kl_score, "forward_kl": forward_kl_score, "js": js_score}
    if divergence not in scores:
        raise ValueError(f"divergence={divergence!r}: choose one of {[*scores, 'alpha']}")
    return scores[divergence](log_ratio)
