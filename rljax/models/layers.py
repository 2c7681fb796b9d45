"""The Flax modules of one decoder layer. Parameters are named for the plain dict outside."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from rljax import sharding
from rljax.models import attention, cache, rope
from rljax.models.config import DecoderConfig


class Proj(nn.Module):
    """A linear map given as an einsum: `n_in` leading kernel axes are contracted."""

    eqn: str
    shape: tuple[int, ...]
    n_in: int
    bias: bool = False

    @nn.compact
    def __call__(self, x):
        fan_in = nn.initializers.variance_scaling(
            1.0,
            "fan_in",
            "normal",
            in_axis=tuple(range(self.n_in)),
            out_axis=tuple(range(self.n_in, len(self.shape))),
        )
        kernel = self.param("kernel", fan_in, self.shape, jnp.float32)
        y = jnp.einsum(self.eqn, x, kernel.astype(x.dtype))
        if self.bias:
            bias = self.param("bias", nn.initializers.zeros, self.shape[self.n_in :], jnp.float32)
            y = y + jnp.broadcast_to(bias.astype(y.dtype), y.shape)
        return y


class RMSNorm(nn.Module):
    """x / rms(x) in fp32, cast, then scaled: the rounding order of Llama."""

    eps: float

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        return y.astype(x.dtype) * jnp.broadcast_to(scale.astype(x.dtype), x.shape)


class Attention(nn.Module):
    cfg: DecoderConfig

    @nn.compact
    def __call__(self, x_BTD, positions_BT, visible_BTS, past):
        c = self.cfg
        q = Proj("BTD,DHC->BTHC", (c.embed, c.heads, c.head_dim), 1, c.qkv_bias, name="q")(x_BTD)
        k = Proj("BTD,DKC->BTKC", (c.embed, c.kv_heads, c.head_dim), 1, c.qkv_bias, name="k")(x_BTD)
        v = Proj("BTD,DKC->BTKC", (c.embed, c.kv_heads, c.head_dim), 1, c.qkv_bias, name="v")(x_BTD)
        q = sharding.constrain(q, ("batch", "time", "heads", "head_dim"))
        q, k = rope.rotate(q, positions_BT, c.rope), rope.rotate(k, positions_BT, c.rope)
        if past is not None:
            past = cache.write(past, k, v)
            k, v = past.k_BSKC.astype(q.dtype), past.v_BSKC.astype(q.dtype)
        y = attention.attend(q, k, v, visible_BTS, scale=c.head_dim**-0.5)
        return Proj("BTHC,HCD->BTD", (c.heads, c.head_dim, c.embed), 2, c.o_bias, name="o")(y), past


class Mlp(nn.Module):
    """down(silu(gate x) · up x)."""

    cfg: DecoderConfig

    @nn.compact
    def __call__(self, x_BTD):
        c = self.cfg
        gate = Proj("BTD,DF->BTF", (c.embed, c.mlp), 1, c.mlp_bias, name="gate")(x_BTD)
        up = Proj("BTD,DF->BTF", (c.embed, c.mlp), 1, c.mlp_bias, name="up")(x_BTD)
        y = sharding.constrain(jax.nn.silu(gate) * up, ("batch", "time", "mlp"))
        return Proj("BTF,FD->BTD", (c.mlp, c.embed), 1, c.mlp_bias, name="down")(y)


class Block(nn.Module):
    """Pre-norm residual layer: x + attn(norm x), then x + mlp(norm x)."""

    cfg: DecoderConfig

    @nn.compact
    def __call__(self, x_BTD, positions_BT, visible_BTS, past=None):
        c = self.cfg
        h, past = Attention(c, name="attn")(
            RMSNorm(c.norm_eps, name="attn_norm")(x_BTD), positions_BT, visible_BTS, past
        )
        x_BTD = x_BTD + h
        x_BTD = x_BTD + Mlp(c, name="mlp")(RMSNorm(c.norm_eps, name="mlp_norm")(x_BTD))
        return sharding.constrain(x_BTD, ("batch", "time", None)), past
