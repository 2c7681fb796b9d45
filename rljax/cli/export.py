"""`rljax export`: the policy of a run's checkpoint as a Hugging Face folder."""

import argparse
import pathlib

from rich.console import Console

from rljax import config
from rljax.models.export import export
from rljax.train import checkpoint, setup
from rljax.train.run_config import RunConfig


def run(args: argparse.Namespace) -> int:
    folder = pathlib.Path(args.run_folder)
    if not (folder / setup.CONFIG_FILE).is_file():
        raise ValueError(f"{folder} holds no {setup.CONFIG_FILE}; name the output folder of a run")
    made = setup.make(config.load(RunConfig, folder / setup.CONFIG_FILE))
    saved = checkpoint.open_existing(folder)
    steps = saved.steps()
    step = saved.latest() if args.step is None else args.step
    if step not in steps:
        raise ValueError(f"{folder} has checkpoints of steps {steps}, not {args.step}")
    policy = saved.restore_policy(step, made.policy)
    out = export(
        policy,
        made.cfg,
        args.output,
        tokenizer=made.tokenizer,
        generation_config=made.generation_config,
        dtype=args.dtype,
    )
    saved.close()
    Console().print(f"step {step} of {folder} in {out}", highlight=False)
    return 0
