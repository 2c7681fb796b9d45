"""The trust-region step of TRPO (arXiv:1502.05477): natural gradient, then a line search.

These take functions of parameters, not arrays of log-probabilities: `surrogate` is to be minimised
(`policy.ppo_clip` with an infinite clip, say) and `kl` is the mean KL(old || new), which is 0 with
gradient 0 at the starting parameters. Both must be differentiable in forward mode, so score with
`logprobs.token_logprobs_from_logits`. Wrap `natural_step` in `jax.jit`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, ScalarLike

Params = PyTree[Float[Array, "..."]]
Scalar = Float[Array, ""]


def fisher_vector_product(
    kl: Callable[[Params], Scalar], params: Params, vector: Params, *, damping: ScalarLike = 0.0
) -> Params:
    """(F + damping) v, F the Hessian of `kl` at `params`: one gradient and one jvp, no matrix."""
    product = jax.jvp(jax.grad(kl), (params,), (vector,))[1]
    return jax.tree.map(lambda p, v: p + damping * v, product, vector)


def conjugate_gradient(
    product: Callable[[Params], Params], b: Params, *, iterations: int = 10, eps: float = 1e-10
) -> Params:
    """x with product(x) = b for a positive semi-definite product; stops early once solved."""

    def step(carry, _):
        x, r, p, rr = carry
        Ap = product(p)
        curvature = dot(p, Ap)
        go = (rr > eps) & (curvature > 0)
        alpha = jnp.where(go, rr / jnp.where(go, curvature, 1.0), 0.0)
        x = jax.tree.map(lambda x, p: x + alpha * p, x, p)
        r = jax.tree.map(lambda r, q: r - alpha * q, r, Ap)
        new = dot(r, r)
        beta = jnp.where(go, new / jnp.where(go, rr, 1.0), 0.0)
        p = jax.tree.map(lambda r, p: r + beta * p, r, p)
        return (x, r, p, jnp.where(go, new, rr)), None

    start = (jax.tree.map(jnp.zeros_like, b), b, b, dot(b, b))
    return jax.lax.scan(step, start, None, length=iterations)[0][0]


def dot(a: Params, b: Params) -> Scalar:
    """The inner product of two pytrees."""
    return sum(jax.tree.leaves(jax.tree.map(lambda x, y: (x * y).sum(), a, b)))


def natural_step(
    surrogate: Callable[[Params], Scalar],
    kl: Callable[[Params], Scalar],
    params: Params,
    *,
    max_kl: ScalarLike = 0.01,
    damping: ScalarLike = 0.1,
    iterations: int = 10,
    backtracks: int = 10,
) -> tuple[Params, dict[str, Any]]:
    """Move along -F⁻¹g as far as `max_kl` allows, halving until the surrogate falls within it.

    No step at all if none of `backtracks` halvings satisfies both. Stats: "kl", "improvement" and
    the accepted "fraction" of the full step (0 if none).
    """
    loss, g = jax.value_and_grad(surrogate)(params)

    def product(v):
        return fisher_vector_product(kl, params, v, damping=damping)

    direction = conjugate_gradient(product, g, iterations=iterations)
    curvature = dot(direction, product(direction))
    scale = jnp.sqrt(2 * max_kl / jnp.maximum(curvature, 1e-20))

    def at(fraction):
        return jax.tree.map(lambda p, d: p - fraction * scale * d, params, direction)

    def try_next(carry, fraction):
        found, best = carry
        new = at(fraction)
        good = (kl(new) <= max_kl) & (surrogate(new) < loss) & ~found
        return (found | good, jnp.where(good, fraction, best)), None

    fractions = 0.5 ** jnp.arange(backtracks)
    (_, fraction), _ = jax.lax.scan(try_next, (jnp.bool_(False), jnp.zeros(())), fractions)
    new = at(fraction)
    return new, {"kl": kl(new), "improvement": loss - surrogate(new), "fraction": fraction}
