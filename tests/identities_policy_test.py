"""Closed forms of policy gradients and advantages, in float64, on bandits drawn at every run.

Numbers in names (i01 and so on) are those of the survey of systems that the library covers.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import advantage, group_advantage, kl, policy, trust_region
from tests.bandits import (
    bandit,
    float64,
    log_policy,
    softmax,
    tilt,
    tree_language_model,
)


@float64
def test_i01_policy_gradient_with_k1_in_the_reward_stops_at_the_tilted_reference(rng):
    ref, r = bandit(rng)
    beta = 0.7

    def expected_gradient(z):
        # One row per arm, weighted by its probability: the exact expectation over samples.
        def surrogate(z):
            x = log_policy(z)
            p = jax.lax.stop_gradient(jnp.exp(x))
            old = jax.lax.stop_gradient(x)[:, None]
            shaped = r - beta * kl.k1(old[:, 0], jnp.log(ref))
            A = shaped - (p * shaped).sum()
            loss, _ = policy.ppo_clip(logps=x[:, None], old_logps=old, advantages=A)
            return (p * loss[:, 0]).sum()

        return jax.grad(surrogate)(z)

    z = jnp.zeros(2)
    step = jax.jit(lambda z: z - 2.0 * expected_gradient(z))
    for _ in range(4000):
        z = step(z)
    np.testing.assert_allclose(np.exp(log_policy(z)), tilt(ref, r, beta), atol=1e-5)


@float64
def test_i02_i03_rloo_is_unbiased_and_the_group_mean_is_short_of_it_by_k_minus_1_over_k(rng):
    z, r, k = rng.normal(size=3), rng.normal(size=3), 3
    p = softmax(z)
    truth = jax.grad(lambda z: (jax.nn.softmax(z) * r).sum())(jnp.asarray(z))
    samples = np.array(list(itertools.product(range(3), repeat=k)))
    weight = p[samples].prod(1)
    for advantages, factor in (
        (group_advantage.leave_one_out, 1),
        (group_advantage.center, (k - 1) / k),
    ):
        A = advantages(jnp.asarray(r[samples]))

        def objective(z, A=A):
            logp = jax.nn.log_softmax(z)[samples]
            loss, _ = policy.reinforce(logps=logp, advantages=A)
            return -(jnp.asarray(weight) * loss.mean(1)).sum()

        np.testing.assert_allclose(jax.grad(objective)(jnp.asarray(z)), factor * truth, atol=1e-10)


@float64
def test_i04_grpo_advantages_of_binary_rewards(rng):
    G = int(rng.integers(4, 12))
    for correct in range(1, G):
        rewards = jnp.asarray([[1.0] * correct + [0.0] * (G - correct)])
        A = group_advantage.standardize(rewards, ddof=0, eps=0.0)[0]
        p = correct / G
        np.testing.assert_allclose([A[0], A[-1]], [np.sqrt((1 - p) / p), -np.sqrt(p / (1 - p))])
    r = jnp.asarray(rng.normal(size=(1, G)))
    sample, full = (group_advantage.standardize(r, ddof=d, eps=0.0) for d in (1, 0))
    np.testing.assert_allclose(sample, full * np.sqrt((G - 1) / G))


@float64
def test_i05_the_clip_cuts_the_gradient_in_two_regions_only(rng):
    eps = 0.2
    for A in (1.5, -0.8):
        for log_ratio in (-0.6, -0.1, 0.0, 0.1, 0.6):

            def loss(x, A=A):
                one = {"logps": x[None, None], "old_logps": jnp.zeros((1, 1))}
                return policy.ppo_clip(**one, advantages=jnp.full((1,), A), clip=eps)[0].sum()

            rho = np.exp(log_ratio)
            dead = (A > 0 and rho > 1 + eps) or (A < 0 and rho < 1 - eps)
            grad = jax.grad(loss)(jnp.asarray(log_ratio))
            np.testing.assert_allclose(grad, 0 if dead else -A * rho, atol=1e-12)


@float64
def test_i07_gae_is_the_discounted_sum_of_td_errors(rng):
    T = 6
    r, V = rng.normal(size=T), rng.normal(size=T)
    after = np.append(V[1:], 0)

    def gae(gamma, lam):
        A, R = advantage.gae(
            rewards=r[None], values=V[None], mask=np.ones((1, T)), gamma=gamma, lam=lam
        )
        np.testing.assert_allclose(R, A + V[None])
        return A[0]

    np.testing.assert_allclose(gae(1, 1), np.cumsum(r[::-1])[::-1] - V)
    np.testing.assert_allclose(gae(0.9, 0), r + 0.9 * after - V)
    g, lam = 0.9, 0.8
    delta = r + g * after - V
    want = [sum((g * lam) ** (k - t) * delta[k] for k in range(t, T)) for t in range(T)]
    np.testing.assert_allclose(gae(g, lam), want)


@float64
def test_i08_the_natural_gradient_of_a_softmax_is_an_exponential_tilt(rng):
    z, r, eta = rng.normal(size=4), rng.normal(size=4), 0.3
    p = softmax(z)
    old = jnp.log(p)

    def divergence(z):
        return kl.full(old, jax.nn.log_softmax(z))

    F = np.diag(p) - np.outer(p, p)
    v = jnp.asarray(rng.normal(size=4))
    np.testing.assert_allclose(
        trust_region.fisher_vector_product(divergence, jnp.asarray(z), v), F @ v, atol=1e-12
    )
    g = p * (r - p @ r)
    direction = trust_region.conjugate_gradient(
        lambda v: trust_region.fisher_vector_product(divergence, jnp.asarray(z), v), jnp.asarray(g)
    )
    np.testing.assert_allclose(softmax(z + eta * direction), tilt(p, r, 1 / eta), atol=1e-8)


@float64
def test_i09_per_token_kl_in_the_reward_has_the_gradient_of_the_sequence_kl(rng):
    policy_table, ref_table = tree_language_model(rng), tree_language_model(rng)
    beta, sequences = 0.3, np.array(list(itertools.product(range(2), repeat=2)))
    score = jnp.asarray(rng.normal(size=4))

    def token_logps(table):
        rows = [
            [jax.nn.log_softmax(table[tuple(s[:t])])[s[t]] for t in range(2)] for s in sequences
        ]
        return jnp.stack([jnp.stack(row) for row in rows])

    ref = token_logps({k: jnp.asarray(v) for k, v in ref_table.items()})
    mask = jnp.ones((4, 2))

    def gradient(credit):
        def objective(table):
            logps = token_logps(table)
            weight = jax.lax.stop_gradient(jnp.exp(logps.sum(1)))
            loss, _ = policy.reinforce(logps=logps, advantages=credit(jax.lax.stop_gradient(logps)))
            return (weight[:, None] * loss).sum()

        return jax.grad(objective)({k: jnp.asarray(v) for k, v in policy_table.items()})

    def by_token(logps):
        rewards = advantage.token_rewards(
            scores=score, kl=kl.k1(logps, ref), kl_coef=beta, mask=mask
        )
        return advantage.returns(rewards=rewards, mask=mask)

    def by_sequence(logps):
        return score - beta * (logps - ref).sum(1)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12),
        gradient(by_token),
        gradient(by_sequence),
    )


@float64
def test_i61_where_grpo_stops_tells_where_its_kl_stands(rng):
    """Binary reward: std and k3 in the loss, std and k2, k3 alone, k1 in the reward differ."""
    p_ref, beta = rng.uniform(0.15, 0.25), rng.uniform(1.9, 2.1)
    ref = jnp.log(jnp.asarray([p_ref, 1 - p_ref]))
    reward_ = jnp.asarray([1.0, 0.0])

    def run(estimator, std, in_reward):
        def objective(z):
            x = jax.nn.log_softmax(jnp.stack([z, 0.0 * z]))
            p = jax.lax.stop_gradient(jnp.exp(x))
            old = jax.lax.stop_gradient(x)
            r = reward_ - beta * kl.k1(old, ref) if in_reward else reward_
            A = r - (p * r).sum()
            A = A / jnp.sqrt((p * A * A).sum()) if std else A
            loss, _ = policy.grpo(
                logps=x[:, None], old_logps=old[:, None], advantages=A, mask=jnp.ones((2, 1))
            )
            if not in_reward:
                penalty = estimator(x, ref)[:, None]
                loss = policy.regularize(loss, mask=jnp.ones((2, 1)), kl=penalty, kl_coef=beta)
            return (p * loss[:, 0]).sum()

        step = jax.jit(lambda z: z - 0.3 * jax.grad(objective)(z))
        z = jnp.zeros(())
        for _ in range(2500):
            z = step(z)
        return float(jax.nn.sigmoid(z))

    def logit(p):
        return np.log(p / (1 - p))

    p = run(kl.k3, True, False)
    np.testing.assert_allclose(np.sqrt(p * (1 - p)), beta * (p - p_ref), atol=1e-6)
    p = run(kl.k2, True, False)
    np.testing.assert_allclose(
        1 / np.sqrt(p * (1 - p)), beta * (logit(p) - logit(p_ref)), atol=1e-6
    )
    p = run(kl.k3, False, False)
    np.testing.assert_allclose(p * (1 - p), beta * (p - p_ref), atol=1e-6)
    p = run(None, False, True)
    np.testing.assert_allclose(logit(p) - logit(p_ref), 1 / beta, atol=1e-6)
