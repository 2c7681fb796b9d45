"""The sampling half of an online stage: completions under the current policy, as training rows."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.data import batches
from rljax.rollout.generate import LENGTH, Completions, generate
from rljax.rollout.sampling import SamplingParams
from rljax.train import step
from rljax.train.setup import Setup


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
    """Completions of prompts under the current policy, with one key per row."""

    setup: Setup
    sampling: SamplingParams
    stops: Any

    def __call__(self, policy, prompts: batches.Batch, key: jax.Array) -> Completions:
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(len(prompts["tokens"])))
        placed = step.place_batch({k: prompts[k] for k in ("tokens", "segments")}, self.setup.mesh)
        with jax.set_mesh(self.setup.mesh):
            return generate(
                policy,
                self.setup.cfg,
                placed["tokens"],
                placed["segments"],
                keys,
                sampling=self.sampling,
                stops=self.stops,
                pad_id=self.setup.pad_id,
                dtype=self.setup.dtype,
            )


def make(setup: Setup, stops: Any) -> Sampler:
    rc = setup.config.rollout
    sampling = SamplingParams(
        max_new_tokens=rc.max_new_tokens,
        temperature=rc.temperature,
        top_k=rc.top_k,
        top_p=rc.top_p,
        stop_ids=setup.stop_ids,
    )
    return Sampler(setup=setup, sampling=sampling, stops=stops)


def joined(prompts: batches.Batch, done: Completions) -> step.Batch:
    """Prompts and completions as training rows [R, P + L]; the mask is by length."""
    P, mask = prompts["tokens"].shape[1], np.asarray(done.mask())
    logps = np.asarray(done.logprobs)
    return {
        "tokens": np.concatenate([prompts["tokens"], np.asarray(done.tokens)], 1),
        "segments": np.concatenate([prompts["segments"], mask.astype(np.int32)], 1),
        "mask": np.pad(mask, ((0, 0), (P, 0))),
        "sampler_logps": np.pad(logps, ((0, 0), (P, 0))),
    }


def completion_metrics(done: Completions) -> dict[str, float]:
    lengths, finish = np.asarray(done.lengths), np.asarray(done.finish)
    ended = lengths[finish != LENGTH]
    return {
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        "completions/clipped_ratio": float((finish == LENGTH).mean()),
        "completions/mean_terminated_length": float(ended.mean()) if ended.size else 0.0,
        "val/num_eos_tokens": float((finish != LENGTH).sum()),
    }
