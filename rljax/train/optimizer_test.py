import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config import ConfigError
from rljax.models import decoder
from rljax.models.config import DecoderConfig
from rljax.train import optimizer
from rljax.train.optimizer import OptimConfig

CFG = DecoderConfig(
    vocab=16, embed=8, mlp=12, layers=2, heads=2, kv_heads=1, head_dim=4,
    qkv_bias=True, o_bias=True, mlp_bias=True,
)  # fmt: skip


def test_schedule_counts_optimizer_steps():
    rule = optimizer.schedule(OptimConfig(lr=1e-3, warmup=2), 10, 1e-3)
    # 1e-3 * (1 + cos(pi * k / 8)) / 2 after a warm-up of two.
    want = [0, 5e-4, 1e-3, 9.6193976626e-4]
    np.testing.assert_allclose([rule(i) for i in range(4)], want, rtol=1e-6)


@pytest.mark.parametrize(("kind", "end"), [("constant", 1e-3), ("linear", 1e-4), ("cosine", 1e-4)])
def test_schedules_end_where_the_config_says(kind, end):
    optim = OptimConfig(lr=1e-3, schedule=kind, final_lr_ratio=0.1)
    np.testing.assert_allclose(optimizer.schedule(optim, 20, 1e-3)(20), end, rtol=1e-5)


def test_warmup_longer_than_the_run_is_refused():
    with pytest.raises(ConfigError, match="optim.warmup=10 leaves nothing of 10"):
        optimizer.schedule(OptimConfig(lr=1e-3, warmup=10), 10, 1e-3)


def test_decay_moves_kernels_and_embeddings_only():
    """With zero gradients AdamW moves a leaf by -lr * decay * leaf, or not at all."""
    params = {"policy": decoder.init(jax.random.key(0), CFG)}
    params = jax.tree.map(lambda x: x + 1.0, params)  # biases are not at 0
    tx = optimizer.make(
        OptimConfig(lr=0.1, schedule="constant", weight_decay=0.5, clip_norm=None), steps=5
    )
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = tx.update(zero, tx.init(params), params)
    for path, update in jax.tree.leaves_with_path(updates):
        leaf = path[-1].key
        value = params["policy"]
        for key in path[1:]:
            value = value[key.key]
        want = -0.05 * value if leaf in ("kernel", "tokens") else 0 * value
        np.testing.assert_allclose(update, want, rtol=1e-6, err_msg=jax.tree_util.keystr(path))
    leaves = {path[-1].key for path, _ in jax.tree.leaves_with_path(params)}
    assert leaves == {"kernel", "tokens", "bias", "scale"}


def test_critic_has_its_own_learning_rate():
    params = {"policy": {"kernel": jnp.zeros(2)}, "value": {"kernel": jnp.zeros(2)}}
    optim = OptimConfig(lr=1e-2, critic_lr=1e-1, schedule="constant", clip_norm=None)
    tx = optimizer.make(optim, steps=5)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_allclose(updates["policy"]["kernel"], -1e-2, rtol=1e-5)
    np.testing.assert_allclose(updates["value"]["kernel"], -1e-1, rtol=1e-5)


def test_hold_leaves_one_part_where_it_is():
    params = {"policy": {"kernel": jnp.ones(2)}, "value": {"kernel": jnp.ones(2)}}
    optim = OptimConfig(lr=1e-2, schedule="constant", weight_decay=0.1)
    tx = optimizer.hold(optimizer.make(optim, steps=5), "policy")
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(updates["policy"]["kernel"], 0.0)
    assert (np.asarray(updates["value"]["kernel"]) < 0).all()


def test_gradients_are_clipped_to_a_global_norm():
    params = {"policy": {"kernel": jnp.zeros(2)}, "value": {"kernel": jnp.zeros(2)}}
    clipped, _ = optimizer.clip(1.0).update(
        {"policy": {"kernel": jnp.full(2, 3.0)}, "value": {"kernel": jnp.full(2, 4.0)}},
        optimizer.clip(1.0).init(params),
    )
    norm = np.sqrt(sum((np.asarray(x) ** 2).sum() for x in jax.tree.leaves(clipped)))
    np.testing.assert_allclose(norm, 1.0, rtol=1e-6)
    np.testing.assert_allclose(clipped["value"]["kernel"] / clipped["policy"]["kernel"], 4 / 3)
