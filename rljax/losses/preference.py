"""Losses over pairs of completions, from summed log-probabilities; one value per pair.

Notation: c and r are the policy-to-reference log-ratios of the chosen and the rejected completion,
h = c - r. `rewards/*` in the stats are always beta * c and beta * r, as on TRL's dashboards.
"""

import jax
from jaxtyping import Array, Float

Pairs = Float[Array, "B"]
Result = tuple[Float[Array, "B"], dict[str, Float[Array, "B"]]]


def pair_stats(c: Pairs, r: Pairs, beta: float) -> dict[str, Pairs]:
    """The implicit rewards and what dashboards show of them; equal rewards count as wrong."""
    chosen, rejected = beta * c, beta * r
    stats = {
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margins": chosen - rejected,
        "rewards/accuracies": (chosen > rejected).astype(chosen.dtype),
    }
    return jax.lax.stop_gradient(stats)


def dpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Result:
    """Direct preference optimisation (arXiv:2305.18290, eq. 7): -log σ(beta h).

    `label_smoothing` is the probability that a pair is labelled the wrong way round (conservative
    DPO): (1-ε)(-log σ(beta h)) + ε(-log σ(-beta h)). TRL 1.16 ignores it here; 0 is the paper's.
    """
    c, r = chosen - ref_chosen, rejected - ref_rejected
    logits = beta * (c - r)
    loss = -(1 - label_smoothing) * jax.nn.log_sigmoid(logits)
    loss -= label_smoothing * jax.nn.log_sigmoid(-logits)
    return loss, pair_stats(c, r, beta)


def robust_dpo(
    *,
    chosen: Pairs,
    rejected: Pairs,
    ref_chosen: Pairs,
    ref_rejected: Pairs,
    beta: float = 0.1,
    label_smoothing: float,
) -> Result:
    """Provably robust DPO (arXiv:2403.00409, eq. 10): unbiased under labels flipped at rate ε.

    [-(1-ε) log σ(beta h) + ε log σ(-beta h)] / (1-2ε); ValueError unless 0 <= ε < 1/2.
    """
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(
            f"label_smoothing={label_smoothing}; robust DPO wants 0 or more, below 0.5"
        )
    c, r = chosen - ref_chosen, rejected - ref_rejected
    logits = beta * (c - r)
    loss = -(1 - label_smoothing) * jax.nn.log_sigmoid(logits)
    loss += label_smoothing * jax.nn.log_sigmoid(-logits)
    return loss / (1 - 2 * label_smoothing), pair_stats(c, r, beta)


def hinge(
    *, chosen: Pairs, rejected: Pairs, ref_chosen: Pairs, ref_rejected: Pairs, beta: float = 0.1
) -> Result:
    """max(0, 1 - beta h): RSO (arXiv:2309.06657, eq. 11); SLiC (arXiv:2305.10425) with ref 0."""
    c, r = chosen - ref_chosen, rejected - ref_rejected
    return jax.nn.relu(1 - beta * (c - r)), pair_stats(c, r, beta)


def ipo(
    *, chosen: Pairs, rejected: Pairs, ref_chosen: Pairs, ref_rejected: Pairs, beta: float = 0.1
) -> Result:
    """Identity preference optimisation (arXiv:2310.12036, eq. 17): (h - 1/(2 beta))².

    The paper sums log-probabilities over the completion. Give means per token for the variant
    that its authors advise and TRL computes; OpenRLHF sums.
    """
    c, r = chosen - ref_chosen, rejected - ref_rejected
    return (c - r - 1 / (2 * beta)) ** 2, pair_stats(c, r, beta)
