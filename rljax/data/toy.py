"""A generated task for the quickstart: put a few letters in order and close with a mark.

Whether the letters are in order is checked by a program, which is PPO's reward. The mark, `.` or
`!`, is a coin flip in the supervised data: a matter of taste, which DPO's pairs settle.
"""

import random
import zlib
from collections.abc import Sequence
from typing import Any

from rljax.data.records import Row

LETTERS = "abcdefghij"
MARKS = ".!"
COUNT = {"train": 4000, "held_out": 200}


def rows(task: str, kind: str, *, seed: int, held_out: bool = False) -> list[Row]:
    """`sort`: prompts `dbca=`, completions `abcd.` or `abcd!`.

    Held-out prompts never occur in training.
    """
    if task != "sort":
        raise ValueError(f"data: toy task {task!r} does not exist; choose among 'sort'")
    rng = random.Random(f"{seed} {kind} {held_out}")
    out = []
    while len(out) < COUNT["held_out" if held_out else "train"]:
        letters = rng.sample(LETTERS, rng.randint(4, 6))
        text = "".join(letters)
        # A tenth of all prompts, chosen by the text itself, is kept for evaluation.
        if (zlib.crc32(text.encode()) % 10 == 0) != held_out:
            continue
        out.append(_row(text, kind, rng))
    return out


def _row(text: str, kind: str, rng: random.Random) -> Row:
    answer = "".join(sorted(text))
    row = {"prompt": text + "=", "answer": answer}
    if kind == "sft":
        row["completion"] = answer + rng.choice(MARKS)
    elif kind == "preference":
        row |= {"chosen": answer + MARKS[0], "rejected": answer + MARKS[1]}
    return row


def sort_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the letters are in order and a single mark closes them, else 0."""
    right = [{a + mark for mark in MARKS} for a in answer]
    return [float(completion in either) for completion, either in zip(completions, right)]
