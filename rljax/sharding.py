"""Which mesh axis each named array axis lies on. The only file that names mesh axes."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MeshAxes = str | tuple[str, ...] | None

MESH_AXES = ("data", "fsdp", "tensor")

RULES: Mapping[str, MeshAxes] = {
    # activations
    "batch": ("data", "fsdp"),
    "time": None,
    # weights
    "layers": None,  # the scan axis
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": None,  # often fewer than the tensor axis
    "head_dim": None,
    "mlp": "tensor",
    "position": None,  # learned position table
    "label": None,  # value, reward and classification heads
}


DECODE_RULES = dict(RULES) | {"embed": None}
"""Weights while decoding: whole along embed, so that no step gathers them."""


def make_mesh(shape: Mapping[str, int], devices: list[jax.Device] | None = None) -> Mesh:
    """A mesh over `devices` (all by default); one axis may be -1: whatever is left.

    Raises ValueError naming the device count when the axes do not multiply to it.
    """
    devices = jax.devices() if devices is None else devices
    unknown = set(shape) - set(MESH_AXES)
    if unknown:
        raise ValueError(f"mesh axes {sorted(unknown)} do not exist; choose among {MESH_AXES}")
    sizes = [shape.get(axis, 1) for axis in MESH_AXES]
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and len(devices) % known == 0:
        sizes[sizes.index(-1)] = len(devices) // known
    if math.prod(sizes) != len(devices) or min(sizes) < 1:
        asked = {axis: shape.get(axis, 1) for axis in MESH_AXES}
        raise ValueError(f"mesh {asked} does not cover {len(devices)} devices")
    grid = np.asarray(devices).reshape(sizes)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def spec(axes: tuple[str | None, ...], rules: Mapping[str, MeshAxes] = RULES) -> PartitionSpec:
    """Look the names up; an unknown name or a mesh axis used twice is refused."""
    unknown = [axis for axis in axes if axis is not None and axis not in rules]
    if unknown:
        raise KeyError(f"no sharding rule for {unknown} in {axes}")
    out = tuple(None if axis is None else rules[axis] for axis in axes)
    used = [m for o in out if o is not None for m in ((o,) if isinstance(o, str) else o)]
    if len(used) != len(set(used)):
        raise ValueError(f"{axes} -> {out} puts two axes on one mesh axis")
    return PartitionSpec(*out)


def named(mesh: Mesh, axes: tuple[str | None, ...], shape: tuple[int, ...] | None = None):
    """The NamedSharding of one array; with `shape`, every sharded axis is checked to divide."""
    where = spec(axes)
    for size, axis, name in zip(shape or (), where, axes):
        parts = math.prod(mesh.shape[a] for a in ((axis,) if isinstance(axis, str) else axis or ()))
        if size % parts:
            raise ValueError(f"axis {name!r} of size {size} does not divide over {axis}={parts}")
    return NamedSharding(mesh, where)


def is_axes(x: Any) -> bool:
    """A tuple of axis names: a leaf of a tree of logical axes, an empty or nested tuple is not."""
    return isinstance(x, tuple) and all(a is None or isinstance(a, str) for a in x)


def tree(logical: Any, mesh: Mesh, shapes: Any = None) -> Any:
    """A pytree of axis-name tuples -> the same pytree of NamedShardings.

    `shapes`, a like pytree of arrays or ShapeDtypeStructs, turns on the check that axes divide.
    """
    if shapes is None:
        return jax.tree.map(lambda axes: named(mesh, axes), logical, is_leaf=is_axes)
    return jax.tree.map(lambda a, x: named(mesh, a, x.shape), logical, shapes, is_leaf=is_axes)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_rows(mesh: Mesh) -> int:
    """How many parts the rows of a batch are cut into: a batch size must be a multiple of it."""
    return math.prod(mesh.shape[axis] for axis in RULES["batch"])


def constrain(
    x: jax.Array, axes: tuple[str | None, ...], rules: Mapping[str, MeshAxes] = RULES
) -> jax.Array:
    """Pin an array's layout under the current mesh; without one, do nothing."""
    if len(axes) != x.ndim:
        raise ValueError(f"{axes} names {len(axes)} axes of an array of {x.ndim}")
    want = spec(axes, rules)
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, want)
