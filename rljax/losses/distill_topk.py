"""Distillation on a few vocabulary entries per position, when whole distributions are too many.

Logits in, [B, T, V]; one value per position out. Gradients reach the student only.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, ScalarLike

from rljax.losses.distill import divergence
from rljax.losses.logprobs import log_softmax
from rljax.losses.precision import at_least_float32

Logits = Float[Array, "B T V"]
Tokens = Float[Array, "B T"]


@functools.partial(jax.jit, static_argnames=("beta", "k", "support", "tail"))
def topk_divergence(
    student: Logits,
    teacher: Logits,
    *,
    beta: float | int,
    k: int,
    support: str | None = None,
    tail: bool = True,
    temperature: ScalarLike = 1.0,
) -> Tokens:
    """The β-divergence (see `distill`) on the top k entries of "student", "teacher" or "union".

    `support` None is the teacher's at β 0, the student's at β 1, else the union, as TRL's IW-OPD;
    TRL's SDPO always takes the student's. With `tail` the rest of the vocabulary is one more entry;
    without, both are normalised over the support, and k 1 is always 0.

    >>> s, t = jnp.array([[[1.0, 0.0, 0.0]]]), jnp.array([[[0.0, 0.0, 1.0]]])
    >>> topk_divergence(s, t, beta=0.5, k=1)
    Array([[0.0874...]], dtype=float32)
    """
    if support is None:
        support = {0: "teacher", 1: "student"}.get(beta, "union")
    ids, distinct = _support(student, teacher, k, support)
    pair = []
    for logits in (student, teacher):
        logp = jnp.take_along_axis(log_softmax(logits, temperature=temperature), ids, -1)
        logp = jnp.where(distinct, logp, -jnp.inf)
        pair.append(tail_bucket(logp) if tail else _normalized(logp))
    return divergence(*pair, beta=beta)


def _support(
    student: Logits, teacher: Logits, k: int, support: str
) -> tuple[Int[Array, "B T K"], Bool[Array, "B T K"]]:
    """Ids of the support, and which of them are not repetitions."""
    if support not in ("student", "teacher", "union"):
        raise ValueError(f"support={support!r}: choose 'student', 'teacher' or 'union'")
    tops = {"student": [student], "teacher": [teacher], "union": [teacher, student]}[support]
    ids = jnp.concatenate([jax.lax.top_k(x, min(k, x.shape[-1]))[1] for x in tops], -1)
    earlier = jnp.tril(jnp.ones((ids.shape[-1],) * 2, bool), -1)
    repeated = ((ids[..., :, None] == ids[..., None, :]) & earlier[None, None]).any(-1)
    return ids, ~repeated


@jax.jit
def tail_bucket(logp: Float[Array, "*shape K"]) -> Float[Array, "*shape K_plus_1"]:
    """Append log(1 - Σ p), so that part of a distribution sums to 1. Entries may be -inf.

    >>> tail_bucket(jnp.log(jnp.array([0.5, 0.2])))
    Array([-0.6931..., -1.6094..., -1.2039...], dtype=float32)
    """
    total = jnp.minimum(_logsumexp(logp), -1e-7)
    return jnp.concatenate([logp, jnp.log(-jnp.expm1(total))], -1)


def _logsumexp(logp):
    return jax.nn.logsumexp(at_least_float32(logp), axis=-1, keepdims=True)


def _normalized(logp):
    return logp - _logsumexp(logp)


@jax.jit
def sampled_reverse_kl(student_logps: Tokens, teacher_logps: Tokens) -> Tokens:
    """sg(log s - log t) log s of the sampled token: the score-function gradient of KL(s || t).

    Its value is no estimate of anything. Unbiased for tokens the student sampled itself; otherwise
    multiply by `importance.truncate` of the ratio (SDPO caps it from above).

    >>> sampled_reverse_kl(jnp.array([[-1.0]]), jnp.array([[-2.0]]))
    Array([[-1.]], dtype=float32)
    """
    student = at_least_float32(student_logps)
    gap = jax.lax.stop_gradient(student - at_least_float32(teacher_logps))
    return gap * student
