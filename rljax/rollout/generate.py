"""Completions of a batch of prompts, as one compiled program: prefill, then a decode loop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from rljax.models import cache as kv
from rljax.models import decoder
from rljax.models.config import DecoderConfig
from rljax.rollout import sampling as draws
from rljax.rollout.sampling import SamplingParams
from rljax.rollout.stops import StopTable

LENGTH, STOP_ID, STOP_STRING = 0, 1, 2
"""Why a completion ended. Only LENGTH is truncated: a stop id in the last slot is a finish."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Completions:
    tokens: Int[Array, "B L"]  # the stop token included, then pad_id
    logprobs: Float[Array, "B L"]  # of the tempered distribution, what training scores; 0 after
    sampled_logprobs: Float[Array, "B L"]  # of the filtered distribution the token was drawn from
    lengths: Int[Array, "B"]  # tokens kept, 1 … L
    finish: Int[Array, "B"]  # LENGTH, STOP_ID or STOP_STRING

    def mask(self) -> Float[Array, "B L"]:
        """1 on kept tokens, by length."""
        L = self.tokens.shape[1]
        return (jnp.arange(L)[None, :] < self.lengths[:, None]).astype(jnp.float32)


@functools.partial(jax.jit, static_argnames=("cfg", "sampling", "pad_id", "dtype"))
def generate(
    params: decoder.Params,
    cfg: DecoderConfig,
    prompts: Int[Array, "B P"],
    prompt_segments: Int[Array, "B P"],
    keys: jax.Array,
    *,
    sampling: SamplingParams,
    pad_id: int,
    stops: StopTable | None = None,
    dtype=None,
) -> Completions:
    """Sample a completion for each LEFT-padded prompt with its own PRNG key (`keys` [B]).

    A row's result depends on its prompt and key only, not on its neighbours or its padding. At
    temperature 0 the likeliest token is taken and the log-probabilities are those of
    temperature 1. `cfg.vocab` bounds what can be sampled: padding rows of the vocabulary cannot.
    """
    _check_stop_ids(sampling, cfg)
    B, P = prompts.shape
    L = sampling.max_new_tokens
    # Laid out once for decoding; the training layout would be gathered again for every token.
    params = decoder.decode_layout(params, cfg)
    cache = kv.make(cfg, B, P + L, dtype or params["embed"]["tokens"].dtype, unrolled=True)
    hidden, cache = decoder.apply(
        params, cfg, prompts, segments_BT=prompt_segments, cache=cache, dtype=dtype
    )
    zeros = jnp.zeros((B, L), jnp.float32)
    out = Completions(
        tokens=jnp.full((B, L), pad_id, jnp.int32),
        logprobs=zeros,
        sampled_logprobs=zeros,
        lengths=jnp.zeros((B,), jnp.int32),
        finish=jnp.zeros((B,), jnp.int32),
    )
    matched = None if stops is None else stops.next.shape[0] - 1
    carry = (
        jnp.int32(0),
        hidden[:, -1],
        cache,
        jnp.zeros((B,), bool),
        jnp.zeros((B,), jnp.int32),
        out,
    )

    def going(carry):
        step, _, _, done, _, _ = carry
        return (step < L) & ~done.all()

    def one_token(carry):
        step, hidden_BD, cache, done, state, out = carry
        logits_BV = decoder.logits(params, cfg, hidden_BD)
        token, logp, sampled_logp = _sample(logits_BV, keys, step, sampling)
        out = _put(out, step, ~done, token, logp, sampled_logp, pad_id)
        stopped = jnp.isin(token, jnp.asarray(sampling.stop_ids, jnp.int32))
        finish = jnp.where(stopped, STOP_ID, LENGTH)
        if stops is not None:
            state = jnp.asarray(stops.next)[state, token]
            finish = jnp.where(~stopped & (state == matched), STOP_STRING, finish)
        out = dataclasses.replace(out, finish=jnp.where(done, out.finish, finish))
        done = done | (finish != LENGTH)
        # A finished row goes on writing padding into its cache; segment 0 hides it from itself.
        segments_B1 = (~done).astype(jnp.int32)[:, None]
        hidden_B1D, cache = decoder.apply(
            params, cfg, token[:, None], segments_BT=segments_B1, cache=cache, dtype=dtype
        )
        return step + 1, hidden_B1D[:, 0], cache, done, state, out

    return jax.lax.while_loop(going, one_token, carry)[-1]


def _check_stop_ids(sampling: SamplingParams, cfg: DecoderConfig) -> None:
    if outside := [i for i in sampling.stop_ids if not 0 <= i < cfg.vocab]:
        raise ValueError(f"stop id {outside[0]} is outside the vocabulary of {cfg.vocab}")


def _sample(logits_BV, keys, step, sampling: SamplingParams):
    """Token, its log-probability when tempered, and when filtered too, each [B]."""
    greedy = sampling.temperature == 0
    tempered = logits_BV if greedy else logits_BV / sampling.temperature
    filtered = draws.filter_logits(
        tempered, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
    )
    if sampling.min_new_tokens and sampling.stop_ids:
        stop_V = jnp.zeros(logits_BV.shape[1], bool).at[jnp.asarray(sampling.stop_ids)].set(True)
        early = (step < sampling.min_new_tokens) & stop_V
        filtered = jnp.where(early[None, :], -jnp.inf, filtered)
    token = draws.draw(keys, step, filtered, greedy=greedy)

    def picked(z):
        return jnp.take_along_axis(z, token[:, None], 1)[:, 0] - jax.nn.logsumexp(z, -1)

    return token, picked(tempered), picked(filtered)


def _put(out: Completions, step, active, token, logp, sampled_logp, pad_id) -> Completions:
    def put(old, new, rest):
        column = jnp.where(active, new, rest)[:, None].astype(old.dtype)
        return jax.lax.dynamic_update_slice(old, column, (0, step))

    return dataclasses.replace(
        out,
        tokens=put(out.tokens, token, pad_id),
        logprobs=put(out.logprobs, logp, 0.0),
        sampled_logprobs=put(out.sampled_logprobs, sampled_logp, 0.0),
        lengths=out.lengths + active,
    )
