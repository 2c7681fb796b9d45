import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from rljax.losses import logprobs

TRAPS = json.loads(
    (pathlib.Path(__file__).parents[2] / "tests/goldens/traps/cases.json").read_text()
)
SHAPES = {"hidden": (2, 11, 5), "head": (5, 17), "bias": (17,)}


def problem(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    arrays = {k: jnp.asarray(rng.normal(size=s), dtype) for k, s in SHAPES.items()}
    B, T, _ = SHAPES["hidden"]
    targets = jnp.asarray(rng.integers(0, 17, (B, T)), jnp.int32)
    mask = jnp.asarray(rng.random((B, T)) > 0.3).at[:, 4:8].set(False)
    return arrays, targets, mask


def unchunked(arrays, targets, mask, *, temperature, softcap, scale):
    """The textbook form, on logits that are all stored."""
    z = jnp.einsum("btd,dv->btv", arrays["hidden"], arrays["head"])
    z = z + arrays["bias"][None, None, :]
    z = softcap * jnp.tanh(z * scale / softcap)
    logp = jax.nn.log_softmax(z / temperature)
    picked = jnp.take_along_axis(logp, targets[..., None], -1)[..., 0]
    return picked * mask, -(jnp.exp(logp) * logp).sum(-1) * mask


@pytest.mark.parametrize("chunk", [None, 1, 2, 3, 4, 7, 11, 50])
@jax.enable_x64(True)
def test_values_and_gradients_equal_the_unchunked_form_in_float64(chunk):
    arrays, targets, mask = problem()
    shape = {"temperature": 0.7, "softcap": 3.0, "scale": 1.3}
    weights = [jnp.asarray(np.random.default_rng(i).normal(size=mask.shape)) for i in (1, 2)]

    def total(fn):
        def f(arrays):
            out = fn(arrays)
            return sum((w * x).sum() for w, x in zip(weights, out)), out

        return jax.value_and_grad(f, has_aux=True)(arrays)

    ours = total(
        lambda a: logprobs.token_logprobs(
            a["hidden"], a["head"], targets, mask=mask, bias=a["bias"], chunk=chunk, **shape
        )
    )
    want = total(lambda a: unchunked(a, targets, mask, **shape))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), ours, want)


def test_masked_positions_hold_nan_and_still_give_zero_and_zero_gradient():
    arrays, targets, mask = problem(dtype=jnp.float32)
    hidden = jnp.where(mask[..., None], arrays["hidden"], jnp.nan)
    targets = jnp.where(mask, targets, -100)

    def total(hidden, head):
        logp, entropy = logprobs.token_logprobs(hidden, head, targets, mask=mask, chunk=3)
        return (logp + entropy).sum(), (logp, entropy)

    grads, out = jax.grad(total, (0, 1), has_aux=True)(hidden, arrays["head"])
    for x in out:
        assert (x[~mask] == 0).all()
        assert (x[mask] != 0).all()
    assert (grads[0][~mask] == 0).all()
    clean = jax.grad(lambda h, w: total(jnp.where(mask[..., None], h, 0), w)[0], 1)
    np.testing.assert_array_equal(grads[1], clean(arrays["hidden"], arrays["head"]))


def test_nothing_unmasked_gives_zero_and_zero_gradient():
    arrays, targets, mask = problem(dtype=jnp.float32)
    hidden = jnp.full_like(arrays["hidden"], jnp.inf)

    def total(hidden, head):
        return sum(logprobs.token_logprobs(hidden, head, targets, mask=mask * 0, chunk=4)).sum()

    value, grads = jax.value_and_grad(total, (0, 1))(hidden, arrays["head"])
    assert value == 0
    assert all((g == 0).all() for g in grads)


