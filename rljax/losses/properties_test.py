"""What every loss owes its caller, checked on all of them: finite, masked, row by row, jittable."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax.losses import (
    distill,
    distill_policy,
    distill_topk,
    listwise,
    mean,
    policy,
    policy_entropy,
    policy_sequence,
    policy_soft,
    preference,
    preference_anchored,
    preference_free,
    preference_margin,
    preference_online,
    preference_sorted,
    preference_unpaired,
    reward,
    reward_regression,
    value,
)

B, T, V = 4, 5, 6


def pair(*extra, reference=True):
    names = ("chosen", "rejected") + (("ref_chosen", "ref_rejected") if reference else ())
    return tuple(names) + extra


def kto_with_flags(logps, ref_logps, good, **options):
    return preference_unpaired.kto(
        logps=logps, ref_logps=ref_logps, desirable=good > 0, reference_point=1.0, **options
    )


def dro(**rows):
    for_policy, for_value, _ = preference_unpaired.dro(**rows)
    return for_policy + for_value, {}


# (loss, names of its [B] inputs); a loss returns (loss, stats) or the loss.
ROW_LOSSES = {
    "dpo": (preference.dpo, pair()),
    "dpo, forward KL": (functools.partial(preference.dpo, divergence="forward_kl"), pair()),
    "dpo, JS": (functools.partial(preference.dpo, divergence="js"), pair()),
    "dpo, alpha": (functools.partial(preference.dpo, divergence="alpha", alpha=2.0), pair()),
    "robust_dpo": (functools.partial(preference.robust_dpo, label_smoothing=0.2), pair()),
    "hinge": (preference.hinge, pair()),
    "ipo": (preference.ipo, pair()),
    "discopop": (preference.discopop, pair()),
    "exo": (preference.exo, pair()),
    "length_normalized_dpo": (
        preference.length_normalized_dpo,
        pair("chosen_length", "rejected_length"),
    ),
    **{
        f"gpo, {name}": (functools.partial(preference.gpo, function=name), pair())
        for name in preference.GPO_FUNCTIONS
    },
    "nca_pair": (preference_anchored.nca_pair, pair()),
    "bco_pair": (preference_anchored.bco_pair, pair()),
    "apo_zero": (preference_anchored.apo_zero, pair()),
    "apo_down": (preference_anchored.apo_down, pair()),
    "sppo": (preference_anchored.sppo, pair("win_rate")),
    "sppo_hard": (preference_anchored.sppo_hard, pair()),
    "odpo": (preference_margin.odpo, pair("offset")),
    "dpop": (preference_margin.dpop, pair()),
    "tdpo1": (preference_margin.tdpo1, pair("chosen_kl", "rejected_kl")),
    "tdpo2": (preference_margin.tdpo2, pair("chosen_kl", "rejected_kl")),
    "cpo": (preference_free.cpo, pair(reference=False)),
    "slic": (preference_free.slic, pair(reference=False)),
    "simpo": (preference_free.simpo, pair(reference=False)),
    "alphapo": (preference_free.alphapo, pair(reference=False)),
    "orpo": (preference_free.orpo, pair(reference=False)),
    "reference_free_hinge": (preference_free.reference_free_hinge, pair(reference=False)),
    "reference_free_ipo": (preference_free.reference_free_ipo, pair(reference=False)),
    "kto": (kto_with_flags, ("logps", "ref_logps", "good")),
    "npo": (preference_unpaired.npo, ("logps", "ref_logps")),
    "dro": (dro, ("logps", "ref_logps", "rewards", "values")),
    "dno": (preference_online.dno, pair("win_rate_chosen", "win_rate_rejected")),
    "reward_aware": (preference_online.reward_aware, pair("reward_chosen", "reward_rejected")),
    "optimal_advantage_regression": (
        preference_online.optimal_advantage_regression,
        ("logps", "ref_logps", "rewards", "values"),
    ),
    "bradley_terry": (reward.bradley_terry, pair("margin", reference=False)),
    "focal": (reward.focal, pair(reference=False)),
    "scaled_bradley_terry": (reward.scaled_bradley_terry, pair("margin", reference=False)),
    "generation_regularized": (
        reward.generation_regularized,
        pair("chosen_logps", reference=False),
    ),
    "sequence_clip": (policy_sequence.sequence_clip, ("logps", "old_logps", "advantages")),
    "mirror_descent": (
        functools.partial(policy_sequence.mirror_descent, tau=0.5),
        ("logps", "old_logps", "advantages"),
    ),
    "kto_pair": (preference_anchored.kto_pair, pair()),
    "aot": (preference_sorted.aot, pair()),
    "aot_unpaired": (preference_sorted.aot_unpaired, pair()),
}
BATCHED_ROWS = {"kto_pair", "aot", "aot_unpaired"}

ADVANTAGES = jnp.asarray([-1.0, 0.0, 0.5, 2.0])


def vespo(logps, old_logps, mask):
    rows = {"advantages": ADVANTAGES, "mask": mask}
    return policy_soft.vespo(logps=logps, old_logps=old_logps, **rows)


def gmpo(logps, old_logps, mask):
    rows = {"advantages": ADVANTAGES, "mask": mask}
    loss, _ = policy_sequence.gmpo(logps=logps, old_logps=old_logps, **rows)
    return jnp.where(mask != 0, loss[:, None], 0.0)


def nash_md(logps, ref_logps, mask):
    rows = {"win_probability": jnp.asarray([0.1, 0.5, 0.7, 1.0]), "mask": mask}
    loss, _ = preference_online.nash_md(logps=logps, ref_logps=ref_logps, **rows)
    return jnp.where(mask != 0, loss[:, None], 0.0)


# (loss, names of its [B, T] inputs beside the mask)
TOKEN_LOSSES = {
    "reinforce": (policy.reinforce, ("logps", "advantages")),
    "ppo_clip": (policy.ppo_clip, ("logps", "old_logps", "advantages")),
    "dual clip": (
        functools.partial(policy.ppo_clip, dual_clip=3.0),
        ("logps", "old_logps", "advantages"),
    ),
    **{
        f"grpo, {level}": (
            functools.partial(policy.grpo, level=level),
            ("logps", "old_logps", "advantages"),
        )
        for level in ("token", "sequence", "sequence_token")
    },
    "two-sided": (
        functools.partial(policy.grpo, max_ratio=4.0),
        ("logps", "old_logps", "advantages"),
    ),
    "cispo": (policy_soft.cispo, ("logps", "old_logps", "advantages")),
    "sapo": (policy_soft.sapo, ("logps", "old_logps", "advantages")),
    "clipped_value": (value.clipped, ("values", "old_values", "returns")),
    "advantage_regression": (
        functools.partial(policy_sequence.advantage_regression, lam=0.5),
        ("logps", "init_logps", "advantages"),
    ),
    "quark": (policy_sequence.quark, ("logps", "kl", "entropy")),
    "iw_opd": (distill_policy.iw_opd, ("student_logps", "teacher_logps")),
    "kl_cov": (policy_entropy.kl_cov, ("logps", "old_logps", "advantages")),
}
TOKEN_LOSSES |= {
    "vespo": (vespo, ("logps", "old_logps")),
    "gmpo": (gmpo, ("logps", "old_logps")),
    "nash_md": (nash_md, ("logps", "ref_logps")),
}
# kl_cov chooses its tokens over the batch; the others here have their rows' advantages built in.
BATCHED_TOKENS = {"kl_cov", "vespo", "gmpo", "nash_md"}


def unreduced(out):
    return out[0] if isinstance(out, tuple) else out


def draw(names, shape, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    arrays = {name: jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for name in names}
    for name in names:
        if "length" in name:
            arrays[name] = jnp.abs(arrays[name]) + 1
        elif "logps" in name or name in ("chosen", "rejected", "ref_chosen", "ref_rejected"):
            arrays[name] = -jnp.abs(arrays[name])
    return arrays


def value_and_grads(loss, arrays, **extra):
    def total(arrays):
        out = unreduced(loss(**arrays, **extra))
        return out.sum(), out

    grads, out = jax.grad(total, has_aux=True)(arrays)
    return out, grads


def finite(tree):
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", ROW_LOSSES)
def test_row_losses_are_finite_at_log_ratios_of_thousands(name):
    loss, names = ROW_LOSSES[name]
    for scale in (0.0, 1.0, 1e4):
        out, grads = value_and_grads(loss, draw(names, (B,), 0, scale))
        assert out.shape == (B,)
        assert finite(out), scale
        assert finite(grads), scale


@pytest.mark.parametrize("name", sorted(ROW_LOSSES.keys() - BATCHED_ROWS))
def test_a_row_is_worth_the_same_alone_in_any_order_and_under_vmap(name):
    loss, names = ROW_LOSSES[name]
    arrays = draw(names, (B,), 1)
    out, grads = value_and_grads(loss, arrays)
    order = np.array([2, 0, 3, 1])
    moved, moved_grads = value_and_grads(loss, {k: v[order] for k, v in arrays.items()})
    np.testing.assert_allclose(moved, out[order], rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b[order], rtol=1e-5), moved_grads, grads
    )
    one = jax.vmap(lambda x: unreduced(loss(**x))[0])({k: v[:, None] for k, v in arrays.items()})
    np.testing.assert_allclose(one, out, rtol=1e-5)


@pytest.mark.parametrize("name", ROW_LOSSES)
def test_bf16_log_probabilities_give_fp32_losses(name):
    loss, names = ROW_LOSSES[name]
    half = {k: v.astype(jnp.bfloat16) for k, v in draw(names, (B,), 2).items()}
    out = unreduced(loss(**half))
    assert out.dtype == jnp.float32
    want = unreduced(loss(**{k: v.astype(jnp.float32) for k, v in half.items()}))
    np.testing.assert_allclose(out, want, rtol=2e-2, atol=2e-2)


CONSTANT = {
    *("ref_chosen", "ref_rejected", "ref_logps", "old_logps", "init_logps", "teacher_logps"),
    *("advantages", "returns", "old_values", "offset", "win_rate"),
    *("win_rate_chosen", "win_rate_rejected", "reward_chosen", "reward_rejected"),
}


@pytest.mark.parametrize("name", [*ROW_LOSSES, *TOKEN_LOSSES])
def test_references_and_advantages_are_constants_and_the_policy_is_not(name):
    loss, names = (ROW_LOSSES | TOKEN_LOSSES)[name]
    tokens = name in TOKEN_LOSSES
    arrays = draw(names, (B, T) if tokens else (B,), 9, scale=0.1)
    extra = {"mask": jnp.ones((B, T))} if tokens else {}
    _, grads = value_and_grads(loss, arrays, **extra)
    for key in CONSTANT & grads.keys():
        assert (grads[key] == 0).all(), key
    assert (grads[names[0]] != 0).any()


masks = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B).map(
    np.array
)


@pytest.mark.parametrize("name", TOKEN_LOSSES)
@settings(max_examples=12, deadline=None)
@given(mask=masks, seed=st.integers(0, 2**16), garbage=st.sampled_from([np.nan, np.inf, -1e30]))
def test_masked_positions_may_hold_anything_and_get_exactly_nothing(name, mask, seed, garbage):
    loss, names = TOKEN_LOSSES[name]
    arrays = draw(names, (B, T), seed)
    clean = value_and_grads(
        loss, {k: jnp.where(mask, v, 0.0) for k, v in arrays.items()}, mask=jnp.asarray(mask)
    )
    dirty = value_and_grads(
        loss, {k: jnp.where(mask, v, garbage) for k, v in arrays.items()}, mask=jnp.asarray(mask)
    )
    assert finite(dirty)
    for tree in (clean, dirty):
        for x in jax.tree.leaves(tree):
            assert (x[~mask] == 0).all()
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), clean, dirty)


@pytest.mark.parametrize("name", TOKEN_LOSSES)
def test_token_losses_are_finite_at_log_ratios_of_thousands(name):
    loss, names = TOKEN_LOSSES[name]
    for scale in (0.0, 1e4):
        assert finite(value_and_grads(loss, draw(names, (B, T), 3, scale), mask=jnp.ones((B, T))))


@pytest.mark.parametrize("name", sorted(TOKEN_LOSSES.keys() - BATCHED_TOKENS))
@pytest.mark.parametrize(
    "aggregate",
    [
        mean.token_mean,
        mean.sequence_mean,
        mean.sequence_sum,
        functools.partial(mean.constant_length, length=7),
    ],
)
def test_microbatches_add_up_to_the_batch_in_value_and_gradient(name, aggregate):
    loss, names = TOKEN_LOSSES[name]
    arrays = draw(names, (B, T), 4)
    mask = jnp.asarray([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1]])
    first = names[0]

    def total(x, rows):
        part = {k: v[rows] for k, v in (arrays | {first: x}).items()}
        return aggregate(unreduced(loss(**part, mask=mask[rows])), mask[rows])

    def split(x):
        return (total(x, slice(0, 1)) + total(x, slice(1, 4))).value()

    want = jax.value_and_grad(lambda x: total(x, slice(None)).value())(arrays[first])
    got = jax.value_and_grad(split)(arrays[first])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), got, want)


@pytest.mark.parametrize("name", ["grpo, sequence", "ppo_clip", "iw_opd"])
def test_eight_devices_agree_with_one(name):
    loss, names = TOKEN_LOSSES[name]
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    arrays = draw(names, (8, T), 5)
    mask = jnp.asarray(np.random.default_rng(6).random((8, T)) > 0.4)

    def total(arrays, mask):
        return mean.token_mean(unreduced(loss(**arrays, mask=mask)), mask).value()

    want = jax.value_and_grad(total)(arrays, mask)
    by_rows = jax.tree.map(lambda x: jax.device_put(x, rows), (arrays, mask))
    got = jax.jit(jax.value_and_grad(total))(*by_rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), got, want)

    def local(arrays, mask):
        part = mean.token_mean(unreduced(loss(**arrays, mask=mask)), mask)
        return jax.tree.map(lambda x: jax.lax.psum(x, "data"), part)

    spec = jax.sharding.PartitionSpec("data")
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=(spec, spec), out_specs=jax.sharding.PartitionSpec()
    )
    np.testing.assert_allclose(mapped(*by_rows).value(), want[0], rtol=1e-5, atol=1e-7)


LOGIT_LOSSES = {
    "forward_kl": lambda s, t: distill.forward_kl(jax.nn.log_softmax(s), jax.nn.log_softmax(t)),
    "reverse_kl": lambda s, t: distill.reverse_kl(jax.nn.log_softmax(s), jax.nn.log_softmax(t)),
    "mixture": lambda s, t: distill.divergence(
        jax.nn.log_softmax(s), jax.nn.log_softmax(t), beta=0.3
    ),
    "top k": functools.partial(distill_topk.topk_divergence, beta=0.5, k=2),
    "steps": lambda s, t: reward_regression.step_classification(s, jnp.zeros((B, T), int))[0],
}


@pytest.mark.parametrize("name", LOGIT_LOSSES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_losses_of_logits_are_finite_and_never_negative(name, scale):
    student, teacher = (
        jnp.asarray(scale * np.random.default_rng(i).normal(size=(B, T, V)), jnp.float32)
        for i in range(2)
    )
    out, grad = jax.value_and_grad(lambda s: LOGIT_LOSSES[name](s, teacher).sum())(student)
    assert finite((out, grad))
    assert (LOGIT_LOSSES[name](student, teacher) >= -1e-6 * max(1, scale)).all()


@pytest.mark.parametrize("loss", [listwise.plackett_luce, listwise.pairwise_mean])
def test_rankings_are_finite_at_scores_of_thousands(loss):
    scores = 1e4 * jax.random.normal(jax.random.key(0), (B, 3))
    assert finite(jax.value_and_grad(lambda s: loss(s).sum())(scores))


def test_a_loss_runs_inside_scan_and_under_a_second_derivative():
    arrays = draw(pair(), (3, B), 7)

    def step(total, x):
        return total + preference.dpo(**x)[0].mean(), None

    got = jax.lax.scan(step, 0.0, arrays)[0]
    want = sum(preference.dpo(**{k: v[i] for k, v in arrays.items()})[0].mean() for i in range(3))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    h = jax.hessian(lambda c: preference.dpo(**(draw(pair(), (1,), 8) | {"chosen": c}))[0][0])
    assert h(jnp.asarray([-1.0])) > 0
