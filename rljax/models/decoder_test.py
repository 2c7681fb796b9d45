import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import sharding
from rljax.models import cache, decoder, heads
from rljax.models.config import DecoderConfig, Rope

CFG = DecoderConfig(
    vocab=48, embed=16, mlp=24, layers=3, heads=4, kv_heads=2, head_dim=4, rope=Rope(theta=100.0)
)
PARAMS = decoder.init(jax.random.key(0), CFG)
TOKENS = jax.random.randint(jax.random.key(1), (2, 12), 0, 48)


# A random direction: the squares of a normed state always sum to the same, and have no gradient.
PROBE = jax.random.normal(jax.random.key(9), (16,))


def hidden_of(tokens=TOKENS, cfg=CFG, params=PARAMS, **options):
    return decoder.apply(params, cfg, tokens, **options)[0]


def test_no_position_feels_a_later_token():
    table = PARAMS["embed"]["tokens"][TOKENS]

    def at(t):
        def total(x):
            # The embeddings themselves are the input: one row of the table per position.
            params = PARAMS | {"embed": {"tokens": x.reshape(-1, 16)}}
            ids = jnp.arange(24).reshape(2, 12)
            return (hidden_of(ids, params=params)[:, t] @ PROBE).sum()

        return jax.grad(total)(table)

    for t in (0, 5, 11):
        grads = np.asarray(at(t))
        assert (grads[:, t + 1 :] == 0).all()
        assert (np.abs(grads[:, : t + 1]).max(-1) > 1e-4).all()


@pytest.mark.parametrize("window", [1, 3])
def test_a_window_of_w_sees_w_keys_its_own_included(window):
    cfg = dataclasses.replace(CFG, window=window, layers=1)
    params = decoder.init(jax.random.key(0), cfg)
    other = TOKENS.at[:, 4].set((TOKENS[:, 4] + 1) % 48)
    changed = np.abs(hidden_of(cfg=cfg, params=params) - hidden_of(other, cfg, params)).max((0, 2))
    assert np.flatnonzero(changed > 1e-6).tolist() == list(range(4, 4 + window))


def test_packed_documents_are_as_separate_ones():
    a, b = TOKENS[:1, :5], TOKENS[1:, :7]
    packed = jnp.concatenate([a, b], 1)
    segments = jnp.asarray([[1] * 5 + [2] * 7])
    both = hidden_of(packed, segments_BT=segments)
    np.testing.assert_allclose(both[:, :5], hidden_of(a), atol=1e-5)
    np.testing.assert_allclose(both[:, 5:], hidden_of(b), atol=1e-5)


@pytest.mark.parametrize("pads", [1, 4])
def test_padding_on_either_side_changes_nothing(pads):
    zeros = jnp.zeros((2, pads), TOKENS.dtype)
    ones = jnp.ones_like(TOKENS)
    left = hidden_of(
        jnp.concatenate([zeros, TOKENS], 1), segments_BT=jnp.concatenate([zeros, ones], 1)
    )
    right = hidden_of(
        jnp.concatenate([TOKENS, zeros], 1), segments_BT=jnp.concatenate([ones, zeros], 1)
    )
    np.testing.assert_allclose(left[:, pads:], hidden_of(), atol=1e-5)
    np.testing.assert_allclose(right[:, :12], hidden_of(), atol=1e-5)


def test_positions_start_anew_in_each_document():
    segments = jnp.asarray([[0, 0, 1, 1, 1, 2, 2, 0]])
    assert decoder.default_positions(segments).tolist() == [[0, 1, 0, 1, 2, 0, 1, 0]]


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("unrolled", [False, True])
def test_decoding_with_the_cache_equals_the_full_pass(window, unrolled):
    cfg = dataclasses.replace(CFG, window=window)
    params = decoder.unstack(PARAMS) if unrolled else PARAMS
    zeros, ones = jnp.zeros((2, 2), jnp.int32), jnp.ones_like(TOKENS)
    tokens = jnp.concatenate([zeros, TOKENS], 1)
    segments = jnp.concatenate([zeros, ones], 1).at[0, 2].set(0)  # rows of unlike length
    whole = hidden_of(tokens, cfg, params, segments_BT=segments)
    past = cache.make(cfg, 2, 16, unrolled=unrolled)
    steps = []
    for start, stop in ((0, 6), (6, 9), *((t, t + 1) for t in range(9, 14))):
        part = slice(start, stop)
        out, past = decoder.apply(
            params, cfg, tokens[:, part], segments_BT=segments[:, part], cache=past
        )
        steps.append(out)
    real = np.asarray(segments) > 0
    np.testing.assert_allclose(
        np.asarray(jnp.concatenate(steps, 1))[real], np.asarray(whole)[real], atol=1e-5
    )


