import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import importance

LOGPS = jnp.log(jnp.asarray([[0.2, 0.4, 0.5]]))
OLD = jnp.log(jnp.asarray([[0.1, 0.8, 0.5]]))
MASK = jnp.asarray([[1, 1, 0]])


def test_token_and_sequence_ratios():
    np.testing.assert_allclose(importance.token_ratio(LOGPS, OLD, MASK), [[2, 0.5, 1]], rtol=1e-6)
    half = jnp.asarray([[1, 0, 1]])
    np.testing.assert_allclose(
        importance.sequence_ratio(LOGPS, OLD, half), [np.sqrt(2.0)], rtol=1e-6
    )
    np.testing.assert_allclose(
        importance.sequence_ratio(LOGPS, OLD, half, average=False), [2.0], rtol=1e-6
    )


def test_ratios_of_garbage_and_of_impossible_tokens_are_finite():
    bad = jnp.asarray([[jnp.nan, -1e4, -jnp.inf]])
    mask = jnp.asarray([[0, 1, 0]])
    for ratio in (importance.token_ratio, importance.sequence_ratio):
        value, grad = jax.value_and_grad(lambda x, f=ratio: f(x, OLD, mask).sum())(bad)
        assert jnp.isfinite(value)
        assert jnp.isfinite(grad).all()
        assert jnp.isfinite(ratio(OLD, bad, mask)).all()


def test_gspo_token_has_the_sequence_value_and_each_tokens_gradient():
    out = importance.sequence_token_ratio(LOGPS, OLD, MASK)
    sequence = importance.sequence_ratio(LOGPS, OLD, MASK)
    np.testing.assert_allclose(out[0, :2], np.full(2, sequence[0]), rtol=1e-6)
    jac = jax.jacobian(lambda x: importance.sequence_token_ratio(x, OLD, MASK)[0, :2])(LOGPS)
    np.testing.assert_allclose(jac[:, 0, :2], sequence[0] * np.eye(2), rtol=1e-6)


def test_a_token_that_the_sampler_did_not_score_is_not_corrected():
    sampler = OLD.at[0, 0].set(jnp.nan)
    np.testing.assert_allclose(
        importance.sampler_token_ratio(LOGPS, sampler, MASK), [[1, 0.5, 1]], rtol=1e-6
    )
    np.testing.assert_allclose(
        importance.sampler_sequence_ratio(LOGPS, sampler, MASK), [0.5], rtol=1e-6
    )


def test_truncation_caps_and_rejection_drops():
    w = jnp.asarray([0.1, 1.0, 7.0])
    np.testing.assert_allclose(importance.truncate(w, high=2.0), [0.1, 1, 2])
    np.testing.assert_allclose(importance.truncate(w, high=2.0, low=0.5), [0.5, 1, 2])
    np.testing.assert_allclose(importance.reject(w, high=5.0, low=0.5), [0, 1, 0])


def test_effective_sample_size_is_1_for_equal_weights_and_1_over_n_for_one():
    mask = jnp.asarray([1, 1, 1, 1, 0])
    ess = importance.effective_sample_size
    np.testing.assert_allclose(ess(jnp.asarray([3.0, 3, 3, 3, jnp.nan]), mask), 1)
    np.testing.assert_allclose(ess(jnp.asarray([0.0, 0, 5, 0, 9.0]), mask), 0.25)
    assert ess(jnp.zeros(5), mask) == 0


def test_only_negative_rows_that_drifted_are_dropped():
    logps = jnp.full((4, 2), -1.0)
    sampler = jnp.asarray([[-0.5, -0.5], [-0.5, -0.5], [-1.0, -1.0], [jnp.nan, -0.5]])
    keep = importance.keep_on_policy(
        advantages=jnp.asarray([-1.0, 1.0, -1.0, -1.0]),
        logps=logps,
        sampler_logps=sampler,
        mask=jnp.ones((4, 2)),
        threshold=0.3,
    )
    np.testing.assert_array_equal(keep, [0, 1, 1, 1])