@jax.enable_x64(True)
def test_a_removed_vocabulary_entry_has_no_probability_and_no_gradient():
    arrays, targets, _ = problem()
    targets = targets % 10
    bias = arrays["bias"].at[10:].set(-jnp.inf)
    short = {"head": arrays["head"][:, :10], "bias": arrays["bias"][:10]}

    def total(head, bias):
        logp, entropy = logprobs.token_logprobs(arrays["hidden"], head, targets, bias=bias)
        return (logp + 0.3 * entropy).sum()

    value, (d_head, d_bias) = jax.value_and_grad(total, (0, 1))(arrays["head"], bias)
    want, (s_head, s_bias) = jax.value_and_grad(total, (0, 1))(short["head"], short["bias"])
    np.testing.assert_allclose(value, want, rtol=1e-12)
    np.testing.assert_allclose(d_head[:, :10], s_head, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(d_bias[:10], s_bias, rtol=1e-10, atol=1e-14)
    assert (d_head[:, 10:] == 0).all()
    assert (d_bias[10:] == 0).all()


def test_extras_against_float64_numpy():
    arrays, targets, mask = problem(dtype=jnp.float32)
    scores = logprobs.token_scores(
        arrays["hidden"], arrays["head"], targets, mask=mask, temperature=0.5, chunk=3
    )
    z = np.einsum("btd,dv->btv", *(np.asarray(arrays[k], np.float64) for k in ("hidden", "head")))
    p = np.exp(z / 0.5)
    p /= p.sum(-1, keepdims=True)
    keep = np.asarray(mask)
    np.testing.assert_allclose(scores.log_sum_p2[keep], np.log((p**2).sum(-1))[keep], rtol=1e-4)
    np.testing.assert_allclose(scores.mean_logit[keep], z.mean(-1)[keep], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(scores.correct[keep], (z.argmax(-1) == targets)[keep])
    assert not scores.correct[~keep].any()


@jax.enable_x64(True)
def test_logits_of_ten_thousand_stay_exact():
    arrays, targets, _ = problem()
    big = arrays["hidden"] * 1e4
    want = logprobs.token_logprobs(big, arrays["head"], targets)
    got = logprobs.token_logprobs(
        big.astype(jnp.float32), arrays["head"].astype(jnp.float32), targets
    )
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    assert jnp.isfinite(got[1]).all()


def test_bf16_products_are_not_rounded_to_bf16():
    arrays, targets, _ = problem(dtype=jnp.bfloat16)
    got, _ = logprobs.token_logprobs(arrays["hidden"], arrays["head"], targets, chunk=2)
    assert got.dtype == jnp.float32
    wide = {k: v.astype(jnp.float32) for k, v in arrays.items()}
    want, _ = logprobs.token_logprobs(wide["hidden"], wide["head"], targets)
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_bf16_head_gradient_is_summed_in_fp32_over_chunks():
    # 512 equal contributions: a bf16 running sum stalls after 256 of them.
    hidden = jnp.ones((1, 512, 1), jnp.bfloat16)
    head = jnp.zeros((1, 2), jnp.bfloat16)
    targets = jnp.zeros((1, 512), jnp.int32)
    grad = jax.grad(lambda w: logprobs.token_logprobs(hidden, w, targets, chunk=1)[0].sum())(head)
    np.testing.assert_array_equal(grad.astype(np.float32), [[256.0, -256.0]])


def test_memory_of_value_and_grad_is_two_chunks_not_a_logits_array():
    B, T, D, V = 1, 512, 64, 50_000

    def total(hidden, head, targets):
        logp, entropy = logprobs.token_logprobs(hidden, head, targets)
        return (logp - entropy).sum()

    shapes = [
        jax.ShapeDtypeStruct((B, T, D), jnp.float32),
        jax.ShapeDtypeStruct((D, V), jnp.float32),
        jax.ShapeDtypeStruct((B, T), jnp.int32),
    ]
    compiled = jax.jit(jax.value_and_grad(total, (0, 1))).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 51e6  # one [B, T, V] takes 102e6


def test_masked_chunks_are_skipped():
    arrays, targets, _ = problem(dtype=jnp.float32)
    text = jax.jit(
        lambda h, w, m: logprobs.token_logprobs(h, w, targets, mask=m, chunk=2)[0]
    ).lower(arrays["hidden"], arrays["head"], jnp.ones((2, 11)))
    assert "conditional" in text.compile().as_text()


def mesh():
    auto = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "tensor"), axis_types=auto)


