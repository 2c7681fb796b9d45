"""Losses of the critic, one value per token."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def clipped(
    *,
    values: Float[Array, "B T"],
    old_values: Float[Array, "B T"],
    returns: Float[Array, "B T"],
    clip: float = 0.2,
) -> tuple[Float[Array, "B T"], dict[str, Float[Array, "B T"]]]:
    """½ max((V - R)², (clip(V, V_old ± clip) - R)²), the value loss of OpenAI's PPO code."""
    old_values, returns = jax.lax.stop_gradient((old_values, returns))
    near = jnp.clip(values, old_values - clip, old_values + clip)
    plain, clipped_ = (values - returns) ** 2, (near - returns) ** 2
    stats = {"val/clipfrac_avg": (clipped_ > plain).astype(values.dtype)}
    return 0.5 * jnp.maximum(plain, clipped_), stats
