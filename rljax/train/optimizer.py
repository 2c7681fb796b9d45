"""AdamW with a schedule in optimizer steps, decay on matrices only, and fp32 state."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from rljax.config import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
    lr: float
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: int = 0  # optimizer steps from 0 to lr
    final_lr_ratio: float = 0.0  # lr at the last step, as a share of lr
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip_norm: float | None = 1.0  # of the whole gradient; None: no clipping
    critic_lr: float | None = None  # PPO's value head and critic; None: lr

    def __post_init__(self):
        if self.lr < 0:
            raise ConfigError(f"lr={self.lr}; wants 0 or more")
        if self.warmup < 0:
            raise ConfigError(f"warmup={self.warmup}; wants 0 or more optimizer steps")


DECAYED = ("kernel", "tokens")
"""Leaf names that weight decay applies to. By name: a stacked bias is a matrix too."""


def decay_mask(params: Any) -> Any:
    """True on kernels and embeddings, never on norms and biases."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in DECAYED, params)


def schedule(optim: OptimConfig, steps: int, lr: float) -> optax.Schedule:
    """Learning rate of update 0, 1, …: linear warm-up, then constant, linear or cosine."""
    if optim.warmup >= steps:
        raise ConfigError(f"optim.warmup={optim.warmup} leaves nothing of {steps} optimizer steps")
    after = steps - optim.warmup
    decay = {
        "constant": lambda: optax.constant_schedule(lr),
        "linear": lambda: optax.linear_schedule(lr, lr * optim.final_lr_ratio, after),
        "cosine": lambda: optax.cosine_decay_schedule(lr, after, optim.final_lr_ratio),
    }[optim.schedule]()
    if not optim.warmup:
        return decay
    return optax.join_schedules(
        [optax.linear_schedule(0.0, lr, optim.warmup), decay], [optim.warmup]
    )


def make(optim: OptimConfig, *, steps: int) -> optax.GradientTransformation:
    """The update rule for params {"policy": …} and, in PPO, {"critic": …, "value": …}.

    `steps` counts optimizer updates, however many microbatches each has.
    """

    def adamw(lr: float) -> optax.GradientTransformation:
        return optax.adamw(
            schedule(optim, steps, lr),
            b1=optim.beta1,
            b2=optim.beta2,
            eps=optim.eps,
            weight_decay=optim.weight_decay,
            mask=decay_mask,
            mu_dtype=jnp.float32,
        )

    critic_lr = optim.lr if optim.critic_lr is None else optim.critic_lr

    def labels(params):
        return {k: jax.tree.map(lambda _, k=k: k == "policy", v) for k, v in params.items()}

    rule = optax.partition({True: adamw(optim.lr), False: adamw(critic_lr)}, labels)
    return rule if optim.clip_norm is None else optax.chain(clip(optim.clip_norm), rule)


def clip(norm: float) -> optax.GradientTransformation:
    return optax.clip_by_global_norm(norm)


def hold(tx: optax.GradientTransformation, name: str) -> optax.GradientTransformation:
    """The same rule with the top-level entry `name` of the parameters left where it is."""

    def update(grads, state, params):
        updates, state = tx.update(grads, state, params)
        return updates | {name: jax.tree.map(jnp.zeros_like, updates[name])}, state

    return optax.GradientTransformation(tx.init, update)