@pytest.mark.parametrize("manual", [False, True])
def test_sharded_over_batch_and_vocabulary_equals_one_device(manual):
    rng = np.random.default_rng(3)
    hidden = jnp.asarray(rng.normal(size=(8, 9, 4)), jnp.float32)
    head = jnp.asarray(rng.normal(size=(4, 16)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, 16, (8, 9)))
    mask = jnp.ones((8, 9)).at[:3, 2:6].set(0)

    def score(hidden, head, targets, mask):
        if manual:
            head = jax.lax.pcast(head, ("data",), to="varying")
        return logprobs.token_logprobs(hidden, head, targets, mask=mask, chunk=2)

    if manual:
        by_row = P("data")
        sharded = jax.shard_map(
            score,
            mesh=mesh(),
            in_specs=(by_row, P(), by_row, by_row),
            out_specs=by_row,
            axis_names={"data"},
        )
    else:
        sharded = score

    def total(fn, hidden, head):
        logp, entropy = fn(hidden, head, targets, mask)
        return (logp * jnp.arange(9.0)[None, :]).sum() + 0.3 * entropy.sum()

    def named(spec):
        return jax.sharding.NamedSharding(mesh(), spec)

    place = (named(P("data")), named(P("data", "tensor")))
    got = jax.jit(
        jax.value_and_grad(lambda h, w: total(sharded, h, w), (0, 1)), in_shardings=place
    )(jax.device_put(hidden, place[0]), jax.device_put(head, place[1]))

    want = jax.value_and_grad(
        lambda h, w: total(lambda *a: logprobs.token_logprobs(*a[:3], mask=a[3]), h, w), (0, 1)
    )(hidden, head)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, want)


def test_temperature_zero_is_refused():
    arrays, targets, _ = problem(dtype=jnp.float32)
    with pytest.raises(ValueError, match="temperature=0"):
        logprobs.token_logprobs(arrays["hidden"], arrays["head"], targets, temperature=0)


def test_trap_p07_each_token_is_scored_by_the_position_before_it():
    case = TRAPS["P07"]
    logits = jnp.asarray(case["input"]["logits_values"], jnp.float32)
    ids = jnp.asarray(case["input"]["ids"])
    # An identity head: hidden states are logits.
    logp, _ = logprobs.token_logprobs(logits[:, :-1], jnp.eye(5), ids[:, 1:])
    np.testing.assert_allclose(logp[0], case["expect"]["logp_of_tokens_1_to_3"], atol=1e-5)


def test_trap_p08_temperature_divides_the_logits():
    case = TRAPS["P08"]
    logits = jnp.asarray(case["input"]["logits"])[None, None]
    token = jnp.full((1, 1), case["input"]["token"])
    T = case["input"]["temperature"]
    for logp, _ in (
        logprobs.token_logprobs(logits, jnp.eye(4), token, temperature=T),
        logprobs.token_logprobs_from_logits(logits, token, temperature=T),
    ):
        np.testing.assert_allclose(logp, [[case["expect"]["logp"]]], atol=1e-6)


def test_trap_p10_a_large_bf16_vocabulary_is_summed_in_fp32():
    case = TRAPS["P10"]
    i = np.arange(case["input"]["vocab"])
    logits = jnp.asarray(4 * ((i * 7919) % 1000) / 1000 - 2, jnp.bfloat16)
    picks = jnp.asarray(case["input"]["picks"])
    logp = logprobs.log_softmax(logits)[picks]
    assert logp.dtype == jnp.float32
    np.testing.assert_allclose(logp, case["expect"]["logps_of_the_bf16_logits"], atol=1e-3)
    # The same through the chunked head: hidden is 1, the head holds the logits.
    hidden = jnp.ones((1, 4, 1), jnp.bfloat16)
    logp, _ = logprobs.token_logprobs(hidden, logits[None], picks[None])
    np.testing.assert_allclose(logp[0], case["expect"]["logps_of_the_bf16_logits"], atol=1e-3)


def test_masked_logits_may_be_nan():
    logits = jnp.asarray([[[1.0, 2.0], [jnp.nan, 0.0]]])
    mask = jnp.asarray([[1, 0]])

    def total(logits):
        return sum(
            logprobs.token_logprobs_from_logits(logits, jnp.zeros((1, 2), int), mask=mask)
        ).sum()

    value, grad = jax.value_and_grad(total)(logits)
    assert jnp.isfinite(value)
    assert (grad[0, 1] == 0).all()
    assert (grad[0, 0] != 0).all()


def test_sequence_log_probability_sums_or_averages_over_the_mask():
    logps = jnp.asarray([[-1.0, -2.0, jnp.nan], [jnp.nan] * 3])
    mask = jnp.asarray([[1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(logprobs.sequence_logprobs(logps, mask), [-3.0, 0.0])
    np.testing.assert_array_equal(
        logprobs.sequence_logprobs(logps, mask, average=True), [-1.5, 0.0]
    )
