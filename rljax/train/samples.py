"""Completions of a few prompts, before and after: what people look at first."""

import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from rljax.data import batches
from rljax.data.encode import Encoded
from rljax.data.tokenizer import token_bytes
from rljax.rollout import stops as stops_lib
from rljax.rollout.generate import STOP_STRING, Completions, generate
from rljax.rollout.sampling import SamplingParams
from rljax.train.setup import Setup

FILE = "samples.jsonl"


def stop_table(setup: Setup):
    stop = setup.config.rollout.stop
    return stops_lib.stop_table(token_bytes(setup.tokenizer), stop) if stop else None


def texts(setup: Setup, completions: Completions) -> list[str]:
    """Decoded completions without special tokens, cut before the stop string that ended them."""
    tokens, lengths = np.asarray(completions.tokens), np.asarray(completions.lengths)
    out = []
    for row, length, finish in zip(tokens, lengths, np.asarray(completions.finish)):
        text = setup.tokenizer.decode(row[:length], skip_special_tokens=True)
        out.append(
            stops_lib.cut_text(text, setup.config.rollout.stop) if finish == STOP_STRING else text
        )
    return out


def sample(setup: Setup, policy: Any, examples: Sequence[Encoded], table) -> list[str]:
    """Greedy completions of the examples' prompts."""
    rows = batches.prompt_batch(
        examples,
        range(len(examples)),
        [1.0] * len(examples),
        batches.buckets_for(setup.config.data.max_prompt_length, setup.config.data.buckets),
        setup.pad_id,
    )
    sampling = SamplingParams(
        max_new_tokens=setup.config.rollout.max_new_tokens, temperature=0.0, stop_ids=setup.stop_ids
    )
    with jax.set_mesh(setup.mesh):
        done = generate(
            policy,
            setup.cfg,
            rows["tokens"],
            rows["segments"],
            jax.random.split(jax.random.key(0), len(examples)),
            sampling=sampling,
            stops=table,
            pad_id=setup.pad_id,
            dtype=setup.dtype,
        )
    return texts(setup, done)


def prompt_text(setup: Setup, example: Encoded) -> str:
    return setup.tokenizer.decode(example.prompt, skip_special_tokens=True)


def write(setup: Setup, when: str, examples: Sequence[Encoded], completions: Sequence[str]) -> None:
    with (setup.folder / FILE).open("a", encoding="utf-8") as file:
        for example, completion in zip(examples, completions):
            row = {"when": when, "prompt": prompt_text(setup, example), "completion": completion}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def show(console: Console, prompts, before: Sequence[str] | None, after: Sequence[str]) -> None:
    """A table of prompt, completion before and completion after training."""
    table = Table(title="Samples (greedy)", show_lines=True)
    for name in ("prompt", "before", "after"):
        table.add_column(name, overflow="fold")
    for i, prompt in enumerate(prompts):
        cells = (prompt[-200:], before[i] if before else "", after[i])
        table.add_row(*(cell[:300].replace("[", r"\[") for cell in cells))
    console.print(table)
