"""A generated task for the quickstart: arrange a few letters in alphabetical order.

The answer can be checked by a program, and a model of a million parameters learns it in minutes.
"""

import random
import zlib
from collections.abc import Sequence
from typing import Any

from rljax.data.records import Row

LETTERS = "abcdefghij"
COUNT = {"train": 4000, "held_out": 200}


def rows(task: str, kind: str, *, seed: int, held_out: bool = False) -> list[Row]:
    """`sort`: prompts `dbca=`, completions `abcd`. Held-out prompts never occur in training."""
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
        row["completion"] = answer
    elif kind == "preference":
        wrong = answer
        while wrong == answer:
            wrong = _spoiled(answer, rng)
        row |= {"chosen": answer, "rejected": wrong}
    return row


def _spoiled(answer: str, rng: random.Random) -> str:
    """Two neighbours swapped, a letter lost, or one doubled: the mistakes a weak model makes."""
    i = rng.randrange(len(answer) - 1)
    return rng.choice(
        (
            answer[:i] + answer[i + 1] + answer[i] + answer[i + 2 :],
            answer[:i] + answer[i + 1 :],
            answer[:i] + answer[i] + answer[i:],
        )
    )


def sort_reward(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the completion is the answer, else 0."""
    return [float(completion == right) for completion, right in zip(completions, answer)]
