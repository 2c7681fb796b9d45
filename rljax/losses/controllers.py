"""Coefficients that follow a measured quantity from one batch to the next."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike


@jax.jit
def adaptive_kl(
    coef: ScalarLike,
    kl: ScalarLike,
    *,
    target: ScalarLike,
    horizon: ScalarLike,
    batch: ScalarLike,
    clip: ScalarLike = 0.2,
) -> Float[Array, ""]:
    """coef * (1 + clip(kl/target - 1, ±clip) * batch/horizon) (arXiv:1909.08593, §2.2).

    `kl` is nats per sequence, `batch` and `horizon` count sequences. A fixed coefficient is a
    number: it needs no controller.

    >>> float(adaptive_kl(0.2, 12.0, target=6.0, horizon=100, batch=10))
    0.2039...
    """
    error = jnp.clip(kl / target - 1, -clip, clip)
    return coef * (1 + error * batch / horizon)


@jax.jit
def adaptive_entropy(
    coef: ScalarLike,
    entropy: ScalarLike,
    *,
    target: ScalarLike,
    delta: ScalarLike = 0.005,
    low: ScalarLike = 0.0,
    high: ScalarLike = 1.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(next coefficient, the one to use in the next step) of an entropy bonus (arXiv:2505.22312).

    The coefficient rises by `delta` while the mean token entropy of the last optimizer step is at
    or under `target`, else it falls, within [low, high]. It is in force only while under target:
    the second output is the coefficient or 0.

    >>> [float(x) for x in adaptive_entropy(0.01, 0.5, target=1.0)]
    [0.0149..., 0.0149...]
    """
    under = entropy <= target
    coef = jnp.clip(coef + jnp.where(under, delta, -delta), low, high)
    return coef, jnp.where(under, coef, 0.0)


@jax.jit
def lagrange_multiplier(
    log_multiplier: ScalarLike,
    cost: ScalarLike,
    *,
    limit: ScalarLike = 0.0,
    lr: ScalarLike = 0.1,
    highest: ScalarLike = 20.0,
) -> Float[Array, ""]:
    """The dual step of Safe RLHF (arXiv:2310.12773): log λ += lr (cost - limit) λ.

    `cost` is the batch mean of the cost model; positive means harmful. λ <= `highest`.

    >>> float(lagrange_multiplier(0.0, 0.5))
    0.0500...
    """
    step = log_multiplier + lr * (cost - limit) * jnp.exp(log_multiplier)
    return jnp.minimum(step, jnp.log(highest))
