import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import group_advantage, multi_reward

TRAPS = json.loads(
    (pathlib.Path(__file__).parents[2] / "tests/goldens/traps/cases.json").read_text()
)
NAN = float("nan")


def rewards(rows):
    return jnp.asarray([[NAN if x is None else x for x in row] for row in rows])


def test_trap_p12_a_hole_moves_no_sibling_and_equal_rewards_give_zero():
    case = TRAPS["P12"]
    r = rewards(case["input"]["rewards"])
    centred = group_advantage.center(r)
    np.testing.assert_allclose(centred, case["expect"]["advantages_centred_only"], atol=1e-6)
    for ddof, name in ((1, "std_sample"), (0, "std_population")):
        std = np.array(case["expect"][name])[:, None]
        got = group_advantage.standardize(r, ddof=ddof, eps=case["input"]["eps"])
        np.testing.assert_allclose(got, centred / (std + case["input"]["eps"]), rtol=1e-5)
    np.testing.assert_array_equal(
        group_advantage.scored(r), [[1, 0, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]]
    )
    np.testing.assert_allclose(group_advantage.group_stats(r)["frac_reward_zero_std"], 1 / 3)


@pytest.mark.parametrize(
    "advantages",
    [
        group_advantage.center,
        group_advantage.standardize,
        group_advantage.leave_one_out,
        group_advantage.leave_one_out_standardize,
        lambda r: group_advantage.leave_one_out(r, normalize=True),
        lambda r: group_advantage.standardize(r, over="batch"),
        group_advantage.best_minus_second,
        lambda r: group_advantage.optimal_baseline(r, jnp.ones(r.shape)),
        lambda r: group_advantage.remax(r, jnp.zeros(r.shape[0])),
        lambda r: multi_reward.gdpo(r[..., None], jnp.ones(1)),
    ],
)
def test_holes_are_zero_and_everything_is_finite(advantages):
    r = rewards([[1.0, None, 0.0, 1.0], [2.0] * 4, [None] * 4, [None, None, 5.0, None]])
    out = advantages(r)
    assert jnp.isfinite(out).all()
    assert (out[jnp.isnan(r)] == 0).all()


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    r = rewards([[1.0, 4.0, None, 7.0], [3.0, None, None, None]])
    out = group_advantage.leave_one_out(r)
    np.testing.assert_allclose(out, [[1 - 5.5, 4 - 4, 0, 7 - 2.5], [0, 0, 0, 0]])


def test_leave_one_out_standardize_uses_the_others_statistics():
    x = np.array([1.0, 4.0, 2.0, 7.0])
    out = group_advantage.leave_one_out_standardize(jnp.asarray(x)[None], eps=0.0)[0]
    rest = [np.delete(x, i) for i in range(4)]
    np.testing.assert_allclose(
        out, [(x[i] - o.mean()) / o.std(ddof=1) for i, o in enumerate(rest)], rtol=1e-5
    )
    # The others are equal: centred, not divided.
    out = group_advantage.leave_one_out_standardize(jnp.asarray([[5.0, 1.0, 1.0]]))
    np.testing.assert_allclose(out[0, 0], 4.0)


def test_batch_scaling_keeps_the_group_mean():
    r = jnp.asarray([[0.0, 1.0], [10.0, 14.0]])
    out = group_advantage.standardize(r, over="batch", eps=0.0)
    want = np.asarray([[-0.5, 0.5], [-2, 2]]) / np.std(np.asarray(r), ddof=1)
    np.testing.assert_allclose(out, want, rtol=1e-6)


def test_a_misspelt_scope_is_refused():
    with pytest.raises(ValueError, match="'group' or 'batch'"):
        group_advantage.standardize(jnp.zeros((1, 2)), over="row")


def test_baselines_of_remax_opo_and_pass_at_k():
    r = jnp.asarray([[1.0, 0.0, 3.0]])
    np.testing.assert_allclose(group_advantage.remax(r, jnp.asarray([2.0])), [[-1, -2, 1]])
    lengths = jnp.asarray([[1, 2, 3]])
    np.testing.assert_allclose(
        group_advantage.optimal_baseline(r, lengths), r - (1 + 9) / 6, rtol=1e-6
    )
    np.testing.assert_allclose(group_advantage.best_minus_second(r), [[0, 0, 2]])
    np.testing.assert_array_equal(
        group_advantage.best_minus_second(jnp.asarray([[3.0, 3.0, 1.0]])), [[0, 0, 0]]
    )


def test_a_reward_of_small_scale_is_not_drowned_when_each_is_standardised_first():
    big, small = jnp.asarray([[0.0, 1000.0, 0, 1000.0]]), jnp.asarray([[0.0, 0.0, 1.0, 1.0]])
    both = jnp.stack([big, small], -1)
    ones = jnp.ones(2)
    summed = group_advantage.standardize(multi_reward.weighted_sum(both, ones))[0]
    np.testing.assert_allclose(summed[1], summed[3], atol=2e-3)
    apart = multi_reward.gdpo(both, ones)[0]
    np.testing.assert_allclose([apart[0], apart[1] + apart[2]], [-apart[3], 0], atol=1e-5)
    assert apart[3] > apart[1] + 1


def test_weights_count_only_functions_that_apply():
    both = jnp.asarray([[[1.0, NAN], [2.0, 10.0], [NAN, NAN]]])
    out = multi_reward.weighted_sum(both, jnp.asarray([1.0, 0.5]))
    np.testing.assert_allclose(out, [[1.0, 7.0, NAN]])


def test_global_statistics_over_a_mesh_equal_those_of_one_device():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    r = jax.random.normal(jax.random.key(0), (8, 4))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    sharded = jax.jit(lambda r: group_advantage.standardize(r, over="batch"), in_shardings=place)
    want = group_advantage.standardize(r, over="batch")
    np.testing.assert_allclose(sharded(jax.device_put(r, place)), want, rtol=1e-5)
