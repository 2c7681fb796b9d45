"""Losses over several ranked completions of one prompt: [B, K] in, one value per prompt out.

`rank` losses want the columns sorted best first; `rewards` losses sort by themselves.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from rljax.losses.precision import at_least_float32

Lists = Float[Array, "B K"]
Rows = Float[Array, "B"]


@jax.jit
def plackett_luce(scores: Lists, mask: Shaped[Array, "B K"] | None = None) -> Rows:
    """-log P(this ranking) = -Σ_k log softmax of k among k and all below; columns best first.

    Starling's K-wise reward model (arXiv:2301.11270); as DPO with scores β h it is arXiv:2305.18290
    app. A.3. K = 2 is Bradley-Terry. `mask` 0 marks missing columns, which must come last.

    >>> plackett_luce(jnp.array([[2.0, 1.0, 0.0]]))
    Array([0.7208...], dtype=float32)
    """
    scores = at_least_float32(scores)
    mask = jnp.ones(scores.shape, bool) if mask is None else mask != 0
    # -1e30, not -inf: the gradient of logsumexp over nothing is NaN.
    safe = jnp.where(mask, scores, -1e30)
    below = jax.lax.cumlogsumexp(safe, axis=1, reverse=True)
    return jnp.where(mask, below - safe, 0.0).sum(1)


@jax.jit
def pairwise_mean(scores: Lists) -> Rows:
    """The mean of -log σ(s_i - s_j) over all K(K-1)/2 pairs i above j (InstructGPT, 2203.02155).

    Columns best first. All pairs of a prompt in one batch, as there: each pair apart overfits.

    >>> pairwise_mean(jnp.array([[2.0, 1.0, 0.0]]))
    Array([0.2511...], dtype=float32)
    """
    scores = at_least_float32(scores)
    K = scores.shape[1]
    upper = jnp.triu(jnp.ones((K, K)), 1)
    gap = scores[:, :, None] - scores[:, None, :]
    pairs = -jax.nn.log_sigmoid(gap) * upper[None]
    return pairs.sum((1, 2)) / max(K * (K - 1) / 2, 1)


@jax.jit
def rrhf(logps: Lists, rewards: Lists) -> Rows:
    """Σ over pairs with r_i < r_j of max(0, ℓ_i - ℓ_j), ℓ averaged: RRHF (arXiv:2304.05302).

    0 exactly when ℓ is ordered like the rewards. The paper adds the NLL of the best completion
    (weight 1; the released code multiplies the ranking term by 100 by default).

    >>> rrhf(jnp.array([[-1.0, -0.5]]), jnp.array([[1.0, 0.0]]))
    Array([0.5], dtype=float32)
    """
    logps = at_least_float32(logps)
    worse = rewards[:, :, None] < rewards[:, None, :]
    gap = jax.nn.relu(logps[:, :, None] - logps[:, None, :])
    return jnp.where(worse, gap, 0.0).sum((1, 2))


@jax.jit
def pro(logps: Lists, rewards: Lists) -> Rows:
    """Preference ranking optimisation (arXiv:2306.17492): ranks softly, tempered by reward gaps.

    -Σ_k log[exp(ℓ_k τ_k) / (exp(ℓ_k τ_k) + Σ_{i>k} exp(ℓ_i τ_ki))], τ_ki = r_k - r_i, τ_k their
    maximum; ℓ averaged, columns best first. The paper adds w (K-1)² NLL(best), w 0.05.

    >>> pro(jnp.array([[-1.0, -0.5]]), jnp.array([[1.0, 0.0]]))
    Array([0.9740...], dtype=float32)
    """
    logps, rewards = at_least_float32(logps), jax.lax.stop_gradient(at_least_float32(rewards))
    K = logps.shape[1]
    below = jnp.arange(K)[:, None] < jnp.arange(K)[None, :]
    tau = rewards[:, :, None] - rewards[:, None, :]
    top = jnp.where(below[None], tau, -jnp.inf).max(2)[:, : K - 1]
    own = logps[:, : K - 1] * top
    others = jnp.where(below[None], logps[:, None, :] * tau, -jnp.inf)[:, : K - 1]
    total = jax.nn.logsumexp(jnp.concatenate([own[:, :, None], others], 2), axis=2)
    return (total - own).sum(1)
