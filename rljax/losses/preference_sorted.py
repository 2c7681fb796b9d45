"""Alignment by optimal transport: pair losses after sorting over the batch (arXiv:2406.05882).

The loss is in sorted order, not row by row, and depends on which rows share a batch: gradient
accumulation changes it, and a batch of one is plain DPO. Inputs as in `preference`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike

from rljax.losses import pairwise
from rljax.losses.preference import Result, log_ratios, pair_stats

Pairs = Float[Array, "B"]


@jax.jit
def aot(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    label_smoothing: ScalarLike = 0.0,
) -> Result:
    """Quantile k of the policy's chosen - rejected against quantile k of the reference's.

    >>> c, r, zero = jnp.array([-1.0, 2.0]), jnp.array([-3.0, 0.0]), jnp.zeros(2)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> aot(**pair)[0]
    Array([0.5981..., 0.5981...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    ours = jnp.sort(chosen - rejected)
    theirs = jax.lax.stop_gradient(jnp.sort(ref_chosen - ref_rejected))
    loss = pairwise.logistic(beta * (ours - theirs), label_smoothing=label_smoothing)
    return loss, pair_stats(beta * c, beta * r)


@jax.jit
def aot_unpaired(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: ScalarLike = 0.1,
    label_smoothing: ScalarLike = 0.0,
) -> Result:
    """Quantile k of the chosen log-ratios against quantile k of the rejected ones.

    Chosen and rejected need not answer the same prompts. TRL up to 0.28 calls it `aot_pair`.

    >>> c, r, zero = jnp.array([-1.0, 2.0]), jnp.array([-3.0, 0.0]), jnp.zeros(2)
    >>> pair = {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}
    >>> aot_unpaired(**pair)[0]
    Array([0.5981..., 0.5981...], dtype=float32)
    """
    c, r = log_ratios(chosen, rejected, ref_chosen, ref_rejected)
    gap = jnp.sort(c) - jnp.sort(r)
    loss = pairwise.logistic(beta * gap, label_smoothing=label_smoothing)
    return loss, pair_stats(beta * c, beta * r)
