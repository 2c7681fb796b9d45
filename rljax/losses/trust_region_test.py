import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import kl, trust_region

A = jnp.asarray([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])


def test_conjugate_gradient_solves_a_system_over_a_pytree():
    b = {"x": jnp.asarray([1.0, 2.0]), "y": jnp.asarray([3.0])}

    def product(v):
        flat = A @ jnp.concatenate([v["x"], v["y"]])
        return {"x": flat[:2], "y": flat[2:]}

    x = trust_region.conjugate_gradient(product, b)
    want = np.linalg.solve(A, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(jnp.concatenate([x["x"], x["y"]]), want, rtol=1e-4)


def test_conjugate_gradient_of_zero_is_zero():
    x = trust_region.conjugate_gradient(lambda v: A @ v, jnp.zeros(3))
    np.testing.assert_array_equal(x, [0, 0, 0])


def problem(advantages):
    z = jnp.asarray([0.2, -0.4, 0.9])
    old = jax.nn.log_softmax(z)

    def surrogate(z):
        new = jax.nn.log_softmax(z)
        return -(jnp.exp(new) * advantages).sum()

    return z, surrogate, lambda z: kl.full(old, jax.nn.log_softmax(z))


def test_a_step_improves_the_surrogate_within_the_region():
    z, surrogate, divergence = problem(jnp.asarray([1.0, 0.0, -1.0]))
    step = jax.jit(
        lambda z: trust_region.natural_step(surrogate, divergence, z, max_kl=0.01, damping=1e-3)
    )
    new, stats = step(z)
    assert stats["improvement"] > 0
    assert 0.002 < stats["kl"] <= 0.01
    np.testing.assert_allclose(stats["improvement"], surrogate(z) - surrogate(new), rtol=1e-5)


def test_a_region_that_is_too_curved_is_backed_off_from():
    """Doubling what the quadratic model of the KL misses: the full step would leave the region."""
    z, surrogate, divergence = problem(jnp.asarray([1.0, 0.0, -1.0]))

    def steeper(x):
        return divergence(x) + 50 * ((x - z) ** 4).sum()

    _, stats = trust_region.natural_step(surrogate, steeper, z, max_kl=0.3, damping=1e-3)
    assert stats["fraction"] < 1
    assert stats["kl"] <= 0.3


def test_no_step_is_taken_when_nothing_improves():
    z, _, divergence = problem(jnp.zeros(3))
    new, stats = trust_region.natural_step(lambda z: 0.0 * z.sum(), divergence, z)
    np.testing.assert_array_equal(new, z)
    assert stats["fraction"] == 0
