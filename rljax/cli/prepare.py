"""`rljax prepare`: JSONL into array_record files that TFDS reads without TensorFlow."""

import argparse

from rich.console import Console

from rljax.data.prepare import prepare


def run(args: argparse.Namespace) -> int:
    count = prepare(args.source, args.output, format=args.format)
    Console().print(f"{count} rows in {args.output}; use it as data.train", highlight=False)
    return 0
