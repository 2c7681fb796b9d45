"""Means kept as (total, weight), and the ways to aggregate token losses into one.

Add the means of microbatches and devices, divide once: then neither gradient accumulation, nor the
number of devices, nor ragged masks change the result.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, ScalarLike, Shaped

from rljax.losses.precision import at_least_float32


class Mean(NamedTuple):
    """A weighted mean as its two halves. `a + b` is the mean over both batches, not a 4-tuple."""

    total: Float[Array, ""]
    weight: Float[Array, ""] | Int[Array, ""]

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.weight + other.weight)

    def value(self) -> Float[Array, ""]:
        """total / weight; 0 with zero gradient when nothing was counted."""
        # The divisor is guarded, not the quotient: 0/0 hidden behind a `where` still has NaN
        # gradients.
        empty = self.weight == 0
        return jnp.where(empty, 0.0, self.total) / jnp.where(empty, 1, self.weight)


def _selected(x, mask):
    # `where`, not `*`: masked positions may hold inf or NaN.
    return jnp.where(mask != 0, at_least_float32(x), 0.0) * mask


def token_mean(x: Float[Array, "B T"], mask: Shaped[Array, "B T"]) -> Mean:
    """Every token of the batch weighs the same (`bnpo`, `dapo`, `token-mean`).

    For DAPO's denominator over a whole optimizer step, add the Means of its microbatches or put the
    known token count in as weight.

    >>> x, mask = jnp.array([[1.0, 1.0], [4.0, 0.0]]), jnp.array([[1, 1], [1, 0]])
    >>> float(token_mean(x, mask).value())
    2.0
    """
    return Mean(_selected(x, mask).sum(), mask.sum(dtype=jnp.float32))


def sequence_mean(
    x: Float[Array, "B T"], mask: Shaped[Array, "B T"], *, count_empty_rows: bool = False
) -> Mean:
    """Every sequence weighs the same, whatever its length (`grpo`, `seq-mean-token-mean`).

    A row without tokens is not counted, unless `count_empty_rows`: TRL counts it, as a 0 that
    dilutes the mean.

    >>> x, mask = jnp.array([[1.0, 1.0], [4.0, 0.0]]), jnp.array([[1, 1], [1, 0]])
    >>> float(sequence_mean(x, mask).value())
    2.5
    """
    length_B = mask.sum(1, dtype=jnp.float32)
    row_B = _selected(x, mask).sum(1) / jnp.where(length_B == 0, 1.0, length_B)
    return Mean(row_B.sum(), _rows(length_B, count_empty_rows))


def sequence_sum(
    x: Float[Array, "B T"], mask: Shaped[Array, "B T"], *, count_empty_rows: bool = False
) -> Mean:
    """Sums over tokens, mean over sequences: length weighs (`luspo`, `seq-mean-token-sum`).

    >>> x, mask = jnp.array([[1.0, 1.0], [4.0, 0.0]]), jnp.array([[1, 1], [1, 0]])
    >>> float(sequence_sum(x, mask).value())
    3.0
    """
    length_B = mask.sum(1, dtype=jnp.float32)
    return Mean(_selected(x, mask).sum(), _rows(length_B, count_empty_rows))


def constant_length(
    x: Float[Array, "B T"],
    mask: Shaped[Array, "B T"],
    *,
    length: ScalarLike,
    count_empty_rows: bool = False,
) -> Mean:
    """The token sum over rows * `length`, the longest completion allowed (Dr. GRPO, 2503.20783).

    >>> x, mask = jnp.array([[1.0, 1.0], [4.0, 0.0]]), jnp.array([[1, 1], [1, 0]])
    >>> float(constant_length(x, mask, length=4).value())
    0.75
    """
    length_B = mask.sum(1, dtype=jnp.float32)
    return Mean(_selected(x, mask).sum(), _rows(length_B, count_empty_rows) * length)


def row_mean(x: Float[Array, "B"], weight: Shaped[Array, "B"] | None = None) -> Mean:
    """The mean over rows; `weight` 0 leaves a filler row out.

    >>> float(row_mean(jnp.array([1.0, 2.0, 9.0]), jnp.array([1, 1, 0])).value())
    1.5
    """
    weight = jnp.ones(x.shape, jnp.float32) if weight is None else weight
    return Mean(_selected(x, weight).sum(), weight.sum(dtype=jnp.float32))


def weighted_sum(*terms: tuple[ScalarLike, Mean]) -> Float[Array, ""]:
    """Σ coefficient * mean over (coefficient, Mean) terms, each over its own denominator.

    How losses are mixed: RPO is (1, DPO over pairs), (α, NLL over chosen tokens); MPO three terms;
    an entropy bonus is (-coefficient, entropy over tokens).

    >>> two, three = row_mean(jnp.array([2.0])), row_mean(jnp.array([3.0]))
    >>> float(weighted_sum((1, two), (0.5, three)))
    3.5
    """
    return sum(coefficient * mean.value() for coefficient, mean in terms)


def _rows(length_B, count_empty_rows):
    if count_empty_rows:
        return jnp.float32(length_B.shape[0])
    return (length_B > 0).sum(dtype=jnp.float32)
