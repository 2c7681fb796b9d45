"""Token log-probabilities and entropies straight from hidden states and a head.

The [batch, time, vocabulary] array never exists: the time axis is walked in chunks, whose logits
are recomputed in the backward pass. Batch stays a whole axis, so a batch-sharded array stays so.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

CHUNK_BYTES = 16 * 2**20
"""fp32 bytes of logits that one chunk may hold."""


def chunk_length(batch: int, time: int, vocab: int) -> int:
    """Time steps per chunk so that its fp32 logits fit in CHUNK_BYTES; at least 1."""
    return max(1, min(time, CHUNK_BYTES // (4 * batch * vocab)))


def token_logprobs(
    hidden: Float[Array, "B T D"],
    head: Float[Array, "D V"],
    targets: Int[Array, "B T"],
    *,
    mask: Num[Array, "B T"] | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float | None = None,
    bias: Float[Array, "V"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """log p(targets[:, t] | hidden[:, t]) and the entropy in nats, both fp32 [B, T].

    The caller shifts: `hidden[:, t]` must be the state that predicts `targets[:, t]`. Logits are
    `hidden @ head (+ bias)`, then times `scale`, then soft-capped, then over `temperature`, all
    accumulated in fp32 from inputs of any float dtype. Where the mask is 0 both outputs are 0 and
    carry no gradient; chunks without a single valid position are skipped. Gradients reach
    hidden, head and bias, through both outputs.
    """
    B, T, D = hidden.shape
    V = head.shape[1]
    if temperature <= 0:
        raise ValueError(f"temperature={temperature}; log-probabilities need one above 0")
    mask = jnp.ones((B, T), bool) if mask is None else mask > 0
    bias = jnp.zeros((V,), jnp.float32) if bias is None else bias
    size = chunk_length(B, T, V) if chunk is None else chunk
    pad = -T % size
    if pad:
        hidden = jnp.pad(hidden, ((0, 0), (0, pad), (0, 0)))
        targets, mask = (jnp.pad(x, ((0, 0), (0, pad))) for x in (targets, mask))
    shape = (temperature, softcap, scale, size)
    logps, entropy = _chunked(shape, hidden, head, bias, targets, mask)
    return logps[:, :T], entropy[:, :T]


def _wide(*arrays: jax.Array):
    """fp32, or fp64 where an input is."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def _logits(shape, hidden, head, bias):
    """Raw and shaped logits [B, c, V] of one chunk, in at least fp32."""
    temperature, softcap, scale, _ = shape
    x = jnp.einsum("BcD,DV->BcV", hidden, head, preferred_element_type=_wide(hidden, head))
    x = x + bias.astype(x.dtype)[None, None, :]
    x = x if scale is None else x * scale
    capped = x if softcap is None else softcap * jnp.tanh(x / softcap)
    return x, capped / temperature


def _outputs(z, targets):
    """Log-probability of the target and entropy, with -inf logits counting as impossible."""
    logz = jax.nn.logsumexp(z, -1)
    picked = jnp.take_along_axis(z, targets[..., None], -1)[..., 0]
    return picked - logz, _entropy(z)


def _by_chunk(size, *arrays):
    """[B, T, ...] -> [T/size, B, size, ...]."""

    def cut(x):
        return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)

    return tuple(cut(x) for x in arrays)


def _joined(x):
    x = jnp.moveaxis(x, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(shape, hidden, head, bias, targets, mask):
    dtype = _wide(hidden, head)

    def one(_, xs):
        h, t, m = xs

        def compute():
            _, z = _logits(shape, h, head, bias)
            return tuple(jnp.where(m, y, 0.0) for y in _outputs(z, t))

        def skip():
            return jnp.zeros(t.shape, dtype), jnp.zeros(t.shape, dtype)

        return None, jax.lax.cond(m.any(), compute, skip)

    _, (logps, entropy) = jax.lax.scan(one, None, _by_chunk(shape[3], hidden, targets, mask))
    return _joined(logps), _joined(entropy)


def _forward(shape, hidden, head, bias, targets, mask):
    return _chunked(shape, hidden, head, bias, targets, mask), (hidden, head, bias, targets, mask)


def _backward(shape, saved, cotangents):
    hidden, head, bias, targets, mask = saved
    temperature, softcap, scale, size = shape
    dtype = _wide(hidden, head)

    def one(carry, xs):
        h, t, m, g_logp, g_entropy = xs
        # Zero, not merely small: a masked position must not feel an infinite cotangent.
        g_logp, g_entropy = (jnp.where(m, g, 0.0)[..., None] for g in (g_logp, g_entropy))

        def compute(carry):
            d_head, d_bias = carry
            x, z = _logits(shape, h, head, bias)
            # Only z is stored: p and log p are elementwise in it, and fuse into each use.
            log_p = z - jax.nn.logsumexp(z, -1, keepdims=True)
            p = jnp.exp(log_p)
            log_p = jnp.where(p > 0, log_p, 0.0)
            entropy = -(p * log_p).sum(-1, keepdims=True)
            # d logp_y/dz = 1[y] - p;  d H/dz = -p (log p + H), and 0 where p is 0.
            one_hot = jax.nn.one_hot(t, z.shape[-1], dtype=z.dtype)
            d = g_logp * (one_hot - p) - g_entropy * p * (log_p + entropy)
            d = d / temperature
            d = d if softcap is None else d * (1 - jnp.tanh(x / softcap) ** 2)
            d = d if scale is None else d * scale
            d_hidden = jnp.einsum("BcV,DV->BcD", d, head.astype(d.dtype))
            d_head = d_head + jnp.einsum("BcD,BcV->DV", h.astype(d.dtype), d)
            return (d_head, d_bias + d.sum((0, 1))), d_hidden

        def skip(carry):
            return carry, jnp.zeros(h.shape, dtype)

        return jax.lax.cond(m.any(), compute, skip, carry)

    zero = (jnp.zeros(head.shape, dtype), jnp.zeros(bias.shape, dtype))
    chunks = _by_chunk(size, hidden, targets, mask, *cotangents)
    (d_head, d_bias), d_hidden = jax.lax.scan(one, zero, chunks)
    return (
        _joined(d_hidden).astype(hidden.dtype),
        d_head.astype(head.dtype),
        d_bias.astype(bias.dtype),
        None,
        None,
    )


_chunked.defvjp(_forward, _backward)


def token_logprobs_from_logits(
    logits: Float[Array, "*S V"], targets: Int[Array, "*S"], *, temperature: float = 1.0
) -> tuple[Float[Array, "*S"], Float[Array, "*S"]]:
    """The same two outputs from logits that already exist; fp32 whatever the logits' dtype."""
    z = logits.astype(jnp.promote_types(logits.dtype, jnp.float32)) / temperature
    return _outputs(z, targets)


def entropy_from_logits(logits: Float[Array, "*S V"]) -> Float[Array, "*S"]:
    """Entropy in nats; a logit of -inf is a probability of 0 and adds nothing."""
    return _entropy(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))


def _entropy(z):
    # -inf logits are replaced before any product: 0 * -inf is NaN, and so is its gradient.
    finite = jnp.isfinite(z)
    safe = jnp.where(finite, z, jnp.finfo(z.dtype).min / 4)
    p = jax.nn.softmax(safe, -1)
    log_p = jax.nn.log_softmax(safe, -1)
    return -jnp.where(finite, p * log_p, 0.0).sum(-1)
