import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import supervised


def test_dft_weighs_by_a_constant_probability():
    logp = jnp.log(jnp.asarray([0.5, 0.1]))
    value, grad = jax.value_and_grad(lambda x: supervised.dft(x).sum())(logp)
    np.testing.assert_allclose(value, 0.5 * np.log(2) + 0.1 * np.log(10), rtol=1e-6)
    np.testing.assert_allclose(grad, [-0.5, -0.1], rtol=1e-6)


def test_dft_of_an_impossible_token_is_zero_and_has_no_gradient():
    value, grad = jax.value_and_grad(supervised.dft)(jnp.float32(-1e4))
    assert value == 0
    assert grad == 0


def test_label_smoothing_is_cross_entropy_with_a_smoothed_target():
    logits = jnp.asarray([2.0, -1.0, 0.5, 0.0])
    logp = jax.nn.log_softmax(logits)
    target = 0.8 * np.eye(4)[2] + 0.2 / 4
    got = supervised.label_smoothed_nll(logp[2], logp.mean(), label_smoothing=0.2)
    np.testing.assert_allclose(got, -(target * np.asarray(logp)).sum(), rtol=1e-6)


def test_nll_is_minus_log_p_in_fp32():
    out = supervised.nll(jnp.asarray([-1.5], jnp.bfloat16))
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, [1.5])
