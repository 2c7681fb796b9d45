"""Losses of the critic, one value per token."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import masked
from rljax.losses.precision import at_least_float32

Tokens = Float[Array, "B T"]


@jax.jit
def clipped(
    *,
    values: Tokens,
    old_values: Tokens,
    returns: Tokens,
    clip: ScalarLike = 0.2,
    mask: Shaped[Array, "B T"] | None = None,
) -> tuple[Tokens, dict[str, Tokens]]:
    """½ max((V - R)², (clip(V, V_old ± clip) - R)²), the value loss of OpenAI's PPO code.

    The ½ is inside: TRL multiplies by `vf_coef` 0.1, verl and OpenRLHF clip at 0.5. `inf` turns
    clipping off.

    >>> values = {"values": jnp.array([[1.0]]), "old_values": jnp.array([[0.0]])}
    >>> clipped(**values, returns=jnp.array([[2.0]]))[0]
    Array([[1.6199...]], dtype=float32)
    """
    values, old_values, returns = map(at_least_float32, (values, old_values, returns))
    old_values, returns = jax.lax.stop_gradient((old_values, returns))
    if mask is not None:
        values, old_values, returns = (masked.clean(x, mask) for x in (values, old_values, returns))
    near = jnp.clip(values, old_values - clip, old_values + clip)
    plain, cut = (values - returns) ** 2, (near - returns) ** 2
    stats = {"val/clipfrac_avg": (cut > plain).astype(values.dtype)}
    return 0.5 * jnp.maximum(plain, cut), stats


@jax.jit
def explained_variance(
    *, values: Tokens, returns: Tokens, mask: Shaped[Array, "B T"]
) -> Float[Array, ""]:
    """1 - Var(R - V) / Var(R): 1 is a perfect critic, 0 one that knows only the mean.

    >>> x = jnp.array([[1.0, 2.0, 3.0]])
    >>> explained_variance(values=x, returns=x + 1, mask=jnp.ones((1, 3)))
    Array(1., dtype=float32)
    """
    residual = masked.var(returns - values, mask, ddof=0)
    total = masked.var(returns, mask, ddof=0)
    return jnp.where(total > 0, 1 - residual / jnp.where(total > 0, total, 1.0), 0.0)
