"""What each sampled token was worth: shaped rewards, returns, generalised advantages.

Advantages that compare the samples of one prompt are in `group_advantage`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import masked
from rljax.losses.precision import at_least_float32

Rows = Float[Array, "B"]
Tokens = Float[Array, "B T"]
Mask = Shaped[Array, "B T"]


@functools.partial(jax.jit, static_argnames="after_last")
def token_rewards(
    *, scores: Rows, kl: Tokens, kl_coef: ScalarLike, mask: Mask, after_last: bool = False
) -> Tokens:
    """-kl_coef * kl at every valid token, plus the score at the last one (arXiv:2203.02155, §3.5).

    The last one is found by the mask, never by a token id. A row without a valid token gets
    nothing, its score neither. `after_last` puts the score one position later when the row has
    one, as TRL's PPO does; `gae` then wants a mask that is one longer.

    >>> kl, mask = jnp.array([[0.5, 0.5]]), jnp.ones((1, 2))
    >>> token_rewards(scores=jnp.ones(1), kl=kl, kl_coef=0.1, mask=mask)
    Array([[-0.05,  0.95]], dtype=float32)
    """
    T = mask.shape[1]
    position = jnp.arange(T)[None, :]
    last = jnp.where(mask != 0, position, -1).max(1, keepdims=True)
    at = jnp.minimum(last + 1, T - 1) if after_last else last
    here = (position == at) & (last >= 0)
    penalty = masked.clean(-kl_coef * at_least_float32(kl), mask)
    return penalty + jnp.where(here, at_least_float32(scores)[:, None], 0.0)


@jax.jit
def gae(
    *,
    rewards: Tokens,
    values: Tokens,
    mask: Mask,
    gamma: ScalarLike = 1.0,
    lam: ScalarLike = 0.95,
) -> tuple[Tokens, Tokens]:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16) -> (advantages, returns).

    values[:, t] is the critic's estimate before token t; after the last valid token it is 0. Masked
    tokens (a tool's, say) are stepped over: the value and the advantage of the next valid token are
    carried across them undiscounted, and a reward there does not count. Returns are advantages +
    values, before any whitening. Masked positions of both outputs are 0; no gradient passes.

    >>> r, V = jnp.array([[0.0, 1.0]]), jnp.array([[0.5, 0.5]])
    >>> gae(rewards=r, values=V, mask=jnp.ones((1, 2)))[0]
    Array([[0.475, 0.5  ]], dtype=float32)
    """
    rewards, values = jax.lax.stop_gradient((rewards, values))
    rewards, values = (masked.clean(at_least_float32(x), mask) for x in (rewards, values))

    def back(carry, xs):
        next_value, next_advantage = carry
        reward, value, valid = xs
        advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
        carry = (
            jnp.where(valid, value, next_value),
            jnp.where(valid, advantage, next_advantage),
        )
        return carry, jnp.where(valid, advantage, 0.0)

    zero = jnp.zeros_like(rewards[:, 0])
    by_time = (rewards.T, values.T, (mask != 0).T)
    _, advantages = jax.lax.scan(back, (zero, zero), by_time, reverse=True)
    return advantages.T, advantages.T + values


@jax.jit
def returns(*, rewards: Tokens, mask: Mask, gamma: ScalarLike = 1.0) -> Tokens:
    """The discounted reward to go, sum over s >= t of gamma^(s-t) r_s, over valid tokens only.

    >>> returns(rewards=jnp.array([[1.0, 2.0]]), mask=jnp.ones((1, 2)), gamma=0.5)
    Array([[2., 2.]], dtype=float32)
    """
    zeros = jnp.zeros_like(at_least_float32(rewards))
    return gae(rewards=rewards, values=zeros, mask=mask, gamma=gamma, lam=1.0)[0]


@jax.jit
def reinforce_plus_plus(*, rewards: Tokens, mask: Mask, gamma: ScalarLike = 1.0) -> Tokens:
    """REINFORCE++ (arXiv:2501.03262): returns of KL-shaped token rewards, whitened over the batch.

    `rewards` come from `token_rewards` with k1. No critic and no groups. Whitening divides by the
    sample deviation (ddof 1), as verl does; OpenRLHF takes the population's.

    >>> rewards = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    >>> reinforce_plus_plus(rewards=rewards, mask=jnp.ones((2, 2)))
    Array([[ 0.8660...,  0.8660...], [-0.8660..., -0.8660...]], dtype=float32)
    """
    return masked.whiten(returns(rewards=rewards, mask=mask, gamma=gamma), mask)


@jax.jit
def penalize_missing_end(scores: Rows, ended: Shaped[Array, "B"], *, penalty: ScalarLike) -> Rows:
    """Subtract `penalty` from the scores of completions that never ended by themselves.

    >>> penalize_missing_end(jnp.ones(2), jnp.array([True, False]), penalty=0.5)
    Array([1. , 0.5], dtype=float32)
    """
    return at_least_float32(scores) - jnp.where(ended != 0, 0.0, penalty)
