"""`rljax train`: a config file, its overrides, one run."""

import argparse

from rich.console import Console

from rljax import config
from rljax.train.run import run as run_config
from rljax.train.run_config import RunConfig


def run(args: argparse.Namespace) -> int:
    return run_config(config.load(RunConfig, args.config, args.overrides), Console())
