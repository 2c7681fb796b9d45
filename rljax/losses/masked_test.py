import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import masked

X = np.array([[1.0, 4.0, -2.0, 7.0], [0.5, 2.0, 9.0, 3.0]])
MASK = np.array([[1, 1, 0, 1], [0, 1, 1, 0]])
VALID = X[MASK == 1]
BAD = jnp.asarray(np.where(MASK, X, np.inf), jnp.float32)


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance_is_numpys_of_the_valid_values(ddof):
    np.testing.assert_allclose(masked.mean(BAD, jnp.asarray(MASK)), VALID.mean(), rtol=1e-6)
    got = masked.var(BAD, jnp.asarray(MASK), ddof=ddof)
    np.testing.assert_allclose(got, VALID.var(ddof=ddof), rtol=1e-6)
    got = masked.std(BAD, jnp.asarray(MASK), ddof=ddof)
    np.testing.assert_allclose(got, VALID.std(ddof=ddof), rtol=1e-6)


def test_rows_are_taken_apart_by_axis():
    got = masked.var(BAD, jnp.asarray(MASK), ddof=1, axis=1)
    want = [X[i][MASK[i] == 1].var(ddof=1) for i in range(2)]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_whitened_values_have_mean_0_and_unit_variance_or_keep_their_mean():
    mask = jnp.asarray(MASK)
    out = np.asarray(masked.whiten(BAD, mask))
    np.testing.assert_allclose(out[MASK == 1].mean(), 0, atol=1e-6)
    np.testing.assert_allclose(out[MASK == 1].std(ddof=1), 1, rtol=1e-5)
    assert (out[MASK == 0] == 0).all()
    kept = np.asarray(masked.whiten(BAD, mask, shift_mean=False))
    np.testing.assert_allclose(kept[MASK == 1], out[MASK == 1] + VALID.mean(), rtol=1e-5)


@pytest.mark.parametrize("valid", [0, 1])
@pytest.mark.parametrize("fn", [masked.whiten, lambda x, m: masked.std(x, m, ddof=1)])
def test_too_few_values_give_zero_and_finite_gradients(fn, valid):
    x = jnp.full((2, 3), jnp.nan).at[0, 0].set(5.0)
    mask = jnp.zeros((2, 3)).at[0, 0].set(valid)
    value, grad = jax.value_and_grad(lambda x: fn(x, mask).sum())(x)
    assert value == 0
    assert jnp.isfinite(grad).all()


@pytest.mark.parametrize("q", [0.0, 0.2, 0.5, 0.77, 1.0])
def test_quantile_interpolates_like_numpy(q):
    got = masked.quantile(BAD, jnp.asarray(MASK), q)
    np.testing.assert_allclose(got, np.quantile(VALID, q), rtol=1e-6)


def test_extrema_and_quantile_of_nothing_are_zero():
    low, high = masked.extrema(BAD, jnp.asarray(MASK))
    assert (low, high) == (VALID.min(), VALID.max())
    nothing = jnp.zeros(X.shape)
    assert masked.extrema(BAD, nothing) == (0, 0)
    assert masked.quantile(BAD, nothing, 0.3) == 0
