"""Losses over pairs of completions against a reference, one value per pair.

chosen, rejected, ref_chosen, ref_rejected: log-probabilities of whole completions in nats, summed
over their tokens (`logprobs.sequence_logprobs`). c and r are the log-ratios of policy to reference,
h = c - r. `rewards/*` in the stats are always β c and β r, as on TRL's dashboards. References are
constants. Other ideas: `preference_margin`, `preference_anchored`, `preference_free`,
`preference_unpaired`, `preference_sorted`, `preference_online`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import pairwise
from rljax.losses.precision import at_least_float32

Pairs = Float[Array, "B"]
Lengths = Shaped[Array, "B"]
Stats = dict[str, Float[Array, "B"]]
Result = tuple[Pairs, Stats]


@jax.jit
def pair_stats(chosen_rewards: Pairs, rejected_rewards: Pairs) -> Stats:
    """What dashboards show of implicit rewards. Equal rewards count as wrong."""
    stats = {
        "rewards/chosen": chosen_rewards,
        "rewards/rejected": rejected_rewards,
        "rewards/margins": chosen_rewards - rejected_rewards,
        "rewards/accuracies": (chosen_rewards > rejected_rewards).astype(chosen_rewards.dtype),
    }
    return jax.lax.stop_gradient(stats)


def log_ratios(chosen, rejected, ref_chosen, ref_rejected):
    """(c, r) in fp32, the reference held constant."""
    ref = jax.lax.stop_gradient((ref_chosen, ref_rejected))
    wide = [at_least_float32(x) for x in (chosen, rejected, *ref)]
    return wide[0] - wide[2], wide[1] - wide[3]


@functools.partial(jax.jit, static_argnames="divergence")
def dpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike | Pairs = 0.1,
    label_smoothing: ScalarLike | Pairs = 0.0,
    divergence: str = "reverse_kl",
    alpha: ScalarLike = 0.5,
) -> Result:
    """-log σ(β h): direct preference optimisation (arXiv:2305.18290, eq. 7).

    `label_smoothing` ε is the probability that the pair is labelled the wrong way round, in total
    or one each (conservative DPO, soft labels): (1-ε)(-log σ(βh)) - ε log σ(-βh). TRL 1.16 ignores
    it here, OpenRLHF does not. `divergence` ("reverse_kl", "forward_kl", "js", "alpha") replaces
    the log-ratios by another score (f-DPO, arXiv:2309.16240). `beta` may be one each.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> dpo(**pair, beta=0.1)[0]
    Array([0.5981...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    h = pairwise.score(c, divergence, alpha) - pairwise.score(r, divergence, alpha)
    return pairwise.logistic(beta * h, label_smoothing=label_smoothing), pair_stats(
        beta * c, beta * r
    )


@functools.partial(jax.jit, static_argnames="divergence")
def _robust(chosen, rejected, ref_chosen, ref_rejected, beta, label_smoothing, divergence, alpha):
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    x = beta * (pairwise.score(c, divergence, alpha) - pairwise.score(r, divergence, alpha))
    right, wrong = pairwise.logistic(x), pairwise.logistic(-x)
    loss = ((1 - label_smoothing) * right - label_smoothing * wrong) / (1 - 2 * label_smoothing)
    return loss, pair_stats(beta * c, beta * r)


def robust_dpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    label_smoothing: ScalarLike,
    divergence: str = "reverse_kl",
    alpha: ScalarLike = 0.5,
) -> Result:
    """Provably robust DPO (arXiv:2403.00409): DPO's loss in expectation over labels flipped at ε.

    [-(1-ε) log σ(βh) + ε log σ(-βh)] / (1-2ε). ValueError unless 0 <= ε < ½.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> robust_dpo(**pair, label_smoothing=0.1)[0]
    Array([0.5731...], dtype=float32)
    """
    if isinstance(label_smoothing, int | float) and not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing={label_smoothing}: robust DPO wants 0 <= it < 0.5")
    return _robust(
        chosen, rejected, ref_chosen, ref_rejected, beta, label_smoothing, divergence, alpha
    )


@functools.partial(jax.jit, static_argnames="divergence")
def hinge(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    divergence: str = "reverse_kl",
    alpha: ScalarLike = 0.5,
) -> Result:
    """max(0, 1 - β h): RSO's hinge-norm (arXiv:2309.06657). SLiC is `preference_free.slic`.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> hinge(**pair, beta=0.1)[0]
    Array([0.8], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    h = pairwise.score(c, divergence, alpha) - pairwise.score(r, divergence, alpha)
    return pairwise.hinge(beta * h), pair_stats(beta * c, beta * r)


@functools.partial(jax.jit, static_argnames="divergence")
def ipo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    chosen_length: Lengths | None = None,
    rejected_length: Lengths | None = None,
    divergence: str = "reverse_kl",
    alpha: ScalarLike = 0.5,
) -> Result:
    """(h - 1/(2β))²: identity preference optimisation (arXiv:2310.12036, eq. 17); β is its τ.

    The paper sums over tokens. With both lengths (in tokens) each score is divided by its length,
    as its authors advise and TRL does; OpenRLHF and NeMo sum.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> ipo(**pair, beta=0.5)[0]
    Array([1.], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    s_c = _per_token(pairwise.score(c, divergence, alpha), chosen_length)
    s_r = _per_token(pairwise.score(r, divergence, alpha), rejected_length)
    return (s_c - s_r - 1 / (2 * beta)) ** 2, pair_stats(beta * c, beta * r)


@functools.partial(jax.jit, static_argnames="divergence")
def length_normalized_dpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    chosen_length: Lengths,
    rejected_length: Lengths,
    beta: ScalarLike = 5.0,
    label_smoothing: ScalarLike = 0.0,
    divergence: str = "reverse_kl",
    alpha: ScalarLike = 0.5,
) -> Result:
    """-log σ(β (c/|chosen| - r/|rejected|)): Tülu 3's DPO (arXiv:2411.15124), β 5.

    With equal lengths L it is DPO at β/L. TRL's `sigmoid_norm`, open-instruct's `dpo_norm`. The
    stats are of the sums, so `rewards/*` grow with length.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> length_normalized_dpo(**pair, chosen_length=c + 3, rejected_length=c + 3)[0]
    Array([0.0067...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    s_c = _per_token(pairwise.score(c, divergence, alpha), chosen_length)
    s_r = _per_token(pairwise.score(r, divergence, alpha), rejected_length)
    loss = pairwise.logistic(beta * (s_c - s_r), label_smoothing=label_smoothing)
    return loss, pair_stats(beta * c, beta * r)


def _per_token(score, length):
    return score if length is None else score / jnp.maximum(length, 1)


GPO_FUNCTIONS = {
    "logistic": pairwise.logistic,
    "hinge": pairwise.hinge,
    "square": pairwise.square,
    "exponential": pairwise.exponential,
    "truncated_square": pairwise.truncated_square,
    "savage": pairwise.savage,
}


@functools.partial(jax.jit, static_argnames="function")
def gpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    function: str,
    beta: ScalarLike = 0.1,
) -> Result:
    """f(β h) for a convex f: generalised preference optimisation (arXiv:2402.05749).

    f: "logistic" (DPO), "hinge", "square" (IPO at τ = β/2, times β²), "exponential",
    "truncated_square", "savage".

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> gpo(**pair, function="exponential")[0]
    Array([0.8187...], dtype=float32)
    """
    if function not in GPO_FUNCTIONS:
        raise ValueError(f"function={function!r}: choose one of {sorted(GPO_FUNCTIONS)}")
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    return GPO_FUNCTIONS[function](beta * (c - r)), pair_stats(beta * c, beta * r)


@functools.partial(jax.jit, static_argnames="divergence")
def discopop(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    tau: ScalarLike = 0.05,
    divergence: str = "reverse_kl",
    alpha: ScalarLike = 0.5,
) -> Result:
    """(1-m)(-log σ(x)) + m e^-x with x = βh, m = σ(x/τ): DiscoPOP (arXiv:2406.08414).

    Not convex, and with τ 0.05 nearly a switch at x = 0.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> discopop(**pair)[0]
    Array([0.8147...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    x = beta * (pairwise.score(c, divergence, alpha) - pairwise.score(r, divergence, alpha))
    # m e^-x as one exponential: 0 * inf at very negative x otherwise.
    mixed = pairwise.bounded_exp(jax.nn.log_sigmoid(x / tau) - x)
    loss = jax.nn.sigmoid(-x / tau) * pairwise.logistic(x) + mixed
    return loss, pair_stats(beta * c, beta * r)


@functools.partial(jax.jit, static_argnames="divergence")
def _exo(chosen, rejected, ref_chosen, ref_rejected, beta, label_smoothing, divergence, alpha):
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    x = beta * (pairwise.score(c, divergence, alpha) - pairwise.score(r, divergence, alpha))
    log_w, log_l = jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)
    loss = jnp.exp(log_w) * (log_w - jnp.log1p(-label_smoothing))
    loss += jnp.exp(log_l) * (log_l - jnp.log(label_smoothing))
    return loss, pair_stats(beta * c, beta * r)


def exo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    label_smoothing: ScalarLike = 1e-3,
    divergence: str = "reverse_kl",
    alpha: ScalarLike = 0.5,
) -> Result:
    """KL(policy's || labels' preference) on the pair: EXO-pref (arXiv:2402.00856, eq. 16).

    The labels say [1-ε, ε]; the KL is infinite at ε = 0, which is refused.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> exo(**pair)[0]
    Array([2.4220...], dtype=float32)
    """
    if isinstance(label_smoothing, int | float) and not 0 < label_smoothing < 1:
        raise ValueError(f"label_smoothing={label_smoothing}: EXO wants 0 < it < 1")
    return _exo(
        chosen, rejected, ref_chosen, ref_rejected, beta, label_smoothing, divergence, alpha
    )
