"""What the compiled steps may hold, and how many of them there are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import sharding
from rljax.data import batches, encode
from rljax.models import decoder
from rljax.models.config import DecoderConfig
from rljax.train import dpo, ppo, sft
from rljax.train import state as state_lib
from rljax.train.run_config import DpoConfig, PpoConfig, SftConfig
from rljax.train.step import jit_step, make_train_step, place_batch

CFG = DecoderConfig(
    vocab=49152, embed=64, mlp=128, layers=2, heads=2, kv_heads=1, head_dim=32, tie_embedding=True
)


def compiled_step(loss, params_like, batch):
    tx = optax.sgd(1e-3)
    now = state_lib.TrainState(
        step=jax.ShapeDtypeStruct((), jnp.int32),
        params=params_like,
        frozen={},
        opt_state=jax.eval_shape(tx.init, params_like),
        rng=jax.eval_shape(lambda: jax.random.key(0)),
        extra={},
    )
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(*x), batch, is_leaf=lambda x: isinstance(x, tuple)
    )
    return jax.jit(make_train_step(loss, tx), donate_argnums=0).lower(now, like).compile()


def preference_batch(B, T):
    rows = {"tokens": ((B, 2, T), jnp.int32), "segments": ((B, 2, T), jnp.int32)}
    return rows | {
        "mask": ((B, 2, T), jnp.float32),
        "weight": ((B,), jnp.float32),
        "ref_logps": ((B, 2), jnp.float32),
    }


def test_the_dpo_step_never_holds_its_logits():
    """B 8, T 512, V 49152: all temporaries stay below a quarter of one fp32 [B, T, V] array."""
    B, T = 8, 512
    loss = dpo.make_loss(DpoConfig(), CFG, remat="full")
    step = compiled_step(loss, {"policy": decoder.shapes(CFG)}, preference_batch(B, T))
    used = step.memory_analysis().temp_size_in_bytes
    print(f"temporaries {used / 1e6:.0f} MB, one array {4 * B * T * CFG.vocab / 1e6:.0f} MB")
    assert used < 4 * B * T * CFG.vocab / 4
    assert f"{B * 2},{T - 1},{CFG.vocab}" not in step.as_text()
    assert f"{B * 2},{T},{CFG.vocab}" not in step.as_text()


def test_twenty_lengths_compile_at_most_three_programs():
    cfg = DecoderConfig(vocab=64, embed=8, mlp=8, layers=1, heads=1, kv_heads=1, head_dim=8)
    mesh = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1])
    tx, axes = optax.sgd(1e-3), {"policy": decoder.logical_axes(cfg)}
    params = jax.device_put(
        {"policy": decoder.init(jax.random.key(0), cfg)}, sharding.tree(axes, mesh)
    )
    placed = state_lib.shardings(params, {}, tx, axes, mesh)
    now = state_lib.create(params=params, frozen={}, tx=tx, seed=0, axes=axes, mesh=mesh)
    step = jit_step(make_train_step(sft.make_loss(SftConfig(), cfg), tx), mesh, placed)
    lengths = batches.buckets_for(60)
    assert len(lengths) == 3
    for n in range(21, 61, 2):
        one = encode.Encoded(
            prompt=list(range(1, 11)), completions=([5] * (n - 10),), columns={}, text=""
        )
        batch = batches.training_batch([one], [0], [1.0], lengths)
        batch.pop("row")
        now, _ = step(now, place_batch(batch, mesh))
    assert int(now.step) == 20
    assert step.compiled._cache_size() <= 3


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_the_ppo_step_never_holds_its_logits(critic):
    B, T = 8, 512
    loss = ppo.make_loss(PpoConfig(critic=critic), CFG, temperature=1.0, remat="full")
    head = {"kernel": (CFG.embed, 1), "bias": (1,)}
    params = {"policy": decoder.shapes(CFG)}
    params["value"] = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in head.items()}
    if critic == "separate":
        params["critic"] = decoder.shapes(CFG)
    ints, floats = (
        ("tokens", "segments"),
        ("mask", "old_logps", "old_values", "advantages", "returns"),
    )
    batch = dict.fromkeys(ints, ((B, T), jnp.int32)) | dict.fromkeys(floats, ((B, T), jnp.float32))
    step = compiled_step(loss, params, batch | {"weight": ((B,), jnp.float32)})
    assert step.memory_analysis().temp_size_in_bytes < 4 * B * T * CFG.vocab / 4
    assert f"{B},{T - 1},{CFG.vocab}" not in step.as_text()


def test_a_step_of_many_layers_is_no_larger_a_program():
    """The layers are scanned: depth does not grow what is compiled."""
    import dataclasses

    def size(layers):
        cfg = dataclasses.replace(CFG, vocab=64, layers=layers)
        loss = sft.make_loss(SftConfig(), cfg)
        batch = {k: ((2, 16), t) for k, t in (("tokens", jnp.int32), ("segments", jnp.int32))}
        batch |= {"mask": ((2, 16), jnp.float32), "weight": ((2,), jnp.float32)}
        return len(compiled_step(loss, {"policy": decoder.shapes(cfg)}, batch).as_text())

    np.testing.assert_allclose(size(24), size(3), rtol=0.05)
