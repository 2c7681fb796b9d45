import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import mean, policy, policy_entropy, policy_sequence, policy_soft
from rljax.losses.mean import Mean

TRAPS = json.loads(
    (pathlib.Path(__file__).parents[2] / "tests/goldens/traps/cases.json").read_text()
)


def test_trap_p15_a_loss_of_zero_still_moves_the_policy():
    case = TRAPS["P15"]
    actions = jnp.asarray(case["input"]["actions"])[:, None]
    A = jnp.asarray(case["input"]["advantages"])

    def loss(logits):
        logps = jnp.take_along_axis(jax.nn.log_softmax(logits), actions, 1)
        old = jax.lax.stop_gradient(logps)
        out, _ = policy.ppo_clip(logps=logps, old_logps=old, advantages=A)
        return mean.row_mean(out[:, 0]).value()

    value, grad = jax.value_and_grad(loss)(jnp.asarray(case["input"]["two_rows_logits"]))
    np.testing.assert_allclose(value, case["expect"]["loss"])
    np.testing.assert_allclose(grad, case["expect"]["grad"])


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    logps = jnp.log(jnp.asarray([[10.0, 2.0, 10.0]]))
    A = jnp.asarray([[-1.0, -1.0, 1.0]])
    zero = jnp.zeros((1, 3))
    loss, stats = policy.ppo_clip(logps=logps, old_logps=zero, advantages=A, dual_clip=3.0)
    np.testing.assert_allclose(loss, [[3.0, 2.0, -1.2]], rtol=1e-6)
    np.testing.assert_array_equal(stats["policy/clipfrac_lower_avg"], [[1, 0, 0]])
    plain, _ = policy.ppo_clip(logps=logps, old_logps=zero, advantages=A)
    np.testing.assert_allclose(plain, [[10.0, 2.0, -1.2]], rtol=1e-6)


def test_a_higher_upper_clip_lets_probabilities_rise_further():
    logps = jnp.log(jnp.asarray([[1.25]]))
    one = {"logps": logps, "old_logps": jnp.zeros((1, 1)), "advantages": jnp.ones(1)}
    np.testing.assert_allclose(policy.ppo_clip(**one)[0], [[-1.2]], rtol=1e-6)
    np.testing.assert_allclose(policy.ppo_clip(**one, clip_high=0.28)[0], [[-1.25]], rtol=1e-6)


