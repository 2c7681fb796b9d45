import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import listwise, reward, reward_regression


def test_bradley_terry_counts_a_tie_as_wrong_and_penalises_offsets():
    pair = {"chosen": jnp.asarray([1.0, 2.0]), "rejected": jnp.asarray([1.0, -1.0])}
    loss, stats = reward.bradley_terry(**pair, center_coef=0.5)
    np.testing.assert_allclose(loss, [np.log(2) + 2.0, np.log1p(np.exp(-3)) + 0.5], rtol=1e-6)
    np.testing.assert_array_equal(stats["accuracy"], [0, 1])
    np.testing.assert_array_equal(stats["margin"], [0, 3])


def test_scaled_bradley_terry_multiplies_by_the_margin():
    pair = {"chosen": jnp.asarray([1.0]), "rejected": jnp.asarray([0.0])}
    got, _ = reward.scaled_bradley_terry(**pair, margin=jnp.asarray([3.0]))
    np.testing.assert_allclose(got, [3 * np.log1p(np.exp(-1.0))], rtol=1e-6)


def test_the_barrier_is_finite_beyond_its_bound():
    value, grad = jax.value_and_grad(reward.score_barrier)(jnp.float32(7.0))
    assert jnp.isfinite(value)
    assert jnp.isfinite(grad)


def test_grm_without_weight_is_bradley_terry_and_trains_the_language_head_otherwise():
    pair = {"chosen": jnp.asarray([1.0]), "rejected": jnp.asarray([0.2])}

    def loss(logps, alpha):
        return reward.generation_regularized(**pair, chosen_logps=logps, alpha=alpha)[0].sum()

    x = jnp.asarray([-5.0])
    np.testing.assert_array_equal(loss(x, 0.0), reward.bradley_terry(**pair)[0][0])
    np.testing.assert_array_equal(jax.grad(loss)(x, 0.0), [0])
    # d/dx of -α log σ(βx)
    np.testing.assert_allclose(jax.grad(loss)(x, 0.5), [-0.5 * 0.1 / (1 + np.exp(-0.5))], rtol=1e-5)


def test_a_missing_attribute_has_no_loss_and_no_gradient():
    labels = jnp.asarray([[1.0, jnp.nan]])
    x = jnp.asarray([[3.0, 9.0]])
    np.testing.assert_array_equal(reward_regression.attribute_regression(x, labels), [[4, 0]])
    grad = jax.grad(lambda x: reward_regression.attribute_regression(x, labels).sum())(x)
    np.testing.assert_array_equal(grad, [[4, 0]])


def test_step_labels_are_read_where_they_stand_and_nowhere_else():
    logits = jnp.asarray([[[0.0, 2.0], [jnp.nan, 0.0], [1.0, 0.0]]])
    labels = jnp.asarray([[1, -100, 1]])

    def total(x):
        loss, stats = reward_regression.step_classification(x, labels)
        return loss.sum(), (loss, stats)

    grad, (loss, stats) = jax.grad(total, has_aux=True)(logits)
    np.testing.assert_allclose(loss, [[np.log1p(np.exp(-2)), 0, np.log1p(np.exp(1))]], rtol=1e-6)
    np.testing.assert_array_equal(stats["accuracy"], [[1, 0, 0]])
    assert (grad[0, 1] == 0).all()


def test_missing_columns_of_a_ranking_do_not_count():
    scores = jnp.asarray([[1.0, 0.0, 99.0]])
    mask = jnp.asarray([[1, 1, 0]])
    got = listwise.plackett_luce(scores, mask)
    np.testing.assert_allclose(got, [np.log1p(np.exp(-1.0))], rtol=1e-6)
    grad = jax.grad(lambda s: listwise.plackett_luce(s, mask).sum())(scores)
    assert grad[0, 2] == 0
    assert jnp.isfinite(grad).all()


def test_pro_of_three_is_finite_for_equal_rewards():
    value, grad = jax.value_and_grad(lambda x: listwise.pro(x, jnp.ones((1, 3))).sum())(
        jnp.asarray([[-1.0, -2.0, -3.0]])
    )
    np.testing.assert_allclose(value, np.log(3) + np.log(2), rtol=1e-6)
    assert jnp.isfinite(grad).all()
