"""Losses on pairs that the policy sampled itself, ranked by a reward or a preference model."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import masked, pairwise
from rljax.losses.precision import at_least_float32
from rljax.losses.preference import Result, log_ratios, pair_stats

Rows = Float[Array, "B"]
Tokens = Float[Array, "B T"]
Stats = dict[str, Float[Array, "..."]]


@jax.jit
def order(first: Rows, second: Rows, first_wins: Shaped[Array, "B"]) -> tuple[Rows, Rows]:
    """(of the winner, of the loser). Online DPO is `preference.dpo` of pairs so ordered.

    With rewards, `first_wins = reward_first >= reward_second`: ties go to the first.

    >>> order(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0]), jnp.array([True, False]))[0]
    Array([1., 4.], dtype=float32)
    """
    wins = first_wins != 0
    return jnp.where(wins, first, second), jnp.where(wins, second, first)


@jax.jit
def nash_md(
    *,
    logps: Tokens,
    ref_logps: Tokens,
    mask: Shaped[Array, "B T"],
    win_probability: Rows,
    beta: ScalarLike = 0.1,
) -> tuple[Rows, Stats]:
    """-(P - ½) log π(y) + β Σ_t sg(log π/ref)_t log π_t: Nash-MD (arXiv:2312.00886).

    P is the chance that y beats a sample of the mixture policy. The KL term is token-wise: each
    token carries its own log-ratio, not the sequence's return.

    >>> logps = {"logps": jnp.array([[-1.0]]), "ref_logps": jnp.array([[-2.0]])}
    >>> nash_md(**logps, mask=jnp.ones((1, 1)), win_probability=jnp.array([0.7]))[0]
    Array([0.0999...], dtype=float32)
    """
    logps, ref_logps = (masked.clean(at_least_float32(x), mask) for x in (logps, ref_logps))
    gap = jax.lax.stop_gradient(logps - ref_logps)
    score = jax.lax.stop_gradient(win_probability - 0.5) * logps.sum(1)
    stats = {"score": score, "kl": gap.sum(1)}
    return beta * (gap * logps).sum(1) - score, jax.lax.stop_gradient(stats)


@jax.jit
def xpo(pair_loss: Rows, ref_sample_logps: Rows, *, alpha: ScalarLike = 1e-5) -> Rows:
    """pair loss + α log π(y_ref): exploratory preference optimisation (arXiv:2405.21046).

    `pair_loss` is DPO on a pair of one policy and one reference sample. The bonus lowers the
    likelihood of what the reference would write, summed over its tokens.

    >>> xpo(jnp.array([0.7]), jnp.array([-20.0]), alpha=1e-3)
    Array([0.68], dtype=float32)
    """
    return pair_loss + alpha * at_least_float32(ref_sample_logps)


@jax.jit
def dno(
    *,
    chosen: Rows,
    rejected: Rows,
    ref_chosen: Rows,
    ref_rejected: Rows,
    win_rate_chosen: Rows,
    win_rate_rejected: Rows,
    eta: ScalarLike = 0.1,
) -> Result:
    """Cross-entropy of σ(η h) to σ(r_w - r_l): direct Nash optimisation (arXiv:2404.03715).

    r is the win rate against the policy that sampled, which is also the reference. DNO-Prct
    instead takes DPO on pairs of large margin.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> dno(**pair, win_rate_chosen=zero + 0.7, win_rate_rejected=zero + 0.3)[0]
    Array([0.6784...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    wrong = jax.nn.sigmoid(jax.lax.stop_gradient(win_rate_rejected - win_rate_chosen))
    loss = pairwise.logistic(eta * (c - r), label_smoothing=wrong)
    return loss, pair_stats(eta * c, eta * r)


@functools.partial(jax.jit, static_argnames="distance")
def reward_aware(
    *,
    chosen: Rows,
    rejected: Rows,
    ref_chosen: Rows,
    ref_rejected: Rows,
    reward_chosen: Rows,
    reward_rejected: Rows,
    beta: ScalarLike = 0.1,
    eta: ScalarLike = 1.0,
    distance: str = "backward_kl",
) -> Result:
    """D[β h || η (r_w - r_l)]: Nemotron's reward-aware preference optimisation (arXiv:2406.11704).

    0 exactly when the implicit reward gap equals the real one. D: "backward_kl", the paper's, is
    KL of Bernoullis (target || model); "forward_kl" the other way; "square" (a - b)². η → ∞ is DPO.
    NeMo-Aligner's `rpo_bwd_kl`, `rpo_fwd_kl`, `rpo_sq`.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> reward_aware(**pair, reward_chosen=zero + 1, reward_rejected=zero)[0]
    Array([0.0697...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    a, b = beta * (c - r), eta * jax.lax.stop_gradient(reward_chosen - reward_rejected)
    distances = {
        "backward_kl": lambda: _bernoulli_kl(b, a),
        "forward_kl": lambda: _bernoulli_kl(a, b),
        "square": lambda: (a - b) ** 2,
    }
    if distance not in distances:
        raise ValueError(f"distance={distance!r}: choose one of {sorted(distances)}")
    return distances[distance](), pair_stats(beta * c, beta * r)


def _bernoulli_kl(x, y):
    """KL(Bernoulli(σ(x)) || Bernoulli(σ(y)))."""
    up = jax.nn.sigmoid(x) * (jax.nn.log_sigmoid(x) - jax.nn.log_sigmoid(y))
    return up + jax.nn.sigmoid(-x) * (jax.nn.log_sigmoid(-x) - jax.nn.log_sigmoid(-y))


@jax.jit
def optimal_value(rewards: Float[Array, "B N"], *, beta: ScalarLike = 0.5) -> Rows:
    """β log mean exp(r/β) over the reference's samples: V* of A*-PO (arXiv:2505.20686).

    >>> optimal_value(jnp.array([[0.0, 1.0]]), beta=0.5)
    Array([0.7168...], dtype=float32)
    """
    n = rewards.shape[1]
    return beta * (jax.nn.logsumexp(at_least_float32(rewards) / beta, axis=1) - jnp.log(n))


@jax.jit
def optimal_advantage_regression(
    *, logps: Rows, ref_logps: Rows, rewards: Rows, values: Rows, beta: ScalarLike = 1e-3
) -> tuple[Rows, Stats]:
    """(β log π/ref - (r - V*))²: A*-PO's single-sample update (arXiv:2505.20686).

    `values` come from `optimal_value`, whose β (0.5) is another one.

    >>> rows = {"logps": jnp.array([-1.0]), "ref_logps": jnp.array([-3.0])}
    >>> loss, _ = optimal_advantage_regression(**rows, rewards=jnp.ones(1), values=jnp.zeros(1))
    >>> loss
    Array([0.9960...], dtype=float32)
    """
    implicit = beta * (at_least_float32(logps) - jax.lax.stop_gradient(ref_logps))
    target = jax.lax.stop_gradient(rewards - values)
    stats = {"implicit_reward": jax.lax.stop_gradient(implicit), "advantage": target}
    return (implicit - target) ** 2, stats
