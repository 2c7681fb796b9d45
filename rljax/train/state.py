"""The whole of what changes during training, as one pytree."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from rljax import sharding

Params = Any  # nested dict of arrays


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainState:
    """A tree of arrays; the same record also holds their shardings or their shapes."""

    step: Any  # int32 []: optimizer updates done
    params: Params  # what the optimizer moves
    frozen: Params  # read by the loss, never differentiated: a live reference
    opt_state: Any
    rng: Any  # key; fold in `step`, never split in place
    extra: Any  # dict: what a stage carries along: the KL coefficient, say


def create(
    *,
    params: Params,
    frozen: Params,
    tx: optax.GradientTransformation,
    seed: int,
    axes: Params,
    mesh: Mesh,
    extra: dict[str, jax.Array] | None = None,
) -> TrainState:
    """A fresh state on `mesh`; optimizer moments are placed like the parameters they belong to.

    `axes` is a tree like `params` of logical axis names. Raises ValueError when `frozen` shares a
    buffer with `params`: the donated step would delete the reference, or move it.
    """
    owned = {_buffer(x) for x in jax.tree.leaves(params)}
    if any(_buffer(x) in owned for x in jax.tree.leaves(frozen)):
        raise ValueError("frozen shares a buffer with params; copy the reference first")
    placed = shardings(params, frozen, tx, axes, mesh)
    opt_state = jax.jit(tx.init, out_shardings=placed.opt_state)(params)
    return TrainState(
        step=jax.device_put(jnp.int32(0), placed.step),
        params=params,
        frozen=frozen,
        opt_state=opt_state,
        rng=jax.device_put(jax.random.key(seed), placed.rng),
        extra=jax.device_put(extra or {}, sharding.replicated(mesh)),
    )


def _buffer(x: jax.Array) -> int:
    return x.addressable_shards[0].data.unsafe_buffer_pointer()


def shardings(params: Params, frozen: Params, tx, axes: Params, mesh: Mesh) -> TrainState:
    """A TrainState of NamedShardings; `extra` is one prefix leaf: replicated."""
    everywhere = sharding.replicated(mesh)
    of_params = sharding.tree(axes, mesh)
    by_path = {_dict_path(path): where for path, where in jax.tree.leaves_with_path(of_params)}

    def moment(path, leaf):
        # Moments mirror the parameters' tree inside optax's own containers.
        keys = _dict_path(path)
        tails = (by_path.get(keys[i:]) for i in range(len(keys)))
        return next((where for where in tails if where is not None), everywhere)

    moments = jax.tree_util.tree_map_with_path(moment, jax.eval_shape(tx.init, params))
    return TrainState(
        step=everywhere,
        params=of_params,
        frozen=jax.tree.map(lambda x: x.sharding, frozen),
        opt_state=moments,
        rng=everywhere,
        extra=everywhere,
    )


def _dict_path(path) -> tuple:
    return tuple(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
