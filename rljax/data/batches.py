"""Tokenised examples -> fixed-shape numpy batches of a few lengths."""

from collections.abc import Sequence

import numpy as np

from rljax.data.encode import Encoded

Batch = dict[str, np.ndarray]
Numbers = Sequence[int | float] | np.ndarray | range


def buckets_for(limit: int, given: Sequence[int] = ()) -> tuple[int, ...]:
    """Row lengths to compile for: as given, or a third, two thirds and all of the limit (× 8)."""
    if not given:
        thirds = (-(-limit * part // 3) for part in (1, 2, 3))
        return tuple(sorted({-(-length // 8) * 8 for length in thirds}))
    if sorted(set(given)) != list(given) or given[-1] < limit:
        raise ValueError(
            f"data.buckets={tuple(given)}; wants rising lengths, the last at least {limit}"
        )
    return tuple(given)


def bucket(length: int, buckets: Sequence[int]) -> int:
    return next(size for size in buckets if size >= length)


def training_batch(
    examples: Sequence[Encoded], index: Numbers, weight: Numbers, buckets: Sequence[int]
) -> Batch:
    """Right-padded rows: tokens, segments int32, mask fp32 [B, (2,) T]; weight fp32, row int64 [B].

    The mask is 1 on completion tokens, by length. Preferences have an axis of 2: chosen, rejected.
    """
    K = len(examples[0].completions)
    T = bucket(max(len(e.prompt) + len(c) for e in examples for c in e.completions), buckets)
    tokens = np.zeros((len(examples), K, T), np.int32)
    segments, mask = np.zeros_like(tokens), np.zeros(tokens.shape, np.float32)
    for b, example in enumerate(examples):
        for k, completion in enumerate(example.completions):
            ids = example.prompt + completion
            tokens[b, k, : len(ids)] = ids
            segments[b, k, : len(ids)] = 1
            mask[b, k, len(example.prompt) : len(ids)] = 1.0
    rows = {"tokens": tokens, "segments": segments, "mask": mask}
    return {k: x[:, 0] if K == 1 else x for k, x in rows.items()} | _bookkeeping(index, weight)


def prompt_batch(
    examples: Sequence[Encoded],
    index: Numbers,
    weight: Numbers,
    buckets: Sequence[int],
    pad: int = 0,
) -> Batch:
    """Left-padded prompts: tokens, segments int32 [B, P]; weight fp32, row int64 [B]."""
    P = bucket(max(len(e.prompt) for e in examples), buckets)
    return left_padded([e.prompt for e in examples], P, pad) | _bookkeeping(index, weight)


def left_padded(prompts: Sequence[Sequence[int]], length: int, pad: int) -> Batch:
    """tokens and segments int32 [B, length], each prompt at the right end of its row."""
    tokens = np.full((len(prompts), length), pad, np.int32)
    segments = np.zeros_like(tokens)
    for b, ids in enumerate(prompts):
        tokens[b, length - len(ids) :] = ids
        segments[b, length - len(ids) :] = 1
    return {"tokens": tokens, "segments": segments}


def _bookkeeping(index: Numbers, weight: Numbers) -> Batch:
    return {"weight": np.asarray(weight, np.float32), "row": np.asarray(index, np.int64)}
