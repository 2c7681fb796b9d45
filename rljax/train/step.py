"""One optimizer update, for any loss. Pure; `jit_step` is the one place where it is compiled."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from rljax import sharding
from rljax.losses.mean import Mean
from rljax.train.state import Params, TrainState

Batch = Any  # dict of arrays, batch axis first
Metrics = dict[str, jax.Array]

LossFn = Callable[[Params, Params, Batch, jax.Array], tuple[Mean, dict[str, Mean]]]
"""(params, frozen, batch, rng) -> (loss, stats)"""


def make_train_step(
    loss_fn: LossFn, tx: optax.GradientTransformation, *, microbatches: int = 1
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """(state, batch) -> (state, metrics), with the gradient of the mean over the whole batch.

    Microbatches add totals and weights, and the gradient is divided once by the total weight: how
    the batch is cut changes memory and nothing else.
    """

    def grads_of(params, frozen, batch, rng):
        def total(params):
            loss, stats = loss_fn(params, frozen, batch, rng)
            return loss.total, (loss, stats)

        grads, (loss, stats) = jax.grad(total, has_aux=True)(params)
        return grads, loss, stats

    def train_step(state: TrainState, batch: Batch):
        rng = jax.random.fold_in(state.rng, state.step)
        if microbatches == 1:
            grads, loss, stats = grads_of(state.params, state.frozen, batch, rng)
        else:
            rngs = jax.random.split(rng, microbatches)
            grads, loss, stats = _accumulate(grads_of, state, _cut(batch, microbatches), rngs)
        grads = jax.tree.map(lambda g: g / jnp.where(loss.weight > 0, loss.weight, 1.0), grads)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        new = dataclasses.replace(
            state,
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            opt_state=opt_state,
        )
        metrics = {"loss": loss.value(), "grad_norm": optax.tree.norm(grads)}
        return new, metrics | {name: mean.value() for name, mean in stats.items()}

    return train_step


def _cut(batch: Batch, microbatches: int) -> Batch:
    # Strided rather than in blocks: every device keeps its own rows.
    def cut(x):
        return x.reshape(-1, microbatches, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(cut, batch)


def _accumulate(grads_of, state: TrainState, parts: Batch, rngs: jax.Array):
    def one(part, rng):
        return grads_of(state.params, state.frozen, part, rng)

    def add(acc, xs):
        return jax.tree.map(jnp.add, acc, one(*xs)), None

    like = jax.eval_shape(one, jax.tree.map(lambda x: x[0], parts), rngs[0])
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    total, _ = jax.lax.scan(add, zero, (parts, rngs))
    return total


def check_batch(
    rows: int, *, microbatches: int, mesh: Mesh, field: str = "train.batch_size"
) -> None:
    """ValueError, naming the sizes that would do, when `rows` cannot be cut evenly."""
    unit = microbatches * sharding.batch_rows(mesh)
    if rows % unit:
        near = sorted({max(unit, rows // unit * unit), (rows // unit + 1) * unit})
        raise ValueError(
            f"{field}: {rows} rows do not divide into {microbatches} microbatches on "
            f"{sharding.batch_rows(mesh)} data-parallel devices; a multiple of {unit} does, "
            f"e.g. {' or '.join(map(str, near))}"
        )


def rows_sharding(mesh: Mesh) -> NamedSharding:
    """Rows cut over the data-parallel devices, every other axis whole."""
    return NamedSharding(mesh, sharding.spec(("batch",)))


def place_batch(batch: Batch, mesh: Mesh) -> Batch:
    """Host rows of this process -> global arrays, rows cut over the data-parallel devices."""

    where = rows_sharding(mesh)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(where, x), batch)


def jit_step(step, mesh: Mesh, state_shardings: TrainState):
    """The compiled step: explicit placement in and out, the old state's buffers reused."""
    rows = rows_sharding(mesh)
    compiled = jax.jit(
        step,
        in_shardings=(state_shardings, rows),
        out_shardings=(state_shardings, sharding.replicated(mesh)),
        donate_argnums=0,
    )

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        with jax.set_mesh(mesh):
            return compiled(state, batch)

    run.compiled = compiled
    return run
