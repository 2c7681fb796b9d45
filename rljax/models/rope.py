"""Rotary position embedding: rotation frequencies by kind, and the half-split rotation."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models.config import Rope


def frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Radians per position of each pair, fp32 [head_dim/2] (computed in float64).

    linear divides all of them by the factor; llama3 keeps high frequencies, divides low ones and
    blends between the two (as transformers' `_compute_llama3_parameters`).
    """
    inv = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "linear":
        inv = inv / rope.factor
    elif rope.kind == "llama3":
        wavelength = 2 * math.pi / inv
        span = rope.high_freq_factor - rope.low_freq_factor
        smooth = (rope.original_length / wavelength - rope.low_freq_factor) / span
        smooth = np.clip(smooth, 0.0, 1.0)  # 0: low frequency, 1: high
        inv = (1 - smooth) * inv / rope.factor + smooth * inv
    return inv.astype(np.float32)


def rotate(x_BTHC: jax.Array, positions_BT: jax.Array, rope: Rope) -> jax.Array:
    """Rotate pairs (c, c + C/2) by position times frequency; angles and products in fp32."""
    inv = jnp.asarray(frequencies(rope, x_BTHC.shape[-1]))
    angle = positions_BT[:, :, None].astype(jnp.float32) * inv[None, None, :]
    sin, cos = jnp.sin(angle)[:, :, None, :], jnp.cos(angle)[:, :, None, :]
    a, b = jnp.split(x_BTHC.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x_BTHC.dtype)
