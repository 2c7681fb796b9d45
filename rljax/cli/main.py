"""The `rljax` command: one small function per subcommand, and errors that are one clear line."""

import argparse
import os
import sys
from collections.abc import Callable

from rljax import __version__

EPILOG = "RLJAX_TRACEBACK=1 shows where an error came from."


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="rljax", description="RL fine-tuning of language models in JAX.", epilog=EPILOG
    )
    top.add_argument("--version", action="version", version=f"rljax {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: str, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help, epilog=EPILOG)
        sub.set_defaults(run=run)
        return sub

    train = command(
        "train", "rljax.cli.train:run", "run the SFT, DPO or PPO stage of a config file"
    )
    train.add_argument("config", help="a YAML file, see configs/")
    train.add_argument("overrides", nargs="*", metavar="a.b=value", help="replace a config field")

    generate = command("generate", "rljax.cli.generate:run", "complete prompts with a checkpoint")
    generate.add_argument("model", help="an HF folder or a .gguf file")
    generate.add_argument(
        "prompts", nargs="+", help="the prompts; - reads them from stdin, one a line"
    )
    generate.add_argument("--tokenizer", help="where the tokenizer is, if not with the model")
    generate.add_argument("--chat", action="store_true", help="wrap each prompt as a user turn")
    generate.add_argument("--max-new-tokens", type=int, default=128)
    generate.add_argument("--temperature", type=float, default=0.0, help="0 (default) is greedy")
    generate.add_argument("--top-k", type=int)
    generate.add_argument("--top-p", type=float)
    generate.add_argument("--stop", action="append", default=[], help="stop string, repeatable")
    generate.add_argument("--seed", type=int, default=0)

    prepare = command(
        "prepare", "rljax.cli.prepare:run", "build an array_record dataset from JSONL"
    )
    prepare.add_argument("source", help="a .jsonl or .jsonl.gz file")
    prepare.add_argument("output", help="the folder to write; must not exist or be empty")
    words = "columns: as they are; hh: Human/Assistant dialogues of HH-RLHF"
    prepare.add_argument("--format", default="columns", choices=("columns", "hh"), help=words)

    export = command("export", "rljax.cli.export:run", "write a run's policy as an HF folder")
    export.add_argument("run_folder", help="the output folder of a run")
    export.add_argument("output", help="the folder to write")
    export.add_argument("--step", type=int, help="which checkpoint (default: the latest complete)")
    export.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))

    data = command(
        "data", "rljax.cli.data:run", "show rows of a config's data, trained tokens coloured"
    )
    data.add_argument("action", choices=("show",))
    data.add_argument("config")
    data.add_argument("overrides", nargs="*", metavar="a.b=value")
    data.add_argument("--rows", type=int, default=4)

    quick = command(
        "quickstart", "rljax.cli.quickstart:run", "train a small model and improve it by RL"
    )
    quick.add_argument("--output", default="runs/quickstart", help="folder for the three runs")
    quick.add_argument("--seed", type=int, default=0)
    return top


def resolve(target: str) -> Callable[[argparse.Namespace], int]:
    # Imported only now, so that `rljax --help` does not wait for JAX.
    module, _, name = target.partition(":")
    return getattr(__import__(module, fromlist=[name]), name)


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; exit codes: 0 done, 1 something to mend, 42 stopped and saved."""
    args = parser().parse_args(argv)
    try:
        return resolve(args.run)(args)
    except (ValueError, OSError, NotImplementedError) as error:
        if os.environ.get("RLJAX_TRACEBACK"):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
