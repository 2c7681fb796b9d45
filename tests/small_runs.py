"""The smallest configs that run every stage for real; shared by the tests of whole runs."""

import pathlib

import yaml

from rljax import config
from rljax.train.run_config import RunConfig

MODEL = {"fresh": {"layers": 2, "embed": 16, "heads": 2, "mlp": 32}, "tokenizer": "bytes"}
STAGES = {
    "sft": {"data": {"max_length": 24, "buckets": [24]}},
    "dpo": {"data": {"max_length": 24, "buckets": [24]}},
    "ppo": {
        "rollout": {"max_new_tokens": 6},
        "reward": {"functions": ["rljax.data.toy.sort_reward"]},
        "ppo": {
            "samples_per_prompt": 2,
            "epochs": 2,
            "minibatches": 2,
            "kl_target": 1.0,
            "kl_coef": 0.1,
        },
        "data": {"buckets": [8]},
    },
}


def tree(algorithm: str, output: pathlib.Path, **changes) -> dict:
    """A config as nested dicts; `changes` are whole sections merged over the defaults."""
    base = {
        "algorithm": algorithm,
        "output": str(output),
        "model": MODEL,
        "mesh": {"devices": 1},
        "data": {"train": "toy:sort", "max_prompt_length": 8, "limit": 64},
        "train": {"steps": 3, "batch_size": 8, "samples": 0, "export": False},
        "optim": {"lr": 1e-2, "schedule": "constant"},
    }
    for part in (STAGES[algorithm], changes):
        for section, fields in part.items():
            merged = base.get(section, {}) | fields if isinstance(fields, dict) else fields
            base[section] = merged
    return base


def run_config(algorithm: str, output: pathlib.Path, **changes) -> RunConfig:
    return config.build(RunConfig, tree(algorithm, output, **changes))


def written(path: pathlib.Path, algorithm: str, output: pathlib.Path, **changes) -> pathlib.Path:
    path.write_text(yaml.safe_dump(tree(algorithm, output, **changes)))
    return path
