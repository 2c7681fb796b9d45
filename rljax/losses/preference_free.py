"""Pair losses without a reference model.

`chosen` and `rejected` are log-probabilities of completions, per function either summed over tokens
or averaged (`logprobs.sequence_logprobs(..., average=True)`); each docstring says which. Most
papers add an NLL term on the chosen completion: `supervised.nll` through `mean.weighted_sum`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses import pairwise
from rljax.losses.precision import at_least_float32
from rljax.losses.preference import Result, pair_stats

Pairs = Float[Array, "B"]


def _wide(chosen, rejected):
    return at_least_float32(chosen), at_least_float32(rejected)


@jax.jit
def cpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    beta: ScalarLike = 0.1,
    label_smoothing: ScalarLike = 0.0,
) -> Result:
    """-log σ(β(ℓ_w - ℓ_l)), ℓ summed: contrastive preference optimisation (arXiv:2401.08417).

    DPO with a uniform reference. The paper adds 1 x NLL of the chosen completion.

    >>> pair = {"chosen": jnp.array([-1.0]), "rejected": jnp.array([-3.0])}
    >>> cpo(**pair, beta=0.1)[0]
    Array([0.5981...], dtype=float32)
    """
    c, r = _wide(chosen, rejected)
    loss = pairwise.logistic(beta * (c - r), label_smoothing=label_smoothing)
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def reference_free_hinge(*, chosen: Pairs, rejected: Pairs, beta: ScalarLike = 0.1) -> Result:
    """max(0, 1 - β(ℓ_w - ℓ_l)), ℓ summed: CPO's and TPO's hinge in TRL.

    >>> pair = {"chosen": jnp.array([-1.0]), "rejected": jnp.array([-3.0])}
    >>> reference_free_hinge(**pair)[0]
    Array([0.8], dtype=float32)
    """
    c, r = _wide(chosen, rejected)
    return pairwise.hinge(beta * (c - r)), pair_stats(beta * c, beta * r)


@jax.jit
def slic(*, chosen: Pairs, rejected: Pairs, margin: ScalarLike = 1.0) -> Result:
    """max(0, δ - ℓ_w + ℓ_l), ℓ summed: SLiC-HF (arXiv:2305.10425, eq. 1).

    The paper adds λ NLL of an SFT target, which need not be the chosen completion. Rewards in the
    stats are ℓ themselves.

    >>> pair = {"chosen": jnp.array([-1.0]), "rejected": jnp.array([-3.0])}
    >>> slic(**pair, margin=3.0)[0]
    Array([1.], dtype=float32)
    """
    c, r = _wide(chosen, rejected)
    return jax.nn.relu(margin - c + r), pair_stats(c, r)


@jax.jit
def reference_free_ipo(*, chosen: Pairs, rejected: Pairs, beta: ScalarLike = 0.1) -> Result:
    """(ℓ_w - ℓ_l - 1/(2β))², ℓ averaged: IPO without reference, as TRL's CPO and TPO have it.

    >>> pair = {"chosen": jnp.array([-1.0]), "rejected": jnp.array([-3.0])}
    >>> reference_free_ipo(**pair, beta=0.5)[0]
    Array([1.], dtype=float32)
    """
    c, r = _wide(chosen, rejected)
    return (c - r - 1 / (2 * beta)) ** 2, pair_stats(beta * c, beta * r)


@jax.jit
def simpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    beta: ScalarLike = 2.0,
    gamma: ScalarLike = 1.0,
    label_smoothing: ScalarLike = 0.0,
) -> Result:
    """-log σ(β(ℓ_w - ℓ_l) - γ), ℓ averaged: SimPO (arXiv:2405.14734, eq. 6).

    γ is not multiplied by β; open-instruct's `gamma_beta_ratio` is γ/β. TPO-L is this with γ 0.5
    and an NLL term on a third, gold response (arXiv:2405.16681).

    >>> pair = {"chosen": jnp.array([-1.0]), "rejected": jnp.array([-3.0])}
    >>> simpo(**pair)[0]
    Array([0.0485...], dtype=float32)
    """
    c, r = _wide(chosen, rejected)
    loss = pairwise.logistic(beta * (c - r) - gamma, label_smoothing=label_smoothing)
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def alpha_reward(logps: Pairs, *, alpha: ScalarLike) -> Pairs:
    """(1 - p^-α)/α: AlphaPO's reward (arXiv:2501.03884); log p at α = 0.

    >>> alpha_reward(jnp.array([-1.0]), alpha=0.25)
    Array([-1.1361...], dtype=float32)
    """
    logps = at_least_float32(logps)
    power = jnp.asarray(alpha, logps.dtype)
    limit = jnp.abs(power) < 1e-6
    safe = jnp.where(limit, 1.0, power)
    # From -α log p: p itself underflows fp32 for a sum over 100 tokens, and p^-α is then NaN.
    curved = -jnp.expm1(jnp.minimum(-safe * logps, pairwise.MAX_EXPONENT)) / safe
    return jnp.where(limit, logps, curved)


@jax.jit
def alphapo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    beta: ScalarLike = 2.5,
    gamma: ScalarLike = 0.1,
    alpha: ScalarLike = 0.25,
    label_smoothing: ScalarLike = 0.0,
) -> Result:
    """-log σ(β(r_w - r_l) - γ) with `alpha_reward` of averaged ℓ: AlphaPO (arXiv:2501.03884).

    >>> pair = {"chosen": jnp.array([-1.0]), "rejected": jnp.array([-3.0])}
    >>> alphapo(**pair)[0]
    Array([0.0002...], dtype=float32)
    """
    c, r = alpha_reward(chosen, alpha=alpha), alpha_reward(rejected, alpha=alpha)
    loss = pairwise.logistic(beta * (c - r) - gamma, label_smoothing=label_smoothing)
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def log_odds(logps: Pairs) -> Pairs:
    """log p/(1-p), by log1p(-e^ℓ) for small and log(-expm1(ℓ)) for large p.

    ℓ is held below -1e-6: at p = 1 the odds, and the gradient of TRL's form, are infinite.

    >>> log_odds(jnp.log(jnp.array([0.5, 0.9])))
    Array([0.       , 2.1972...], dtype=float32)
    """
    logps = jnp.minimum(at_least_float32(logps), -1e-6)
    near_one = logps > -0.693
    # Each branch is fed a harmless value where the other rules, or its gradient is NaN.
    large = jnp.log(-jnp.expm1(jnp.where(near_one, logps, -1.0)))
    small = jnp.log1p(-jnp.exp(jnp.where(near_one, -1.0, logps)))
    return logps - jnp.where(near_one, large, small)


@jax.jit
def orpo(*, chosen: Pairs, rejected: Pairs, beta: ScalarLike = 0.1) -> Result:
    """-β log σ(log odds_w - log odds_l), ℓ averaged: ORPO's ratio term (arXiv:2403.07691, eq. 7).

    β is the paper's λ (0.05 for Zephyr-141B). The paper's loss adds the NLL of the chosen
    completion; TRL takes that NLL over its prompt too.

    >>> pair = {"chosen": jnp.array([-1.0]), "rejected": jnp.array([-3.0])}
    >>> orpo(**pair)[0]
    Array([0.0086...], dtype=float32)
    """
    c, r = _wide(chosen, rejected)
    gap = log_odds(c) - log_odds(r)
    stats = pair_stats(beta * c, beta * r)
    stats |= jax.lax.stop_gradient(
        {"log_odds_chosen": gap, "log_odds_ratio": jax.nn.log_sigmoid(gap)}
    )
    return beta * pairwise.logistic(gap), stats
