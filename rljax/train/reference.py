"""Reference log-probabilities of a preference set, computed once and kept by content."""

import hashlib
import os
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

from rljax.config import ConfigError
from rljax.data import batches, pipeline
from rljax.data.encode import Encoded
from rljax.train import dpo
from rljax.train.setup import Setup
from rljax.train.step import place_batch


def cache_folder() -> pathlib.Path:
    """RLJAX_CACHE, or the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("RLJAX_CACHE", pathlib.Path(home) / "rljax"))


def fingerprint(params) -> str:
    """A digest of every bit of the parameters, taken on their devices in integer arithmetic."""

    def digest(x):
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32 if x.dtype.itemsize == 4 else jnp.uint16)
        bits = bits.astype(jnp.uint32).reshape(-1)
        place = jnp.arange(bits.size, dtype=jnp.uint32) * jnp.uint32(2654435761) + jnp.uint32(1)
        mixed = (bits ^ (bits >> 15)) * (place | 1)
        return jnp.stack(
            [mixed.sum(dtype=jnp.uint32), (mixed ^ (mixed >> 13)).sum(dtype=jnp.uint32)]
        )

    sums = jax.jit(lambda p: [digest(x) for x in jax.tree.leaves(p)])(params)
    return hashlib.sha256(np.concatenate([np.asarray(s) for s in sums]).tobytes()).hexdigest()


def precompute(setup: Setup, examples: Sequence[Encoded], *, name: str) -> np.ndarray:
    """fp32 [rows, 2] of chosen and rejected, from the starting policy, or from the cache.

    The cache key holds the weights, the compute dtype and every token, so that a stale file cannot
    be taken for the right one.
    """
    if jax.process_count() > 1:
        raise ConfigError("dpo.reference=precomputed needs one process; set dpo.reference=live")
    key = hashlib.sha256(fingerprint(setup.policy).encode())
    key.update(repr((setup.cfg, setup.config.model.compute_dtype)).encode())
    for example in examples:
        key.update(repr((example.prompt, example.completions)).encode())
    file = cache_folder() / "reference" / f"{key.hexdigest()[:32]}.npy"
    if file.is_file():
        return np.load(file)
    out = _compute(setup, examples, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}.npy")
    np.save(partial, out)
    partial.replace(file)
    return out


def _compute(setup: Setup, examples: Sequence[Encoded], name: str) -> np.ndarray:
    scored = jax.jit(dpo.make_reference(setup.cfg, dtype=setup.dtype))
    size = setup.config.train.batch_size
    lengths = batches.buckets_for(setup.config.data.max_length, setup.config.data.buckets)
    out = np.zeros((len(examples), 2), np.float32)
    # By length, so that short rows are not padded to the longest of a random batch.
    order = np.argsort([max(len(e.prompt) + len(c) for c in e.completions) for e in examples])
    parts = list(pipeline.in_order(len(examples), size))
    for index, weight in track(parts, f"Reference log-probabilities ({name})", transient=True):
        rows = order[index]
        batch = batches.training_batch([examples[i] for i in rows], rows, weight, lengths)
        batch.pop("row")
        with jax.set_mesh(setup.mesh):
            values = scored(setup.policy, place_batch(batch, setup.mesh))
        out[rows] = np.asarray(values)
    return out
