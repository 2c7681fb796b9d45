"""Log-probabilities and entropies of tokens, from hidden states and a head, or from logits.

The alignment is the caller's: `hidden[:, t]` predicts `targets[:, t]`, so for next-token scores
pass `hidden[:, :-1], tokens[:, 1:], mask[:, 1:]`. Nothing of shape [batch, time, vocabulary] is
ever stored: logits live for one chunk of time at a time, and the backward pass computes them again.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike, Shaped

from rljax.losses.precision import at_least_float32

CHUNK_BYTES = 16 * 2**20
"""Size of one chunk's fp32 logits when `chunk` is None. The backward pass holds about two."""


class TokenScores(NamedTuple):
    """What one pass over the logits of each token tells. Gradients: through logp and entropy."""

    logp: Float[Array, "B T"]  # log p(target), nats
    entropy: Float[Array, "B T"]  # of the tempered distribution, nats
    log_sum_p2: Float[Array, "B T"]  # log of sum_v p_v^2, for WPO
    mean_logit: Float[Array, "B T"]  # vocabulary mean, before temperature
    correct: Bool[Array, "B T"]  # is the target the most likely token


def token_logprobs(
    hidden: Float[Array, "B T D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B T"],
    *,
    mask: Shaped[Array, "B T"] | None = None,
    temperature: ScalarLike = 1.0,
    softcap: ScalarLike | None = None,
    scale: ScalarLike | None = None,
    bias: Float[Array, "V"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log p(target), entropy), fp32 [B, T], 0 where mask is 0. See `token_scores`."""
    scores = token_scores(
        hidden,
        head,
        targets,
        mask=mask,
        temperature=temperature,
        softcap=softcap,
        scale=scale,
        bias=bias,
        chunk=chunk,
    )
    return scores.logp, scores.entropy


def token_scores(
    hidden: Float[Array, "B T D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B T"],
    *,
    mask: Shaped[Array, "B T"] | None = None,
    temperature: ScalarLike = 1.0,
    softcap: ScalarLike | None = None,
    scale: ScalarLike | None = None,
    bias: Float[Array, "V"] | None = None,
    chunk: int | None = None,
) -> TokenScores:
    """Score tokens under softmax(f(hidden @ head + bias) / temperature), without storing logits.

    f multiplies by `scale`, then soft-caps: `softcap * tanh(x / softcap)`, the order of Hugging
    Face models. Products of bf16 inputs accumulate in fp32. Gradients for hidden, head and bias are
    exact (logits are computed again, chunk by chunk); temperature, softcap and scale are constants.

    Where `mask` is 0, every output and gradient is 0 whatever the inputs hold, NaN included, and
    chunks of time without any unmasked position cost nothing. A bias of -inf removes a vocabulary
    entry; a target that is removed, or no id of the vocabulary, scores -inf.

    `chunk` is the number of positions per step, for all B rows at once; None picks it so that fp32
    logits of a chunk take `CHUNK_BYTES`. B is global under `jit` over a mesh. To have B local, and
    the head gathered and its gradient reduced once instead of once a chunk, call this inside a
    `jax.shard_map` over the batch axes (with `jax.lax.pcast(head, axes, to="varying")`). Reverse
    mode only: forward mode needs `token_logprobs_from_logits`.
    """
    if isinstance(temperature, int | float) and not temperature > 0:
        raise ValueError(
            f"temperature={temperature}: wants more than 0; greedy sampling has no log-probability"
        )
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk}: wants at least 1 position")
    B, T = targets.shape
    if T == 0:
        empty = jnp.zeros((B, 0), jnp.promote_types(hidden.dtype, jnp.float32))
        return TokenScores(empty, empty, empty, empty, empty.astype(bool))
    if chunk is None:
        # A quarter of the row at most: a small array is not held whole either.
        chunk = max(1, min(CHUNK_BYTES // (4 * B * head.shape[1]), -(-T // 4)))
    # As many chunks as needed, of equal size.
    chunk = -(-T // -(-T // chunk))
    mask = jnp.ones(targets.shape, bool) if mask is None else mask != 0
    constants = jax.lax.stop_gradient((temperature, softcap, scale))
    return _jitted_scores(chunk, hidden, head, bias, targets, mask, constants)


@jax.jit
def token_logprobs_from_logits(
    logits: Float[Array, "B T V"],
    targets: Int[Array, "B T"],
    *,
    mask: Shaped[Array, "B T"] | None = None,
    temperature: ScalarLike = 1.0,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(log p(target), entropy) of logits, fp32 [B, T], 0 where mask is 0. Any order of derivative.

    Vocabulary entries at -inf have probability 0, and no part in entropy or gradient.
    """
    if mask is not None:
        # Before the softmax: a NaN that enters it leaves by the gradient.
        logits = jnp.where(mask[..., None] != 0, logits, 0.0)
    logp = log_softmax(logits, temperature=temperature)
    chosen = logprobs_at(logp, targets[..., None])[..., 0]
    entropy = entropy_of(logp)
    if mask is not None:
        chosen, entropy = (jnp.where(mask != 0, x, 0.0) for x in (chosen, entropy))
    return chosen, entropy


@jax.jit
def log_softmax(
    logits: Float[Array, "*rows V"],
    *,
    temperature: ScalarLike = 1.0,
    softcap: ScalarLike | None = None,
    scale: ScalarLike | None = None,
) -> Float[Array, "*rows V"]:
    """log softmax(logits / temperature) in fp32; `scale` and `softcap` as in `token_scores`."""
    return jax.nn.log_softmax(_shape(at_least_float32(logits), (temperature, softcap, scale))[1])


@jax.jit
def logprobs_at(logps: Float[Array, "B T V"], ids: Int[Array, "B T K"]) -> Float[Array, "B T K"]:
    """Several entries of each position's distribution. Ids outside the vocabulary are clipped."""
    return jnp.take_along_axis(logps, ids, -1, mode="clip")


@jax.jit
def entropy_of(logp: Float[Array, "*rows V"]) -> Float[Array, "*rows"]:
    """-sum p log p in nats, of normalised log-probabilities; entries at -inf count 0."""
    finite = logp > -jnp.inf
    safe = jnp.where(finite, at_least_float32(logp), 0.0)
    return -jnp.where(finite, jnp.exp(safe) * safe, 0.0).sum(-1)


@functools.partial(jax.jit, static_argnames="average")
def sequence_logprobs(
    logps: Float[Array, "B T"], mask: Shaped[Array, "B T"], *, average: bool = False
) -> Float[Array, "B"]:
    """log p of each whole sequence, or with `average` per token; 0 for a row without tokens."""
    total = jnp.where(mask != 0, at_least_float32(logps), 0.0).sum(1)
    if not average:
        return total
    length = (mask != 0).sum(1)
    return total / jnp.maximum(length, 1)


def _shape(raw, constants):
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
        z_BtV, x_BtV = _shape(_raw(jnp.where(mask_Bt[..., None], h_BtD, 0), head, bias), constants)
        top = x_BtV.max(-1)
        x_BtV = x_BtV - top[..., None]  # small numbers: exact at logits of thousands
        e_BtV = jnp.exp(x_BtV)
        total = e_BtV.sum(-1)
        norm = jnp.log(total)
        picked = jnp.where(_is_target(targets_Bt, head.shape[1]), x_BtV, -jnp.inf).max(-1)
        # -sum p log p, with 0 log 0 = 0 for vocabulary entries at -inf.
        entropy = norm - jnp.where(e_BtV > 0, e_BtV * x_BtV, 0.0).sum(-1) / total
        log_sum_p2 = jnp.log((e_BtV * e_BtV).sum(-1)) - 2 * norm
        scores = TokenScores(picked - norm, entropy, log_sum_p2, z_BtV.mean(-1), picked >= 0)
        off = jax.tree.map(lambda x: jnp.where(mask_Bt, x, jnp.zeros_like(x)), scores)
        return off, (top, norm)

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
    scores, normalisers = _forward(t, hidden, head, bias, targets, mask, constants)
    saved = (hidden, head, bias, targets, mask, constants, normalisers, scores.entropy)
    return scores, saved


def _scores_bwd(t, saved, cotangents):
    hidden, head, bias, targets, mask, constants, (top, norm), entropy = saved
    T, acc = targets.shape[1], top.dtype

    def chunk(h_BtD, targets_Bt, mask_Bt, top_Bt, norm_Bt, entropy_Bt, g_logp, g_entropy):
        h_BtD = jnp.where(mask_Bt[..., None], h_BtD, 0)
        raw_BtV = _raw(h_BtD, head, bias)
        x_BtV, pull = jax.vjp(lambda raw: _shape(raw, constants)[1], raw_BtV)
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
_jitted_scores = jax.jit(_scores, static_argnums=0)
