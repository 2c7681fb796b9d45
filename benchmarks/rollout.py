"""Generation side by side with transformers.generate: same weights, shapes, machine; fp32 on CPU.

python benchmarks/rollout.py [--size tiny|30m|135m] [--rounds 3]      (needs torch)
Prints one JSON line a round and the ratio of the medians. Compilation is timed apart. The rounds of
the two alternate, so that a machine that slows down slows both.
"""

import argparse
import json
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rljax.models import decoder, export
from rljax.models.config import DecoderConfig
from rljax.rollout.generate import generate
from rljax.rollout.sampling import SamplingParams

SIZES = {
    "tiny": {"layers": 2, "embed": 64, "mlp": 192, "heads": 4, "kv_heads": 2, "head_dim": 16},
    "30m": {"layers": 8, "embed": 384, "mlp": 1024, "heads": 6, "kv_heads": 2, "head_dim": 64},
    "135m": {"layers": 30, "embed": 576, "mlp": 1536, "heads": 9, "kv_heads": 3, "head_dim": 64},
}
BATCH, PROMPT, NEW = 16, 64, 128


def ours(params, cfg, prompts):
    sampling = SamplingParams(max_new_tokens=NEW)
    keys = jax.random.split(jax.random.key(0), BATCH)
    ones = jnp.ones_like(prompts)
    return lambda: generate(
        params, cfg, prompts, ones, keys, sampling=sampling, pad_id=0
    ).tokens.block_until_ready()


def theirs(folder, prompts):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor(np.asarray(prompts))
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": True, "top_k": 0}
    mask = torch.ones_like(ids)
    return lambda: model.generate(ids, attention_mask=mask, pad_token_id=0, **options)


def timed(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    vocab = 512 if args.size == "tiny" else 49152
    cfg = DecoderConfig(vocab=vocab, tie_embedding=True, **SIZES[args.size])
    params = decoder.init(jax.random.key(0), cfg)
    prompts = jax.random.randint(jax.random.key(1), (BATCH, PROMPT), 1, vocab)
    with tempfile.TemporaryDirectory() as folder:
        export.export(params, cfg, f"{folder}/model")
        runs = {
            "rljax": ours(params, cfg, prompts),
            "transformers": theirs(f"{folder}/model", prompts),
        }
    first = {name: timed(run) for name, run in runs.items()}
    print(json.dumps({"first_call_s": first}))
    seconds = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            seconds[name].append(timed(run))
        print(json.dumps({name: BATCH * NEW / times[-1] for name, times in seconds.items()}))
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(json.dumps({"ratio": medians["transformers"] / medians["rljax"], "seconds": medians}))


if __name__ == "__main__":
    main()