def test_unrolled_layers_equal_scanned_ones():
    np.testing.assert_allclose(hidden_of(params=decoder.unstack(PARAMS)), hidden_of(), atol=1e-5)


def test_rematerialisation_changes_no_gradient():
    def grads(remat):
        return jax.grad(lambda p: (hidden_of(params=p, remat=remat) @ PROBE).sum())(PARAMS)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        grads("full"),
        grads("none"),
    )


def test_rematerialisation_holds_less_between_the_passes():
    cfg = dataclasses.replace(CFG, layers=16)
    shapes = decoder.shapes(cfg)
    tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32)

    def used(remat):
        loss = lambda p, t: (decoder.apply(p, cfg, t, remat=remat)[0] @ PROBE).sum()
        return jax.jit(jax.grad(loss)).lower(shapes, tokens).compile().memory_analysis()

    assert used("full").temp_size_in_bytes < 0.5 * used("none").temp_size_in_bytes


def test_bf16_computes_near_fp32_and_keeps_fp32_parameters():
    full, half = hidden_of(), hidden_of(dtype=jnp.bfloat16)
    assert half.dtype == jnp.bfloat16
    gap = np.asarray(half, np.float32) - np.asarray(full)
    assert 1e-5 < np.abs(gap).mean() < 0.02
    assert abs(gap.mean()) < 2e-3


def test_a_row_of_padding_is_finite_in_value_and_gradient():
    segments = jnp.ones_like(TOKENS).at[0].set(0)
    loss = lambda p: (hidden_of(params=p, segments_BT=segments)[1] @ PROBE).sum()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(jax.grad(loss)(PARAMS)))
    assert np.isfinite(hidden_of(segments_BT=segments)).all()


@pytest.mark.parametrize("shape", [{"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}])
def test_a_mesh_computes_what_one_device_computes(shape):
    mesh = sharding.make_mesh(shape)
    tokens = jnp.tile(TOKENS, (4, 1))
    placed = jax.device_put(PARAMS, sharding.tree(decoder.logical_axes(CFG), mesh, PARAMS))
    loss = lambda p, t: (decoder.apply(p, CFG, t)[0] @ PROBE).sum()
    with jax.set_mesh(mesh):
        rows = jax.device_put(tokens, sharding.named(mesh, ("batch", "time")))
        many = jax.jit(jax.grad(loss))(placed, rows)
    one = jax.grad(loss)(PARAMS, tokens)

    def check(a, b):
        # Sums run in another order: rounding is of the size of the largest entry.
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(np.abs(a).max()))

    jax.tree.map(check, one, many)


def test_every_leaf_has_a_name_for_each_of_its_axes():
    biased = dataclasses.replace(CFG, qkv_bias=True, o_bias=True, mlp_bias=True)
    axes, shapes = decoder.logical_axes(biased), decoder.shapes(biased)
    jax.tree.map(lambda a, x: sharding.spec(a) and None, axes, shapes, is_leaf=sharding.is_axes)
    lengths = jax.tree.map(lambda a, x: len(a) == x.ndim, axes, shapes, is_leaf=sharding.is_axes)
    assert jax.tree.all(lengths)


def test_heads_are_pooled_by_segment_and_not_by_id():
    head = {"kernel": jnp.ones((16, 1)), "bias": jnp.asarray([0.5])}
    hidden = jax.random.normal(jax.random.key(2), (3, 5, 16))
    segments = jnp.asarray([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    got = heads.pooled(head, hidden, segments)
    want = [hidden[0, 2].sum() + 0.5, hidden[1, 4].sum() + 0.5, hidden[2, 4].sum() + 0.5]
    np.testing.assert_allclose(got[:, 0], want, rtol=1e-5)
