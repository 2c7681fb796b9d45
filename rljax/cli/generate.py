"""`rljax generate`: complete prompts with a checkpoint, to see what it says."""

import argparse
import sys

import jax
import numpy as np
from rich.console import Console

from rljax.data import batches, chat, tokenizer
from rljax.models import load
from rljax.rollout import stops as stops_lib
from rljax.rollout.generate import STOP_STRING, generate
from rljax.rollout.sampling import SamplingParams


def run(args: argparse.Namespace) -> int:
    prompts = [line.rstrip("\n") for line in sys.stdin] if args.prompts == ["-"] else args.prompts
    tok = tokenizer.load_tokenizer(args.tokenizer or args.model)
    table = None
    if args.stop:
        table = stops_lib.stop_table(tokenizer.token_bytes(tok), args.stop)
    sampling = SamplingParams(
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        stop_ids=tokenizer.stop_ids(tok, load.generation_config(args.model)),
    )
    params, cfg = load.load(args.model)
    messages = [[{"role": "user", "content": p}] if args.chat else p for p in prompts]
    ids = [chat.prompt_ids(tok, m) for m in messages]
    rows = batches.left_padded(ids, max(map(len, ids)), tokenizer.pad_id(tok))
    keys = jax.random.split(jax.random.key(args.seed), len(ids))
    done = generate(
        params,
        cfg,
        rows["tokens"],
        rows["segments"],
        keys,
        sampling=sampling,
        stops=table,
        pad_id=tokenizer.pad_id(tok),
    )
    console = Console()
    finishes = np.asarray(done.finish)
    for prompt, row, length, finish in zip(
        prompts, np.asarray(done.tokens), done.lengths, finishes
    ):
        text = tok.decode(row[: int(length)], skip_special_tokens=True)
        text = stops_lib.cut_text(text, args.stop) if finish == STOP_STRING else text
        console.print(f"> {prompt}", style="dim", markup=False, highlight=False)
        note = ("cut at the limit", "ended", "stop string")[finish]
        console.print(text, markup=False, highlight=False)
        console.print(f"[{int(length)} tokens, {note}]", style="dim", markup=False, highlight=False)
    return 0
