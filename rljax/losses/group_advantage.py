"""Advantages from several samples of the same prompt: rewards in as [prompts, samples].

NaN is a completion without a reward (a reward function returned None). It takes no part in any
statistic and its advantage is 0; leave it out of the loss with `scored`. Statistics are of the
global batch under `jit` over a mesh. Policy losses hold advantages constant.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, ScalarLike, Shaped

from rljax.losses import masked
from rljax.losses.precision import at_least_float32

Groups = Float[Array, "prompts samples"]
Stats = dict[str, Float[Array, "..."]]


@jax.jit
def scored(rewards: Float[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Which completions have a reward at all.

    >>> scored(jnp.array([1.0, jnp.nan]))
    Array([ True, False], dtype=bool)
    """
    return ~jnp.isnan(rewards)


@jax.jit
def center(rewards: Groups) -> Groups:
    """r - mean of its group: Dr. GRPO (arXiv:2503.20783). Its gradient is (k-1)/k of RLOO's.

    >>> center(jnp.array([[1.0, jnp.nan, 0.0]]))
    Array([[ 0.5,  0. , -0.5]], dtype=float32)
    """
    valid = scored(rewards)
    mean = masked.mean(rewards, valid, axis=1, keepdims=True)
    return masked.clean(at_least_float32(rewards) - mean, valid)


@functools.partial(jax.jit, static_argnames=("ddof", "over"))
def standardize(
    rewards: Groups, *, ddof: int = 1, eps: ScalarLike = 1e-4, over: str = "group"
) -> Groups:
    """(r - group mean) / (std + eps): GRPO (arXiv:2402.03300, §4.1.2).

    The paper does not say which std. TRL: ddof 1, eps 1e-4; verl 1, 1e-6; OpenRLHF 1, 1e-9;
    open-instruct 0, 1e-8. `over="batch"` divides by the std of all rewards and still subtracts the
    group's mean (arXiv:2508.08221). Equal rewards, and a group of one, give exactly 0.

    >>> standardize(jnp.array([[1.0, 0.0, 0.0, 1.0]]))
    Array([[ 0.8658..., -0.8658..., -0.8658...,  0.8658...]], dtype=float32)
    """
    if over not in ("group", "batch"):
        raise ValueError(f"over={over!r}: choose 'group' or 'batch'")
    valid = scored(rewards)
    axis = 1 if over == "group" else None
    spread = masked.std(rewards, valid, ddof=ddof, axis=axis, keepdims=True)
    return center(rewards) / (spread + eps)


@functools.partial(jax.jit, static_argnames="normalize")
def leave_one_out(rewards: Groups, *, normalize: bool = False, eps: ScalarLike = 1e-4) -> Groups:
    """r - mean of the others in its group: RLOO (arXiv:2402.14740), unbiased.

    0 where there are no others. `normalize` standardises over the whole batch afterwards (ddof 1).

    >>> leave_one_out(jnp.array([[3.0, 0.0, 0.0]]))
    Array([[ 3. , -1.5, -1.5]], dtype=float32)
    """
    rewards, valid = at_least_float32(rewards), scored(rewards)
    total, others = _others(masked.clean(rewards, valid), valid)
    alone = others == 0
    advantages = jnp.where(valid & ~alone, rewards - total / jnp.where(alone, 1, others), 0.0)
    if normalize:
        # A row without others counts as undefined, as in TRL.
        defined = valid & ~alone
        spread = masked.std(advantages, defined, ddof=1) + eps
        advantages = masked.clean((advantages - masked.mean(advantages, defined)) / spread, defined)
    return advantages


