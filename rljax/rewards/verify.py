"""Rewards that a program can check. Each takes lists of completions and gives one number a row.

Completions may be text or messages (the last message is read), as in TRL.
"""

import re
from collections.abc import Sequence
from typing import Any

NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?"


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[-1]["content"]


def exact_match(
    completions: Sequence[Any], answer: Sequence[str | None], **_: Any
) -> list[float | None]:
    """1 where the completion, stripped, is the answer; None where the row has no answer."""
    return [
        None if a is None else float(text_of(c).strip() == str(a).strip())
        for c, a in zip(completions, answer)
    ]


def gsm8k_answer(answer: str) -> str:
    """The number after `####` in a GSM8K solution."""
    return normalise_number(answer.rpartition("####")[2])


def normalise_number(text: str) -> str:
    """A number as digits: no currency, thousands separators, trailing zeros or point."""
    text = text.strip().replace(",", "").replace("$", "").rstrip(".")
    return text.rstrip("0").rstrip(".") if "." in text else text


def final_number(text: str) -> str | None:
    """What follows the last `####`, else the last `\\boxed{}`, else the last number of the text."""
    for pattern in (rf"####\s*({NUMBER})", rf"\\boxed\{{\s*({NUMBER})\s*\}}", rf"({NUMBER})"):
        if found := re.findall(pattern, text):
            return normalise_number(found[-1])
    return None


def gsm8k_correct(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the completion's final number is that of the solution."""
    return [float(final_number(text_of(c)) == gsm8k_answer(a)) for c, a in zip(completions, answer)]


def gsm8k_format(completions: Sequence[Any], **_: Any) -> list[float]:
    """1 where the completion ends in a line `#### number`, as GSM8K's solutions do."""
    return [float(re.search(rf"####\s*{NUMBER}\s*$", text_of(c)) is not None) for c in completions]


def gsm8k_format_steps(completions: Sequence[Any], **_: Any) -> list[float]:
    """`gsm8k_format` with steps towards it: 0.25 for `####`, 0.5 for `#### number` anywhere."""
    texts = [text_of(c) for c in completions]
    partial = [0.5 if re.search(rf"####\s*{NUMBER}", t) else 0.25 * ("####" in t) for t in texts]
    return [max(p, f) for p, f in zip(partial, gsm8k_format(completions))]
