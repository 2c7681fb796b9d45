"""Distillation across tokenizers: universal logit distillation (ULD, arXiv:2402.12030) and GOLD.

Two vocabularies have no common index, so probabilities are compared after sorting; where the
tokenizers cut the same text differently, positions are merged first. One value per merged position.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.losses.distill import divergence

Probs = Float[Array, "T V"]


def align_by_bytes(
    student_ends: Sequence[int], teacher_ends: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Group the tokens of two tokenisations of one text wherever both end at the same byte.

    Host side. Takes the byte offset at which each token ends; returns the group number of each
    token on either side, and how many groups there are. Tokens after the last common end share a
    last group; where one side has none left there, its partner gets -1 (no group).

    >>> align_by_bytes([2, 4], [1, 2, 4])[1]
    array([0, 0, 1], dtype=int32)
    """
    groups = [np.full(len(ends), -1, np.int32) for ends in (student_ends, teacher_ends)]
    start, at, count = [0, 0], [0, 0], 0
    sides = (student_ends, teacher_ends)
    while at[0] < len(sides[0]) and at[1] < len(sides[1]):
        ends = sides[0][at[0]], sides[1][at[1]]
        at[0] += ends[0] <= ends[1]
        at[1] += ends[1] <= ends[0]
        if ends[0] == ends[1]:
            for side in (0, 1):
                groups[side][start[side] : at[side]] = count
            start, count = list(at), count + 1
    if start[0] < len(sides[0]) and start[1] < len(sides[1]):
        groups[0][start[0] :] = groups[1][start[1] :] = count
        count += 1
    return *groups, count


@functools.partial(jax.jit, static_argnames=("groups", "base"))
def merge_positions(
    probs: Probs, ids: Int[Array, "T"], group: Int[Array, "T"], *, groups: int, base: str
) -> Float[Array, "groups V"]:
    """One distribution per group of positions: a whole one times the others' actual probabilities.

    `base` "first" keeps the group's first distribution and multiplies by p of the tokens that
    followed (TRL's "observed"); "last" keeps the last and multiplies by p of the tokens before, the
    chain rule (TRL's "bayesian"). Unnormalised. Group -1 is dropped; p is held above 1e-8.

    >>> probs, ids = jnp.array([[0.5, 0.5], [0.2, 0.8]]), jnp.array([1, 0])
    >>> merge_positions(probs, ids, jnp.array([0, 0]), groups=1, base="last")
    Array([[0.1, 0.4]], dtype=float32)
    """
    if base not in ("first", "last"):
        raise ValueError(f"base={base!r}: choose 'first' or 'last'")
    T = probs.shape[0]
    position = jnp.arange(T)
    member = group[None, :] == jnp.arange(groups)[:, None]
    if base == "first":
        kept = jnp.where(member, position[None, :], T).min(1)
    else:
        kept = jnp.where(member, position[None, :], -1).max(1)
    some = member.any(1)
    kept = jnp.where(some, kept, 0)
    actual = jnp.take_along_axis(probs, ids[:, None], 1)[:, 0]
    log_p = jnp.log(jnp.maximum(actual, 1e-8))
    others = member & (position[None, :] != kept[:, None])
    factor = jnp.exp(jnp.where(others, log_p[None, :], 0.0).sum(1))
    return jnp.where(some, factor, 0.0)[:, None] * probs[kept]


@jax.jit
def sorted_l1(student: Float[Array, "T V"], teacher: Float[Array, "T W"]) -> Float[Array, "T"]:
    """Σ_v |sorted student - sorted teacher| of probabilities, the shorter padded with 0: ULD.

    >>> sorted_l1(jnp.array([[0.7, 0.3]]), jnp.array([[0.1, 0.9, 0.0]]))
    Array([0.4], dtype=float32)
    """
    width = max(student.shape[1], teacher.shape[1])

    def descending(p):
        return jnp.pad(-jnp.sort(-p, axis=1), ((0, 0), (0, width - p.shape[1])))

    return jnp.abs(descending(student) - jax.lax.stop_gradient(descending(teacher))).sum(1)


@functools.partial(jax.jit, static_argnames=("beta", "shared"))
def hybrid(
    student: Float[Array, "T V"],
    teacher: Float[Array, "T W"],
    *,
    shared: tuple[tuple[int, int], ...],
    beta: float = 0.5,
    weights: tuple[float, float] | None = None,
) -> Float[Array, "T"]:
    """GOLD: β-divergence on tokens that both vocabularies hold, sorted L1 on the rest.

    `shared` holds (teacher id, student id) pairs. `weights` of the two parts default to the share
    of the teacher's vocabulary that is matched, and its complement. The matched part compares
    probabilities as they are, not renormalised, held above 1e-8.
    """
    teacher_ids = np.array([t for t, _ in shared], np.int32)
    student_ids = np.array([s for _, s in shared], np.int32)
    rest = [
        np.setdiff1d(np.arange(p.shape[1]), ids)
        for p, ids in ((student, student_ids), (teacher, teacher_ids))
    ]
    if weights is None:
        part = len(shared) / teacher.shape[1]
        weights = (part, 1 - part)
    loss = jnp.zeros(student.shape[0], student.dtype)
    if shared:
        pair = [jnp.maximum(p, 1e-8) for p in (student[:, student_ids], teacher[:, teacher_ids])]
        loss += weights[0] * divergence(*map(jnp.log, pair), beta=beta)
    if rest[0].size and rest[1].size:
        loss += weights[1] * sorted_l1(student[:, rest[0]], teacher[:, rest[1]])
    return loss
