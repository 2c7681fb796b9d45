"""Log-probabilities and entropies of tokens, from hidden states and a head, or from logits.

The alignment is the caller's: `hidden[:, t]` predicts `targets[:, t]`, so for next-token scores
pass `hidden[:, :-1], tokens[:, 1:], mask[:, 1:]`. Nothing of shape [batch, time, vocabulary] is
ever stored: logits live for one chunk of time at a time, and the backward pass computes them again.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, ScalarLike, Shaped

from rljax.losses.chunked_head import TokenScores, scores, shape_logits
from rljax.losses.precision import at_least_float32

CHUNK_BYTES = 16 * 2**20
"""Size of one chunk's fp32 logits when `chunk` is None. The backward pass holds about two."""


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
    """(log p(target), entropy), fp32 [B, T], 0 where mask is 0. See `token_scores`.

    >>> hidden, head = jnp.ones((1, 2, 3)), jnp.zeros((3, 4))
    >>> token_logprobs(hidden, head, jnp.array([[0, 3]]))[0]
    Array([[-1.3862..., -1.3862...]], dtype=float32)
    """
    out = token_scores(
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
    return out.logp, out.entropy


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
    return scores(chunk, hidden, head, bias, targets, mask, constants)


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

    >>> logits = jnp.log(jnp.array([[[0.5, 0.25, 0.25]]]))
    >>> token_logprobs_from_logits(logits, jnp.array([[1]]))[0]
    Array([[-1.3862...]], dtype=float32)
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
    """log softmax(logits / temperature) in fp32; `scale` and `softcap` as in `token_scores`.

    >>> log_softmax(jnp.array([1.0, 1.0]), temperature=0.5)
    Array([-0.6931..., -0.6931...], dtype=float32)
    """
    return jax.nn.log_softmax(
        shape_logits(at_least_float32(logits), (temperature, softcap, scale))[1]
    )


@jax.jit
def logprobs_at(logps: Float[Array, "B T V"], ids: Int[Array, "B T K"]) -> Float[Array, "B T K"]:
    """Several entries of each position's distribution. Ids outside the vocabulary are clipped.

    >>> logprobs_at(jnp.array([[[-1.0, -2.0, -3.0]]]), jnp.array([[[2, 0]]]))
    Array([[[-3., -1.]]], dtype=float32)
    """
    return jnp.take_along_axis(logps, ids, -1, mode="clip")


@jax.jit
def entropy_of(logp: Float[Array, "*rows V"]) -> Float[Array, "*rows"]:
    """-sum p log p in nats, of normalised log-probabilities; entries at -inf count 0.

    >>> entropy_of(jnp.log(jnp.array([0.5, 0.5, 0.0])))
    Array(0.6931..., dtype=float32)
    """
    finite = logp > -jnp.inf
    safe = jnp.where(finite, at_least_float32(logp), 0.0)
    return -jnp.where(finite, jnp.exp(safe) * safe, 0.0).sum(-1)


@functools.partial(jax.jit, static_argnames="average")
def sequence_logprobs(
    logps: Float[Array, "B T"], mask: Shaped[Array, "B T"], *, average: bool = False
) -> Float[Array, "B"]:
    """log p of each whole sequence, or with `average` per token; 0 for a row without tokens.

    >>> sequence_logprobs(jnp.array([[-1.0, -2.0]]), jnp.array([[1, 1]]), average=True)
    Array([-1.5], dtype=float32)
    """
    total = jnp.where(mask != 0, at_least_float32(logps), 0.0).sum(1)
    if not average:
        return total
    length = (mask != 0).sum(1)
    return total / jnp.maximum(length, 1)
