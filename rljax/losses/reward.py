"""Losses of reward models, one value per pair."""

import jax
from jaxtyping import Array, Float


def bradley_terry(
    *,
    chosen: Float[Array, "B"],
    rejected: Float[Array, "B"],
    margin: Float[Array, "B"] | None = None,
    center_coef: float = 0.0,
) -> tuple[Float[Array, "B"], dict[str, Float[Array, "B"]]]:
    """-log σ(r_chosen - r_rejected - margin) (arXiv:2203.02155, eq. 1; margin: arXiv:2307.09288).

    `center_coef` adds that times (r_chosen + r_rejected)², which keeps scores near 0
    (arXiv:2312.09244). Equal scores count as wrong.
    """
    difference = chosen - rejected
    logits = difference if margin is None else difference - margin
    loss = -jax.nn.log_sigmoid(logits) + center_coef * (chosen + rejected) ** 2
    stats = {"accuracy": (difference > 0).astype(loss.dtype), "margin": difference}
    return loss, jax.lax.stop_gradient(stats)
