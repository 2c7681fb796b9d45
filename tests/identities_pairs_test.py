"""Closed forms of the pair losses, in float64, on bandits drawn at every run.

Numbers in names (i01 and so on) are those of the survey of systems that the library covers.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import (
    listwise,
    mean,
    preference,
    preference_free,
    preference_margin,
    preference_online,
    preference_unpaired,
)
from tests.bandits import (
    bandit,
    float64,
    minimize,
    one_pair,
    optimum,
    pairs_of,
    population,
    sigmoid,
    tilt,
)


@float64
@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_i11_dpo_reaches_the_tilted_reference(rng, beta):
    ref, r = bandit(rng)
    got = optimum(lambda x: population(preference.dpo, r, ref, x, beta=beta))
    np.testing.assert_allclose(got, tilt(ref, r, beta), atol=1e-6)


@float64
def test_i12_dpo_at_the_reference_and_its_gradient_elsewhere(rng):
    beta = rng.uniform(0.05, 1)
    loss, _ = preference.dpo(**one_pair(0, 0), beta=beta)
    np.testing.assert_allclose(loss, np.log(2))
    c, r = rng.normal(size=2)
    grad = jax.grad(lambda c, r: preference.dpo(**one_pair(c, r), beta=beta)[0].sum(), (0, 1))(c, r)
    want = beta * sigmoid(-beta * (c - r))
    np.testing.assert_allclose(grad, [-want, want])


@float64
def test_i13_gpo_holds_dpo_ipo_and_the_hinge(rng):
    beta, c, r = 0.4, 3 * rng.normal(size=50), 3 * rng.normal(size=50)
    pair = one_pair(c, r)

    def gpo(name):
        return preference.gpo(**pair, beta=beta, function=name)[0]

    np.testing.assert_allclose(gpo("logistic"), preference.dpo(**pair, beta=beta)[0])
    np.testing.assert_allclose(gpo("hinge"), preference.hinge(**pair, beta=beta)[0])
    np.testing.assert_allclose(
        gpo("square"), beta**2 * preference.ipo(**pair, beta=beta / 2)[0], rtol=1e-6
    )
    slopes = {
        "logistic": -0.5,
        "hinge": -1,
        "square": -2,
        "exponential": -1,
        "truncated_square": -2,
        "savage": -0.25,
    }
    for name, slope in slopes.items():
        grad = jax.grad(lambda x, f=preference.GPO_FUNCTIONS[name]: f(x))(0.0)
        np.testing.assert_allclose(grad, slope)


@float64
def test_i14_ipo_reaches_the_tilt_by_win_rates_even_of_an_intransitive_game(rng):
    ref, _ = bandit(rng)
    tau = 0.5
    P = rng.uniform(0.1, 0.9, (3, 3))
    P = np.triu(P, 1) + np.tril(1 - P.T, -1) + 0.5 * np.eye(3)

    def loss(x):
        pair, i, j = pairs_of(x, ref)
        return (P[i, j] * preference.ipo(**pair, beta=tau)[0]).sum()

    np.testing.assert_allclose(optimum(loss), tilt(ref, P.mean(1), tau), atol=1e-6)


@float64
def test_i15_robust_dpo_is_dpo_in_expectation_and_cdpo_stops_at_its_label_noise(rng):
    beta, eps = 0.3, rng.uniform(0.05, 0.4)
    c, r = rng.normal(size=2)
    options = {"beta": beta, "label_smoothing": eps}
    right = preference.robust_dpo(**one_pair(c, r), **options)[0]
    flipped = preference.robust_dpo(**one_pair(r, c), **options)[0]
    clean = preference.dpo(**one_pair(c, r), beta=beta)[0]
    np.testing.assert_allclose((1 - eps) * right + eps * flipped, clean)
    x = minimize(lambda z: preference.dpo(**one_pair(z[0], 0.0), **options)[0].sum(), np.zeros(1))
    np.testing.assert_allclose(beta * x[0], np.log((1 - eps) / eps), atol=1e-6)


@float64
def test_i16_what_reduces_to_dpo(rng):
    beta, c, r = 0.2, rng.normal(size=9), rng.normal(size=9)
    pair, n = one_pair(c, r), jnp.ones(9)
    dpo = preference.dpo(**pair, beta=beta)[0]
    same = {"chosen_kl": 0.4 * n, "rejected_kl": 0.4 * n}
    other = {"chosen_kl": 0.1 * n, "rejected_kl": 0.9 * n}
    c_, zero = jnp.asarray(c), jnp.zeros(9)
    reduced = {
        "tdpo1": preference_margin.tdpo1(**pair, **same, beta=beta)[0],
        "tdpo2": preference_margin.tdpo2(**pair, **other, beta=beta, alpha=0.0)[0],
        "dpop": preference_margin.dpop(**pair, beta=beta, lam=0.0)[0],
        "odpo": preference_margin.odpo(**pair, offset=0 * n, beta=beta)[0],
        "length": preference.length_normalized_dpo(
            **pair, chosen_length=7 * n, rejected_length=7 * n, beta=7 * beta
        )[0],
        "simpo": preference_free.simpo(chosen=c_, rejected=jnp.asarray(r), beta=beta, gamma=0.0)[0],
        "cpo": preference_free.cpo(chosen=c_, rejected=jnp.asarray(r), beta=beta)[0],
        "d2o": preference_unpaired.d2o(
            anchors=c_[:, None], ref_anchors=zero[:, None], rejected=jnp.asarray(r),
            ref_rejected=zero, beta=beta, alpha=beta,
        )[0],
    }  # fmt: skip
    for name, loss in reduced.items():
        np.testing.assert_allclose(loss, dpo, err_msg=name)
    npo, _ = preference_unpaired.npo(logps=jnp.asarray(r), ref_logps=zero, beta=beta)
    np.testing.assert_allclose(0.5 * beta * npo, preference.dpo(**one_pair(zero, r), beta=beta)[0])
    positive = c > 0
    penal = preference_margin.dpop(**pair, beta=beta, lam=50.0)[0]
    np.testing.assert_allclose(penal[positive], dpo[positive])
    assert (penal[~positive] > dpo[~positive]).all()


@float64
def test_i17_dpop_penalises_inside_the_sigmoid():
    loss, _ = preference_margin.dpop(**one_pair(-0.01, -0.5), beta=0.3, lam=50.0)
    np.testing.assert_allclose(loss, np.log1p(np.exp(-0.3 * (0.49 - 0.5))))


@float64
def test_i18_npo_weighs_by_how_likely_the_row_still_is(rng):
    for beta in (0.01, 0.1, 1.0, 5.0):

        def loss(h, beta=beta):
            one = jnp.zeros(1)
            return preference_unpaired.npo(logps=h[None], ref_logps=one, beta=beta)[0].sum()

        np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(0.0)), 1)
        h = rng.normal()
        s = np.exp(beta * h)
        np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(h)), 2 * s / (1 + s))


@float64
def test_i19_kto_is_a_half_at_its_reference_point_and_steepest_there(rng):
    beta, z0 = 0.1, abs(rng.normal())

    def loss(h, good):
        rows = {"logps": h[None], "ref_logps": jnp.zeros(1), "desirable": jnp.asarray([good])}
        return preference_unpaired.kto(**rows, reference_point=z0, beta=beta)[0].sum()

    at = jnp.asarray(z0)
    for good, sign in ((True, -1), (False, 1)):
        value, grad = jax.value_and_grad(loss)(at, good)
        np.testing.assert_allclose([value, grad], [0.5, sign * beta / 4])
        np.testing.assert_allclose(loss(at + 3, good) + loss(at - 3, good), 1)


@float64
def test_i20_orpo_gradient_and_value_at_equality(rng):
    c, r = -rng.uniform(0.1, 3, 2)

    def loss(c, r):
        return preference_free.orpo(chosen=c[None], rejected=r[None], beta=1.0)[0].sum()

    np.testing.assert_allclose(loss(jnp.asarray(c), jnp.asarray(c)), np.log(2))
    p, q = np.exp([c, r])
    gap = np.log(p / (1 - p)) - np.log(q / (1 - q))
    grad = jax.grad(loss, (0, 1))(jnp.asarray(c), jnp.asarray(r))
    np.testing.assert_allclose(grad, sigmoid(-gap) * np.array([-1 / (1 - p), 1 / (1 - q)]))


@float64
def test_i21_slic_rrhf_and_pro_on_small_lists():
    c, r = jnp.asarray([-1.0, -3.0]), jnp.asarray([-2.0, -2.5])
    np.testing.assert_allclose(preference_free.slic(chosen=c, rejected=r)[0], [0.0, 1.5])
    logps, rewards = jnp.asarray([[-1.0, -0.5, -2.0]]), jnp.asarray([[3.0, 2.0, 1.0]])
    np.testing.assert_allclose(listwise.rrhf(logps, rewards), [0.5])
    np.testing.assert_allclose(listwise.rrhf(jnp.asarray([[0.0, -1, -2]]), rewards), [0.0])

    def lse(*x):
        return np.log(np.exp(x).sum())

    by_hand = -(2 * -1.0 - lse(2 * -1.0, 1 * -0.5, 2 * -2.0)) - (-0.5 - lse(-0.5, -2.0))
    np.testing.assert_allclose(listwise.pro(logps, rewards), [by_hand])
    two = listwise.pro(logps[:, :2], jnp.asarray([[1.0, 0.0]]))
    np.testing.assert_allclose(two, [np.log1p(np.exp(0.5))])


@float64
def test_i22_reward_aware_preference_optimisation(rng):
    ref, r = bandit(rng)
    beta, eta = 0.5, 1.3

    def D(a, b, distance="backward_kl"):
        scores = {"reward_chosen": jnp.asarray([float(b)]), "reward_rejected": jnp.zeros(1)}
        return preference_online.reward_aware(
            **one_pair(a, 0.0), **scores, beta=1.0, distance=distance
        )[0][0]

    for name in ("backward_kl", "forward_kl", "square"):
        np.testing.assert_allclose(D(0.7, 0.7, name), 0, atol=1e-14)
    np.testing.assert_allclose(D(0.01, 0.03) / (0.02**2 / 8), 1, rtol=1e-3)
    np.testing.assert_allclose(D(0.4, 60.0), np.log1p(np.exp(-0.4)))

    def loss(x):
        pair, i, j = pairs_of(x, ref)
        scores = {"reward_chosen": jnp.asarray(r[i]), "reward_rejected": jnp.asarray(r[j])}
        return preference_online.reward_aware(**pair, **scores, beta=beta, eta=eta)[0].sum()

    np.testing.assert_allclose(optimum(loss), tilt(ref, eta * r, beta), atol=1e-6)


@float64
def test_i23_dpo_does_not_see_the_arm_that_no_pair_has(rng):
    ref = np.array([0.4, 0.4, 0.2])
    p = np.array([0.6, 0.2, 0.2])
    q = np.array([0.06, 0.02, 0.92])
    losses = [
        preference.dpo(**one_pair(np.log(x[0] / ref[0]), np.log(x[1] / ref[1])), beta=0.5)[0]
        for x in (p, q)
    ]
    np.testing.assert_allclose(*losses)


@float64
def test_i58_beta_dpo_holds_its_beta_constant():
    h = jnp.asarray([1.2, 0.4])
    beta = preference_margin.dynamic_beta(h, mean_gap=1.0, beta=0.1, alpha=0.6)
    np.testing.assert_allclose(beta, 0.1 * (1 + 0.6 * (0.8 - 1.0)))
    np.testing.assert_allclose(preference_margin.dynamic_beta(h - 50, mean_gap=1.0), 1e-3)
    grad = jax.grad(lambda h: preference_margin.dynamic_beta(h, mean_gap=1.0))(h)
    np.testing.assert_array_equal(grad, [0, 0])


@float64
def test_i59_ipo_on_means_is_ipo_on_sums_at_another_tau(rng):
    S, n, tau = rng.normal(), 4, 0.3
    length = jnp.full(1, n)
    by_sum = preference.ipo(**one_pair(S, 0.0), beta=tau)[0]
    by_mean = preference.ipo(
        **one_pair(S, 0.0), beta=n * tau, chosen_length=length, rejected_length=length
    )[0]
    np.testing.assert_allclose(by_sum, n * n * by_mean)


@float64
def test_i60_an_nll_term_resists_what_dpo_does_not_see(rng):
    c, r = rng.normal(size=2)

    def mixed(shift, alpha):
        loss = preference.dpo(**one_pair(c - shift, r - shift))[0]
        nll = -jnp.asarray([c - shift])
        return mean.weighted_sum((1, mean.row_mean(loss)), (alpha, mean.row_mean(nll)))

    np.testing.assert_allclose(mixed(3.0, 0.0), mixed(0.0, 0.0))
    np.testing.assert_allclose(mixed(3.0, 0.2) - mixed(0.0, 0.2), 0.6)
