"""Tokenizers: of a Hugging Face folder, rebuilt from a GGUF file, or the built-in bytes."""

import pathlib
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

BYTES = "bytes"
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"

BYTES_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)

GPT2_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def load_tokenizer(path: str | pathlib.Path) -> PreTrainedTokenizerBase:
    """The tokenizer at `path` (a folder or a .gguf file), or the byte tokenizer for `bytes`.

    Raises ValueError when there is none, or a GGUF pre-tokenizer is not known: a wrong split gives
    other ids without a sign.
    """
    if str(path) == BYTES:
        return byte_tokenizer()
    path = pathlib.Path(path)
    if path.suffix == ".gguf" and path.is_file():
        return gguf_tokenizer(path)
    if not path.is_dir():
        raise ValueError(f"no tokenizer at {path}: wants a folder, a .gguf file, or `bytes`")
    if not any(
        (path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    ):
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return gguf_tokenizer(found[0])
        raise ValueError(f"{path} holds no tokenizer.json, tokenizer.model or vocab.json")
    return AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """<pad> 0, <bos> 1, <eos> 2, then byte b as id b + 3; encoding adds a BOS."""
    vocab = {PAD: 0, BOS: 1, EOS: 2} | {c: b + 3 for b, c in sorted(byte_alphabet().items())}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, BOS, EOS)])
    tok.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token=PAD, bos_token=BOS, eos_token=EOS
    )
    fast.chat_template = BYTES_TEMPLATE
    return fast


def gguf_tokenizer(path: pathlib.Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer from GGUF metadata, its digits split as the model was trained."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    field = lambda key: reader.fields[key].contents() if key in reader.fields else None
    kind, pre = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise ValueError(f"{path}: GGUF tokenizer model {kind!r} is not supported; wants 'gpt2'")
    tokens, merges = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges")
    types = field("tokenizer.ggml.token_type")
    vocab = {token: i for i, token in enumerate(tokens)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ", 1)) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence(_splits(pre, path))
    tok.decoder = decoders.ByteLevel()
    control = [tokens[i] for i, t in enumerate(types) if t in (3, 4)]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    named: dict[str, Any] = {}
    for name, key in {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}.items():
        if (i := field(f"tokenizer.ggml.{key}_token_id")) is not None:
            named[f"{name}_token"] = tokens[int(i)]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok, clean_up_tokenization_spaces=False, **named
    )
    fast.chat_template = field("tokenizer.chat_template")
    return fast


def _splits(pre: str | None, path: pathlib.Path) -> list[pre_tokenizers.PreTokenizer]:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known = {
        # llama.cpp isolates every digit before the GPT-2 pattern for SmolLM.
        "smollm": [pre_tokenizers.Digits(individual_digits=True), _regex(GPT2_PATTERN), byte_level],
        "gpt-2": [_regex(GPT2_PATTERN), byte_level],
        "default": [_regex(GPT2_PATTERN), byte_level],
        "llama-bpe": [_regex(LLAMA3_PATTERN), byte_level],
        "qwen2": [_regex(QWEN2_PATTERN), byte_level],
    }
    if pre not in known:
        raise ValueError(f"{path}: GGUF pre-tokenizer {pre!r} is not one of {', '.join(known)}")
    return known[pre]


def _regex(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> list[bytes]:
    """The raw bytes of every id, exact for parts of a UTF-8 character.

    Byte-level tokens are mapped back through GPT-2's alphabet, SentencePiece ones have `▁` for a
    space and `<0x0A>` for a byte; special tokens give their text.
    """
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    texts = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    back = {c: b for b, c in byte_alphabet().items()}
    sentencepiece = any(text == "<0x0A>" for text in texts)
    out = []
    for i, text in enumerate(texts):
        if text is None:
            out.append(b"")
        elif i in special:
            out.append(text.encode())
        elif sentencepiece:
            is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
            out.append(bytes([int(text[3:5], 16)]) if is_byte else text.replace("▁", " ").encode())
        else:
            out.append(bytes(back[c] for c in text))
    return out


def stop_ids(
    tokenizer: PreTrainedTokenizerBase, generation_config: dict | None = None
) -> tuple[int, ...]:
    """Every id that ends a turn: the tokenizer's EOS and all of the generation config's."""
    ids: list[int] = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    more = (generation_config or {}).get("eos_token_id")
    more = [] if more is None else more if isinstance(more, Sequence) else [more]
    return tuple(dict.fromkeys([*ids, *more]))


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """What to fill rows with. It may equal EOS: nothing here finds padding by its id."""
    for value in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if value is not None:
            return value
    return 0
