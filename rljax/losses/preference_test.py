import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import (
    pairwise,
    preference,
    preference_anchored,
    preference_free,
    preference_margin,
    preference_online,
    preference_sorted,
    preference_unpaired,
)

ZERO = jnp.zeros(3)
AT_REFERENCE = {"chosen": ZERO, "rejected": ZERO, "ref_chosen": ZERO, "ref_rejected": ZERO}
RNG = np.random.default_rng(0)
PAIR = {k: jnp.asarray(-20 * RNG.random(3), jnp.float32) for k in AT_REFERENCE}


@pytest.mark.parametrize(
    ("loss", "want"),
    [
        (lambda **p: preference.dpo(**p), np.log(2)),
        (lambda **p: preference.dpo(**p, label_smoothing=0.3), np.log(2)),
        (lambda **p: preference.hinge(**p), 1.0),
        (lambda **p: preference.ipo(**p, beta=0.5), 1.0),
        (lambda **p: preference.robust_dpo(**p, label_smoothing=0.1), np.log(2)),
        (lambda **p: preference.discopop(**p), 0.5 * np.log(2) + 0.5),
        (lambda **p: preference.exo(**p, label_smoothing=0.5), 0.0),
        (lambda **p: preference_anchored.nca_pair(**p), 2 * np.log(2)),
        (lambda **p: preference_anchored.bco_pair(**p), 2 * np.log(2)),
        (lambda **p: preference_anchored.apo_zero(**p), 1.0),
        (lambda **p: preference_anchored.apo_down(**p), 1.0),
        (lambda **p: preference_anchored.kto_pair(**p), 0.5),
        (lambda **p: preference_anchored.sppo_hard(**p, beta=0.5), 2.0),
        (lambda **p: preference_margin.dpop(**p), np.log(2)),
        (lambda **p: preference_sorted.aot(**p), np.log(2)),
        (lambda **p: preference_sorted.aot_unpaired(**p), np.log(2)),
    ],
)
def test_value_while_the_policy_is_the_reference(loss, want):
    out, stats = loss(**AT_REFERENCE)
    np.testing.assert_allclose(out, np.full(3, want), rtol=1e-6, atol=1e-7)
    # Nothing is preferred yet, and a tie is not a success.
    np.testing.assert_array_equal(stats["rewards/accuracies"], [0, 0, 0])


def test_stats_are_beta_times_log_ratios_under_the_names_of_dashboards():
    _, stats = preference.ipo(**PAIR, beta=0.3)
    c, r = (np.asarray(PAIR[k] - PAIR[f"ref_{k}"]) for k in ("chosen", "rejected"))
    np.testing.assert_allclose(stats["rewards/chosen"], 0.3 * c, rtol=1e-6)
    np.testing.assert_allclose(stats["rewards/rejected"], 0.3 * r, rtol=1e-6)
    np.testing.assert_allclose(stats["rewards/margins"], 0.3 * (c - r), rtol=1e-5)
    np.testing.assert_array_equal(stats["rewards/accuracies"], c > r)


def test_no_gradient_reaches_the_reference_or_the_stats():
    def total(pair):
        loss, stats = preference.dpo(**pair)
        return loss.sum() + sum(v.sum() for v in stats.values())

    grads = jax.grad(total)(PAIR)
    assert (grads["ref_chosen"] == 0).all()
    assert (grads["ref_rejected"] == 0).all()
    np.testing.assert_allclose(grads["chosen"], -grads["rejected"], rtol=1e-6)
    assert (grads["chosen"] < 0).all()


def test_beta_and_label_noise_may_differ_by_row():
    beta, noise = jnp.asarray([0.1, 0.5, 1.0]), jnp.asarray([0.0, 0.2, 0.4])
    got, _ = preference.dpo(**PAIR, beta=beta, label_smoothing=noise)
    for i in range(3):
        one = {k: v[i : i + 1] for k, v in PAIR.items()}
        want, _ = preference.dpo(**one, beta=float(beta[i]), label_smoothing=float(noise[i]))
        np.testing.assert_allclose(got[i], want[0], rtol=1e-5)


