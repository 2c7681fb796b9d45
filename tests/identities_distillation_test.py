"""Closed forms of divergences, in float64, on distributions drawn at every run.

Numbers in names (i01 and so on) are those of the survey of systems that the library covers.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import distill, kl, pairwise, policy
from tests.bandits import exact_kl, float64, log_softmax, softmax, tree_language_model


@float64
def test_i47_distillation_gradients(rng):
    z, teacher = jnp.asarray(rng.normal(size=5)), softmax(rng.normal(size=5))
    t = jnp.log(teacher)
    forward = jax.grad(lambda z: distill.forward_kl(jax.nn.log_softmax(z), t))(z)
    np.testing.assert_allclose(forward, softmax(np.asarray(z)) - teacher, atol=1e-12)

    def on_policy(z):
        x = jax.nn.log_softmax(z)
        p = jax.lax.stop_gradient(jnp.exp(x))
        A = t - jax.lax.stop_gradient(x)
        loss, _ = policy.reinforce(logps=x[:, None], advantages=A)
        return (p * loss[:, 0]).sum()

    reverse = jax.grad(lambda z: distill.reverse_kl(jax.nn.log_softmax(z), t))(z)
    np.testing.assert_allclose(reverse, jax.grad(on_policy)(z), atol=1e-12)


@float64
def test_the_mixture_divergence_is_symmetric_at_a_half_and_bounded_by_log_2(rng):
    a, b = (jnp.asarray(log_softmax(5 * rng.normal(size=6))) for _ in range(2))
    half = distill.divergence(a, b, beta=0.5)
    np.testing.assert_allclose(half, distill.divergence(b, a, beta=0.5))
    assert 0 < half < np.log(2)
    m = 0.3 * np.exp(b) + 0.7 * np.exp(a)
    want = 0.3 * exact_kl(np.exp(b), m) + 0.7 * exact_kl(np.exp(a), m)
    np.testing.assert_allclose(distill.divergence(a, b, beta=0.3), want)


@float64
def test_i55_the_sequence_kl_is_the_expected_sum_of_next_token_kls(rng):
    policy_table, ref_table = tree_language_model(rng), tree_language_model(rng)
    by_ratio = by_position = 0.0
    for s in itertools.product(range(2), repeat=2):
        prefixes = [s[:t] for t in range(2)]
        ref = np.stack([log_softmax(ref_table[pre]) for pre in prefixes])
        pol = np.stack([log_softmax(policy_table[pre]) for pre in prefixes])
        picked = np.arange(2), np.array(s)
        weight = np.exp(ref[picked].sum())
        by_ratio += weight * (ref[picked] - pol[picked]).sum()
        by_position += weight * kl.full(jnp.asarray(ref), jnp.asarray(pol)).sum()
    np.testing.assert_allclose(by_ratio, by_position)


@float64
def test_score_functions_are_the_derivatives_of_their_divergences(rng):
    """f'(t) by automatic differentiation of f, up to a constant that cancels in a pair."""
    t = jnp.asarray(rng.uniform(0.2, 3, 7))
    alpha = 0.3
    fs = {
        "reverse_kl": lambda t: t * jnp.log(t),
        "forward_kl": lambda t: -jnp.log(t),
        "js": lambda t: t * jnp.log(t) - (t + 1) * jnp.log((t + 1) / 2),
        "alpha": lambda t: (t**alpha - alpha * t) / (alpha * (alpha - 1)),
    }
    for name, f in fs.items():
        score = pairwise.score(jnp.log(t), name, alpha)
        derivative = jax.vmap(jax.grad(f))(t)
        gap = score - derivative
        np.testing.assert_allclose(gap, np.full(7, gap[0]), atol=1e-10, err_msg=name)
