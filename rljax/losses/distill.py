"""Divergences between a student's and a teacher's next-token distributions, one value per position.

β names the member of the family (GKD, arXiv:2306.13649, eq. 1): 0 is the forward KL(teacher ||
student), which covers the teacher; 1 the reverse KL(student || teacher), which seeks its modes;
between them β KL(t || m) + (1-β) KL(s || m) with m = β t + (1-β) s. As published the mixture does
not tend to either KL: it vanishes at both ends. Average with `mean.token_mean`: what peers call
`batchmean` is per token. No T² factor is applied. Gradients reach the student only.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import kl
from rljax.losses.logprobs import CHUNK_BYTES, entropy_of, log_softmax
from rljax.losses.precision import at_least_float32

Logps = Float[Array, "*shape V"]
Values = Float[Array, "*shape"]


@functools.partial(jax.jit, static_argnames="beta")
def divergence(student: Logps, teacher: Logps, *, beta: float | int) -> Values:
    """The β-divergence of log-probabilities, normalised or not; entries at -inf in both count 0.

    β is static: its ends are other formulas.

    >>> s, t = jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.1]]))
    >>> divergence(s, t, beta=0.5)
    Array(0.1017..., dtype=float32)
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta={beta}: wants 0 (forward KL) to 1 (reverse KL)")
    student, teacher = at_least_float32(student), at_least_float32(teacher)
    teacher = jax.lax.stop_gradient(teacher)
    if beta == 0:
        return kl.full(teacher, student)
    if beta == 1:
        return kl.full(student, teacher)
    mixture = log_mixture(student, teacher, beta=beta)
    return beta * kl.full(teacher, mixture) + (1 - beta) * kl.full(student, mixture)


def log_mixture(student: Logps, teacher: Logps, *, beta: float) -> Logps:
    """log(β teacher + (1-β) student), -inf where both are, without NaN gradients there."""
    a, b = student + jnp.log1p(-beta), teacher + jnp.log(beta)
    top = jnp.maximum(a, b)
    possible = top > -jnp.inf
    a, b = (jnp.where(possible, x, 0.0) for x in (a, b))
    return jnp.where(possible, jnp.logaddexp(a, b), -jnp.inf)


def forward_kl(student: Logps, teacher: Logps) -> Values:
    """KL(teacher || student) of log-probabilities: classical distillation, SFT on soft labels.

    >>> s, t = jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.1]]))
    >>> forward_kl(s, t)
    Array(0.3680..., dtype=float32)
    """
    return divergence(student, teacher, beta=0)


def reverse_kl(student: Logps, teacher: Logps) -> Values:
    """KL(student || teacher): on-policy distillation; MiniLLM's single-step term (2306.08543).

    >>> s, t = jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.1]]))
    >>> reverse_kl(s, t)
    Array(0.5108..., dtype=float32)
    """
    return divergence(student, teacher, beta=1)


@functools.partial(jax.jit, static_argnames=("beta", "chunk"))
def chunked_divergence(
    student_hidden: Float[Array, "B T D"],
    student_head: Float[Array, "D V"],
    teacher_hidden: Float[Array, "B T E"],
    teacher_head: Float[Array, "E V"],
    *,
    mask: Shaped[Array, "B T"] | None = None,
    beta: float | int,
    temperature: ScalarLike = 1.0,
    student_softcap: ScalarLike | None = None,
    teacher_softcap: ScalarLike | None = None,
    student_scale: ScalarLike | None = None,
    teacher_scale: ScalarLike | None = None,
    chunk: int | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(β-divergence, student entropy) from hidden states, fp32, without storing logits.

    As `logprobs.token_scores`: a chunk of time at a time, computed again in the backward pass; 0
    where mask is 0; the same order of scale, soft-cap and temperature. Student and teacher may
    differ in width but share the vocabulary.

    >>> hidden, head = jnp.ones((1, 2, 3)), jnp.eye(3)
    >>> chunked_divergence(hidden, head, 2 * hidden, head, beta=1.0)[1]
    Array([[1.0986..., 1.0986...]], dtype=float32)
    """
    B, T, _ = student_hidden.shape
    if chunk is None:
        chunk = max(1, CHUNK_BYTES // (8 * B * student_head.shape[1]))
    chunk = min(chunk, max(T, 1))
    pad = -T % chunk
    mask = jnp.ones((B, T), bool) if mask is None else mask != 0
    # fp32 heads, so that the scan sums the head's gradient in fp32.
    heads = at_least_float32(student_head), jax.lax.stop_gradient(at_least_float32(teacher_head))

    @jax.checkpoint
    def score(heads, window):
        s, t, valid = window
        s, t = (jnp.where(valid[..., None], x, 0) for x in (s, t))
        student = log_softmax(
            _product(s, heads[0]),
            temperature=temperature,
            softcap=student_softcap,
            scale=student_scale,
        )
        teacher = log_softmax(
            _product(t, heads[1]),
            temperature=temperature,
            softcap=teacher_softcap,
            scale=teacher_scale,
        )
        out = divergence(student, teacher, beta=beta), entropy_of(student)
        return tuple(jnp.where(valid, x, 0.0) for x in out)

    windows = [
        jnp.moveaxis(_pad_time(x, pad).reshape(B, -1, chunk, *x.shape[2:]), 1, 0)
        for x in (student_hidden, jax.lax.stop_gradient(teacher_hidden), mask)
    ]
    _, outputs = jax.lax.scan(lambda _, window: (None, score(heads, window)), None, windows)
    return tuple(jnp.moveaxis(x, 0, 1).reshape(B, -1)[:, :T] for x in outputs)


def _product(hidden, head):
    dtype = jnp.promote_types(hidden.dtype, jnp.float32)
    return jnp.einsum("btd,dv->btv", hidden, head, preferred_element_type=dtype)


def _pad_time(x, pad):
    return jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2))
