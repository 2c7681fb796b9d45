"""Running mean and variance over batches, as a small state that the caller carries and saves."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from rljax.losses import masked
from rljax.losses.precision import at_least_float32


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of everything seen."""

    count: Float[Array, ""]
    mean: Float[Array, ""]
    squares: Float[Array, ""]

    def std(self, ddof: int = 1) -> Float[Array, ""]:
        """0 until more than `ddof` values were seen."""
        defined = self.count > ddof
        variance = self.squares / jnp.where(defined, self.count - ddof, 1.0)
        return jnp.where(defined & (variance > 0), jnp.sqrt(jnp.maximum(variance, 1e-38)), 0.0)


def empty() -> Moments:
    zero = jnp.zeros(())
    return Moments(zero, zero, zero)


@jax.jit
def update(
    moments: Moments, x: Float[Array, "*shape"], mask: Shaped[Array, "*shape"] | None = None
) -> Moments:
    """Add a batch (Chan et al. 1979): exact, whatever the batch sizes. No gradient flows.

    >>> moments = update(update(empty(), jnp.array([1.0, 2.0])), jnp.array([6.0]))
    >>> float(moments.mean)
    3.0
    """
    x = jax.lax.stop_gradient(at_least_float32(x))
    mask = jnp.ones(x.shape, bool) if mask is None else mask != 0
    n = mask.sum().astype(x.dtype)
    mean = masked.mean(x, mask)
    squares = masked.var(x, mask, ddof=0) * n
    count = moments.count + n
    safe = jnp.where(count == 0, 1.0, count)
    gap = mean - moments.mean
    return Moments(
        count,
        moments.mean + gap * n / safe,
        moments.squares + squares + gap * gap * moments.count * n / safe,
    )


@jax.jit
def normalize(moments: Moments, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """(x - mean) / std of what was seen; only centred while there is no spread.

    >>> normalize(update(empty(), jnp.array([1.0, 3.0])), jnp.array([4.0]))
    Array([1.4142...], dtype=float32)
    """
    std = moments.std()
    return (at_least_float32(x) - moments.mean) / jnp.where(std > 0, std, 1.0)
