"""Several reward functions per completion: rewards in as [prompts, samples, functions].

NaN is a function that does not apply to a completion. One that no function applies to stays NaN.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses import group_advantage, masked
from rljax.losses.precision import at_least_float32

Rewards = Float[Array, "prompts samples functions"]
Weights = Float[Array, "functions"]
Groups = Float[Array, "prompts samples"]


@jax.jit
def weighted_sum(rewards: Rewards, weights: Weights) -> Groups:
    """The sum over the functions that apply, each times its weight. Standardise it afterwards.

    >>> weighted_sum(jnp.array([[[1.0, jnp.nan], [2.0, 4.0]]]), jnp.array([1.0, 0.5]))
    Array([[1., 4.]], dtype=float32)
    """
    applies = group_advantage.scored(rewards)
    total = (masked.clean(at_least_float32(rewards), applies) * weights[None, None, :]).sum(-1)
    return jnp.where(applies.any(-1), total, jnp.nan)


@jax.jit
def gdpo(rewards: Rewards, weights: Weights, *, eps: ScalarLike = 1e-4) -> Groups:
    """Advantages where each reward is standardised before they are summed (GDPO, arXiv:2601.05242).

    Within the group per function, then weighted and summed, then over the whole batch; ddof 1. So a
    reward of small scale is not drowned by one of large scale.

    >>> gdpo(jnp.array([[[0.0, 9.0], [1.0, 0.0], [1.0, 9.0]]]), jnp.ones(2))
    Array([[-0.5771..., -0.5774...,  1.1545...]], dtype=float32)
    """
    each = jax.vmap(group_advantage.standardize, in_axes=-1, out_axes=-1)(rewards)
    total = jnp.where(
        group_advantage.scored(rewards).any(-1), (each * weights[None, None, :]).sum(-1), jnp.nan
    )
    valid = group_advantage.scored(total)
    spread = masked.std(total, valid, ddof=1) + eps
    return masked.clean((total - masked.mean(total, valid)) / spread, valid)
