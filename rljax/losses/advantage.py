"""What each sampled token was worth: shaped rewards, returns and generalised advantages."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rljax.losses import masked


def token_rewards(
    *,
    scores: Float[Array, "B"],
    kl: Float[Array, "B T"],
    kl_coef: Float[Array, ""] | float,
    mask: Num[Array, "B T"],
) -> Float[Array, "B T"]:
    """-kl_coef * kl at every valid token, plus the score at the last one (arXiv:2203.02155, §3.5).

    A row without a valid token gets nothing, its score neither.
    """
    T = mask.shape[1]
    valid = mask > 0
    # By length, not by id: the last set position of the mask.
    last = jnp.where(valid, jnp.arange(T)[None, :], -1).max(axis=1, keepdims=True)
    at_last = jnp.arange(T)[None, :] == last
    return masked.clean(-kl_coef * kl + jnp.where(at_last, scores[:, None], 0.0), valid)


def gae(
    *,
    rewards: Float[Array, "B T"],
    values: Float[Array, "B T"],
    mask: Num[Array, "B T"],
    gamma: float,
    lam: float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16) -> (advantages, returns).

    values[:, t] is the critic's estimate before token t; after the last valid token it is 0. Masked
    tokens (a tool's, say) are stepped over: the value and the advantage of the next valid token
    are carried across them undiscounted. Returns are advantages + values, before any whitening.
    Masked positions of both outputs are 0.
    """
    valid = mask > 0

    def back(carry, xs):
        next_value, next_advantage = carry
        reward, value, ok = xs
        advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
        carry = (jnp.where(ok, value, next_value), jnp.where(ok, advantage, next_advantage))
        return carry, jnp.where(ok, advantage, 0.0)

    zero = jnp.zeros_like(rewards[:, 0])
    by_time = (rewards.T, values.T, valid.T)
    _, advantages = jax.lax.scan(back, (zero, zero), by_time, reverse=True)
    advantages = jax.lax.stop_gradient(advantages.T)
    return advantages, masked.clean(jax.lax.stop_gradient(advantages + values), valid)
