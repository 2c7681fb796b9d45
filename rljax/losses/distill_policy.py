"""On-policy distillation as policy gradient: the teacher's log-probabilities are the reward."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, ScalarLike, Shaped

from rljax.losses import masked
from rljax.losses.precision import at_least_float32

Tokens = Float[Array, "B T"]
Mask = Shaped[Array, "B T"]
Stats = dict[str, Tokens]


@functools.partial(jax.jit, static_argnames=("discount_from_start", "length_normalize"))
def minillm_advantage(
    *,
    student_logps: Tokens,
    teacher_logps: Tokens,
    mask: Mask,
    gamma: ScalarLike = 1.0,
    length_normalize: bool = True,
    discount_from_start: bool = False,
) -> Tokens:
    """Σ_{i>=t} γ^(i-t) log(teacher/student)_i: MiniLLM's return to go (arXiv:2306.08543).

    `length_normalize` divides by Σ_{i>=t} γ^(i-t). TRL's code has γ^i in both, so that late tokens
    shrink, and lets padding count 1e-4 in the divisor: `discount_from_start` is that form.

    >>> s, t = jnp.array([[-1.0, -1.0]]), jnp.array([[-2.0, 0.0]])
    >>> minillm_advantage(student_logps=s, teacher_logps=t, mask=jnp.ones((1, 2)))
    Array([[0., 1.]], dtype=float32)
    """
    student, teacher = jax.lax.stop_gradient((student_logps, teacher_logps))
    reward = masked.clean(at_least_float32(teacher) - at_least_float32(student), mask)
    count = (mask != 0).astype(reward.dtype)
    if discount_from_start:
        power = jnp.asarray(gamma, reward.dtype) ** jnp.arange(reward.shape[1])[None, :]
        total = jnp.cumsum((power * reward)[:, ::-1], 1)[:, ::-1]
        padded = jnp.where(mask != 0, 1.0, 1e-4)
        weight = jnp.cumsum((power * padded)[:, ::-1], 1)[:, ::-1]
    else:
        total, weight = (_to_go(x, gamma) for x in (reward, count))
    if length_normalize:
        total = total / jnp.where(weight > 0, weight, 1.0)
    return masked.clean(total, mask)


def _to_go(x, gamma):
    def back(later, now):
        total = now + gamma * later
        return total, total

    return jax.lax.scan(back, jnp.zeros_like(x[:, 0]), x.T, reverse=True)[1].T


@jax.jit
def iw_opd(
    *,
    student_logps: Tokens,
    teacher_logps: Tokens,
    mask: Mask,
    rollout_logps: Tokens | None = None,
    gamma: ScalarLike = 1.0,
) -> tuple[Tokens, Stats]:
    """-w_t (log teacher - log rollout)_t log student: importance-weighted on-policy distillation.

    w_t = 1 + γ (1 - share of the row's |advantage| that lies before t): early divergence counts
    most. `rollout_logps` None are the student's own. TRL's `iw_opd` trainer is the source.

    >>> s, t = jnp.array([[-1.0, -1.0]]), jnp.array([[-2.0, 0.0]])
    >>> iw_opd(student_logps=s, teacher_logps=t, mask=jnp.ones((1, 2)))[0]
    Array([[-2. ,  1.5]], dtype=float32)
    """
    student = masked.clean(at_least_float32(student_logps), mask)
    rollout = student if rollout_logps is None else masked.clean(rollout_logps, mask)
    gap = masked.clean(at_least_float32(teacher_logps), mask) - rollout
    advantage = jax.lax.stop_gradient(gap)
    size = jnp.abs(advantage)
    before = jnp.cumsum(size, 1) - size
    total = size.sum(1, keepdims=True)
    weight = 1 + gamma * (1 - before / jnp.where(total > 0, total, 1.0))
    advantage = weight * advantage
    return -advantage * student, {"advantage": advantage, "weight": weight}
