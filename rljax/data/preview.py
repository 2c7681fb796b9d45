"""Rows as the trainer sees them: which tokens are trained, which only read."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rljax.data.encode import Encoded

NAMES = {0: ("prompt only",), 1: ("completion",), 2: ("chosen", "rejected")}


def show(console: Console, tokenizer, examples: Sequence[Encoded], count: int) -> None:
    """Print `count` rows, trained tokens in green between bars, and the share that is trained."""
    for i, example in enumerate(examples[:count]):
        console.rule(f"row {i}")
        for name, ids in zip(NAMES[len(example.completions)], example.completions or [[]]):
            console.print(coloured(tokenizer, name, example.prompt, ids))
    trained = sum(len(c) for e in examples for c in e.completions)
    read = sum(len(e.prompt) + len(c) for e in examples for c in e.completions or ([],))
    longest = max(len(e.prompt) + len(c) for e in examples for c in e.completions or ([],))
    share = trained / max(read, 1)
    console.print(
        f"{len(examples)} rows, longest {longest} tokens, "
        f"{trained} of {read} tokens trained ({share:.0%})",
        highlight=False,
    )


def coloured(tokenizer, name: str, prompt: Sequence[int], ids: Sequence[int]) -> Text:
    text = Text(f"{name}: ", style="bold")
    text.append(tokenizer.decode(prompt), style="dim")
    for i in ids:
        # The bar shows where tokens end, and colours alone do not reach everybody.
        text.append("|", style="dim green")
        text.append(tokenizer.decode([i]), style="green")
    return text
