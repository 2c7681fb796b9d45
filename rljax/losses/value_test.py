import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import value


def test_the_worse_of_the_clipped_and_the_plain_error_counts():
    # V moved from 0 to 1, target 2: clipping at 0.2 leaves an error of 1.8.
    loss, stats = value.clipped(
        values=jnp.asarray([[1.0, 1.0]]),
        old_values=jnp.asarray([[0.0, 0.0]]),
        returns=jnp.asarray([[2.0, -1.0]]),
    )
    np.testing.assert_allclose(loss, [[0.5 * 1.8**2, 0.5 * 2.0**2]], rtol=1e-6)
    np.testing.assert_array_equal(stats["val/clipfrac_avg"], [[1, 0]])


def test_gradient_stops_where_the_clipped_branch_rules():
    def loss(values):
        zero = jnp.zeros((1, 2))
        returns = jnp.asarray([[2.0, -1.0]])
        return value.clipped(values=values, old_values=zero, returns=returns)[0].sum()

    np.testing.assert_allclose(jax.grad(loss)(jnp.ones((1, 2))), [[0.0, 2.0]])


def test_infinite_clip_is_half_the_squared_error():
    loss, _ = value.clipped(
        values=jnp.asarray([[3.0]]),
        old_values=jnp.zeros((1, 1)),
        returns=jnp.zeros((1, 1)),
        clip=jnp.inf,
    )
    np.testing.assert_allclose(loss, [[4.5]])


def test_masked_garbage_gives_zero_and_no_gradient():
    def loss(values):
        bad = jnp.full((1, 2), jnp.nan)
        return value.clipped(values=values, old_values=bad, returns=bad, mask=jnp.zeros((1, 2)))[0]

    out, grad = jax.value_and_grad(lambda v: loss(v).sum())(jnp.full((1, 2), jnp.inf))
    assert out == 0
    assert (grad == 0).all()


def test_explained_variance_of_a_perfect_a_constant_and_an_opposite_critic():
    returns = jnp.asarray([[1.0, 2.0, 3.0, 99.0]])
    mask = jnp.asarray([[1, 1, 1, 0]])
    for values, want in ((returns, 1.0), (returns * 0 + 5, 0.0), (-returns, -3.0)):
        got = value.explained_variance(values=values, returns=returns, mask=mask)
        np.testing.assert_allclose(got, want, atol=1e-6)
