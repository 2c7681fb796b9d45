"""Losses of reward models on pairs of scores, one value per pair. Lists are in `listwise`.

`chosen` and `rejected` are the model's scores of the two completions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses import pairwise
from rljax.losses.precision import at_least_float32

Pairs = Float[Array, "B"]
Stats = dict[str, Pairs]
Result = tuple[Pairs, Stats]


def _stats(chosen, rejected):
    gap = chosen - rejected
    return jax.lax.stop_gradient({"accuracy": (gap > 0).astype(gap.dtype), "margin": gap})


@jax.jit
def bradley_terry(
    *,
    chosen: Pairs,
    rejected: Pairs,
    margin: Pairs | None = None,
    center_coef: ScalarLike = 0.0,
    label_smoothing: ScalarLike | Pairs = 0.0,
) -> Result:
    """-log σ(r_w - r_l - margin) (arXiv:2203.02155, eq. 1; margin: Llama 2, arXiv:2307.09288).

    `center_coef` adds that times (r_w + r_l)², which keeps scores near 0 (arXiv:2312.09244; 0.01).
    `label_smoothing` is P(the label is wrong), one each for soft labels: the optimum of a pair that
    a judge prefers with probability p is r_w - r_l = logit(p) (RLAIF). Equal scores count as wrong.

    >>> bradley_terry(chosen=jnp.array([1.0]), rejected=jnp.array([0.0]))[0]
    Array([0.3132...], dtype=float32)
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    gap = chosen - rejected if margin is None else chosen - rejected - margin
    loss = pairwise.logistic(gap, label_smoothing=label_smoothing)
    return loss + center_coef * (chosen + rejected) ** 2, _stats(chosen, rejected)


@jax.jit
def scaled_bradley_terry(*, chosen: Pairs, rejected: Pairs, margin: Pairs) -> Result:
    """-margin log σ(r_w - r_l): HelpSteer2-Preference's scaled BT (arXiv:2410.01257).

    >>> scores = {"chosen": jnp.array([1.0]), "rejected": jnp.array([0.0])}
    >>> scaled_bradley_terry(**scores, margin=jnp.array([2.0]))[0]
    Array([0.6265...], dtype=float32)
    """
    loss, stats = bradley_terry(chosen=chosen, rejected=rejected)
    return jax.lax.stop_gradient(margin) * loss, stats


@jax.jit
def focal(*, chosen: Pairs, rejected: Pairs, gamma: ScalarLike = 2.0) -> Result:
    """-(1 - 2 max(0, P - ½))^γ log P, P = σ(r_w - r_l): InternLM2's ranking loss (2403.17297).

    Easy pairs fade; at P <= ½ and at γ = 0 it is Bradley-Terry. Add `score_barrier`.

    >>> focal(chosen=jnp.array([1.0]), rejected=jnp.array([0.0]))[0]
    Array([0.0906...], dtype=float32)
    """
    chosen, rejected = at_least_float32(chosen), at_least_float32(rejected)
    gap = chosen - rejected
    # 1 - 2(σ(x) - ½) = 2σ(-x): exact where σ is near 1.
    fade = jnp.minimum(2 * jax.nn.sigmoid(-gap), 1.0) ** gamma
    return fade * pairwise.logistic(gap), _stats(chosen, rejected)


@jax.jit
def score_barrier(
    scores: Float[Array, "*shape"], *, coef: ScalarLike = 0.02, bound: ScalarLike = 5.0
) -> Float[Array, "*shape"]:
    """-λ(log(5 + r) + log(5 - r)): keeps scores within ±5 (InternLM2, arXiv:2403.17297).

    Held just inside the bound, where its gradient is 0: start from a head that scores near 0.

    >>> score_barrier(jnp.array([0.0, 4.9]))
    Array([-0.0643...,  0.0002...], dtype=float32)
    """
    scores = at_least_float32(scores)
    edge = bound * (1 - 1e-6)
    inside = jnp.clip(scores, -edge, edge)
    return -coef * (jnp.log(bound + inside) + jnp.log(bound - inside))


@jax.jit
def signed_cost(
    *,
    worse: Pairs,
    better: Pairs,
    worse_sign: Pairs,
    better_sign: Pairs,
) -> Result:
    """The cost model of Safe RLHF (arXiv:2310.12773): rank harm, and fix where harmless begins.

    -log σ(C_worse - C_better) - log σ(s_w C_worse) - log σ(s_b C_better), s = +1 harmful, -1 safe.
    `worse` is the more harmful completion of the pair.

    >>> one = jnp.ones(1)
    >>> signed_cost(worse=one, better=-one, worse_sign=one, better_sign=-one)[0]
    Array([0.7534...], dtype=float32)
    """
    worse, better = at_least_float32(worse), at_least_float32(better)
    loss = pairwise.logistic(worse - better)
    loss += pairwise.logistic(worse_sign * worse) + pairwise.logistic(better_sign * better)
    return loss, _stats(worse, better)


@jax.jit
def general_preference(
    a: Float[Array, "B two_m"],
    b: Float[Array, "B two_m"],
    *,
    scale: Float[Array, "m"] | None = None,
) -> Pairs:
    """s(a beats b) = Σ_m λ_m (a_{m0} b_{m1} - a_{m1} b_{m0}): GPM's score (arXiv:2410.02197).

    a, b are embeddings of the two completions; antisymmetric, so cycles can be learned. Train it
    with `pairwise.logistic(s / 0.1)`. b_{m1} = a_{m1} = c gives Bradley-Terry.

    >>> general_preference(jnp.array([[2.0, 1.0]]), jnp.array([[1.0, 1.0]]))
    Array([1.], dtype=float32)
    """
    a, b = (at_least_float32(x).reshape(x.shape[0], -1, 2) for x in (a, b))
    planes = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return (planes if scale is None else planes * scale[None, :]).sum(-1)


@jax.jit
def generation_regularized(
    *,
    chosen: Pairs,
    rejected: Pairs,
    chosen_logps: Pairs,
    alpha: ScalarLike = 0.01,
    beta: ScalarLike = 0.1,
) -> Result:
    """(1-α) Bradley-Terry - α log σ(β ℓ_w): GRM with SFT regulariser (arXiv:2406.10216).

    ℓ_w is the language-model head's log-probability of the chosen completion, summed over tokens.

    >>> scores = {"chosen": jnp.array([1.0]), "rejected": jnp.array([0.0])}
    >>> generation_regularized(**scores, chosen_logps=jnp.array([-5.0]), alpha=0.1)[0]
    Array([0.3793...], dtype=float32)
    """
    loss, stats = bradley_terry(chosen=chosen, rejected=rejected)
    keep = -jax.nn.log_sigmoid(beta * at_least_float32(chosen_logps))
    return (1 - alpha) * loss + alpha * keep, stats
