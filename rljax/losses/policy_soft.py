"""Policy-gradient surrogates that weigh a token's gradient instead of cutting it off.

Conventions as in `policy`: one value per token, to be minimised, 0 at masked positions.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses import importance
from rljax.losses.policy import Advantages, Mask, Stats, Tokens, indicator, prepare, ratio_at
from rljax.losses.precision import at_least_float32

Rows = Float[Array, "B"]


@functools.partial(jax.jit, static_argnames="level")
def cispo(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Advantages,
    mask: Mask,
    max_ratio: ScalarLike = 5.0,
    min_ratio: ScalarLike = 0.0,
    level: str = "token",
) -> tuple[Tokens, Stats]:
    """-sg(clip(ρ, min, max)) A log π: clipped weights, but no token loses its gradient.

    CISPO (MiniMax-M1, arXiv:2506.13585); the cap 5 is ScaleRL's (arXiv:2510.13786). `max_ratio` is
    the bound itself, TRL's `epsilon_high`; verl and NeMo RL clip to [1-ε, 1+ε], open-instruct from
    above at 1+ε.

    >>> rows = {"logps": jnp.array([[-1.0, -2.0]]), "old_logps": jnp.array([[-1.0, -1.5]])}
    >>> cispo(**rows, advantages=jnp.array([1.0]), mask=jnp.ones((1, 2)))[0]
    Array([[1.       , 1.2130...]], dtype=float32)
    """
    logps, advantages, mask = prepare(logps, advantages, mask)
    ratio = jax.lax.stop_gradient(ratio_at(logps, old_logps, mask, level))
    loss = -jnp.clip(ratio, min_ratio, max_ratio) * advantages * logps
    capped = (ratio > max_ratio) & (advantages > 0)
    return loss, {"cispo_clip_ratio": indicator(capped, loss, level)}


@functools.partial(jax.jit, static_argnames="level")
def sapo(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Advantages,
    mask: Mask,
    temperature_pos: ScalarLike = 1.0,
    temperature_neg: ScalarLike = 1.05,
    level: str = "token",
) -> tuple[Tokens, Stats]:
    """-(4/τ) σ(τ (ρ-1)) A: a soft gate in place of the clip (SAPO, arXiv:2511.20347).

    τ is `temperature_pos` where A > 0, else `temperature_neg`; a larger one closes sooner. At ρ = 1
    the gradient is the policy gradient. Aggregate with `sequence_mean`.

    >>> rows = {"logps": jnp.array([[-1.0, -2.0]]), "old_logps": jnp.array([[-1.0, -1.5]])}
    >>> sapo(**rows, advantages=jnp.array([1.0]), mask=jnp.ones((1, 2)))[0]
    Array([[-2.       , -1.6115...]], dtype=float32)
    """
    logps, advantages, mask = prepare(logps, advantages, mask)
    ratio = ratio_at(logps, old_logps, mask, level)
    tau = jnp.where(advantages > 0, temperature_pos, temperature_neg).astype(ratio.dtype)
    return -(4 / tau) * jax.nn.sigmoid(tau * (ratio - 1)) * advantages, {}


@jax.jit
def gamma_weight(
    *,
    log_ratio: Rows,
    advantages: Rows,
    k_pos: ScalarLike = 2.0,
    lambda_pos: ScalarLike = 3.0,
    k_neg: ScalarLike = 3.0,
    lambda_neg: ScalarLike = 2.0,
) -> Rows:
    """VESPO's φ(w) = w^k exp(λ (1-w)), w the sequence's ratio; a constant, 1 at w = 1.

    (k, λ) by the sign of the advantage; 0 counts as positive. w is held in [1e-8, e^20].

    >>> gamma_weight(log_ratio=jnp.array([0.0, 1.0]), advantages=jnp.array([1.0, 1.0]))
    Array([1.      , 0.0426...], dtype=float32)
    """
    log_w = jnp.clip(at_least_float32(log_ratio), jnp.log(1e-8), importance.LIMIT)
    positive = advantages >= 0
    k = jnp.where(positive, k_pos, k_neg)
    lam = jnp.maximum(jnp.where(positive, lambda_pos, lambda_neg), 1e-4)
    return jax.lax.stop_gradient(jnp.exp(lam + k * log_w - lam * jnp.exp(log_w)))


@jax.jit
def vespo(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Rows,
    mask: Mask,
    sampler_ratio: Tokens | None = None,
    k_pos: ScalarLike = 2.0,
    lambda_pos: ScalarLike = 3.0,
    k_neg: ScalarLike = 3.0,
    lambda_neg: ScalarLike = 2.0,
) -> tuple[Tokens, Stats]:
    """-φ(w) A log π, w the product of all ratios of the row (VESPO, arXiv:2602.10693).

    `sampler_ratio` [B, T] (old over sampler, truncated or masked beforehand) goes into w, not in
    front of the loss. Aggregate with `token_mean`.

    >>> rows = {"logps": jnp.array([[-1.0, -2.0]]), "old_logps": jnp.array([[-1.0, -1.5]])}
    >>> vespo(**rows, advantages=jnp.array([1.0]), mask=jnp.ones((1, 2)))[0]
    Array([[1.1977..., 2.3954...]], dtype=float32)
    """
    log_ratio = importance.log_sequence_weight(logps, old_logps, mask, sampler_ratio)
    weight = gamma_weight(
        log_ratio=log_ratio,
        advantages=advantages,
        k_pos=k_pos,
        lambda_pos=lambda_pos,
        k_neg=k_neg,
        lambda_neg=lambda_neg,
    )
    logps, column, _ = prepare(logps, advantages, mask)
    return -weight[:, None] * column * logps, {"vespo/phi_seq_mean": weight}
