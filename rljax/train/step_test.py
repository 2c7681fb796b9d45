import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import sharding
from rljax.losses.mean import Mean
from rljax.train import state as state_lib
from rljax.train.step import check_batch, jit_step, make_train_step, place_batch

AXES = {"policy": {"kernel": ("embed",)}}


def masked_square(params, frozen, batch, rng):
    error = (batch["x"] @ params["policy"]["kernel"] - batch["y"]) ** 2 * batch["mask"]
    return Mean(error.sum(), batch["mask"].sum()), {"error": Mean(error.sum(), batch["mask"].sum())}


def ragged_batch(rows=16):
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((rows, 4)).astype(np.float32),
        "y": rng.standard_normal(rows).astype(np.float32),
        # Uneven over microbatches and devices, one of which gets nothing but weight 0.
        "mask": np.array([1, 0, 1, 1, 1, 0, 0, 0] * (rows // 8), np.float32),
    }


def start(mesh, tx):
    params = {"policy": {"kernel": jnp.arange(4.0)}}
    where = sharding.tree(AXES, mesh)
    params = jax.device_put(params, where)
    kw = {"params": params, "frozen": {}, "tx": tx, "axes": AXES, "mesh": mesh}
    placed = state_lib.shardings(params, {}, tx, AXES, mesh)
    return state_lib.create(**kw, seed=0), placed


def updated(microbatches, mesh):
    tx = optax.adam(0.1)
    now, placed = start(mesh, tx)
    step = jit_step(make_train_step(masked_square, tx, microbatches=microbatches), mesh, placed)
    return step(now, place_batch(ragged_batch(), mesh))


def test_update_equals_the_gradient_of_the_mean_over_valid_rows():
    batch, kernel = ragged_batch(), np.arange(4.0)
    x, y = (batch[k][batch["mask"] > 0].astype(np.float64) for k in ("x", "y"))
    tx = optax.sgd(0.1)
    now, _ = start(sharding.make_mesh({"fsdp": 1}, jax.devices()[:1]), tx)
    new, metrics = make_train_step(masked_square, tx)(now, batch)
    want = kernel - 0.1 * 2 * x.T @ (x @ kernel - y) / len(y)
    np.testing.assert_allclose(new.params["policy"]["kernel"], want, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], np.mean((x @ kernel - y) ** 2), rtol=1e-5)


@pytest.mark.parametrize("microbatches", [2, 4])
@pytest.mark.parametrize("shape", [{"fsdp": 1}, {"data": 2, "fsdp": 2}])
def test_neither_microbatches_nor_devices_change_the_update(microbatches, shape):
    one, m1 = updated(1, sharding.make_mesh({"fsdp": 1}, jax.devices()[:1]))
    devices = jax.devices()[: int(np.prod(list(shape.values())))]
    many, mn = updated(microbatches, sharding.make_mesh(shape, devices))
    np.testing.assert_allclose(
        one.params["policy"]["kernel"], many.params["policy"]["kernel"], rtol=1e-6
    )
    np.testing.assert_allclose(m1["error"], mn["error"], rtol=1e-6)
    assert int(many.step) == 1


def test_a_batch_of_weight_zero_changes_nothing_and_stays_finite():
    tx = optax.sgd(0.1)
    now, _ = start(sharding.make_mesh({"fsdp": 1}, jax.devices()[:1]), tx)
    batch = ragged_batch() | {"mask": np.zeros(16, np.float32)}
    new, metrics = make_train_step(masked_square, tx)(now, batch)
    np.testing.assert_array_equal(new.params["policy"]["kernel"], np.arange(4.0))
    assert float(metrics["loss"]) == 0.0


def test_the_old_state_is_donated():
    mesh, tx = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1]), optax.adam(0.1)
    now, placed = start(mesh, tx)
    step = jit_step(make_train_step(masked_square, tx), mesh, placed)
    memory = step.compiled.lower(now, ragged_batch()).compile().memory_analysis()
    held = sum(x.nbytes for x in jax.tree.leaves((now.params, now.opt_state)))
    assert memory.alias_size_in_bytes >= held


def test_a_batch_that_does_not_divide_names_sizes_that_do():
    mesh = sharding.make_mesh({"data": 4, "tensor": 2})
    check_batch(16, microbatches=2, mesh=mesh)
    with pytest.raises(ValueError, match=r"12 rows .* a multiple of 8 does, e.g. 8 or 16"):
        check_batch(12, microbatches=2, mesh=mesh)


def test_frozen_must_not_share_buffers_with_params():
    mesh, tx = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1]), optax.sgd(0.1)
    params = jax.device_put({"policy": {"kernel": jnp.arange(4.0)}}, sharding.tree(AXES, mesh))
    with pytest.raises(ValueError, match="copy the reference first"):
        state_lib.create(
            params=params,
            frozen={"reference": params["policy"]},
            tx=tx,
            seed=0,
            axes=AXES,
            mesh=mesh,
        )
