"""Checkpoints by Orbax: the whole state, the data cursor, and only complete steps count."""

import dataclasses
import math
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from rljax.train.state import TrainState

FOLDER = "checkpoints"
COMMITTED = "commit_success.txt"  # Orbax writes it last


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        keep_last: int,
        keep_best: int = 0,
        best: str | None = None,
        lower_is_better: bool = False,
    ):
        self.path = (folder / FOLDER).absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        if jax.process_index() == 0:
            set_aside_partial(self.path)
        keep: list[Any] = [policies.LatestN(keep_last)]
        if best is not None and keep_best:
            worst = math.inf if lower_is_better else -math.inf  # saved before any evaluation
            # Together, not `max_to_keep` with `best_fn`: that deletes the newest steps.
            keep.append(
                policies.BestN(
                    get_metric_fn=lambda m: m.get(best, worst), reverse=lower_is_better, n=keep_best
                )
            )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(keep),
            enable_async_checkpointing=True,
        )
        handlers = {"state": ocp.PyTreeCheckpointHandler(), "host": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self.path, options=options, item_handlers=handlers)

    def latest(self) -> int | None:
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def save(
        self, step: int, state: TrainState, host: Mapping[str, Any], metrics: Mapping[str, float]
    ):
        """Write `state` and the JSON-able `host` values; returns once the arrays are copied."""
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeSave(_flat(state)), host=ocp.args.JsonSave(dict(host))
            ),
            metrics=dict(metrics),
        )

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The state of `step` placed as `like` is, on whatever mesh that lies.

        Raises ValueError naming the first leaf in which checkpoint and `like` differ.
        """
        target = {k: _abstract(x) for k, x in _flat(like).items()}
        self._check(step, target)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeRestore(
                    target, restore_args=ocp.checkpoint_utils.construct_restore_args(target)
                ),
                host=ocp.args.JsonRestore(),
            ),
        )
        return _unflat(restored["state"], like), restored["host"]

    def _check(self, step: int, target: Mapping[str, jax.ShapeDtypeStruct]) -> None:
        saved = self._manager.item_metadata(step)["state"]
        for name in sorted(set(saved) ^ set(target)):
            side = "it lacks" if name in target else "it has also"
            raise ValueError(
                f"{self.path / str(step)} is of another model or method: {side} {name}"
            )
        for name, want in target.items():
            have = tuple(saved[name].shape)
            if have != want.shape:
                raise ValueError(
                    f"{self.path / str(step)} is of another model: {name} is {have} there and "
                    f"{want.shape} here"
                )

    def restore_policy(self, step: int, like: Any) -> Any:
        """The parameters of the policy alone, placed as `like` is."""
        flat = {f"params.policy.{k}": _abstract(x) for k, x in _by_path(like).items()}
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.PyTreeRestore(
                    flat,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(flat),
                    partial_restore=True,
                )
            ),
        )
        return jax.tree.unflatten(jax.tree.structure(like), [restored["state"][k] for k in flat])

    def wait(self) -> None:
        """Block until the last save is complete; raises what went wrong in it."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def open_existing(folder: pathlib.Path) -> Checkpoints:
    """The checkpoints of a finished or stopped run, for reading; ValueError when there are none."""
    if not (folder / FOLDER).is_dir():
        raise ValueError(f"{folder} holds no checkpoints")
    return Checkpoints(folder, keep_last=1_000_000)


def set_aside_partial(path: pathlib.Path) -> None:
    """Rename step folders that were never finished: a copy cut short must not be the latest."""
    for step in path.iterdir():
        if step.is_dir() and step.name.isdigit() and not (step / COMMITTED).is_file():
            aside = path / f"incomplete-{step.name}"
            shutil.rmtree(aside, ignore_errors=True)
            step.rename(aside)


def _flat(state: TrainState) -> dict[str, jax.Array]:
    """Every leaf by its dotted path; `frozen` is made again from its own source, not saved."""
    return _by_path(dataclasses.replace(state, frozen=None, rng=jax.random.key_data(state.rng)))


def _by_path(tree: Any) -> dict[str, jax.Array]:
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): x for path, x in leaves}


def _unflat(flat: Mapping[str, jax.Array], like: TrainState) -> TrainState:
    tree = dataclasses.replace(like, frozen=None, rng=jax.random.key_data(like.rng))
    names = list(_flat(like))
    state = jax.tree.unflatten(jax.tree.structure(tree), [flat[name] for name in names])
    return dataclasses.replace(state, frozen=like.frozen, rng=jax.random.wrap_key_data(state.rng))


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
