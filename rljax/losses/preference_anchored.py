"""Pair losses that push each completion on its own against the reference, not only their gap.

Inputs and notation as in `preference`: c and r are log-ratios of policy to reference, summed over
tokens. DPO may lower both likelihoods as long as the gap grows; these say where each should go.
"""

import jax
from jaxtyping import Array, Float, ScalarLike

from rljax.losses.preference import Result, log_ratios, pair_stats

Pairs = Float[Array, "B"]


@jax.jit
def nca_pair(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
) -> Result:
    """-log σ(βc) - ½ log σ(-βc) - ½ log σ(-βr): noise-contrastive alignment (arXiv:2402.05369).

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> nca_pair(**pair, beta=0.1)[0]
    Array([1.3437...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    c, r = beta * c, beta * r
    negatives = 0.5 * jax.nn.log_sigmoid(-c) + 0.5 * jax.nn.log_sigmoid(-r)
    return -jax.nn.log_sigmoid(c) - negatives, pair_stats(c, r)


@jax.jit
def bco_pair(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    delta: ScalarLike = 0.0,
) -> Result:
    """-log σ(βc - δ) - log σ(-(βr - δ)): binary classifier optimisation (arXiv:2404.04656).

    δ is a running mean of rewards, kept by the caller (`running.update`); it is a constant here.
    TRL up to 0.28 does so, one sample per batch; TRL 1.16 has δ = 0.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> bco_pair(**pair, beta=0.1)[0]
    Array([1.2987...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    c, r = beta * c, beta * r
    delta = jax.lax.stop_gradient(delta)
    return -jax.nn.log_sigmoid(c - delta) - jax.nn.log_sigmoid(delta - r), pair_stats(c, r)


@jax.jit
def apo_zero(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
) -> Result:
    """1 - σ(βc) + σ(βr): chosen up, rejected down (APO-zero, arXiv:2408.06266, eq. 7).

    For chosen completions better than what the model writes.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> apo_zero(**pair, beta=0.1)[0]
    Array([0.9505...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    c, r = beta * c, beta * r
    # σ(-x), not 1 - σ(x): the difference would lose its digits where σ is near 1.
    return jax.nn.sigmoid(-c) + jax.nn.sigmoid(r), pair_stats(c, r)


@jax.jit
def apo_down(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
) -> Result:
    """σ(βc) + 1 - σ(β(c-r)): both down, rejected more (APO-down, arXiv:2408.06266, eq. 8).

    For chosen completions worse than what the model writes. At policy = reference the chosen side
    has no gradient.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> apo_down(**pair, beta=0.1)[0]
    Array([0.9251...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    c, r = beta * c, beta * r
    return jax.nn.sigmoid(c) + jax.nn.sigmoid(r - c), pair_stats(c, r)


@jax.jit
def sppo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    win_rate: Pairs,
    beta: ScalarLike = 1e-3,
) -> Result:
    """½[(c - (P-½)/β)² + (r - (½-P)/β)²]: SPPO (arXiv:2405.00675, eq. 4.7), β = 1/η.

    P is the win rate of the chosen one against the policy that sampled, which is the reference.
    The ½ is the released code's; `sppo_hard` has none.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> sppo(**pair, win_rate=jnp.ones(1), beta=0.5)[0]
    Array([4.], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    target = jax.lax.stop_gradient(win_rate - 0.5) / beta
    loss = 0.5 * ((c - target) ** 2 + (r + target) ** 2)
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def sppo_hard(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
) -> Result:
    """(c - ½/β)² + (r + ½/β)²: SPPO with P = 1 for the winner, twice `sppo` (TRL's form).

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> sppo_hard(**pair, beta=0.1)[0]
    Array([40.], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    return (c - 0.5 / beta) ** 2 + (r + 0.5 / beta) ** 2, pair_stats(beta * c, beta * r)


@jax.jit
def kto_pair(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
) -> Result:
    """KTO on pairs (TRL 0.8): ½[1 - σ(β(c - z_r)) + 1 - σ(β(z_c - r))].

    z_c and z_r are the batch means of c and r, not below 0: each half's reference point is the
    other half's KL, and gradients flow through it, unlike in `preference_unpaired.kto`. So the
    loss of a pair depends on its batch.

    >>> c, r, zero = jnp.array([-1.0]), jnp.array([-3.0]), jnp.zeros(1)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> kto_pair(**pair, beta=0.1)[0]
    Array([0.4752...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    z_c, z_r = jax.nn.relu(c.mean()), jax.nn.relu(r.mean())
    loss = 0.5 * (jax.nn.sigmoid(-beta * (c - z_r)) + jax.nn.sigmoid(-beta * (z_c - r)))
    return loss, pair_stats(beta * c, beta * r)
