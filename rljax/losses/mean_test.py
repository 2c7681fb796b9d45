import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from rljax.losses import mean
from rljax.losses.mean import Mean

TRAPS = json.loads(
    (pathlib.Path(__file__).parents[2] / "tests/goldens/traps/cases.json").read_text()
)


def padded(rows):
    width = max(map(len, rows))
    x = np.full((len(rows), width), np.nan, np.float32)
    mask = np.zeros_like(x)
    for i, row in enumerate(rows):
        x[i, : len(row)], mask[i, : len(row)] = row, 1
    return jnp.asarray(x), jnp.asarray(mask)


def test_an_empty_mean_is_zero_with_zero_gradient():
    x, mask = jnp.full((2, 3), jnp.nan), jnp.zeros((2, 3))
    for aggregate in (mean.token_mean, mean.sequence_mean, mean.sequence_sum):
        value, grad = jax.value_and_grad(lambda x, f=aggregate: f(x, mask).value())(x)
        assert value == 0
        assert (grad == 0).all()


def test_means_add_by_halves():
    total = Mean(jnp.float32(6), jnp.float32(2)) + Mean(jnp.float32(8), jnp.float32(8))
    assert isinstance(total, Mean)
    np.testing.assert_allclose(total.value(), 1.4)


def test_trap_p11_an_empty_row_neither_divides_by_zero_nor_dilutes():
    case = TRAPS["P11"]
    x = jnp.asarray(case["input"]["per_token_loss"])
    mask = jnp.asarray(case["input"]["mask"])
    want = case["expect"]["row_mean_then_mean_over_rows_with_tokens"]
    value, grad = jax.value_and_grad(lambda x: mean.sequence_mean(x, mask).value())(x)
    np.testing.assert_allclose(value, want)
    np.testing.assert_allclose(grad, [[0.5, 0.5, 0], [0, 0, 0]])
    np.testing.assert_allclose(mean.token_mean(x, mask).value(), case["expect"]["token_mean"])
    diluted = mean.sequence_mean(x, mask, count_empty_rows=True)
    np.testing.assert_allclose(diluted.value(), case["wrong"]["silent_zero_row"])


def test_trap_p13_microbatches_add_up_to_the_whole_batch():
    case = TRAPS["P13"]
    x, mask = padded(case["input"]["sequences"])
    length = case["input"]["constant_length"]
    aggregates = {
        "token_mean": mean.token_mean,
        "sequence_mean": mean.sequence_mean,
        "dr_constant": lambda x, mask: mean.constant_length(x, mask, length=length),
    }
    for name, aggregate in aggregates.items():
        want = case["expect"][name]
        np.testing.assert_allclose(aggregate(x, mask).value(), want, rtol=1e-6)
        parts = aggregate(x[:1], mask[:1]) + aggregate(x[1:], mask[1:])
        np.testing.assert_allclose(parts.value(), want, rtol=1e-6)


def test_sequence_sum_weighs_long_sequences_more():
    x, mask = padded([[1.0], [1.0, 1.0, 1.0]])
    np.testing.assert_allclose(mean.sequence_sum(x, mask).value(), 2.0)


def test_filler_rows_weigh_nothing():
    x = jnp.asarray([1.0, jnp.nan, 3.0])
    np.testing.assert_allclose(mean.row_mean(x, jnp.asarray([1.0, 0.0, 1.0])).value(), 2.0)