def test_gspo_is_grpo_at_the_level_of_sequences():
    rng = np.random.default_rng(0)
    logps, old = (jnp.asarray(-rng.random((3, 4)), jnp.float32) for _ in range(2))
    rows = {"logps": logps, "old_logps": old, "advantages": jnp.asarray([1.0, -1.0, 0.5])}
    mask = jnp.asarray([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    got, stats = policy.gspo(**rows, mask=mask)
    ratio = np.exp(((logps - old) * mask).sum(1) / np.maximum(mask.sum(1), 1))
    A = np.asarray(rows["advantages"])
    want = -np.minimum(ratio * A, np.clip(ratio, 1 - 3e-4, 1 + 4e-4) * A)
    np.testing.assert_allclose(
        got, want[:, None] * (mask.sum(1) > 0)[:, None] * (mask != 0), rtol=1e-5
    )
    assert stats["clip_ratio/low_mean"].shape == (3,)


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    def loss(x):
        one = {"old_logps": jnp.zeros((1, 1)), "advantages": jnp.ones(1), "mask": jnp.ones((1, 1))}
        return policy_soft.cispo(logps=x, **one, max_ratio=1.3)[0].sum()

    np.testing.assert_allclose(jax.grad(loss)(jnp.full((1, 1), 2.0)), [[-1.3]], rtol=1e-6)


def test_sapo_has_the_policy_gradient_on_policy():
    def loss(x):
        one = {"old_logps": jnp.full((1, 2), -1.0), "mask": jnp.ones((1, 2))}
        return policy_soft.sapo(logps=x, **one, advantages=jnp.asarray([[2.0, -3.0]]))[0].sum()

    np.testing.assert_allclose(jax.grad(loss)(jnp.full((1, 2), -1.0)), [[-2.0, 3.0]], rtol=1e-6)


def test_vespo_weighs_1_on_policy_and_nothing_far_away():
    weight = policy_soft.gamma_weight(
        log_ratio=jnp.asarray([0.0, 0.0, 50.0, -50.0]),
        advantages=jnp.asarray([1.0, -1.0, 1.0, 1.0]),
    )
    np.testing.assert_allclose(weight, [1, 1, 0, 0], atol=1e-6)


def test_a_weight_rescales_the_surrogate_and_not_the_kl():
    loss, kl = jnp.full((2, 2), 3.0), jnp.full((2, 2), 5.0)
    mask = jnp.asarray([[1, 1], [1, 0]])
    out = policy.regularize(loss, mask=mask, weight=jnp.asarray([0.0, 2.0]), kl=kl, kl_coef=0.1)
    np.testing.assert_allclose(out, [[0.5, 0.5], [6.5, 0.0]], rtol=1e-6)


def test_a_batch_whose_ratio_ran_away_is_skipped():
    loss, mask = Mean(jnp.float32(3), jnp.float32(2)), jnp.ones((1, 2))
    skip = policy.unless_ratio_exceeds
    assert skip(loss, jnp.full((1, 2), 11.0), mask, threshold=10.0).value() == 0
    assert skip(loss, jnp.full((1, 2), 9.0), mask, threshold=10.0).value() == 1.5


def test_an_unknown_level_is_refused():
    x = jnp.zeros((1, 1))
    with pytest.raises(ValueError, match="level='row'"):
        policy.grpo(logps=x, old_logps=x, advantages=jnp.ones(1), mask=x, level="row")


def test_high_entropy_keeps_the_top_share_of_valid_tokens():
    entropy = jnp.arange(10.0)[None]
    mask = jnp.ones((1, 10)).at[0, 9].set(0)
    out = policy_entropy.high_entropy(entropy, mask, top=0.25)
    np.testing.assert_array_equal(out, [[0, 0, 0, 0, 0, 0, 1, 1, 1, 0]])


def covariant_tokens():
    logps = jnp.asarray([[-3.0, -1.0, -0.5, -2.0]])
    A = jnp.asarray([[-2.0, 0.5, 2.0, 7.0]])
    mask = jnp.asarray([[1, 1, 1, 0]])
    cov = (np.array([-2.0, 0.5, 2.0]) - 0.5 / 3) * (np.array([-3, -1, -0.5]) + 1.5)
    return {"logps": logps, "old_logps": logps, "advantages": A, "mask": mask}, cov


def test_covariance_is_each_tokens_part_of_the_batch_covariance():
    rows, cov = covariant_tokens()
    rows.pop("old_logps")
    out = policy_entropy.covariance(**rows)
    np.testing.assert_allclose(out, [[*cov, 0]], rtol=1e-5)


def test_clip_cov_detaches_one_token_of_those_within_the_bounds():
    rows, cov = covariant_tokens()
    assert cov[0] > 3 > cov[2] > 1
    for seed in range(4):
        loss, stats = policy_entropy.clip_cov(**rows, key=jax.random.key(seed), low=1.0, high=3.0)
        np.testing.assert_array_equal(stats["clip_cov_ratio"], [[0, 0, 1, 0]])
        np.testing.assert_allclose(loss, [[2.0, -0.5, 0.0, 0.0]], rtol=1e-6)
    drawn = [
        policy_entropy.clip_cov(**rows, key=jax.random.key(seed), low=1.0, high=9.0)[1]
        for seed in range(20)
    ]
    counts = sum(s["clip_cov_ratio"] for s in drawn)[0]
    assert counts[0] > 2
    assert counts[2] > 2
    assert counts.sum() == 20


def test_kl_cov_penalises_the_most_covariant_token():
    rows, _ = covariant_tokens()
    rows["old_logps"] = rows["logps"] - 0.1
    loss, stats = policy_entropy.kl_cov(**rows, kl_coef=2.0)
    np.testing.assert_array_equal(stats["kl_cov_ratio"], [[1, 0, 0, 0]])
    np.testing.assert_allclose(
        loss, [[2 * np.exp(0.1) + 0.2, -0.5 * np.exp(0.1), -2 * np.exp(0.1), 0]], rtol=1e-5
    )


def test_quark_is_nll_with_a_kl_and_an_entropy_bonus():
    x = jnp.asarray([[-1.0, jnp.nan]])
    out, _ = policy_sequence.quark(
        logps=x, kl=jnp.asarray([[0.4, jnp.inf]]), entropy=jnp.asarray([[2.0, 0.0]]),
        mask=jnp.asarray([[1, 0]]),
    )  # fmt: skip
    np.testing.assert_allclose(out, [[1 + 0.05 * 0.4 - 0.06 * 2, 0]], rtol=1e-6)
