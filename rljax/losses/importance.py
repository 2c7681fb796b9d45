"""Importance ratios of policy to old policy, and corrections for a sampler that differs from both.

Three policies may be at play: the one being trained, the `old` one whose update the clip limits
(scored with the training program), and the sampler that drew the tokens. Log-ratios are held within
±20, which keeps ratios finite.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import masked
from rljax.losses.precision import at_least_float32

Rows = Float[Array, "B"]
Tokens = Float[Array, "B T"]
Mask = Shaped[Array, "B T"]

LIMIT = 20.0


def _log_ratio(logps, old_logps, mask):
    gap = at_least_float32(logps) - jax.lax.stop_gradient(at_least_float32(old_logps))
    return masked.clean(gap, mask)


@jax.jit
def bounded_exp(log_ratio: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """exp of a log-ratio held within ±20; gradient 0 beyond."""
    return jnp.exp(jnp.clip(log_ratio, -LIMIT, LIMIT))


@jax.jit
def token_ratio(logps: Tokens, old_logps: Tokens, mask: Mask) -> Tokens:
    """π/π_old of each token; 1 at masked positions. Gradient 0 where the log-ratio is held.

    >>> logps, old = jnp.array([[-1.0, -2.0]]), jnp.array([[-1.0, -1.5]])
    >>> token_ratio(logps, old, jnp.ones((1, 2)))
    Array([[1.        , 0.6065...]], dtype=float32)
    """
    return bounded_exp(_log_ratio(logps, old_logps, mask))


@functools.partial(jax.jit, static_argnames="average")
def sequence_ratio(logps: Tokens, old_logps: Tokens, mask: Mask, *, average: bool = True) -> Rows:
    """π/π_old of the whole completion to the power 1/length: GSPO (arXiv:2507.18071).

    `average=False` gives the plain product, RLOO's ratio.

    >>> logps, old = jnp.array([[-1.0, -2.0]]), jnp.array([[-1.0, -1.5]])
    >>> sequence_ratio(logps, old, jnp.ones((1, 2)))
    Array([0.7788...], dtype=float32)
    """
    log_ratio = _log_ratio(logps, old_logps, mask).sum(1)
    if average:
        log_ratio = log_ratio / jnp.maximum((mask != 0).sum(1), 1)
    return bounded_exp(log_ratio)


@jax.jit
def sequence_token_ratio(logps: Tokens, old_logps: Tokens, mask: Mask) -> Tokens:
    """The sequence's ratio in value, each token's own gradient: GSPO-token (arXiv:2507.18071)."""
    sequence = jax.lax.stop_gradient(sequence_ratio(logps, old_logps, mask))
    logps = masked.clean(at_least_float32(logps), mask)
    return sequence[:, None] * jnp.exp(logps - jax.lax.stop_gradient(logps))


@jax.jit
def sampler_token_ratio(old_logps: Tokens, sampler_logps: Tokens, mask: Mask) -> Tokens:
    """π_old/π_sampler of each token, a constant. NaN from the sampler (not scored) counts as 1."""
    known = (mask != 0) & ~jnp.isnan(sampler_logps)
    return jax.lax.stop_gradient(token_ratio(old_logps, sampler_logps, known))


@jax.jit
def sampler_sequence_ratio(old_logps: Tokens, sampler_logps: Tokens, mask: Mask) -> Rows:
    """π_old/π_sampler of the whole completion, a constant; NaN tokens count as 1."""
    known = (mask != 0) & ~jnp.isnan(sampler_logps)
    return jax.lax.stop_gradient(sequence_ratio(old_logps, sampler_logps, known, average=False))


@jax.jit
def log_sequence_weight(
    logps: Tokens, old_logps: Tokens, mask: Mask, sampler_ratio: Tokens | None = None
) -> Rows:
    """log of the product of all π/π_old of a row, and of `sampler_ratio` where given; a constant.

    Each token's part is held within ±20 (a rejected one, ratio 0, at log 1e-8).
    """
    total = jnp.clip(_log_ratio(logps, old_logps, mask), -LIMIT, LIMIT).sum(1)
    if sampler_ratio is not None:
        extra = jnp.clip(jnp.log(jnp.maximum(sampler_ratio, 1e-8)), None, LIMIT)
        total = total + masked.clean(extra, mask).sum(1)
    return jax.lax.stop_gradient(total)


@jax.jit
def truncate(
    ratio: Float[Array, "*shape"], *, high: ScalarLike, low: ScalarLike = 0.0
) -> Float[Array, "*shape"]:
    """Truncated importance sampling: the ratio held within [low, high] (Ionides 2008).

    >>> truncate(jnp.array([0.1, 1.0, 7.0]), high=2.0)
    Array([0.1, 1. , 2. ], dtype=float32)
    """
    return jnp.clip(ratio, low, high)


@jax.jit
def reject(
    ratio: Float[Array, "*shape"], *, high: ScalarLike, low: ScalarLike = 0.0
) -> Float[Array, "*shape"]:
    """Masked importance sampling: 0 outside [low, high]. Per token it is IcePop (0.5 to 5).

    >>> reject(jnp.array([0.1, 1.0, 7.0]), low=0.5, high=5.0)
    Array([0., 1., 0.], dtype=float32)
    """
    return jnp.where((ratio >= low) & (ratio <= high), ratio, 0.0)


@jax.jit
def effective_sample_size(ratio: Float[Array, "*shape"], mask: Shaped[Array, "*shape"]):
    """(Σw)²/(nΣw²) in (0, 1]: the share of the samples that the weights leave of use.

    >>> effective_sample_size(jnp.array([1.0, 1.0, 4.0]), jnp.ones(3))
    Array(0.6666..., dtype=float32)
    """
    w = masked.clean(at_least_float32(ratio), mask)
    n, squares = (mask != 0).sum(), (w * w).sum()
    return jnp.where(squares > 0, w.sum() ** 2 / jnp.where(squares > 0, n * squares, 1.0), 0.0)


@jax.jit
def keep_on_policy(
    *, advantages: Rows, logps: Tokens, sampler_logps: Tokens, mask: Mask, threshold: ScalarLike
) -> Rows:
    """1 to keep a row, 0 to drop it: off-policy sequence masking (DeepSeek-V3.2, arXiv:2512.02556).

    Dropped are rows of negative advantage whose mean of log π_sampler - log π over tokens is above
    `threshold`. NaN sampler log-probs give no evidence: they count 0 and stay in the mean.
    """
    known = (mask != 0) & ~jnp.isnan(sampler_logps)
    drift = masked.clean(at_least_float32(sampler_logps) - at_least_float32(logps), known).sum(1)
    drift = drift / jnp.maximum((mask != 0).sum(1), 1)
    keep = (advantages >= 0) | (drift <= threshold)
    return jax.lax.stop_gradient(keep.astype(drift.dtype))
