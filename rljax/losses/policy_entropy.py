"""Keeping entropy: bonuses, high-entropy tokens, and surrogates that spare covariant tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, ScalarLike, Shaped

from rljax.losses import importance, masked, policy
from rljax.losses.precision import at_least_float32

Tokens = Float[Array, "B T"]
Mask = Shaped[Array, "B T"]
Stats = dict[str, Float[Array, "..."]]


@jax.jit
def high_entropy(entropy: Tokens, mask: Mask, *, top: ScalarLike = 0.2) -> Tokens:
    """1 on the `top` share of tokens by entropy, 0 elsewhere (arXiv:2506.01939).

    The threshold is the (1 - top) quantile over the valid tokens of the whole batch. Pass it as
    `weight` to `policy.regularize`: the denominator goes on counting all tokens.

    >>> high_entropy(jnp.array([[0.1, 2.0, 0.3]]), jnp.ones((1, 3)), top=0.3)
    Array([[0., 1., 0.]], dtype=float32)
    """
    threshold = masked.quantile(jax.lax.stop_gradient(entropy), mask, 1 - top)
    return ((entropy >= threshold) & (mask != 0)).astype(at_least_float32(entropy).dtype)


@jax.jit
def clip_cov(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Tokens,
    mask: Mask,
    key: PRNGKeyArray,
    clip: ScalarLike = 0.2,
    share: ScalarLike = 2e-4,
    low: ScalarLike = 1.0,
    high: ScalarLike = 5.0,
) -> tuple[Tokens, Stats]:
    """PPO's clip, with a few tokens of high covariance detached (Clip-Cov, arXiv:2505.22617).

    Drawn with `key` from the unclipped tokens whose (A - mean A)(log π - mean log π) lies in
    (low, high): `share` of all valid tokens, at least one.

    >>> rows = {"logps": jnp.array([[-3.0, -0.5]]), "old_logps": jnp.array([[-3.0, -0.5]])}
    >>> A, mask, key = jnp.array([[-2.0, 1.0]]), jnp.ones((1, 2)), jax.random.key(0)
    >>> clip_cov(**rows, advantages=A, mask=mask, key=key)[1]["clip_cov_ratio"].sum()
    Array(1., dtype=float32)
    """
    loss, stats = policy.ppo_clip(
        logps=logps, old_logps=old_logps, advantages=advantages, mask=mask, clip=clip
    )
    cov = covariance(logps, advantages, mask)
    open_ = (mask != 0) & (stats["policy/clipfrac_avg"] == 0) & (cov > low) & (cov < high)
    count = jnp.maximum(jnp.floor(share * (mask != 0).sum()), 1)
    draw = jnp.where(open_, jax.random.uniform(key, cov.shape), jnp.inf)
    rank = jnp.argsort(jnp.argsort(draw.ravel())).reshape(cov.shape)
    chosen = open_ & (rank < count)
    return jnp.where(chosen, 0.0, loss), stats | {"clip_cov_ratio": chosen.astype(cov.dtype)}


@jax.jit
def kl_cov(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Tokens,
    mask: Mask,
    share: ScalarLike = 2e-4,
    kl_coef: ScalarLike = 1.0,
) -> tuple[Tokens, Stats]:
    """-A ρ, plus kl_coef |log ρ| on the tokens of highest covariance (KL-Cov, arXiv:2505.22617).

    Those are `share` of all valid tokens, at least one. There is no clip.

    >>> rows = {"logps": jnp.array([[-3.0, -0.5]]), "old_logps": jnp.array([[-2.9, -0.5]])}
    >>> kl_cov(**rows, advantages=jnp.array([[-2.0, 0.5]]), mask=jnp.ones((1, 2)))[0]
    Array([[ 1.9096..., -0.5      ]], dtype=float32)
    """
    ratio = importance.token_ratio(logps, old_logps, mask)
    cov = jnp.where(mask != 0, covariance(logps, advantages, mask), -jnp.inf)
    count = jnp.maximum(jnp.floor(share * (mask != 0).sum()), 1)
    rank = jnp.argsort(jnp.argsort(-cov.ravel())).reshape(cov.shape)
    chosen = (mask != 0) & (rank < count)
    drift = at_least_float32(logps) - jax.lax.stop_gradient(at_least_float32(old_logps))
    drift = masked.clean(jnp.abs(drift), mask)
    loss = masked.clean(-jax.lax.stop_gradient(advantages) * ratio, mask)
    loss = loss + jnp.where(chosen, kl_coef * drift, 0.0)
    return loss, {"kl_cov_ratio": chosen.astype(cov.dtype)}


@jax.jit
def covariance(logps: Tokens, advantages: Tokens, mask: Mask) -> Tokens:
    """Each token's part of Cov(log π, A), which drives the entropy down; a constant.

    >>> covariance(jnp.array([[-3.0, -1.0]]), jnp.array([[-2.0, 2.0]]), jnp.ones((1, 2)))
    Array([[2., 2.]], dtype=float32)
    """
    logps, advantages = jax.lax.stop_gradient((logps, advantages))
    gap = at_least_float32(advantages) - masked.mean(advantages, mask)
    return masked.clean(gap * (at_least_float32(logps) - masked.mean(logps, mask)), mask)
