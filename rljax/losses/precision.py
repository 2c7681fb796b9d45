"""Losses compute in fp32 or better, whatever dtype the model computes in."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def at_least_float32(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Widen bf16 and fp16 to fp32; leave fp32 and fp64 as they are."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
