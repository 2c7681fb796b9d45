"""Closed forms of losses that regress log-ratios, in float64, on bandits drawn at every run.

Numbers in names (i01 and so on) are those of the survey of systems that the library covers.
"""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import (
    group_advantage,
    policy_sequence,
    preference_anchored,
    preference_online,
    preference_unpaired,
)
from tests.bandits import (
    bandit,
    exact_kl,
    float64,
    log_policy,
    one_pair,
    optimum,
    pairs_of,
    sigmoid,
    tilt,
)


@float64
def test_i24_dro_reaches_policy_and_value(rng):
    ref, r = bandit(rng)
    tau, mu = 0.6, rng.dirichlet(np.full(3, 5.0))

    def total(x):
        x, V = log_policy(x[:2]), x[2]
        rows = {"logps": x, "ref_logps": jnp.log(ref), "rewards": jnp.asarray(r), "tau": tau}
        for_policy, for_value, _ = preference_unpaired.dro(**rows, values=jnp.full(3, V))
        # Each is half of the same square, so their gradients are those of the joint loss.
        return (mu * (tau * for_policy + for_value)).sum()

    x, g, J = jnp.zeros(3), jax.jit(jax.grad(total)), jax.jit(jax.jacfwd(jax.grad(total)))
    for _ in range(60):
        x = x - jnp.linalg.solve(J(x) + 1e-3 * jnp.eye(3), g(x))
    np.testing.assert_allclose(np.exp(log_policy(x[:2])), tilt(ref, r, tau), atol=1e-5)
    np.testing.assert_allclose(x[2], tau * np.log(ref @ np.exp(r / tau)), atol=1e-5)


@float64
def test_i25_mirror_descent_reaches_the_tilted_old_policy_and_descends_along_eq_3(rng):
    old, r = bandit(rng)
    tau = 0.8
    log_z = tau * np.log(old @ np.exp(r / tau))

    def loss(x, baseline=log_z):
        rows = {"logps": x, "old_logps": jnp.log(old), "tau": tau}
        return (old * policy_sequence.mirror_descent(**rows, advantages=r - baseline)[0]).sum()

    np.testing.assert_allclose(optimum(loss), tilt(old, r, tau), atol=1e-6)
    z = jnp.asarray(rng.normal(size=2))
    baseline = old @ r
    p = np.exp(log_policy(z))
    score = (np.eye(3) - p)[:, :2]
    eq3 = (old * (r - baseline)) @ score - tau * (old * np.log(p / old)) @ score
    grad = jax.grad(lambda z: loss(log_policy(z), baseline))(z)
    np.testing.assert_allclose(-grad, eq3, atol=1e-10)


@float64
def test_i26_apa_reaches_the_tilt_when_it_is_normalised_already(rng):
    init, A = bandit(rng)
    lam = 0.5
    A = A - lam * np.log(init @ np.exp(A / lam))

    def loss(x):
        rows = {"logps": x[:, None], "init_logps": jnp.log(init)[:, None], "mask": jnp.ones((3, 1))}
        out, _ = policy_sequence.advantage_regression(
            **rows, advantages=jnp.asarray(A)[:, None], lam=lam
        )
        return (init * out[:, 0]).sum()

    np.testing.assert_allclose(optimum(loss), init * np.exp(A / lam), atol=1e-6)


@float64
def test_i27_sppo_regresses_to_the_win_rate_and_its_hard_form_is_twice_it(rng):
    c, r = rng.normal(size=2)
    hard = preference_anchored.sppo_hard(**one_pair(c, r), beta=0.01)[0]
    soft = preference_anchored.sppo(**one_pair(c, r), win_rate=jnp.ones(1), beta=0.01)[0]
    np.testing.assert_allclose(hard, 2 * soft)
    P, beta = rng.uniform(0.5, 1), 0.2
    zero = preference_anchored.sppo(
        **one_pair((P - 0.5) / beta, (0.5 - P) / beta), win_rate=jnp.asarray([P]), beta=beta
    )[0]
    np.testing.assert_allclose(zero, [0], atol=1e-14)


@float64
def test_i28_self_play_rewards_average_a_half_and_order_like_rewards(rng):
    r = rng.normal(size=5)
    P = sigmoid(np.subtract.outer(r, r))
    rewards = group_advantage.win_rate(jnp.asarray(P)[None])[0]
    np.testing.assert_allclose(rewards.mean(), 0.5)
    np.testing.assert_array_equal(np.argsort(rewards), np.argsort(r))


@float64
def test_i29_dno_reaches_the_tilt_by_win_rates(rng):
    old, _ = bandit(rng)
    eta = 0.4
    P = rng.uniform(0.1, 0.9, (3, 3))
    P = np.triu(P, 1) + np.tril(1 - P.T, -1) + 0.5 * np.eye(3)
    r = P @ old

    def loss(x):
        pair, i, j = pairs_of(x, old)
        rates = {"win_rate_chosen": jnp.asarray(r[i]), "win_rate_rejected": jnp.asarray(r[j])}
        return (old[i] * old[j] * preference_online.dno(**pair, **rates, eta=eta)[0]).sum()

    new = optimum(loss)
    np.testing.assert_allclose(new, tilt(old, r, eta), atol=1e-6)
    assert new @ P @ old >= 0.5 + eta * exact_kl(new, old) - 1e-9


@float64
def test_a_star_po_reaches_the_tilted_reference(rng):
    ref, r = bandit(rng)
    beta = 0.5
    # As many samples of each arm as its probability asks for.
    counts = rng.multinomial(4000, ref)
    ref = counts / counts.sum()
    values = preference_online.optimal_value(jnp.asarray(np.repeat(r, counts))[None], beta=beta)
    np.testing.assert_allclose(values, [beta * np.log(ref @ np.exp(r / beta))])

    def loss(x):
        rows = {"logps": x, "ref_logps": jnp.log(ref), "rewards": jnp.asarray(r)}
        out, _ = preference_online.optimal_advantage_regression(
            **rows, values=jnp.full(3, values[0]), beta=beta
        )
        return (ref * out).sum()

    np.testing.assert_allclose(optimum(loss), tilt(ref, r, beta), atol=1e-6)
