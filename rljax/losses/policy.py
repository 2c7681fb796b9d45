"""Policy-gradient surrogates, one value per token; advantages and old log-probs are constants."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Stats = dict[str, Float[Array, "B T"]]


def ratio(logps: Float[Array, "*S"], old_logps: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Importance ratio; the log-ratio is held within ±20 (as verl and OpenRLHF do)."""
    return jnp.exp(jnp.clip(logps - jax.lax.stop_gradient(old_logps), -20.0, 20.0))


def ppo_clip(
    *,
    logps: Float[Array, "B T"],
    old_logps: Float[Array, "B T"],
    advantages: Float[Array, "B T"],
    clip: float = 0.2,
    clip_high: float | None = None,
) -> tuple[Float[Array, "B T"], Stats]:
    """max(-A r, -A clip(r, 1-clip, 1+clip_high)) per token (arXiv:1707.06347, eq. 7).

    `clip_high` None is `clip`. At a tie of the two branches the gradient is split in halves, as in
    torch. Masked positions hold whatever their inputs give: aggregate with a mask.
    """
    advantages = jax.lax.stop_gradient(advantages)
    r = ratio(logps, old_logps)
    high = clip if clip_high is None else clip_high
    plain, clipped = -advantages * r, -advantages * jnp.clip(r, 1 - clip, 1 + high)
    log_ratio = jax.lax.stop_gradient(logps - old_logps)
    stats = {
        "policy/approxkl_avg": 0.5 * log_ratio**2,
        "policy/clipfrac_avg": (clipped > plain).astype(r.dtype),
        "val/ratio": jax.lax.stop_gradient(r),
    }
    return jnp.maximum(plain, clipped), stats
