"""Text -> ids, the same way in rollout and in training."""

from collections.abc import Sequence
from typing import Any

from rljax.data.rows import Text


def prompt_ids(tokenizer, prompt: Text) -> list[int]:
    """Ids of a prompt with exactly one BOS where the tokenizer has one.

    Messages are rendered with the chat template and its generation prompt; the render already
    holds the special tokens, so the tokenizer must not add them again.
    """
    if isinstance(prompt, str):
        return _without_final_eos(tokenizer, tokenizer(prompt)["input_ids"])
    return encode(tokenizer, _one_bos(tokenizer, render(tokenizer, prompt, generation=True)))


def completion_ids(tokenizer, prompt: Text, completion: Text) -> list[int]:
    """Ids that follow the prompt's, the end token included: never the ids of the joint text cut.

    A joint encoding may merge the last prompt character with the first answer character. For
    messages the completion is the render's remainder after the prompt's render, cut after the end
    token that closes the answer.
    """
    if isinstance(prompt, str):
        ids = encode(tokenizer, completion)
        return [*ids, tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else ids
    before = render(tokenizer, prompt, generation=True)
    full = render(tokenizer, [*prompt, *completion], generation=False)
    if not full.startswith(before):
        raise ValueError(
            "the chat template does not render the prompt as a prefix of the conversation; "
            "give prompt and completion as plain text"
        )
    ids = encode(tokenizer, full[len(before) :])
    eos = tokenizer.eos_token_id
    if eos in ids:
        # The template's line break after the end token is never sampled, so it is not trained.
        return ids[: len(ids) - ids[::-1].index(eos)]
    return [*ids, eos] if eos is not None else ids


def render(tokenizer, messages: Sequence[dict[str, Any]], *, generation: bool) -> str:
    if not tokenizer.chat_template:
        raise ValueError(
            "the tokenizer has no chat template; give plain text, or one with a template"
        )
    return tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=generation
    )


def encode(tokenizer, text: str) -> list[int]:
    """Ids of the text alone, no special token added."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _one_bos(tokenizer, text: str) -> str:
    """The render with a BOS in front where the tokenizer adds one and the template did not."""
    bos = tokenizer.bos_token
    adds = bos is not None and tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    return bos + text if adds and not text.startswith(bos) else text


def _without_final_eos(tokenizer, ids: list[int]) -> list[int]:
    """Some tokenizers close every text with EOS; a prompt must stay open."""
    adds = tokenizer("")["input_ids"][-1:] == [tokenizer.eos_token_id]
    return ids[:-1] if adds and ids[-1:] == [tokenizer.eos_token_id] else ids
