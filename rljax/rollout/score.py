"""Log-probabilities of given tokens: the training forward and the chunked head, aligned."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.losses import logprobs
from rljax.models import decoder
from rljax.models.config import DecoderConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scored:
    logprobs: Float[Array, "B T"]  # position t: log p(token t | tokens before); 0 where not scored
    entropy: Float[Array, "B T"]  # nats, of the distribution that token t was chosen from
    hidden: Float[Array, "B T D"]  # after the final norm, at each token


def score(
    params: decoder.Params,
    cfg: DecoderConfig,
    tokens: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    mask: Float[Array, "B T"],
    *,
    temperature: float = 1.0,
    dtype=None,
    remat: str = "none",
) -> Scored:
    """Score the tokens where `mask` is set; the first token of a document never is.

    The same `temperature` must be used for sampler, policy, old policy and reference.
    """
    hidden, _ = decoder.apply(params, cfg, tokens, segments_BT=segments, dtype=dtype, remat=remat)
    # A token is predicted from the position before it, and only within its document.
    inside = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    logp, entropy = logprobs.token_logprobs(
        hidden[:, :-1],
        decoder.head_weight(params, cfg).astype(hidden.dtype),
        tokens[:, 1:],
        mask=mask[:, 1:] * inside,
        temperature=temperature,
    )
    first = ((0, 0), (1, 0))
    return Scored(logprobs=jnp.pad(logp, first), entropy=jnp.pad(entropy, first), hidden=hidden)
