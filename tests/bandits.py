"""What the tests of closed forms share: small bandits and their optima."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

float64 = jax.enable_x64(True)


def softmax(z):
    z = np.exp(z - z.max())
    return z / z.sum()


def log_softmax(z):
    return np.log(softmax(z))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def tilt(ref, r, beta):
    """ref exp(r/beta) / Z, the optimum of KL-regularised reward."""
    return softmax(np.log(ref) + np.asarray(r) / beta)


def exact_kl(p, q):
    return (p * (np.log(p) - np.log(q))).sum()


def bandit(rng, arms=3):
    """(reference, rewards) of a prompt with a few one-token answers, none of them rare."""
    ref = rng.dirichlet(np.full(arms, 5.0))
    return 0.8 * ref + 0.2 / arms, rng.normal(size=arms)


def log_policy(z):
    """Log-probabilities from free logits; the last arm's logit is 0."""
    return jax.nn.log_softmax(jnp.concatenate([z, jnp.zeros(1)]))


def minimize(f, x, steps=100):
    """Damped Newton; enough for a handful of smooth dimensions."""
    f, g, H = jax.jit(f), jax.jit(jax.grad(f)), jax.jit(jax.hessian(f))
    x, damping = jnp.asarray(x, jnp.float64), 1e-3
    for _ in range(steps):
        step = jnp.linalg.solve(H(x) + damping * jnp.eye(len(x)), g(x))
        if f(x - step) <= f(x):
            x, damping = x - step, damping / 4
        else:
            damping *= 8
    assert abs(g(x)).max() < 1e-7
    return x


def optimum(f, arms=3):
    return np.exp(log_policy(minimize(lambda z: f(log_policy(z)), np.zeros(arms - 1))))


def pairs_of(x, ref):
    """Every ordered pair of arms as chosen and rejected, and log-probabilities under x and ref."""
    i, j = np.array(list(itertools.permutations(range(len(ref)), 2))).T
    ref = jnp.log(jnp.asarray(ref))
    pair = {"chosen": x[i], "rejected": x[j], "ref_chosen": ref[i], "ref_rejected": ref[j]}
    return pair, i, j


def one_pair(c, r):
    """Log-ratios c and r, references at 0."""
    c, r = jnp.atleast_1d(jnp.asarray(c, float)), jnp.atleast_1d(jnp.asarray(r, float))
    zero = jnp.zeros_like(c)
    return {"chosen": c, "rejected": r, "ref_chosen": zero, "ref_rejected": zero}


def population(loss, r, ref, x, **options):
    """The expectation of a pair loss over all pairs, labelled by Bradley-Terry."""
    pair, i, j = pairs_of(x, ref)
    return (sigmoid(r[i] - r[j]) * loss(**pair, **options)[0]).sum()


def tree_language_model(rng):
    """Logits of each prefix of a model of two tokens over two words."""
    return {
        pre: rng.normal(size=2) for t in range(2) for pre in itertools.product(range(2), repeat=t)
    }
