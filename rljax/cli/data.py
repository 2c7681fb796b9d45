"""`rljax data show`: look at a config's rows before spending time on them."""

import argparse

from rich.console import Console

from rljax import config
from rljax.data import preview, tokenizer
from rljax.train.run_config import RunConfig
from rljax.train.setup import load_rows


def run(args: argparse.Namespace) -> int:
    run_config = config.load(RunConfig, args.config, args.overrides)
    tok = tokenizer.load_tokenizer(run_config.model.tokenizer or run_config.model.path)
    train, _, notes = load_rows(run_config, tok)
    console = Console()
    for note in notes:
        console.print(note, highlight=False)
    preview.show(console, tok, train, args.rows)
    return 0
