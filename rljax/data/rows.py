"""What a row says: a prompt, a completion, a preference, as text or as chat messages."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rljax.data.records import Row

Text = str | list[dict[str, Any]]
"""Plain text, or chat messages with `role` and `content`."""

Kind = Literal["prompt", "sft", "preference"]

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt",),
    "sft": ("prompt", "completion"),
    "preference": ("prompt", "chosen", "rejected"),
}
RESERVED = ("prompts", "completions", "completion_ids")
"""Names that reward functions are called with: a column of that name would be hidden."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One row in our terms; `columns` holds every column the row came with."""

    prompt: Text
    completion: Text | None = None
    chosen: Text | None = None
    rejected: Text | None = None
    columns: Row


def normalise(
    row: Row,
    kind: Kind,
    *,
    where: str,
    rename: Mapping[str, str] | None = None,
    template: str | None = None,
    chat: bool = False,
) -> Example:
    """Read one row as `kind`; ValueError naming `where` and the column when it cannot be.

    `rename` gives our column's name in the row, `template` builds the prompt from columns
    ("{question}\\nAnswer:"), and `chat` makes a plain prompt one user message and plain answers
    one assistant message. A preference without `prompt` is split where its answers part: at the
    last common `\\n\\nAssistant:` of HH-RLHF dialogues, or the last common messages.
    """
    if hidden := [name for name in RESERVED if name in row]:
        raise ValueError(
            f"{where}: column {hidden[0]!r} is a name reward functions are called with; rename it"
        )
    rename = rename or {}
    if (
        unknown := set(rename)
        - {name for names in COLUMNS.values() for name in names}
        - {"messages"}
    ):
        raise ValueError(f"data.columns: {sorted(unknown)[0]!r} is not a column that rljax reads")
    named = {
        ours: row[rename.get(ours, ours)]
        for ours in _all_columns()
        if rename.get(ours, ours) in row
    }
    if template is not None:
        named["prompt"] = _fill(template, row, where)
    if kind == "preference" and "prompt" not in named:
        named |= _implicit_prompt(named, where, row)
    if kind == "sft" and "messages" in named and "prompt" not in named:
        named |= _split_messages(named["messages"], where)
    values = {}
    for column in COLUMNS[kind]:
        if column not in named:
            raise ValueError(
                f"{where}: no column {rename.get(column, column)!r} for the {column}; the row has "
                f"{', '.join(map(repr, row))} (data.columns renames)"
            )
        values[column] = _checked(named[column], f"{where}: column {rename.get(column, column)!r}")
    if chat:
        values = {
            k: _as_chat(v, "user" if k == "prompt" else "assistant") for k, v in values.items()
        }
    kinds = {isinstance(value, str) for value in values.values()}
    if len(kinds) > 1:
        raise ValueError(
            f"{where}: {', '.join(values)} mix plain text and messages; make them alike"
        )
    return Example(columns=dict(row), **values)


def _all_columns() -> list[str]:
    return list(dict.fromkeys([n for names in COLUMNS.values() for n in names] + ["messages"]))


def _fill(template: str, row: Row, where: str) -> str:
    try:
        return template.format_map(row)
    except KeyError as error:
        raise ValueError(
            f"{where}: data.prompt_template names {error}, which the row lacks"
        ) from error


def _checked(value: Any, where: str) -> Text:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        for i, message in enumerate(value):
            if not isinstance(message, dict) or not {"role", "content"} <= set(message):
                raise ValueError(f"{where}[{i}] is not a message with role and content")
        return [dict(message) for message in value]
    raise ValueError(f"{where} is {type(value).__name__}; wants text or a list of messages")


def _as_chat(value: Text, role: str) -> Text:
    return [{"role": role, "content": value}] if isinstance(value, str) else value


def _split_messages(messages: Any, where: str) -> dict[str, Text]:
    """The last assistant message is the completion; what leads to it is the prompt."""
    messages = _checked(messages, f"{where}: column 'messages'")
    if isinstance(messages, str) or not messages or messages[-1]["role"] != "assistant":
        raise ValueError(f"{where}: messages must end with an assistant message to train on")
    return {"prompt": messages[:-1], "completion": messages[-1:]}


def _implicit_prompt(named: dict[str, Any], where: str, row: Row) -> dict[str, Text]:
    for column in ("chosen", "rejected"):
        if column not in named:
            raise ValueError(
                f"{where}: no column {column!r}; the row has {', '.join(map(repr, row))}"
            )
    chosen, rejected = (
        _checked(named[c], f"{where}: column {c!r}") for c in ("chosen", "rejected")
    )
    if isinstance(chosen, str) and isinstance(rejected, str):
        prompt = _common_dialogue(chosen, rejected)
        if not prompt:
            raise ValueError(
                f"{where}: no prompt column, and chosen and rejected share no "
                f"`\\n\\nAssistant:` turn"
            )
    else:
        same = 0
        while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
            same += 1
        prompt = chosen[:same]
        if not prompt:
            raise ValueError(f"{where}: no prompt column, and chosen and rejected share no message")
    return {"prompt": prompt, "chosen": chosen[len(prompt) :], "rejected": rejected[len(prompt) :]}


def _common_dialogue(a: str, b: str) -> str:
    """The longest common prefix that ends with `\\n\\nAssistant:`."""
    ends = [m.end() for m in re.finditer(r"\n\nAssistant:", a) if b.startswith(a[: m.end()])]
    return a[: max(ends)] if ends else ""


def dialogue_messages(text: str) -> list[dict[str, str]]:
    """HH-RLHF's "\\n\\nHuman: … \\n\\nAssistant: …" as messages, less an empty last turn."""
    parts = re.split(r"\n\n(Human|Assistant):", text)
    roles = {"Human": "user", "Assistant": "assistant"}
    turns = [{"role": roles[r], "content": c.strip()} for r, c in zip(parts[1::2], parts[2::2])]
    return turns[:-1] if turns and not turns[-1]["content"] else turns
