"""From logits to a token: filters that set logits to -inf, and one random draw per row."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample. Static: each distinct value compiles its own program."""

    max_new_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    min_new_tokens: int = 0  # no stop id is sampled before this many tokens
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self):
        checks = {
            "max_new_tokens": (self.max_new_tokens >= 1, "1 or more"),
            "min_new_tokens": (
                0 <= self.min_new_tokens <= self.max_new_tokens,
                "0 to max_new_tokens",
            ),
            "temperature": (self.temperature >= 0, "0 (greedy) or more"),
            "top_k": (self.top_k is None or self.top_k >= 1, "1 or more, or nothing"),
            "top_p": (self.top_p is None or 0 < self.top_p <= 1, "above 0, at most 1, or nothing"),
            "min_p": (self.min_p is None or 0 <= self.min_p < 1, "0 or more, below 1, or nothing"),
        }
        for name, (fine, wants) in checks.items():
            if not fine:
                raise ValueError(f"{name}={getattr(self, name)}; wants {wants}")


def filter_logits(
    logits: Float[Array, "B V"],
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[Array, "B V"]:
    """Logits with every excluded token at -inf. Filters apply in the order top-k, top-p, min-p.

    top-k keeps all tokens that tie with the k-th. top-p keeps the smallest set of likeliest tokens
    whose mass is at least p (arXiv:1904.09751), so always the first, and all that tie with the
    last. min-p keeps tokens of at least p times the likeliest one's probability (arXiv:2407.01082).
    """
    V = logits.shape[1]
    if top_k is not None and top_k < V:
        kth = jax.lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits >= kth, logits, -jnp.inf)
    if top_p is not None and top_p < 1:
        ordered = -jnp.sort(-logits, axis=-1)
        probs = jax.nn.softmax(ordered, -1)
        before = jnp.cumsum(probs, -1) - probs  # mass of the likelier ones
        least = jnp.where(before < top_p, ordered, jnp.inf).min(-1, keepdims=True)
        logits = jnp.where(logits >= least, logits, -jnp.inf)
    if min_p:
        top = logits.max(-1, keepdims=True)
        logits = jnp.where(logits >= top + jnp.log(min_p), logits, -jnp.inf)
    return logits


def draw(
    keys: jax.Array, step: Int[Array, ""], logits: Float[Array, "B V"], *, greedy: bool
) -> Int[Array, "B"]:
    """One token a row. A row's draw depends on its own key, the step and its own logits only."""
    if greedy:
        return jnp.argmax(logits, -1).astype(jnp.int32)

    def one(key, row):
        return jax.random.categorical(jax.random.fold_in(key, step), row)

    return jax.vmap(one)(keys, logits).astype(jnp.int32)
