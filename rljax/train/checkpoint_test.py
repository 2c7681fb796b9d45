import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import sharding
from rljax.train import checkpoint
from rljax.train import state as state_lib

AXES = {"policy": {"kernel": ("embed", "mlp")}}


def start(mesh, value=1.0, width=8):
    tx = optax.adam(0.1)
    kernel = value * jnp.arange(8.0 * width).reshape(8, width)
    params = jax.device_put({"policy": {"kernel": kernel}}, sharding.tree(AXES, mesh))
    return state_lib.create(
        params=params,
        frozen={},
        tx=tx,
        seed=3,
        axes=AXES,
        mesh=mesh,
        extra={"kl_coef": jnp.float32(0.25)},
    )


def mesh_of(**shape):
    return sharding.make_mesh(shape, jax.devices()[: int(np.prod(list(shape.values())))])


def opened(folder, **options):
    return checkpoint.Checkpoints(pathlib.Path(folder), **({"keep_last": 2} | options))


def test_last_and_best_are_kept_together(tmp_path):
    saved = opened(tmp_path, keep_best=1, best="accuracy")
    for step, accuracy in zip((8, 9, 10, 11), (0.7, 0.9, 0.6, 0.65)):
        saved.save(step, start(mesh_of(fsdp=1)), {}, {"accuracy": accuracy})
    saved.wait()
    assert (saved.steps(), saved.latest()) == ([9, 10, 11], 11)


def test_best_may_be_the_lowest_and_a_save_without_a_score_is_never_best(tmp_path):
    saved = opened(tmp_path, keep_last=1, keep_best=1, best="loss", lower_is_better=True)
    for step, scores in ((1, {}), (2, {"loss": 0.5}), (3, {"loss": 0.9}), (4, {})):
        saved.save(step, start(mesh_of(fsdp=1)), {}, scores)
    saved.wait()
    assert saved.steps() == [2, 4]


def test_an_unfinished_step_never_wins_and_can_be_saved_again(tmp_path):
    saved = opened(tmp_path)
    saved.save(11, start(mesh_of(fsdp=1)), {}, {})
    saved.wait()
    saved.close()
    half = tmp_path / "checkpoints" / "12" / "state"
    half.mkdir(parents=True)
    (half / "manifest.ocdbt").write_bytes(b"half")
    again = opened(tmp_path)
    assert again.latest() == 11
    again.save(12, start(mesh_of(fsdp=1)), {}, {})
    again.wait()
    assert again.steps() == [11, 12]


@pytest.mark.parametrize("shape", [{"fsdp": 1}, {"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}])
def test_restores_onto_another_mesh(tmp_path, shape):
    saved = opened(tmp_path)
    first = start(mesh_of(fsdp=4, tensor=2))
    saved.save(3, first, {"order": {"next_index": 5}}, {})
    saved.wait()
    like = start(mesh_of(**shape), value=0.0)
    got, host = saved.restore(3, like)
    np.testing.assert_array_equal(got.params["policy"]["kernel"], np.arange(64.0).reshape(8, 8))
    assert got.params["policy"]["kernel"].sharding == like.params["policy"]["kernel"].sharding
    assert host == {"order": {"next_index": 5}}
    assert float(got.extra["kl_coef"]) == 0.25
    assert jax.random.key_data(got.rng).tolist() == jax.random.key_data(first.rng).tolist()


def test_a_checkpoint_of_another_model_is_named(tmp_path):
    saved = opened(tmp_path)
    saved.save(3, start(mesh_of(fsdp=1)), {}, {})
    saved.wait()
    with pytest.raises(
        ValueError, match=r"params.policy.kernel is \(8, 8\) there and \(8, 4\) here"
    ):
        saved.restore(3, start(mesh_of(fsdp=1), width=4))
