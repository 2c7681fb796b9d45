"""Rows -> tokenised examples within the length limits; everything cut or dropped is counted."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from rljax.data import chat, rows
from rljax.data.records import Row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """Ids of a prompt and of what may follow it: nothing, a completion, or chosen and rejected."""

    prompt: list[int]
    completions: tuple[list[int], ...]
    columns: Row
    text: rows.Text  # the prompt as reward functions see it


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What became of the rows."""

    read: int
    kept: int
    counts: Mapping[str, int]  # why rows were cut or dropped

    def __str__(self) -> str:
        notes = "".join(f"; {n} {why}" for why, n in sorted(self.counts.items()))
        return f"{self.kept} of {self.read} rows{notes}"


def encode_rows(
    data: Sequence[Row],
    kind: rows.Kind,
    tokenizer,
    *,
    where: str,
    max_prompt_length: int,
    max_length: int,
    overlong: Literal["cut", "drop"] = "cut",
    rename: Mapping[str, str] | None = None,
    template: str | None = None,
    as_chat: bool = False,
) -> tuple[list[Encoded], Report]:
    """Tokenise every row. Raises ValueError when nothing is left to train on.

    Over-long prompts lose tokens from the left (a BOS stays) or are dropped; completions are cut
    from the right at `max_length` or their row is dropped. A row whose completion would be empty
    is dropped. Every such row is counted in the report.
    """
    counts: collections.Counter[str] = collections.Counter()
    out = []
    for number, row in enumerate(data):
        example = rows.normalise(
            row, kind, where=f"{where} row {number}", rename=rename, template=template, chat=as_chat
        )
        prompt = chat.prompt_ids(tokenizer, example.prompt)
        if len(prompt) > max_prompt_length:
            if overlong == "drop":
                counts[f"dropped: prompt over {max_prompt_length} tokens"] += 1
                continue
            counts[f"cut: prompt over {max_prompt_length} tokens, from the left"] += 1
            prompt = cut_left(prompt, max_prompt_length, tokenizer.bos_token_id)
        texts = [t for t in (example.completion, example.chosen, example.rejected) if t is not None]
        completions = [chat.completion_ids(tokenizer, example.prompt, text) for text in texts]
        room = max_length - len(prompt)
        if any(len(ids) > room for ids in completions):
            if overlong == "drop" or room < 1:
                counts[f"dropped: over {max_length} tokens"] += 1
                continue
            counts[f"cut: completion at {max_length} tokens in all"] += 1
            completions = [ids[:room] for ids in completions]
        if not all(completions):
            counts["dropped: empty completion"] += 1
            continue
        if kind == "preference" and completions[0] == completions[1]:
            counts["dropped: chosen equals rejected"] += 1
            continue
        out.append(
            Encoded(
                prompt=prompt,
                completions=tuple(completions),
                columns=example.columns,
                text=example.prompt,
            )
        )
    report = Report(read=len(data), kept=len(out), counts=dict(counts))
    if not out:
        raise ValueError(f"{where}: no row is left to train on ({report})")
    return out, report


def cut_left(ids: list[int], limit: int, bos: int | None) -> list[int]:
    """The last `limit` ids; a leading BOS is kept in front of them."""
    if bos is not None and ids[:1] == [bos]:
        return [bos, *ids[len(ids) - limit + 1 :]] if limit > 1 else [bos]
    return ids[-limit:]
