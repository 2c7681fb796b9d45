"""The order of rows, by grain: shuffled anew each epoch, cut per process, resumable exactly."""

from collections.abc import Iterator

import grain
import numpy as np


def training_order(
    count: int, batch_size: int, *, seed: int, process: int = 0, processes: int = 1
) -> grain.DatasetIterator:
    """An endless iterator over this process's row indices [batch_size / processes] of each batch.

    Every epoch visits each row once, in an order fixed by seed and epoch; batches run on across
    the border of epochs, so no row is dropped, padded or repeated out of turn. The iterator's
    `get_state` and `set_state` count batches: a resumed run goes on exactly where it stopped.
    """
    if batch_size % processes:
        raise ValueError(
            f"train.batch_size={batch_size} does not divide over {processes} processes"
        )
    mine = slice(process * batch_size // processes, (process + 1) * batch_size // processes)
    # As good as endless; grain's own endless repeat overflows for a single row.
    epochs = 10**9
    order = grain.MapDataset.range(count).seed(seed).shuffle().repeat(epochs).batch(batch_size)
    return iter(order.map(lambda rows: np.asarray(rows)[mine]).to_iter_dataset())


def in_order(count: int, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every row once, for evaluation: (indices, weights), the last batch filled at weight 0."""
    for start in range(0, count, batch_size):
        index = np.arange(start, start + batch_size)
        yield np.minimum(index, count - 1), (index < count).astype(np.float32)
