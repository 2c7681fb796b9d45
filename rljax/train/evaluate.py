"""Held-out means of a loss; reads the state and touches neither its key nor the data's cursor."""

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from rljax.train.state import TrainState
from rljax.train.step import Batch, LossFn, place_batch


def make_evaluator(loss_fn: LossFn, mesh: Mesh) -> Callable[[TrainState, Iterable[Batch]], dict]:
    """(state, batches) -> {"eval_loss": …, "eval_…": …}, exact means over all rows of weight 1."""

    @jax.jit
    def totals(params, frozen, batch):
        loss, stats = loss_fn(params, frozen, batch, jax.random.key(0))
        return {"loss": loss} | stats

    def evaluate(state: TrainState, data: Iterable[Batch]) -> dict[str, float]:
        total = None
        for batch in data:
            with jax.set_mesh(mesh):
                part = totals(state.params, state.frozen, place_batch(batch, mesh))
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return {f"eval_{name}": float(mean.value()) for name, mean in (total or {}).items()}

    return evaluate
