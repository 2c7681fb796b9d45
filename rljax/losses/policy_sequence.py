"""Policy losses that take a completion as one action: one value per row."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import importance, masked
from rljax.losses.logprobs import sequence_logprobs
from rljax.losses.precision import at_least_float32

Rows = Float[Array, "B"]
Tokens = Float[Array, "B T"]
Mask = Shaped[Array, "B T"]
Stats = dict[str, Float[Array, "..."]]


@jax.jit
def sequence_clip(
    *,
    logps: Rows,
    old_logps: Rows,
    advantages: Rows,
    clip: ScalarLike = 0.2,
    clip_high: ScalarLike | None = None,
) -> tuple[Rows, Stats]:
    """-min(ρA, clip(ρ)A) with ρ the ratio of whole completions: RLOO's update in TRL.

    logps are sums over the completion, not means. RLOO's paper (arXiv:2402.14740) has one
    on-policy update: there ρ = 1 and this is REINFORCE. Advantages: `leave_one_out`.

    >>> x = jnp.array([-1.0])
    >>> sequence_clip(logps=x + 1, old_logps=x, advantages=jnp.array([1.0]))[0]
    Array([-1.2], dtype=float32)
    """
    advantages = jax.lax.stop_gradient(advantages)
    high = clip if clip_high is None else clip_high
    ratio = importance.bounded_exp(at_least_float32(logps) - jax.lax.stop_gradient(old_logps))
    cut = jnp.clip(ratio, 1 - clip, 1 + high)
    low_clipped = (ratio < 1 - clip) & (advantages < 0)
    high_clipped = (ratio > 1 + high) & (advantages > 0)
    stats = {
        "clip_ratio/low_mean": low_clipped,
        "clip_ratio/high_mean": high_clipped,
        "clip_ratio/region_mean": low_clipped | high_clipped,
    }
    loss = -jnp.minimum(ratio * advantages, cut * advantages)
    return loss, {k: x.astype(loss.dtype) for k, x in stats.items()}


@jax.jit
def gmpo(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Rows,
    mask: Mask,
    clip: ScalarLike = 0.4,
    clip_high: ScalarLike | None = None,
) -> tuple[Rows, Stats]:
    """-A times the geometric mean of clipped token ratios (GMPO, arXiv:2507.20673).

    Each log-ratio is cut at `clip_high` above where A > 0 and at -`clip` below elsewhere, before
    the mean over the row's tokens. `clip` is in log space: 0.4 allows ratios from e^-0.4 to e^0.4.
    Mean over rows.

    >>> rows = {"logps": jnp.array([[-1.0, -2.0]]), "old_logps": jnp.array([[-1.0, -1.5]])}
    >>> gmpo(**rows, advantages=jnp.array([1.0]), mask=jnp.ones((1, 2)))[0]
    Array([-0.7788...], dtype=float32)
    """
    high = clip if clip_high is None else clip_high
    log_ratio = masked.clean(
        at_least_float32(logps) - jax.lax.stop_gradient(at_least_float32(old_logps)), mask
    )
    A = jax.lax.stop_gradient(advantages)[:, None]
    # min and max of the value and its clip, not a plain clip: at the bound the gradient is halved.
    cut = jnp.clip(log_ratio, -clip, high)
    kept = jnp.where(A > 0, jnp.minimum(log_ratio, cut), jnp.maximum(log_ratio, cut))
    log_weight = sequence_logprobs(kept, mask, average=True)
    stats = {
        "clip_ratio/low_mean": (log_ratio < -clip) & (A < 0) & (mask != 0),
        "clip_ratio/high_mean": (log_ratio > high) & (A > 0) & (mask != 0),
    }
    stats["clip_ratio/region_mean"] = stats["clip_ratio/low_mean"] | stats["clip_ratio/high_mean"]
    loss = -importance.bounded_exp(log_weight) * A[:, 0]
    return loss, {k: x.astype(loss.dtype) for k, x in stats.items()}


@jax.jit
def mirror_descent(
    *, logps: Rows, old_logps: Rows, advantages: Rows, tau: ScalarLike
) -> tuple[Rows, Stats]:
    """(A - τ log π/π_old)²/(2τ), A = r - group mean: Kimi k1.5's policy update (arXiv:2501.12599).

    Its descent direction is the paper's eq. 3, A ∇log π - (τ/2) ∇(log π/π_old)². The completion
    is one action; π_old is the policy that sampled, and becomes the reference of each iteration
    (the optimizer is reset there). The paper prints no τ.

    >>> x = jnp.array([-1.0])
    >>> mirror_descent(logps=x + 1, old_logps=x, advantages=jnp.array([1.0]), tau=0.5)[0]
    Array([0.25], dtype=float32)
    """
    gap = at_least_float32(logps) - jax.lax.stop_gradient(old_logps)
    target = jax.lax.stop_gradient(advantages)
    return (target - tau * gap) ** 2 / (2 * tau), {"log_ratio": jax.lax.stop_gradient(gap)}


@jax.jit
def advantage_regression(
    *, logps: Tokens, init_logps: Tokens, advantages: Tokens, mask: Mask, lam: ScalarLike
) -> tuple[Tokens, Stats]:
    """(log π - A/λ - log π_init)² per token: APA's squared form (arXiv:2306.02231), Starling's RL.

    Its optimum is π_init e^(A/λ) only when that is normalised already; else biased by log Z.

    >>> rows = {"logps": jnp.array([[-1.0]]), "init_logps": jnp.array([[-2.0]])}
    >>> advantage_regression(**rows, advantages=jnp.ones((1, 1)), mask=jnp.ones((1, 1)), lam=2.0)[0]
    Array([[0.25]], dtype=float32)
    """
    target = jax.lax.stop_gradient(at_least_float32(init_logps) + advantages / lam)
    gap = masked.clean(at_least_float32(logps) - target, mask)
    return gap**2, {"log_ratio": jax.lax.stop_gradient(masked.clean(logps - init_logps, mask))}


@jax.jit
def quark(
    *,
    logps: Tokens,
    kl: Tokens,
    entropy: Tokens,
    mask: Mask,
    kl_coef: ScalarLike = 0.05,
    entropy_coef: ScalarLike = 0.06,
) -> tuple[Tokens, Stats]:
    """-log π(y | x, reward token) + β KL - α H per token (Quark, arXiv:2205.13636).

    `kl` is the full KL(π||ref) of each position (`kl.full`), as the released code has it.

    >>> x = jnp.array([[-1.0]])
    >>> quark(logps=x, kl=0 * x + 0.4, entropy=0 * x + 2, mask=0 * x + 1)[0]
    Array([[0.9]], dtype=float32)
    """
    loss = -at_least_float32(logps) + kl_coef * kl - entropy_coef * entropy
    return masked.clean(loss, mask), {"kl": jax.lax.stop_gradient(masked.clean(kl, mask))}
