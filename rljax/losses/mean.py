"""Means that add up: a total and its weight, divided once, after everything was added."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """A mean kept as its two halves, so that microbatches and devices add to the exact mean."""

    total: jax.Array
    weight: jax.Array

    def value(self) -> jax.Array:
        """total / weight, and 0 where the weight is 0."""
        # The divisor is guarded, not the quotient: 0/0 behind a `where` still has a NaN gradient.
        return self.total / jnp.where(self.weight > 0, self.weight, 1.0)
