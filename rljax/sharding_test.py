import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from rljax import sharding


def test_names_become_mesh_axes():
    assert sharding.spec(("layers", "embed", "heads", "head_dim")) == P(
        None, "fsdp", "tensor", None
    )
    assert sharding.spec(("batch", None)) == P(("data", "fsdp"), None)


def test_an_unknown_name_is_refused():
    with pytest.raises(KeyError, match="embedd"):
        sharding.spec(("embedd",))


def test_two_axes_on_one_mesh_axis_are_refused():
    with pytest.raises(ValueError, match="two axes on one mesh axis"):
        sharding.spec(("heads", "mlp"))


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [({}, None), ({"fsdp": 8}, (1, 8, 1)), ({"data": 2, "fsdp": -1, "tensor": 2}, (2, 2, 2))],
)
def test_a_mesh_covers_the_devices_or_is_refused(shape, sizes):
    if sizes is None:
        with pytest.raises(ValueError, match="does not cover 8 devices"):
            sharding.make_mesh(shape)
    else:
        assert tuple(sharding.make_mesh(shape).shape.values()) == sizes


def test_an_axis_that_does_not_divide_is_named():
    mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
    with pytest.raises(ValueError, match="'embed' of size 6 does not divide over fsdp=4"):
        sharding.named(mesh, ("embed", "mlp"), (6, 8))


def test_constrain_pins_the_layout_under_a_mesh_and_is_inert_without():
    x = jnp.zeros((8, 4))
    assert sharding.constrain(x, ("batch", None)) is x
    mesh = sharding.make_mesh({"fsdp": 8})
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: sharding.constrain(x, ("batch", None)))(x)
    assert y.sharding.shard_shape(y.shape) == (1, 4)
