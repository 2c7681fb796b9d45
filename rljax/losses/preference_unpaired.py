"""Losses on single completions labelled good or bad, or with a scalar reward; one value per row.

`logps` and `ref_logps` are log-probabilities of completions, summed over tokens; h is their
difference. References are constants.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, ScalarLike

from rljax.losses.precision import at_least_float32

Rows = Float[Array, "B"]
Flags = Bool[Array, "B"]
Stats = dict[str, Float[Array, "..."]]
Result = tuple[Rows, Stats]


def _log_ratio(logps, ref_logps):
    return at_least_float32(logps) - jax.lax.stop_gradient(at_least_float32(ref_logps))


@jax.jit
def kto_reference_point(logps: Rows, ref_logps: Rows) -> Float[Array, ""]:
    """max(0, mean h) over completions paired with other rows' prompts, a constant: KTO's z₀.

    Needs a batch of two or more, or a completion has no other prompt.

    >>> kto_reference_point(jnp.array([-1.0, -2.0]), jnp.array([-3.0, -2.0]))
    Array(1., dtype=float32)
    """
    if logps.shape[0] < 2:
        raise ValueError("KTO's reference point wants 2 or more mismatched rows, got 1")
    return jax.lax.stop_gradient(jax.nn.relu(_log_ratio(logps, ref_logps).mean()))


@jax.jit
def kto(
    *,
    logps: Rows,
    ref_logps: Rows,
    desirable: Flags,
    reference_point: ScalarLike,
    beta: ScalarLike = 0.1,
    desirable_weight: ScalarLike = 1.0,
    undesirable_weight: ScalarLike = 1.0,
) -> Result:
    """λ(1 - σ(±β(h - z₀))): Kahneman-Tversky optimisation (arXiv:2402.01306, eq. 7-8).

    + and `desirable_weight` for desirable rows, - and `undesirable_weight` for the others. Average
    over all rows, not over weights. z₀ is `kto_reference_point`.

    >>> rows = {"logps": jnp.array([-1.0, -1.0]), "ref_logps": jnp.array([-3.0, -3.0])}
    >>> kto(**rows, desirable=jnp.array([True, False]), reference_point=0.0)[0]
    Array([0.4501..., 0.5498...], dtype=float32)
    """
    h = _log_ratio(logps, ref_logps)
    gap = beta * (h - jax.lax.stop_gradient(reference_point))
    weight = jnp.where(desirable, desirable_weight, undesirable_weight)
    loss = weight * jax.nn.sigmoid(jnp.where(desirable, -gap, gap))
    return loss, _label_stats(beta * h, desirable)


@jax.jit
def apo_zero_unpaired(
    *,
    logps: Rows,
    ref_logps: Rows,
    desirable: Flags,
    beta: ScalarLike = 0.1,
    desirable_weight: ScalarLike = 1.0,
    undesirable_weight: ScalarLike = 1.0,
) -> Result:
    """λ σ(∓βh): APO-zero on single completions (arXiv:2408.06266), KTO without reference point.

    >>> rows = {"logps": jnp.array([-1.0, -1.0]), "ref_logps": jnp.array([-3.0, -3.0])}
    >>> apo_zero_unpaired(**rows, desirable=jnp.array([True, False]), beta=0.5)[0]
    Array([0.2689..., 0.7310... ], dtype=float32)
    """
    return kto(
        logps=logps,
        ref_logps=ref_logps,
        desirable=desirable,
        reference_point=0.0,
        beta=beta,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )


def _label_stats(rewards, desirable):
    """Rewards of either label. Average each with its own count, `desirable` or its complement."""
    rewards = jax.lax.stop_gradient(rewards)
    return {
        "rewards/chosen": jnp.where(desirable, rewards, 0.0),
        "rewards/rejected": jnp.where(desirable, 0.0, rewards),
    }


@jax.jit
def bco(
    *,
    logps: Rows,
    ref_logps: Rows,
    desirable: Flags,
    delta: ScalarLike,
    beta: ScalarLike = 0.1,
    weight: Rows | None = None,
) -> Result:
    """-log σ(±(βh - δ)): binary classifier optimisation (arXiv:2404.04656).

    δ is the running mean of all rewards βh, this batch included (`running.update`); a constant.
    `weight` are `density_ratio` weights of undesirable rows; they do not touch desirable ones.

    >>> rows = {"logps": jnp.array([-1.0, -1.0]), "ref_logps": jnp.array([-3.0, -3.0])}
    >>> bco(**rows, desirable=jnp.array([True, False]), delta=0.1)[0]
    Array([0.6443..., 0.7443... ], dtype=float32)
    """
    h = beta * _log_ratio(logps, ref_logps)
    gap = h - jax.lax.stop_gradient(delta)
    loss = -jax.nn.log_sigmoid(jnp.where(desirable, gap, -gap))
    if weight is not None:
        loss = loss * jnp.where(desirable, 1.0, jax.lax.stop_gradient(weight))
    return loss, _label_stats(h, desirable)


@jax.jit
def density_ratio(probability: Rows, *, low: ScalarLike = 0.5, high: ScalarLike = 10.0) -> Rows:
    """p/(1-p) held within [low, high]: BCO's underlying-distribution matching.

    p is a classifier's probability that the prompt comes from the desirable set.

    >>> density_ratio(jnp.array([0.1, 0.75]))
    Array([0.5, 3. ], dtype=float32)
    """
    return jnp.clip(probability / (1 - probability + 1e-8), low, high)


@jax.jit
def npo(*, logps: Rows, ref_logps: Rows, beta: ScalarLike = 0.1) -> Result:
    """-(2/β) log σ(-βh): negative preference optimisation, for unlearning (arXiv:2404.05868).

    All rows are to be forgotten. Tends to gradient ascent as β → 0, and fades as a row becomes
    unlikely.

    >>> npo(logps=jnp.array([-1.0]), ref_logps=jnp.array([-3.0]))[0]
    Array([15.9627...], dtype=float32)
    """
    h = _log_ratio(logps, ref_logps)
    loss = -(2 / beta) * jax.nn.log_sigmoid(-beta * h)
    return loss, {"rewards/rejected": jax.lax.stop_gradient(beta * h)}


@jax.jit
def d2o(
    *,
    anchors: Float[Array, "B K"],
    ref_anchors: Float[Array, "B K"],
    rejected: Rows,
    ref_rejected: Rows,
    beta: ScalarLike = 0.1,
    alpha: ScalarLike = 0.1,
) -> Result:
    """-log σ((β/K) Σ_i h_i - α h_l): distributional dispreference (arXiv:2403.03419).

    Only the rejected answers come from people; the K anchors are the model's own samples. Their
    references may differ: harmful for anchors, harmless for rejected. The formula is from a
    third-party reading of the paper. K = 1, one reference and α = β is DPO.

    >>> anchors = {"anchors": jnp.array([[1.0, -1.0]]), "ref_anchors": jnp.zeros((1, 2))}
    >>> d2o(**anchors, rejected=jnp.array([-2.0]), ref_rejected=jnp.zeros(1))[0]
    Array([0.5981...], dtype=float32)
    """
    h = _log_ratio(anchors, ref_anchors).mean(1)
    h_l = _log_ratio(rejected, ref_rejected)
    stats = {"rewards/chosen": beta * h, "rewards/rejected": alpha * h_l}
    return -jax.nn.log_sigmoid(beta * h - alpha * h_l), jax.lax.stop_gradient(stats)


@jax.jit
def dro(
    *, logps: Rows, ref_logps: Rows, rewards: Rows, values: Rows, tau: ScalarLike = 1.0
) -> tuple[Rows, Rows, Stats]:
    """(policy loss, value loss, stats) of direct reward optimisation, DRO-V (arXiv:2405.19107).

    Both are ½(r - V - τh)², one with V held, one with h held; the policy's is divided by τ (eq. 8).
    `rewards` may be any scalar feedback, `values` is V(prompt) of a separate network.

    >>> rows = {"logps": jnp.array([-1.0]), "ref_logps": jnp.array([-3.0])}
    >>> dro(**rows, rewards=jnp.array([1.0]), values=jnp.zeros(1), tau=0.5)[0]
    Array([0.], dtype=float32)
    """
    h, values = _log_ratio(logps, ref_logps), at_least_float32(values)
    rewards = at_least_float32(rewards)
    for_policy = rewards - jax.lax.stop_gradient(values) - tau * h
    for_value = rewards - values - tau * jax.lax.stop_gradient(h)
    stats = {"residual": jax.lax.stop_gradient(for_policy)}
    return 0.5 * for_policy**2 / tau, 0.5 * for_value**2, stats
