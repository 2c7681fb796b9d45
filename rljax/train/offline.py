"""The loop of the stages that learn from a fixed set of rows: SFT and DPO."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rljax.data import batches, pipeline
from rljax.data.encode import Encoded
from rljax.models import decoder
from rljax.train import checkpoint, dpo, evaluate, optimizer, reference, sft, state, step
from rljax.train.metrics import Log
from rljax.train.setup import Setup, copy
from rljax.train.state import TrainState

SHOWN = {
    "sft": ("loss", "eval_loss", "tokens/s"),
    "dpo": ("loss", "rewards/accuracies", "rewards/margins", "tokens/s"),
}
BEST = {"sft": ("eval_loss", True), "dpo": ("eval_rewards/accuracies", False)}


def check(setup: Setup, train: Sequence[Encoded]) -> None:
    """ValueError for a batch that cannot be cut evenly, before anything is compiled."""
    tc = setup.config.train
    batches.buckets_for(setup.config.data.max_length, setup.config.data.buckets)
    optimizer.schedule(setup.config.optim, tc.steps, setup.config.optim.lr)
    step.check_batch(tc.batch_size, microbatches=tc.microbatches, mesh=setup.mesh)


MakeBatch = Callable[[np.ndarray, np.ndarray], step.Batch]


def make_batches(setup: Setup, examples: Sequence[Encoded], *, name: str) -> MakeBatch:
    """(row indices, weights) -> a batch; preferences carry their reference log-probabilities."""
    config = setup.config
    lengths = batches.buckets_for(config.data.max_length, config.data.buckets)
    ref = None
    if config.algorithm == "dpo" and config.dpo.reference == "precomputed" and examples:
        ref = reference.precompute(setup, examples, name=name)

    def make(index: np.ndarray, weight: np.ndarray) -> step.Batch:
        batch = batches.training_batch([examples[i] for i in index], index, weight, lengths)
        rows = batch.pop("row")
        return batch if ref is None else batch | {"ref_logps": ref[rows]}

    return make


def loss_of(setup: Setup) -> step.LossFn:
    if setup.config.algorithm == "sft":
        return sft.make_loss(setup.config.sft, setup.cfg, **setup.options)
    return dpo.make_loss(setup.config.dpo, setup.cfg, **setup.options)


def start(setup: Setup, tx) -> tuple[TrainState, TrainState]:
    """The first state, and the placement of its leaves."""
    params = {"policy": setup.policy}
    live = setup.config.algorithm == "dpo" and setup.config.dpo.reference == "live"
    frozen = {"reference": copy(setup.policy)} if live else {}
    axes = {"policy": decoder.logical_axes(setup.cfg)}
    placed = state.shardings(params, frozen, tx, axes, setup.mesh)
    first = state.create(
        params=params, frozen=frozen, tx=tx, seed=setup.config.seed, axes=axes, mesh=setup.mesh
    )
    return first, placed


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
    """Train to the last step, or until `stop()`; the state is saved in both cases."""
    config, tc = setup.config, setup.config.train
    tx = optimizer.make(config.optim, steps=tc.steps)
    loss_fn = loss_of(setup)
    batch_of = make_batches(setup, train, name="train")
    held_batch_of = make_batches(setup, held, name="eval")
    now, placed = start(setup, tx)
    order = pipeline.training_order(
        len(train),
        tc.batch_size,
        seed=config.seed,
        process=jax.process_index(),
        processes=jax.process_count(),
    )
    done = saved.latest() or 0
    if done:
        now, host = saved.restore(done, now)
        order.set_state(host["order"])
    update = step.jit_step(
        step.make_train_step(loss_fn, tx, microbatches=tc.microbatches), setup.mesh, placed
    )
    evaluator = evaluate.make_evaluator(loss_fn, setup.mesh)
    rate = optimizer.schedule(config.optim, tc.steps, config.optim.lr)

    def evaluation(at: int) -> dict[str, float]:
        parts = list(pipeline.in_order(len(held), tc.batch_size))[: tc.eval_batches]
        scores = evaluator(now, (held_batch_of(*part) for part in parts))
        log.write(at, scores)
        return scores

    scores = evaluation(0) if held and not done else {}
    for i in range(done, tc.steps):
        ones = np.ones(tc.batch_size // jax.process_count(), np.float32)
        batch = batch_of(next(order), ones)
        now, values = update(now, step.place_batch(batch, setup.mesh))
        log.step(i + 1, values | {"learning_rate": rate(i)}, tokens=int(batch["segments"].sum()))
        last, asked = i + 1 == tc.steps, stop()
        if held and (last or (tc.eval_every and (i + 1) % tc.eval_every == 0)):
            scores = evaluation(i + 1)
        if last or asked or (tc.save_every and (i + 1) % tc.save_every == 0):
            log.flush()
            saved.save(i + 1, now, {"order": order.get_state()}, scores)
        if asked and not last:
            break
    saved.wait()
    return now
