"""Chunked log-probabilities beside the form that stores all logits: time and memory, as ratios.

python benchmarks/logprobs.py [--rounds 5] [--dtype float32|bfloat16]
Value and gradient of the summed log-probabilities and entropies, head included. The rounds of the
two alternate, so that a machine that slows down slows both; compilation is not timed. One JSON line
a shape: CPU seconds are those of the process, all its threads together.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp

from rljax.losses import token_logprobs, token_logprobs_from_logits

SHAPES = [  # batch, time, width, vocabulary
    (1, 512, 64, 50_000),
    (1, 256, 576, 49_152),
    (4, 128, 576, 49_152),
]


def chunked(hidden, head, targets):
    logp, entropy = token_logprobs(hidden, head, targets)
    return logp.sum() + 0.1 * entropy.sum()


def stored(hidden, head, targets):
    logits = jnp.einsum("btd,dv->btv", hidden, head, preferred_element_type=jnp.float32)
    logp, entropy = token_logprobs_from_logits(logits, targets)
    return logp.sum() + 0.1 * entropy.sum()


def timed(run, *arrays):
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(run(*arrays))
    return time.perf_counter() - wall, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    for B, T, D, V in SHAPES:
        keys = jax.random.split(jax.random.key(0), 3)
        hidden = jax.random.normal(keys[0], (B, T, D)).astype(args.dtype)
        head = (0.05 * jax.random.normal(keys[1], (D, V))).astype(args.dtype)
        targets = jax.random.randint(keys[2], (B, T), 0, V)
        arrays = (hidden, head, targets)
        runs = {
            f.__name__: jax.jit(jax.value_and_grad(f, (0, 1))).lower(*arrays).compile()
            for f in (chunked, stored)
        }
        seconds = {name: [] for name in runs}
        for run in runs.values():
            jax.block_until_ready(run(*arrays))
        for _ in range(args.rounds):
            for name, run in runs.items():
                seconds[name].append(timed(run, *arrays))
        wall, cpu = ({n: min(s[i] for s in seconds[n]) for n in runs} for i in (0, 1))
        memory = {n: run.memory_analysis().temp_size_in_bytes for n, run in runs.items()}
        line = {
            "shape": [B, T, D, V],
            "wall_s": {n: round(s, 4) for n, s in wall.items()},
            "cpu_s": {n: round(s, 4) for n, s in cpu.items()},
            "wall_ratio": round(wall["chunked"] / wall["stored"], 3),
            "cpu_ratio": round(cpu["chunked"] / cpu["stored"], 3),
            "temporaries_mb": {n: round(m / 1e6, 1) for n, m in memory.items()},
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