@jax.jit
def leave_one_out_standardize(rewards: Groups, *, eps: ScalarLike = 1e-6) -> Groups:
    """(r - mean of the others) / (std of the others + eps, ddof 1): GRPO as in NeMo RL.

    Not divided where the others are all equal or fewer than two.

    >>> leave_one_out_standardize(jnp.array([[1.0, 0.0, 4.0]]))
    Array([[-0.3535..., -1.1785... ,  4.9497... ]], dtype=float32)
    """
    clean, valid = masked.clean(at_least_float32(rewards), scored(rewards)), scored(rewards)
    total, others = _others(clean, valid)
    squares, _ = _others(clean * clean, valid)
    mean = total / jnp.maximum(others, 1)
    variance = (squares - others * mean * mean) / jnp.maximum(others - 1, 1)
    flat = (variance <= 1e-12) | (others < 2)
    std = jnp.where(flat, 1.0, jnp.sqrt(jnp.where(flat, 1.0, variance)) + eps)
    return jnp.where(valid & (others > 0), (clean - mean) / std, 0.0)


def _others(x, valid):
    """(sum over the rest of the group, how many they are), for each sample."""
    return x.sum(1, keepdims=True) - x, valid.sum(1, keepdims=True) - valid


@jax.jit
def remax(rewards: Groups, greedy_rewards: Float[Array, "prompts"]) -> Groups:
    """r minus the reward of the greedy completion: ReMax (arXiv:2310.10505).

    >>> remax(jnp.array([[1.0, 0.0]]), jnp.array([0.5]))
    Array([[ 0.5, -0.5]], dtype=float32)
    """
    gap = at_least_float32(rewards) - greedy_rewards[:, None]
    return masked.clean(gap, scored(gap))


@jax.jit
def optimal_baseline(rewards: Groups, lengths: Shaped[Array, "prompts samples"]) -> Groups:
    """r minus the length-weighted mean of its group: OPO (arXiv:2505.23585).

    >>> optimal_baseline(jnp.array([[1.0, 0.0]]), jnp.array([[1, 3]]))
    Array([[ 0.75, -0.25]], dtype=float32)
    """
    weight = lengths * scored(rewards).astype(jnp.float32)
    mean = masked.mean(rewards, weight, axis=1, keepdims=True)
    return masked.clean(at_least_float32(rewards) - mean, scored(rewards))


@jax.jit
def best_minus_second(rewards: Groups) -> Groups:
    """Only the best sample gets an advantage, its lead over the second: pass@k (arXiv:2503.19595).

    Ties have lead 0; a group with fewer than two rewards gets 0.

    >>> best_minus_second(jnp.array([[1.0, 3.0, 0.0]]))
    Array([[0., 2., 0.]], dtype=float32)
    """
    valid = scored(rewards)
    x = jnp.where(valid, at_least_float32(rewards), -jnp.inf)
    top = jax.lax.top_k(x, 2)[0]
    lead = jnp.where(top[:, 1] > -jnp.inf, top[:, 0] - top[:, 1], 0.0)
    best = jax.nn.one_hot(x.argmax(1), x.shape[1], dtype=x.dtype)
    return best * lead[:, None]


@jax.jit
def win_rate(preference: Float[Array, "prompts samples samples"]) -> Groups:
    """Rewards of self-play preference optimisation, SPO (arXiv:2401.04056).

    preference[p, i, j] is P(i beats j). Each sample's reward is its mean win rate against the
    others of its group; the diagonal is not read. A group's rewards average ½.

    >>> win_rate(jnp.array([[[0.5, 0.9], [0.1, 0.5]]]))
    Array([[0.9, 0.1]], dtype=float32)
    """
    k = preference.shape[-1]
    others = 1.0 - jnp.eye(k)
    return (at_least_float32(preference) * others[None]).sum(-1) / max(k - 1, 1)


@jax.jit
def group_stats(rewards: Groups) -> Stats:
    """TRL's `reward`, `reward_std` (whole batch, ddof 1) and `frac_reward_zero_std`.

    The last is the share of groups that teach nothing: two or more rewards, all equal.

    >>> float(group_stats(jnp.array([[1.0, 1.0], [0.0, 1.0]]))["frac_reward_zero_std"])
    0.5
    """
    valid = scored(rewards)
    flat = (masked.std(rewards, valid, ddof=1, axis=1) <= 1e-8) & (valid.sum(1) > 1)
    return {
        "reward": masked.mean(rewards, valid),
        "reward_std": masked.std(rewards, valid, ddof=1),
        "frac_reward_zero_std": flat.astype(at_least_float32(rewards).dtype).mean(),
    }
