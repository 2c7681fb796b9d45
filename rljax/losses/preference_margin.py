"""Pair losses -log σ(β h - m): with a margin, a penalty, a per-batch β, or reweighted tokens.

Inputs and notation as in `preference`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import masked, pairwise
from rljax.losses.logprobs import sequence_logprobs
from rljax.losses.precision import at_least_float32
from rljax.losses.preference import Result, log_ratios, pair_stats

Pairs = Float[Array, "B"]
Tokens = Float[Array, "B T"]
Mask = Shaped[Array, "B T"]


@jax.jit
def odpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    offset: Pairs,
    beta: ScalarLike = 0.1,
) -> Result:
    """-log σ(β h - Δ): DPO with an offset (arXiv:2402.10571); Δ grows with how much better.

    The paper's Δ is α log(score_w - score_l). The margin is outside β.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> odpo(**pair, offset=jnp.ones(1))[0]
    Array([1.1711...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    loss = pairwise.logistic(beta * (c - r) - jax.lax.stop_gradient(offset))
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def dpop(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.3,
    lam: ScalarLike = 50.0,
) -> Result:
    """-log σ(β(h - λ max(0, -c))): DPO-Positive, Smaug (arXiv:2402.13228).

    Punishes a chosen completion that is less likely than under the reference. The penalty is inside
    the sigmoid and scaled by β; a popular port puts it outside.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> dpop(**pair, lam=5.0)[0]
    Array([1.2411...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    loss = pairwise.logistic(beta * (c - r - lam * jax.nn.relu(-c)))
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def tdpo1(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    chosen_kl: Pairs,
    rejected_kl: Pairs,
    beta: ScalarLike = 0.1,
) -> Result:
    """-log σ(β(h - (K_l - K_w))): token-level DPO, first form (arXiv:2404.11999).

    K sums, over the completion's positions, the full KL(reference || policy) of the next token
    (`kl.full` with the reference first). Gradients flow through both.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> tdpo1(**pair, chosen_kl=zero + 1, rejected_kl=zero)[0]
    Array([0.5543...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    loss = pairwise.logistic(beta * (c - r - (rejected_kl - chosen_kl)))
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def tdpo2(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    chosen_kl: Pairs,
    rejected_kl: Pairs,
    beta: ScalarLike = 0.1,
    alpha: ScalarLike = 0.5,
) -> Result:
    """-log σ(β(h - α(K_l - sg K_w))): token-level DPO, second form; K as in `tdpo1`.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> tdpo2(**pair, chosen_kl=zero + 1, rejected_kl=zero)[0]
    Array([0.5759...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    gap = rejected_kl - jax.lax.stop_gradient(chosen_kl)
    return pairwise.logistic(beta * (c - r - alpha * gap)), pair_stats(beta * c, beta * r)


@jax.jit
def dynamic_beta(
    h: Pairs,
    *,
    mean_gap: ScalarLike,
    beta: ScalarLike = 0.1,
    alpha: ScalarLike = 0.6,
    lowest: ScalarLike = 1e-3,
) -> Float[Array, ""]:
    """β-DPO's β of a batch (arXiv:2407.08639): β₀(1 + α(mean h - M₀)), a constant, not below 1e-3.

    `mean_gap` M₀ is the running mean of h (momentum 0.9), kept by the caller. Pass the result to
    `preference.dpo` as `beta`.

    >>> dynamic_beta(jnp.array([1.0, 3.0]), mean_gap=1.0)
    Array(0.1600..., dtype=float32)
    """
    batch = beta * (1 + alpha * (at_least_float32(h).mean() - mean_gap))
    return jax.lax.stop_gradient(jnp.maximum(batch, lowest))


@jax.jit
def gap_weights(h: Pairs, *, mean_gap: ScalarLike, std_gap: ScalarLike) -> Pairs:
    """β-DPO's sampling weights exp(-(h - M₀)²/(2s²)): keep 1-ρ of the batch by them (ρ 0.2).

    >>> gap_weights(jnp.array([1.0, 3.0]), mean_gap=1.0, std_gap=2.0)
    Array([1.        , 0.6065...], dtype=float32)
    """
    h = jax.lax.stop_gradient(at_least_float32(h))
    return jnp.exp(-0.5 * ((h - mean_gap) / std_gap) ** 2)


@jax.jit
def ld_logprobs(
    *,
    chosen: Tokens,
    rejected: Tokens,
    chosen_mask: Mask,
    rejected_mask: Mask,
    alpha: ScalarLike = 0.5,
) -> tuple[Pairs, Pairs]:
    """Summed log-probs where tokens past the shorter completion weigh α: LD-DPO (2409.06411).

    Apply it to policy and reference alike, then any pair loss. α = 1 is the plain sum, 0 cuts both
    to the same length.

    >>> logps, long, short = -jnp.ones((1, 3)), jnp.ones((1, 3)), jnp.array([[1, 0, 0]])
    >>> ld_logprobs(chosen=logps, rejected=logps, chosen_mask=long, rejected_mask=short)[0]
    Array([-2.], dtype=float32)
    """
    shared = jnp.minimum((chosen_mask != 0).sum(1), (rejected_mask != 0).sum(1))

    def one(logps, mask):
        inside = jnp.cumsum(mask != 0, 1) <= shared[:, None]
        weighted = at_least_float32(logps) * jnp.where(inside, 1.0, alpha)
        return sequence_logprobs(masked.clean(weighted, mask), mask)

    return one(chosen, chosen_mask), one(rejected, rejected_mask)


@jax.jit
def wpo_weights(logps: Tokens, log_sum_p2: Tokens, mask: Mask) -> Pairs:
    """exp(mean_t(log p_t - log Σ_v p_v²)), a constant: WPO's weight of one completion (2406.11827).

    About 1 for what the policy would sample itself. A pair's weight is the product of both. TRL
    1.16 does not cap it, TRL up to 0.28 and open-instruct cap at 1. `log_sum_p2` comes with
    `logprobs.token_scores`.

    >>> logps = jnp.log(jnp.array([[0.5, 0.25]]))
    >>> wpo_weights(logps, jnp.log(jnp.array([[0.5, 0.5]])), jnp.ones((1, 2)))
    Array([0.7071...], dtype=float32)
    """
    gap = masked.clean(at_least_float32(logps) - log_sum_p2, mask)
    return jax.lax.stop_gradient(pairwise.bounded_exp(sequence_logprobs(gap, mask, average=True)))


@jax.jit
def wpo(
    loss: Pairs, *, chosen_weight: Pairs, rejected_weight: Pairs, cap: ScalarLike | None = None
) -> Pairs:
    """A pair loss times the WPO weights of its completions, each capped at `cap` if given.

    >>> wpo(jnp.ones(1), chosen_weight=jnp.array([0.5]), rejected_weight=jnp.array([0.8]))
    Array([0.4], dtype=float32)
    """
    if cap is not None:
        chosen_weight, rejected_weight = (
            jnp.minimum(w, cap) for w in (chosen_weight, rejected_weight)
        )
    return loss * jax.lax.stop_gradient(chosen_weight * rejected_weight)
