"""`rljax quickstart`: a small model from scratch, by SFT, then improved by PPO and by DPO."""

import argparse
import pathlib
import time

from rich.console import Console
from rich.table import Table

from rljax import config
from rljax.train import metrics
from rljax.train.run import run as train
from rljax.train.run_config import RunConfig

STAGES = {
    "sft": "From random weights, learn to put letters in order: `dbca=` gives `abcd.` or `abcd!`",
    "ppo": "PPO: a program rewards letters in order",
    "dpo": "DPO: pairs prefer `abcd.` over `abcd!`",
}


def run(args: argparse.Namespace) -> int:
    console, began = Console(), time.time()
    folder = pathlib.Path(args.output)
    console.print("Three runs of about half a minute each on 2 CPU cores.\n", highlight=False)
    for stage, what in STAGES.items():
        console.rule(what, align="left")
        overrides = [f"output={folder / stage}", f"seed={args.seed}"]
        if stage != "sft":
            overrides.append(f"model.path={folder / 'sft' / 'model'}")
        # The same files as `rljax train configs/quickstart/….yaml` reads.
        path = configs() / "quickstart" / f"{stage}.yaml"
        code = train(config.load(RunConfig, path, overrides), console)
        if code:
            return code
    console.print(summary(folder))
    console.print(
        f"all in {time.time() - began:.0f} s; curves: {folder}/*/curves.png", highlight=False
    )
    return 0


def configs() -> pathlib.Path:
    """The folder of config files: inside an installed package, beside it in a checkout."""
    package = pathlib.Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


def summary(folder: pathlib.Path) -> Table:
    """Held-out scores before and after each of the two RL runs."""
    table = Table(title="Held-out scores")
    for column in ("run", "score", "before", "after"):
        table.add_column(column)
    for stage, name, words in (
        ("ppo", "eval_reward", "share of prompts answered in order"),
        ("dpo", "eval_logps/accuracies", "share of pairs ranked as preferred"),
    ):
        values = [row[name] for row in metrics.read(folder / stage) if name in row]
        table.add_row(stage.upper(), words, f"{values[0]:.2f}", f"{values[-1]:.2f}")
    return table
