import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import advantage

NAN = jnp.nan


def test_the_score_lands_on_the_last_token_of_the_mask_whatever_its_id():
    mask = jnp.asarray([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    kl = jnp.where(mask != 0, 0.5, NAN)
    out = advantage.token_rewards(scores=jnp.arange(1.0, 5.0), kl=kl, kl_coef=0.1, mask=mask)
    want = [[-0.05, -0.05, 0.95, 0], [1.95, 0, 0, 0], [0, 0, 0, 0], [-0.05, -0.05, -0.05, 3.95]]
    np.testing.assert_allclose(out, want, atol=1e-6)
    after = advantage.token_rewards(
        scores=jnp.arange(1.0, 5.0), kl=kl, kl_coef=0.0, mask=mask, after_last=True
    )
    np.testing.assert_allclose(after, [[0, 0, 0, 1], [0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 4]])


def test_the_score_goes_past_masked_tool_tokens_to_the_last_token_of_the_policy():
    mask = jnp.asarray([[1, 0, 0, 1, 0]])
    out = advantage.token_rewards(scores=jnp.ones(1), kl=jnp.zeros((1, 5)), kl_coef=1.0, mask=mask)
    np.testing.assert_array_equal(out, [[0, 0, 0, 1, 0]])


def test_gae_carries_value_and_advantage_across_tool_tokens():
    """A row with masked tokens in the middle is worth what it is without them."""
    rewards = jnp.asarray([[0.1, 7.0, NAN, 0.3, 1.0]])
    values = jnp.asarray([[0.5, NAN, 9.0, -0.2, 0.4]])
    mask = jnp.asarray([[1, 0, 0, 1, 1]])
    keep = np.array([0, 3, 4])
    got = advantage.gae(rewards=rewards, values=values, mask=mask, gamma=0.9, lam=0.8)
    want = advantage.gae(
        rewards=rewards[:, keep], values=values[:, keep], mask=jnp.ones((1, 3)), gamma=0.9, lam=0.8
    )
    for a, b in zip(got, want):
        np.testing.assert_allclose(a[:, keep], b, rtol=1e-6)
        assert (a[:, 1:3] == 0).all()


def test_no_gradient_flows_through_advantages():
    def total(values):
        mask = jnp.ones((1, 3))
        A, R = advantage.gae(rewards=values, values=values, mask=mask, gamma=1.0, lam=0.95)
        return (A + R).sum()

    assert (jax.grad(total)(jnp.ones((1, 3))) == 0).all()


def test_returns_are_the_discounted_reward_to_go():
    out = advantage.returns(
        rewards=jnp.asarray([[1.0, 2.0, 4.0, NAN]]), mask=jnp.asarray([[1, 1, 1, 0]]), gamma=0.5
    )
    np.testing.assert_allclose(out, [[1 + 1 + 1, 2 + 2, 4, 0]])


def test_reinforce_plus_plus_whitens_returns_over_the_batch():
    rewards = jnp.asarray([[0.0, 3.0], [0.0, -1.0], [0.0, 1.0]])
    out = advantage.reinforce_plus_plus(rewards=rewards, mask=jnp.ones((3, 2)))
    x = np.array([3.0, 3, -1, -1, 1, 1])
    np.testing.assert_allclose(out.ravel(), (x - x.mean()) / x.std(ddof=1), rtol=1e-5)


def test_missing_end_costs_exactly_the_penalty():
    out = advantage.penalize_missing_end(
        jnp.asarray([1.0, 1.0, 1.0]), jnp.asarray([True, False, True]), penalty=10.0
    )
    np.testing.assert_array_equal(out, [1.0, -9.0, 1.0])
