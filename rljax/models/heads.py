"""Scalar heads on the hidden state after the final norm."""

import jax
import jax.numpy as jnp

from rljax.models.config import DecoderConfig

LOGICAL_AXES = {"kernel": (None, "label"), "bias": ("label",)}


def value_init(rng: jax.Array, cfg: DecoderConfig) -> dict[str, jax.Array]:
    """kernel fp32 [D, 1] of std 1/(D+1), bias [1] of 0: a critic that starts near 0.

    With lm-human-preferences' 1/sqrt(D+1) the first values have the size of the final hidden
    state; their noise drowns a sparse reward, and SmolLM2 unlearned the task before the critic fit.
    """
    kernel = jax.random.normal(rng, (cfg.embed, 1)) / (cfg.embed + 1)
    return {"kernel": kernel, "bias": jnp.zeros((1,))}


def scores(head: dict[str, jax.Array], hidden_BTD: jax.Array) -> jax.Array:
    """fp32 [B, T, labels], accumulated in fp32 whatever the hidden state's dtype."""
    y = jnp.einsum(
        "BTD,DL->BTL", hidden_BTD.astype(jnp.float32), head["kernel"].astype(jnp.float32)
    )
    return y + head["bias"].astype(jnp.float32)[None, None, :] if "bias" in head else y


def value(head: dict[str, jax.Array], hidden_BTD: jax.Array) -> jax.Array:
    """A critic's estimate at each position, fp32 [B, T]."""
    return scores(head, hidden_BTD)[..., 0]


def pooled(head: dict[str, jax.Array], hidden_BTD: jax.Array, segments_BT: jax.Array) -> jax.Array:
    """A reward model's scores fp32 [B, labels], read at each row's last real token.

    By segment, never by pad id: a completion may hold the pad id (it is often the end id).
    """
    T = segments_BT.shape[1]
    last_B = jnp.where(segments_BT > 0, jnp.arange(T)[None, :], 0).max(axis=1)
    last_B1D = jnp.take_along_axis(hidden_BTD, last_B[:, None, None], axis=1)
    return scores(head, last_B1D)[:, 0]
