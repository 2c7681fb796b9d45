import jax.numpy as jnp
import numpy as np

from rljax.losses import completions, running


def test_moments_of_batches_are_those_of_all_values_together():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3, 2, size=n) for n in (5, 1, 12)]
    moments = running.empty()
    for x in batches:
        padded = np.append(x, np.nan)
        moments = running.update(moments, jnp.asarray(padded), jnp.asarray(~np.isnan(padded)))
    values = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, values.mean(), rtol=1e-5)
    np.testing.assert_allclose(moments.std(), values.std(ddof=1), rtol=1e-5)
    np.testing.assert_allclose(
        running.normalize(moments, jnp.asarray(values)),
        (values - values.mean()) / values.std(ddof=1),
        rtol=1e-4,
        atol=1e-5,
    )


def test_nothing_seen_changes_nothing():
    x = jnp.asarray([2.0, 4.0])
    np.testing.assert_array_equal(running.normalize(running.empty(), x), x)
    nothing = running.update(running.empty(), x, jnp.zeros(2))
    assert nothing.count == 0
    assert nothing.std() == 0


def test_trap_p05_a_stop_in_the_last_place_is_an_end():
    tokens = jnp.asarray([[9, 8, 2, 0], [9, 8, 7, 6], [9, 8, 7, 2]])
    _, lengths, ended = completions.truncate(tokens, jnp.asarray([2]), 0)
    np.testing.assert_array_equal(lengths, [3, 4, 4])
    np.testing.assert_array_equal(ended, [True, False, True])
    mask = completions.mask_unfinished(completions.length_mask(lengths, tokens), ended)
    np.testing.assert_array_equal(mask.sum(1), [3, 0, 4])


def test_trap_p06_every_stop_id_counts_and_one_alone_is_a_completion():
    tokens = jnp.asarray([[50, 51, 4, 60, 61], [50, 2, 7, 7, 7], [5, 6, 7, 8, 9], [4, 50, 5, 5, 5]])
    out, lengths, ended = completions.truncate(tokens, jnp.asarray([2, 4]), 0)
    np.testing.assert_array_equal(lengths, [3, 2, 5, 1])
    np.testing.assert_array_equal(ended, [True, True, False, True])
    np.testing.assert_array_equal(out[0], [50, 51, 4, 0, 0])


def test_ending_is_read_from_the_last_real_token():
    tokens = jnp.asarray([[5, 9, 0], [5, 9, 7], [0, 0, 0]])
    ends = completions.ends_with(tokens, jnp.asarray([2, 3, 0]), jnp.asarray([9]))
    np.testing.assert_array_equal(ends, [True, False, False])
