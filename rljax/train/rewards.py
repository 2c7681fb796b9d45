"""The reward of a rollout: functions of the user, or a reward checkpoint."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rljax.config import ConfigError
from rljax.data.encode import Encoded
from rljax.models import decoder, heads, load
from rljax.rewards import call
from rljax.rollout.generate import Completions
from rljax.train import samples
from rljax.train.setup import Setup


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewards:
    scores: np.ndarray  # float64 [rows]
    applicable: np.ndarray  # bool [rows]: False where every function said None
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewarder:
    setup: Setup
    functions: Mapping[str, call.RewardFn]
    model: Callable[[jax.Array, jax.Array], jax.Array] | None

    @classmethod
    def make(cls, setup: Setup) -> "Rewarder":
        reward = setup.config.reward
        functions = {name: call.load_function(name) for name in reward.functions}
        model = _reward_model(setup, reward.checkpoint) if reward.checkpoint else None
        return cls(setup=setup, functions=functions, model=model)

    def __call__(self, examples: Sequence[Encoded], done: Completions) -> Rewards:
        if self.model is not None:
            return self._by_model(examples, done)
        lengths, tokens = np.asarray(done.lengths), np.asarray(done.tokens)
        columns = {name for e in examples for name in e.columns}
        matrix = call.score(
            self.functions,
            prompts=[e.text for e in examples],
            completions=_as_messages(samples.texts(self.setup, done), examples),
            completion_ids=[row[:n].tolist() for row, n in zip(tokens, lengths)],
            columns={
                c: [e.columns.get(c) for e in examples]
                for c in columns - {"prompts", "completions"}
            },
        )
        weights = self.setup.config.reward.weights or [1.0] * len(self.functions)
        scores, applicable = call.combine(matrix, weights)
        metrics = _spread(scores[applicable])
        for name, values in zip(self.functions, matrix.T):
            short, values = name.rpartition(".")[2].rpartition(":")[2], values[~np.isnan(values)]
            if values.size:
                metrics[f"rewards/{short}/mean"] = float(values.mean())
                metrics[f"rewards/{short}/std"] = (
                    float(values.std(ddof=1)) if values.size > 1 else 0.0
                )
        metrics["rewards/not_applicable"] = float((~applicable).mean())
        return Rewards(scores=scores, applicable=applicable, metrics=metrics)

    def _by_model(self, examples: Sequence[Encoded], done: Completions) -> Rewards:
        P = max(len(e.prompt) for e in examples)
        tokens, lengths = np.asarray(done.tokens), np.asarray(done.lengths)
        rows = np.zeros((len(examples), P + tokens.shape[1]), np.int32)
        segments = np.zeros_like(rows)
        for b, (example, n) in enumerate(zip(examples, lengths)):
            ids = [*example.prompt, *tokens[b, :n]]
            rows[b, : len(ids)], segments[b, : len(ids)] = ids, 1
        scores = np.asarray(self.model(rows, segments), np.float64)
        if not np.isfinite(scores).all():
            raise ValueError(
                f"reward checkpoint {self.setup.config.reward.checkpoint} gave NaN or inf"
            )
        return Rewards(
            scores=scores, applicable=np.ones(len(scores), bool), metrics=_spread(scores)
        )


def _spread(scores: np.ndarray) -> dict[str, float]:
    if not scores.size:
        return {"reward": 0.0, "reward_std": 0.0}
    return {
        "reward": float(scores.mean()),
        "reward_std": float(scores.std(ddof=1)) if scores.size > 1 else 0.0,
    }


def _as_messages(texts: Sequence[str], examples: Sequence[Encoded]) -> list[Any]:
    """Chat prompts get chat completions, as TRL's reward functions expect."""
    return [
        text if isinstance(e.text, str) else [{"role": "assistant", "content": text}]
        for text, e in zip(texts, examples)
    ]


def _reward_model(setup: Setup, path: str):
    params, cfg = load.load_reward(path, mesh=setup.mesh)
    labels = params["head"]["kernel"].shape[1]
    if labels != 1:
        raise ConfigError(f"reward.checkpoint: {path} has {labels} labels; PPO wants one score")
    if cfg.vocab != setup.cfg.vocab:
        raise ConfigError(
            f"reward.checkpoint: {path} has {cfg.vocab} ids, the policy {setup.cfg.vocab}; it "
            f"reads the policy's tokens and needs the same tokenizer"
        )

    @jax.jit
    def score(tokens, segments):
        hidden, _ = decoder.apply(
            params["decoder"], cfg, tokens, segments_BT=segments, dtype=setup.dtype
        )
        return heads.pooled(params["head"], hidden, segments)[:, 0]

    return score
