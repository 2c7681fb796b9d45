"""The loop of PPO: sample, reward, value, then several epochs over the same rollout."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.config import ConfigError
from rljax.data import batches, pipeline
from rljax.data.encode import Encoded
from rljax.losses import controllers
from rljax.models import decoder, heads
from rljax.rewards import call
from rljax.rollout.generate import LENGTH
from rljax.train import checkpoint, optimizer, ppo, sampler, state, step
from rljax.train.metrics import Log
from rljax.train.rewards import Rewarder
from rljax.train.setup import Setup, copy
from rljax.train.state import TrainState

SHOWN = {"ppo": ("reward", "objective/kl", "completions/mean_length", "tokens/s")}
BEST = {"ppo": ("eval_reward", False)}


def check(setup: Setup, train: Sequence[Encoded]) -> None:
    """Errors of sizes and reward functions, before anything is compiled or written."""
    columns = {name for example in train for name in example.columns}
    for name in setup.config.reward.functions:
        call.check_signature(name, call.load_function(name), sorted(columns))
    config = setup.config
    rows = config.train.batch_size * config.ppo.samples_per_prompt
    step.check_batch(rows, microbatches=1, mesh=setup.mesh)
    if rows % config.ppo.minibatches:
        raise ConfigError(f"ppo.minibatches={config.ppo.minibatches} does not divide {rows} rows")
    step.check_batch(
        rows // config.ppo.minibatches,
        microbatches=config.train.microbatches,
        mesh=setup.mesh,
        field=f"rows of a minibatch ({rows} / ppo.minibatches)",
    )
    batches.buckets_for(config.data.max_prompt_length, config.data.buckets)
    updates = config.train.steps * config.ppo.epochs * config.ppo.minibatches
    optimizer.schedule(config.optim, updates, config.optim.lr)
    if jax.process_count() > 1:
        raise ConfigError("algorithm=ppo runs in one process so far")


def start(setup: Setup, tx) -> tuple[TrainState, TrainState]:
    """The first state (fresh value head; a separate critic starts as the policy), its placement."""
    config, cfg = setup.config, setup.cfg
    decoder_axes = decoder.logical_axes(cfg)
    params = {
        "policy": setup.policy,
        "value": heads.value_init(jax.random.key(config.seed + 1), cfg),
    }
    axes = {"policy": decoder_axes, "value": heads.LOGICAL_AXES}
    if config.ppo.critic == "separate":
        params["critic"], axes["critic"] = copy(setup.policy), decoder_axes
    where = state.shardings(params, {}, tx, axes, setup.mesh).params
    params["value"] = jax.device_put(params["value"], where["value"])
    frozen = {"reference": copy(setup.policy)}
    first = state.create(
        params=params,
        frozen=frozen,
        tx=tx,
        seed=config.seed,
        axes=axes,
        mesh=setup.mesh,
        extra={"kl_coef": jnp.float32(config.ppo.kl_coef)},
    )
    return first, state.shardings(params, frozen, tx, axes, setup.mesh)


def run(
    setup: Setup,
    train: Sequence[Encoded],
    held: Sequence[Encoded],
    *,
    log: Log,
    saved: checkpoint.Checkpoints,
    stops: Any,
    stop: Callable[[], bool],
) -> TrainState:
    """Train to the last rollout batch, or until `stop()`; the state is saved in both cases."""
    config, tc, pc = setup.config, setup.config.train, setup.config.ppo
    updates = pc.epochs * pc.minibatches
    tx = optimizer.make(config.optim, steps=tc.steps * updates)
    now, placed = start(setup, tx)
    order = pipeline.training_order(len(train), tc.batch_size, seed=config.seed)
    done = saved.latest() or 0
    if done:
        now, host = saved.restore(done, now)
        order.set_state(host["order"])
    machine = Machine.make(setup, tx, placed, sampler.make(setup, stops))
    evaluate = lambda policy: machine.evaluate(policy, held)
    scores = {}
    if held and not done:
        scores = evaluate(now.params["policy"])
        log.write(0, scores)
    for i in range(done, tc.steps):
        now, values, tokens = machine.iterate(now, [train[j] for j in next(order)], i)
        log.step(i + 1, values, tokens=tokens)
        last, asked = i + 1 == tc.steps, stop()
        if held and (last or (tc.eval_every and (i + 1) % tc.eval_every == 0)):
            scores = evaluate(now.params["policy"])
            log.write(i + 1, scores)
        if last or asked or (tc.save_every and (i + 1) % tc.save_every == 0):
            log.flush()
            saved.save(i + 1, now, {"order": order.get_state()}, scores)
        if asked and not last:
            break
    saved.wait()
    return now


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The compiled parts of one PPO iteration."""

    setup: Setup
    sample: sampler.Sampler
    rewarder: Rewarder
    experience: Callable
    update: Callable
    take: Callable  # rows of a rollout, placed again over the devices
    warmup: Callable | None  # the update while only the critic learns
    lengths: tuple[int, ...]

    @classmethod
    def make(cls, setup: Setup, tx, placed: TrainState, sample: sampler.Sampler) -> "Machine":
        config = setup.config
        loss = {"temperature": config.rollout.temperature, **setup.options}

        def compiled(rule, **options):
            loss_fn = ppo.make_loss(config.ppo, setup.cfg, **loss, **options)
            one = step.make_train_step(loss_fn, rule, microbatches=config.train.microbatches)
            return step.jit_step(one, setup.mesh, placed)

        warmup = None
        if config.ppo.critic_warmup:
            warmup = compiled(optimizer.hold(tx, "policy"), train_policy=False)
        return cls(
            setup=setup,
            sample=sample,
            rewarder=Rewarder.make(setup),
            experience=jax.jit(
                ppo.make_experience(
                    config.ppo, setup.cfg, temperature=config.rollout.temperature, dtype=setup.dtype
                ),
                out_shardings=(step.rows_sharding(setup.mesh), None),
            ),
            update=compiled(tx),
            take=jax.jit(
                lambda rollout, rows: jax.tree.map(lambda x: x[rows], rollout),
                out_shardings=step.rows_sharding(setup.mesh),
            ),
            warmup=warmup,
            lengths=batches.buckets_for(config.data.max_prompt_length, config.data.buckets),
        )

    def prompts(self, examples: Sequence[Encoded], weight: np.ndarray | None = None):
        weight = np.ones(len(examples)) if weight is None else weight
        index = range(len(examples))
        return batches.prompt_batch(examples, index, weight, self.lengths, self.setup.pad_id)

    def iterate(self, now: TrainState, examples: Sequence[Encoded], i: int):
        """One rollout batch and its updates -> (state, metrics, tokens read)."""
        pc, mesh = self.setup.config.ppo, self.setup.mesh
        examples = [e for e in examples for _ in range(pc.samples_per_prompt)]
        key = jax.random.fold_in(jax.random.fold_in(now.rng, 0x5A), i)
        prompts = self.prompts(examples)
        done = self.sample(now.params["policy"], prompts, key)
        rewards = self.rewarder(examples, done)
        penalty = pc.missing_eos_penalty * (np.asarray(done.finish) == LENGTH)
        rows = sampler.joined(prompts, done) | {
            "scores": (rewards.scores - penalty).astype(np.float32),
            "weight": rewards.applicable.astype(np.float32),
        }
        with jax.set_mesh(mesh):
            rollout, values = self.experience(
                now.params, now.frozen, step.place_batch(rows, mesh), now.extra["kl_coef"]
            )
        warming = i < pc.critic_warmup
        update = self.warmup if warming else self.update
        now, learned = self._learn(now, rollout, i, update, scored=bool(rewards.applicable.any()))
        now = self._adapt(now, values, len(examples))
        extra = {"episode": float((i + 1) * len(examples)), "learning_rate": self._rate(i)}
        values = rewards.metrics | sampler.completion_metrics(done) | values | learned | extra
        return now, values, int(rows["segments"].sum())

    def _learn(self, now: TrainState, rollout: step.Batch, i: int, update, *, scored: bool):
        """Epochs of shuffled minibatches; metrics are means over all updates."""
        pc = self.setup.config.ppo
        rng = np.random.default_rng((self.setup.config.seed, i))
        total = None
        for _ in range(pc.epochs):
            shuffled = rng.permutation(len(rollout["weight"]))
            for rows in np.split(shuffled, pc.minibatches):
                part = rollout
                if pc.minibatches > 1:
                    part = self.take(rollout, rows)
                now, values = update(now, part)
                if total is None and scored and not self._first_ratio_is_one(values, i):
                    raise ValueError(
                        f"the first importance ratio of rollout {i} is {values['val/ratio']}"
                    )
                total = values if total is None else jax.tree.map(jnp.add, total, values)
        return now, jax.tree.map(lambda x: x / (pc.epochs * pc.minibatches), total)

    def _first_ratio_is_one(self, values, i: int) -> bool:
        # Only at the start of a run: reading a value makes the host wait for the device.
        exact = self.setup.dtype is None
        return i > 0 or not exact or abs(float(values["val/ratio"]) - 1.0) < 1e-4

    def _adapt(self, now: TrainState, values, rows: int) -> TrainState:
        pc = self.setup.config.ppo
        if pc.kl_target is None:
            return now
        coef = controllers.adaptive_kl(
            now.extra["kl_coef"],
            values["objective/kl_trained"],
            target=pc.kl_target,
            horizon=pc.kl_horizon,
            batch=rows,
        )
        return dataclasses.replace(now, extra=now.extra | {"kl_coef": coef})

    def _rate(self, i: int) -> float:
        config = self.setup.config
        updates = config.ppo.epochs * config.ppo.minibatches
        rule = optimizer.schedule(config.optim, config.train.steps * updates, config.optim.lr)
        return float(rule(i * updates))

    def evaluate(self, policy, held: Sequence[Encoded]) -> dict[str, float]:
        """Mean reward and length over the held-out prompts, sampled with keys of their own."""
        tc, parts = self.setup.config.train, []
        for index, weight in list(pipeline.in_order(len(held), tc.batch_size))[: tc.eval_batches]:
            examples = [held[j] for j in index]
            key = jax.random.fold_in(jax.random.key(self.setup.config.seed), int(index[0]) + 1)
            done = self.sample(policy, self.prompts(examples), key)
            rewards = self.rewarder(examples, done)
            use = weight * rewards.applicable
            parts.append((rewards.scores * use, np.asarray(done.lengths) * weight, use, weight))
        scores, lengths, use, weight = (np.concatenate(x) for x in zip(*parts))
        return {
            "eval_reward": float(scores.sum() / max(use.sum(), 1.0)),
            "eval_completions/mean_length": float(lengths.sum() / weight.sum()),
        }