def test_a_column_is_refused_not_broadcast():
    with pytest.raises(Exception, match="chosen"):
        preference.dpo(**(AT_REFERENCE | {"chosen": ZERO[:, None]}))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: preference.robust_dpo(**PAIR, label_smoothing=0.5), "label_smoothing=0.5"),
        (lambda: preference.exo(**PAIR, label_smoothing=0.0), "label_smoothing=0.0"),
        (lambda: preference.dpo(**PAIR, divergence="kl"), "divergence='kl'"),
        (lambda: preference.gpo(**PAIR, function="sigmoid"), "function='sigmoid'"),
        (
            lambda: preference_online.reward_aware(
                **PAIR, reward_chosen=ZERO, reward_rejected=ZERO, distance="kl"
            ),
            "distance='kl'",
        ),
        (lambda: preference_unpaired.kto_reference_point(ZERO[:1], ZERO[:1]), "2 or more"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_aot_is_dpo_of_quantiles_and_dpo_itself_for_a_batch_of_one():
    one = {k: v[:1] for k, v in PAIR.items()}
    np.testing.assert_allclose(preference_sorted.aot(**one)[0], preference.dpo(**one)[0], rtol=1e-6)
    mixed = {k: v[jnp.asarray([2, 0, 1])] if "ref" in k else v for k, v in PAIR.items()}
    np.testing.assert_allclose(
        preference_sorted.aot(**mixed)[0], preference_sorted.aot(**PAIR)[0], rtol=1e-6
    )


def test_length_desensitised_logprobs_damp_the_longer_tail_only():
    logps, mask = jnp.full((1, 4), -1.0), jnp.asarray([[0, 1, 1, 1]])
    short = jnp.asarray([[0, 1, 0, 0]])
    sides = {"chosen": logps, "rejected": logps, "chosen_mask": mask, "rejected_mask": short}
    for alpha, want in ((1.0, -3.0), (0.5, -2.0), (0.0, -1.0)):
        chosen, rejected = preference_margin.ld_logprobs(**sides, alpha=alpha)
        np.testing.assert_allclose([chosen[0], rejected[0]], [want, -1.0])


def test_wpo_weighs_1_where_one_token_is_certain_and_caps_on_request():
    certain = jnp.zeros((1, 3))
    weight = preference_margin.wpo_weights(certain, certain, jnp.ones((1, 3)))
    np.testing.assert_allclose(weight, [1.0])
    loss = jnp.asarray([2.0])
    heavy = {"chosen_weight": jnp.asarray([3.0]), "rejected_weight": jnp.asarray([0.5])}
    np.testing.assert_allclose(preference_margin.wpo(loss, **heavy), [3.0])
    np.testing.assert_allclose(preference_margin.wpo(loss, **heavy, cap=1.0), [1.0])


def test_gap_weights_fall_off_like_a_gaussian():
    out = preference_margin.gap_weights(jnp.asarray([1.0, 3.0]), mean_gap=1.0, std_gap=2.0)
    np.testing.assert_allclose(out, [1.0, np.exp(-0.5)], rtol=1e-6)


def test_alphapo_survives_sums_that_underflow_and_tends_to_log_p():
    logps = jnp.asarray([-110.0, -0.5, 0.0])
    value, grad = jax.value_and_grad(lambda x: preference_free.alpha_reward(x, alpha=0.25).sum())(
        logps
    )
    assert jnp.isfinite(value)
    assert jnp.isfinite(grad).all()
    np.testing.assert_allclose(
        preference_free.alpha_reward(logps, alpha=0.25)[0], (1 - np.exp(27.5)) / 0.25, rtol=1e-5
    )
    np.testing.assert_array_equal(preference_free.alpha_reward(logps, alpha=0.0), logps)


def test_log_odds_are_finite_at_certainty_and_exact_near_it():
    x = jnp.asarray([0.0, -1e-4, -0.693, -0.6932, -200.0])
    value, grad = jax.value_and_grad(lambda x: preference_free.log_odds(x).sum())(x)
    assert jnp.isfinite(value)
    assert jnp.isfinite(grad).all()
    y = np.asarray(x[1:], np.float64)
    np.testing.assert_allclose(
        preference_free.log_odds(x)[1:], y - np.log(-np.expm1(y)), rtol=1e-5, atol=1e-6
    )


def test_alpha_divergence_tends_to_the_log_ratio_and_forward_kl_at_its_ends():
    x = jnp.asarray([-2.0, 0.3, 1.5])
    near = pairwise.alpha_score(x, alpha=1 + 1e-3)
    np.testing.assert_allclose(near, x, rtol=2e-3)
    np.testing.assert_array_equal(pairwise.alpha_score(x, alpha=1.0), x)
    np.testing.assert_allclose(
        pairwise.alpha_score(x, alpha=0.0), pairwise.forward_kl_score(x), rtol=1e-5
    )


def test_d2o_is_below_the_mean_of_its_anchors_dpo():
    anchors = jnp.asarray([[0.5, 2.0, -1.0]])
    one = {"rejected": jnp.asarray([0.3]), "ref_rejected": jnp.zeros(1)}
    got, _ = preference_unpaired.d2o(anchors=anchors, ref_anchors=anchors * 0, **one)
    each = [
        preference_unpaired.d2o(anchors=anchors[:, i : i + 1], ref_anchors=jnp.zeros((1, 1)), **one)
        for i in range(3)
    ]
    assert got[0] < np.mean([loss[0] for loss, _ in each])


def test_bco_leaves_desirable_rows_unweighted():
    rows = {"logps": jnp.zeros(2), "ref_logps": jnp.zeros(2), "delta": 0.0}
    out, _ = preference_unpaired.bco(
        **rows, desirable=jnp.asarray([True, False]), weight=jnp.asarray([9.0, 2.0])
    )
    np.testing.assert_allclose(out, np.log(2) * np.array([1, 2]), rtol=1e-6)
    np.testing.assert_allclose(
        preference_unpaired.density_ratio(jnp.asarray([0.1, 0.75, 1.0])), [0.5, 3, 10], rtol=1e-5
    )


def test_ties_go_to_the_first():
    first, second = jnp.asarray([1.0, 2.0]), jnp.asarray([1.0, 3.0])
    chosen, rejected = preference_online.order(jnp.zeros(2), jnp.ones(2), first >= second)
    np.testing.assert_array_equal(chosen, [0, 1])
    np.testing.assert_array_equal(rejected, [1, 0])
