import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import kl

RNG = np.random.default_rng(0)
LOGITS, REF_LOGITS = RNG.normal(size=(2, 5))


def log_softmax(z):
    return z - np.log(np.exp(z).sum())


LOGP, REF = log_softmax(LOGITS), log_softmax(REF_LOGITS)
P = np.exp(LOGP)
EXACT = (P * (LOGP - REF)).sum()


def numeric_gradient(f, x, h=1e-6):
    return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(len(x))])


def forward(z):
    q = log_softmax(z)
    return (np.exp(q) * (q - REF)).sum()


def reverse(z):
    return (np.exp(REF) * (REF - log_softmax(z))).sum()


@jax.enable_x64(True)
def test_k1_and_k3_are_unbiased_and_k3_is_never_negative():
    logp, ref = jnp.asarray(LOGP), jnp.asarray(REF)
    np.testing.assert_allclose((P * kl.k1(logp, ref)).sum(), EXACT, rtol=1e-12)
    np.testing.assert_allclose((P * kl.k3(logp, ref)).sum(), EXACT, rtol=1e-12)
    np.testing.assert_allclose(kl.full(logp, ref), EXACT, rtol=1e-12)
    assert (kl.k3(logp, ref) >= 0).all()


@pytest.mark.parametrize(
    ("estimator", "of"),
    [
        (kl.k1, None),
        (kl.k2, forward),
        (kl.k3, reverse),
        (kl.k1_straight_through, forward),
        (kl.k3_straight_through, forward),
    ],
)
@jax.enable_x64(True)
def test_gradients_as_loss_terms_on_policy(estimator, of):
    # The sampled tokens' distribution is held fixed, as in a policy update.
    def loss(z):
        return (jnp.asarray(P) * estimator(jax.nn.log_softmax(z), jnp.asarray(REF))).sum()

    want = np.zeros(5) if of is None else numeric_gradient(of, LOGITS)
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(LOGITS)), want, atol=1e-8)


def test_straight_through_keeps_the_value():
    logp, ref = jnp.asarray(LOGP, jnp.float32), jnp.asarray(REF, jnp.float32)
    np.testing.assert_array_equal(kl.k3_straight_through(logp, ref), kl.k3(logp, ref))
    np.testing.assert_array_equal(kl.k1_straight_through(logp, ref), kl.k1(logp, ref))


def test_k3_is_finite_for_impossible_tokens_and_exact_near_zero():
    value, grad = jax.value_and_grad(kl.k3)(jnp.float32(-500.0), jnp.float32(-1.0))
    assert jnp.isfinite(value)
    assert jnp.isfinite(grad)
    # exp(d) - d - 1 loses all digits of d^2/2 here; expm1 keeps them.
    np.testing.assert_allclose(kl.k3(jnp.float32(1e-3), jnp.float32(0.0)), 4.998e-7, rtol=1e-2)


def test_full_kl_ignores_what_the_policy_excludes():
    logp = jnp.asarray([0.0, -jnp.inf])
    ref = jnp.asarray([jnp.log(0.25), jnp.log(0.75)])
    value, grad = jax.value_and_grad(kl.full)(logp, ref)
    np.testing.assert_allclose(value, np.log(4), rtol=1e-6)
    assert jnp.isfinite(grad).all()


def test_bf16_log_probabilities_are_widened():
    x = jnp.asarray([-1.0, -2.0], jnp.bfloat16)
    for f in (kl.k1, kl.k2, kl.k3, kl.absolute):
        assert f(x, x).dtype == jnp.float32
