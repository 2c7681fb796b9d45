"""Policy-gradient surrogates, one value per token, to be minimised.

Advantages, [B] or [B, T], and old log-probabilities are constants. `mask` marks the tokens the
policy chose; elsewhere loss and gradient are 0, whatever the inputs hold. Average with
`mean.token_mean`, `sequence_mean`, `sequence_sum` or `constant_length`: that choice is part of a
method's name (see `grpo`). `policy_soft` has surrogates without a hard clip. At a tie of two
branches the gradient is split in halves, as in torch.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import importance, masked
from rljax.losses.mean import Mean
from rljax.losses.precision import at_least_float32

Rows = Float[Array, "B"]
Tokens = Float[Array, "B T"]
Mask = Shaped[Array, "B T"]
Advantages = Rows | Tokens
Stats = dict[str, Float[Array, "..."]]


def _per_token(advantages, like):
    advantages = jax.lax.stop_gradient(at_least_float32(advantages))
    column = advantages if advantages.ndim == 2 else advantages[:, None]
    return jnp.broadcast_to(column, like.shape)


def prepare(logps, advantages, mask):
    """Masked log-probs and advantages [B, T], and the mask (all ones if None)."""
    mask = jnp.ones(logps.shape, bool) if mask is None else mask
    logps = masked.clean(at_least_float32(logps), mask)
    return logps, masked.clean(_per_token(advantages, logps), mask), mask


def ratio_at(logps, old_logps, mask, level):
    """[B, T] ratios of each token, or its sequence's."""
    if level == "token":
        return importance.token_ratio(logps, old_logps, mask)
    if level == "sequence":
        ratio = importance.sequence_ratio(logps, old_logps, mask)
        return jnp.broadcast_to(ratio[:, None], logps.shape)
    if level == "sequence_token":
        return importance.sequence_token_ratio(logps, old_logps, mask)
    raise ValueError(f"level={level!r}: choose 'token', 'sequence' or 'sequence_token'")


@jax.jit
def reinforce(
    *, logps: Tokens, advantages: Advantages, mask: Mask | None = None
) -> tuple[Tokens, Stats]:
    """-A log π (Williams 1992). Its value means nothing; its gradient is the policy gradient.

    >>> reinforce(logps=jnp.array([[-1.0, -2.0]]), advantages=jnp.array([0.5]))[0]
    Array([[0.5, 1. ]], dtype=float32)
    """
    logps, advantages, mask = prepare(logps, advantages, mask)
    return -advantages * logps, {}


@jax.jit
def ppo_clip(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Advantages,
    mask: Mask | None = None,
    clip: ScalarLike = 0.2,
    clip_high: ScalarLike | None = None,
    dual_clip: ScalarLike | None = None,
) -> tuple[Tokens, Stats]:
    """max(-A ρ, -A clip(ρ, 1-clip, 1+clip_high)) per token (arXiv:1707.06347, eq. 7).

    `clip_high` None is `clip`. `dual_clip` c > 1 bounds the loss by -A c where A < 0
    (arXiv:1912.09729); verl always does so with c = 3.

    >>> rows = {"logps": jnp.array([[-1.0, -2.0]]), "old_logps": jnp.array([[-1.0, -1.5]])}
    >>> ppo_clip(**rows, advantages=jnp.array([-1.0]))[0]
    Array([[1. , 0.8]], dtype=float32)
    """
    logps, advantages, mask = prepare(logps, advantages, mask)
    ratio = importance.token_ratio(logps, old_logps, mask)
    high = clip if clip_high is None else clip_high
    plain, cut = -advantages * ratio, -advantages * jnp.clip(ratio, 1 - clip, 1 + high)
    loss = jnp.maximum(plain, cut)
    log_ratio = masked.clean(logps - old_logps, mask)
    stats = {
        "policy/approxkl_avg": 0.5 * log_ratio**2,
        "policy/clipfrac_avg": (cut > plain).astype(loss.dtype),
        "val/ratio": masked.clean(ratio, mask),
    }
    if dual_clip is not None:
        bound = -advantages * dual_clip
        stats["policy/clipfrac_lower_avg"] = ((advantages < 0) & (loss > bound)).astype(loss.dtype)
        loss = jnp.where(advantages < 0, jnp.minimum(loss, bound), loss)
    return loss, jax.lax.stop_gradient(stats)


