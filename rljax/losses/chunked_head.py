"""Scores of tokens from hidden states and a head, a chunk of time at a time, with their gradient.

The public face is `logprobs.token_scores`. Logits of one chunk live at once; what the backward pass
needs of them, a maximum and a log-normaliser per token, is kept, and the logits computed again.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class TokenScores(NamedTuple):
    """What one pass over the logits of each token tells. Gradients: through logp and entropy."""

    logp: Float[Array, "B T"]  # log p(target), nats
    entropy: Float[Array, "B T"]  # of the tempered distribution, nats
    log_sum_p2: Float[Array, "B T"]  # log of sum_v p_v^2, for WPO
    mean_logit: Float[Array, "B T"]  # vocabulary mean, before temperature
    correct: Bool[Array, "B T"]  # is the target the most likely token


def shape_logits(raw, constants):
    """(raw logits, temperature etc.) -> (logits, tempered logits)."""
    temperature, softcap, scale = constants
    z = raw if scale is None else raw * scale
    z = z if softcap is None else softcap * jnp.tanh(z / softcap)
    return z, z / temperature


def _raw(h_BtD, head, bias):
    acc = jnp.promote_types(h_BtD.dtype, jnp.float32)
    z = jnp.einsum("btd,dv->btv", h_BtD, head, preferred_element_type=acc)
    return z if bias is None else z + bias[None, None, :]


def _is_target(targets_Bt, vocab):
    # A comparison, not a gather: it fuses, and a head sharded over its vocabulary stays so.
    return jnp.arange(vocab)[None, None, :] == targets_Bt[..., None]


def _starts(T, t):
    """Where each chunk starts. The last one ends at T, so it may overlap the one before."""
    return jnp.minimum(jnp.arange(-(-T // t)) * t, T - t)


def _join(chunks, T):
    """[n, B, t, ...] -> [B, T, ...], without what the last chunk repeats of the one before."""
    n, B, t = chunks.shape[:3]
    flat = jnp.moveaxis(chunks[:-1], 0, 1).reshape(B, (n - 1) * t, *chunks.shape[3:])
    return jnp.concatenate([flat, chunks[-1][:, n * t - T :]], axis=1)


def _slice(x, start, t):
    return jax.lax.dynamic_slice_in_dim(x, start, t, axis=1)


def _forward(t, hidden, head, bias, targets, mask, constants):
    """Scores, and the per-token max and log-normaliser that the backward pass reuses."""
    T = targets.shape[1]

    def chunk(h_BtD, targets_Bt, mask_Bt):
        z_BtV, x_BtV = shape_logits(
            _raw(jnp.where(mask_Bt[..., None], h_BtD, 0), head, bias), constants
        )
        top = x_BtV.max(-1)
        x_BtV = x_BtV - top[..., None]  # small numbers: exact at logits of thousands
        e_BtV = jnp.exp(x_BtV)
        total = e_BtV.sum(-1)
        norm = jnp.log(total)
        picked = jnp.where(_is_target(targets_Bt, head.shape[1]), x_BtV, -jnp.inf).max(-1)
        # -sum p log p, with 0 log 0 = 0 for vocabulary entries at -inf.
        entropy = norm - jnp.where(e_BtV > 0, e_BtV * x_BtV, 0.0).sum(-1) / total
        log_sum_p2 = jnp.log((e_BtV * e_BtV).sum(-1)) - 2 * norm
        out = TokenScores(picked - norm, entropy, log_sum_p2, z_BtV.mean(-1), picked >= 0)
        out = jax.tree.map(lambda x: jnp.where(mask_Bt, x, jnp.zeros_like(x)), out)
        return out, (top, norm)

    def skipped(h_BtD, targets_Bt, mask_Bt):
        zero = jnp.zeros_like(h_BtD[..., 0], dtype=jnp.promote_types(h_BtD.dtype, jnp.float32))
        return TokenScores(zero, zero, zero, zero, zero.astype(bool)), (zero, zero)

    def step(_, start):
        window = [_slice(x, start, t) for x in (hidden, targets, mask)]
        return None, jax.lax.cond(window[2].any(), chunk, skipped, *window)

    _, outputs = jax.lax.scan(step, None, _starts(T, t))
    return jax.tree.map(lambda x: _join(x, T), outputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(t, hidden, head, bias, targets, mask, constants):
    return _forward(t, hidden, head, bias, targets, mask, constants)[0]


def _scores_fwd(t, hidden, head, bias, targets, mask, constants):
    out, normalisers = _forward(t, hidden, head, bias, targets, mask, constants)
    return out, (hidden, head, bias, targets, mask, constants, normalisers, out.entropy)


def _scores_bwd(t, saved, cotangents):
    hidden, head, bias, targets, mask, constants, (top, norm), entropy = saved
    T, acc = targets.shape[1], top.dtype

    def chunk(h_BtD, targets_Bt, mask_Bt, top_Bt, norm_Bt, entropy_Bt, g_logp, g_entropy):
        h_BtD = jnp.where(mask_Bt[..., None], h_BtD, 0)
        raw_BtV = _raw(h_BtD, head, bias)
        x_BtV, pull = jax.vjp(lambda raw: shape_logits(raw, constants)[1], raw_BtV)
        logp_BtV = (x_BtV - top_Bt[..., None]) - norm_Bt[..., None]
        p_BtV = jnp.exp(logp_BtV)
        # d entropy / d x_v = -p_v (log p_v + H);  d logp / d x_v = [v = target] - p_v
        surprise = jnp.where(p_BtV > 0, logp_BtV, 0.0) + entropy_Bt[..., None]
        weight = g_logp[..., None] + g_entropy[..., None] * surprise
        hit = jnp.where(_is_target(targets_Bt, head.shape[1]), g_logp[..., None], 0.0)
        (d_BtV,) = pull(hit - p_BtV * weight)
        dh = jnp.einsum("btv,dv->btd", d_BtV, head, preferred_element_type=acc)
        dw = jnp.einsum("btd,btv->dv", h_BtD, d_BtV, preferred_element_type=acc)
        return dh.astype(hidden.dtype), (dw, None if bias is None else d_BtV.sum((0, 1)))

    def step(sums, xs):
        start, first = xs
        window = [_slice(x, start, t) for x in (hidden, targets, mask, top, norm, entropy)]
        # Positions that the chunk before has already dealt with count once.
        live_Bt = window[2] & (jnp.arange(t) >= first - start)[None, :]
        g = [jnp.where(live_Bt, _slice(x, start, t), 0.0) for x in cotangents[:2]]

        def add(h_BtD, sums):
            dh, terms = chunk(h_BtD, *window[1:], *g)
            return dh, jax.tree.map(jnp.add, sums, terms)

        def skip(h_BtD, sums):
            return jnp.zeros_like(h_BtD), sums

        dh, sums = jax.lax.cond(live_Bt.any(), add, skip, window[0], sums)
        return sums, dh

    # zeros_like of the inputs, so that inside shard_map they vary over the same axes.
    zeros = (
        jnp.zeros_like(head, dtype=acc),
        None if bias is None else jnp.zeros_like(bias, dtype=acc),
    )
    n = -(-T // t)
    (dw, db), dh = jax.lax.scan(step, zeros, (_starts(T, t), jnp.arange(n) * t))
    return (
        _join(dh, T),
        dw.astype(head.dtype),
        None if bias is None else db.astype(bias.dtype),
        None,
        None,
        None,
    )


_scores.defvjp(_scores_fwd, _scores_bwd)
scores = jax.jit(_scores, static_argnums=0)
