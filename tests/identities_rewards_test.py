"""Closed forms of reward-model losses, in float64, on numbers drawn at every run.

Numbers in names (i01 and so on) are those of the survey of systems that the library covers.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import controllers, listwise, reward, reward_regression
from tests.bandits import float64, log_softmax, minimize, sigmoid, tilt


@float64
def test_i32_plackett_luce_is_a_distribution_over_rankings(rng):
    s = rng.normal(size=4)
    orders = np.array(list(itertools.permutations(range(4))))
    loss = listwise.plackett_luce(jnp.asarray(s[orders]))
    np.testing.assert_allclose(np.exp(-loss).sum(), 1)
    np.testing.assert_allclose(listwise.plackett_luce(jnp.asarray(s[orders] + 3.3)), loss)
    two = jnp.asarray(s[None, :2])
    bt, _ = reward.bradley_terry(chosen=two[:, 0], rejected=two[:, 1])
    np.testing.assert_allclose(listwise.plackett_luce(two), bt)
    np.testing.assert_allclose(listwise.pairwise_mean(two), bt)
    three = s[:3]
    by_hand = np.mean(
        [np.log1p(np.exp(-(three[i] - three[j]))) for i, j in ((0, 1), (0, 2), (1, 2))]
    )
    np.testing.assert_allclose(listwise.pairwise_mean(jnp.asarray(three)[None]), [by_hand])


@float64
def test_i33_soft_labels_margins_and_centring(rng):
    p = rng.uniform(0.6, 0.95)

    def loss(z, centre=0.0):
        return reward.bradley_terry(
            chosen=z[:1], rejected=z[1:], label_smoothing=1 - p, center_coef=centre
        )[0].sum()

    gap = minimize(lambda z: loss(jnp.stack([z[0], -z[0]])), np.zeros(1))
    np.testing.assert_allclose(2 * gap[0], np.log(p / (1 - p)), atol=1e-6)
    np.testing.assert_allclose(minimize(lambda z: loss(z, 0.01), [1.0, 2.0]).sum(), 0, atol=1e-6)
    c, r, m = (jnp.asarray(x)[None] for x in rng.normal(size=3))
    np.testing.assert_allclose(
        reward.bradley_terry(chosen=c, rejected=r, margin=m)[0],
        reward.bradley_terry(chosen=c - m, rejected=r)[0],
    )


@float64
def test_i34_focal_ranking_and_score_barrier(rng):
    def focal(d, gamma):
        pair = {"chosen": jnp.asarray([float(d)]), "rejected": jnp.zeros(1)}
        return reward.focal(**pair, gamma=gamma)[0][0]

    np.testing.assert_allclose(focal(1.3, 0), np.log1p(np.exp(-1.3)))
    np.testing.assert_allclose(focal(-0.4, 2), np.log1p(np.exp(0.4)))
    P = sigmoid(1.3)
    np.testing.assert_allclose(focal(1.3, 2), -((1 - 2 * (P - 0.5)) ** 2) * np.log(P))
    x = jnp.asarray([0.0, 2.0, 4.9])
    want = -0.02 * (np.log(x + 5) + np.log(5 - x))
    np.testing.assert_allclose(reward.score_barrier(x), want)
    np.testing.assert_allclose(jax.grad(reward.score_barrier)(0.0), 0, atol=1e-12)


@float64
def test_i35_a_general_preference_is_antisymmetric_holds_bradley_terry_and_cycles(rng):
    a, b = (jnp.asarray(rng.normal(size=(6, 4))) for _ in range(2))
    s = reward.general_preference
    np.testing.assert_allclose(s(a, b), -s(b, a))
    np.testing.assert_allclose(s(a, a), np.zeros(6), atol=1e-14)
    r, c = rng.normal(size=(2, 6)), 0.7
    embed = [jnp.stack([jnp.asarray(x), jnp.full(6, c)], 1) for x in r]
    np.testing.assert_allclose(s(*embed), c * (r[0] - r[1]))
    angle = np.array([0, 2, 4]) * np.pi / 3
    v = jnp.asarray(np.stack([np.cos(angle), np.sin(angle)], 1))
    cycle = s(v, jnp.roll(v, -1, 0))
    np.testing.assert_allclose(cycle, np.full(3, cycle[0]))
    assert abs(cycle[0]) > 0.5
    assert s(jnp.asarray([[2.0, 1.0]]), jnp.asarray([[1.0, 1.0]]))[0] == 1.0


@float64
def test_i36_the_pinball_loss_is_least_at_the_quantile(rng):
    y = np.sort(rng.normal(size=501))
    levels = jnp.asarray([0.05, 0.5, 0.95])

    def loss(q):
        rows = jnp.broadcast_to(jnp.full(3, q), (501, 1, 3))
        each = [
            reward_regression.quantile_regression(
                rows[..., k : k + 1], y[:, None], levels[k : k + 1]
            )
            for k in range(3)
        ]
        return jnp.stack([x.mean() for x in each])

    table = np.array([loss(q) for q in y])
    np.testing.assert_allclose(y[table.argmin(0)], np.quantile(y, levels), atol=0.02)


@float64
def test_i37_the_gaussian_head_finds_the_spread(rng):
    y = rng.normal(1.0, 0.7, size=2000)
    labels = jnp.asarray(y)[:, None]

    def loss(z):
        mu, log_std = (jnp.full((2000, 1), v) for v in z)
        return reward_regression.gaussian_nll(mu, log_std, labels).mean()

    x = minimize(loss, np.zeros(2))
    np.testing.assert_allclose([x[0], np.exp(x[1])], [y.mean(), y.std()], atol=1e-6)


@float64
def test_i38_gating_picks_one_attribute_and_decorrelation_is_complete(rng):
    v = rng.normal(size=500)
    r = 0.6 * v + rng.normal(size=500)
    out = reward_regression.decorrelate(jnp.asarray(r), jnp.asarray(v))
    np.testing.assert_allclose(np.corrcoef(out, v)[0, 1], 0, atol=1e-12)
    attributes = jnp.asarray(rng.normal(size=(4, 3)))
    one_hot = jnp.broadcast_to(jnp.asarray([0.0, 1e4, 0.0]), (4, 3))
    np.testing.assert_allclose(reward_regression.gated_score(attributes, one_hot), attributes[:, 1])


@float64
def test_i40_the_dual_step_reaches_the_constraint(rng):
    ref = np.array([0.5, 0.3, 0.2])
    r, c, beta = np.array([2.0, 0.0, 0.5]), np.array([1.0, -1.0, -0.2]), 0.5
    log_lam = jnp.log(0.1)
    for _ in range(6000):
        policy_ = tilt(ref, r - np.exp(log_lam) * c, beta)
        log_lam = controllers.lagrange_multiplier(log_lam, policy_ @ c, lr=0.05)
    np.testing.assert_allclose(policy_ @ c, 0, atol=1e-5)


@float64
def test_i57_a_verdict_over_two_tokens_is_binary_cross_entropy(rng):
    yes, no = rng.normal(size=2)
    logp = log_softmax(np.array([yes, no]))
    loss = reward_regression.verdict_nll(*(jnp.full(2, x) for x in logp), jnp.asarray([1, 0]))
    np.testing.assert_allclose(loss, [np.log1p(np.exp(no - yes)), np.log1p(np.exp(yes - no))])


@float64
def test_safe_rlhf_cost_separates_harmful_from_harmless(rng):
    def loss(z):
        return reward.signed_cost(
            worse=z[:1], better=z[1:], worse_sign=jnp.ones(1), better_sign=-jnp.ones(1)
        )[0].sum()

    value = loss(jnp.zeros(2))
    np.testing.assert_allclose(value, 3 * np.log(2))
    g = jax.grad(loss)(jnp.zeros(2))
    np.testing.assert_allclose(g, [-1.0, 1.0])