@functools.partial(jax.jit, static_argnames="level")
def grpo(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Advantages,
    mask: Mask,
    clip: ScalarLike = 0.2,
    clip_high: ScalarLike | None = None,
    max_ratio: ScalarLike | None = None,
    level: str = "token",
) -> tuple[Tokens, Stats]:
    """-min(ρ A, clip(ρ, 1-clip, 1+clip_high) A): the clipped part of GRPO (arXiv:2402.03300).

    Add the KL term with `regularize`. The names that share this function differ by:

    | method | advantages | clip, clip_high | level | aggregate |
    |---|---|---|---|---|
    | GRPO 2402.03300 | `standardize` | .2 | token | `sequence_mean`, + β k3, β .04 |
    | DAPO 2503.14476 | `standardize` | .2, .28 | token | `token_mean` |
    | Dr. GRPO 2503.20783 | `center` | .2 | token | `constant_length` |
    | BNPO (TRL) | `standardize` | .2 | token | `token_mean` of each microbatch |
    | GSPO 2507.18071 | `standardize` | 3e-4, 4e-4 | sequence | `sequence_mean` |
    | LUSPO 2602.05261 | `standardize` | 2e-3, 2.5e-3 | sequence | `sequence_sum` |
    | INTELLECT-2 2505.07291 | `standardize` | .2, max_ratio 4 | token | `token_mean` |

    `max_ratio` caps ρ from above before the min, so that A < 0 cannot run away (two-sided
    clipping; TRL's `delta`). Stats: shares of tokens clipped on either side, by the advantage's
    sign; [B] instead of [B, T] at level `sequence`.

    >>> rows = {"logps": jnp.array([[-1.0, -2.0]]), "old_logps": jnp.array([[-1.0, -1.5]])}
    >>> grpo(**rows, advantages=jnp.array([-1.0]), mask=jnp.ones((1, 2)))[0]
    Array([[1. , 0.8]], dtype=float32)
    """
    logps, advantages, mask = prepare(logps, advantages, mask)
    ratio = ratio_at(logps, old_logps, mask, level)
    high = clip if clip_high is None else clip_high
    cut = jnp.clip(ratio, 1 - clip, 1 + high)
    plain = ratio if max_ratio is None else jnp.minimum(ratio, max_ratio)
    loss = -jnp.minimum(plain * advantages, cut * advantages)
    low_clipped = (plain < 1 - clip) & (advantages < 0)
    high_clipped = (plain > 1 + high) & (advantages > 0)
    stats = {
        "clip_ratio/low_mean": low_clipped,
        "clip_ratio/high_mean": high_clipped,
        "clip_ratio/region_mean": low_clipped | high_clipped,
    }
    return loss, {k: indicator(x, loss, level) for k, x in stats.items()}


def indicator(x, loss, level):
    x = x.astype(loss.dtype)
    return x.max(1) if level == "sequence" else x


def gspo(
    *,
    logps: Tokens,
    old_logps: Tokens,
    advantages: Advantages,
    mask: Mask,
    clip: ScalarLike = 3e-4,
    clip_high: ScalarLike | None = 4e-4,
) -> tuple[Tokens, Stats]:
    """Group sequence policy optimisation (arXiv:2507.18071): one length-normalised ratio a row.

    Every token of a row holds the row's loss; aggregate with `sequence_mean`.

    >>> rows = {"logps": jnp.array([[-1.0, -2.0]]), "old_logps": jnp.array([[-1.0, -1.5]])}
    >>> gspo(**rows, advantages=jnp.array([1.0]), mask=jnp.ones((1, 2)))[0]
    Array([[-0.7788..., -0.7788...]], dtype=float32)
    """
    return grpo(
        logps=logps,
        old_logps=old_logps,
        advantages=advantages,
        mask=mask,
        clip=clip,
        clip_high=clip_high,
        level="sequence",
    )


@jax.jit
def regularize(
    loss: Tokens,
    *,
    mask: Mask,
    weight: Tokens | Rows | None = None,
    kl: Tokens | None = None,
    kl_coef: ScalarLike = 0.0,
) -> Tokens:
    """weight * surrogate + kl_coef * kl, at the mask.

    `weight` is what rescales or drops policy terms: sampler corrections of `importance`, the rows
    of `keep_on_policy`, the tokens of `high_entropy`. As in the peers it never touches the KL term,
    and no denominator shrinks with it. `kl` is an estimate of `losses.kl`, differentiated.

    >>> loss, kl = jnp.array([[1.0, 1.0]]), jnp.array([[0.5, 0.5]])
    >>> regularize(loss, mask=jnp.array([[1, 0]]), weight=jnp.array([2.0]), kl=kl, kl_coef=0.1)
    Array([[2.05, 0.  ]], dtype=float32)
    """
    if weight is not None:
        weight = weight if weight.ndim == 2 else weight[:, None]
        loss = loss * jax.lax.stop_gradient(jnp.broadcast_to(weight, loss.shape))
    if kl is not None:
        loss = loss + kl_coef * kl
    return masked.clean(loss, mask)


@jax.jit
def unless_ratio_exceeds(loss: Mean, ratio: Tokens, mask: Mask, *, threshold: ScalarLike) -> Mean:
    """The loss, or 0 with no gradient if the batch's mean ratio is above `threshold`.

    TRL's PPO up to 0.11 skips such a minibatch, threshold 10.

    >>> loss, mask = Mean(jnp.array(3.0), jnp.array(2.0)), jnp.ones((1, 2))
    >>> float(unless_ratio_exceeds(loss, 11 * mask, mask, threshold=10.0).value())
    0.0
    """
    hit = jax.lax.stop_gradient(masked.mean(ratio, mask)) > threshold
    return Mean(jnp.where(hit, 0.0, loss.total), loss.weight)
