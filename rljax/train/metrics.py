"""What a run writes down: JSONL always, TensorBoard by option, and one live line for people."""

import json
import math
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

FILE = "metrics.jsonl"


class Log:
    """Metrics of one run; only the first process writes.

    Values may be device arrays: they are fetched when the next step's are handed in, so that the
    device never waits for the host.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        total: int,
        start: int = 0,
        every: int = 1,
        shown: tuple[str, ...],
        tensorboard: bool = False,
        console: Console | None = None,
    ):
        self.folder, self.every, self.shown, self.total = folder, every, shown, total
        self.console = console or Console()
        self.active = jax.process_index() == 0
        self._pending: tuple[int, dict[str, Any]] | None = None
        self._began = self._last = time.time()
        self._first, self._seen = start, 0
        if not self.active:
            return
        _forget_after(folder / FILE, start)
        self._file = (folder / FILE).open("a", encoding="utf-8")
        self._board = _tensorboard(folder) if tensorboard else None
        self._bar = _bar(self.console)
        self._task = self._bar.add_task("", total=total, completed=start, line="")
        self._bar.start()

    def step(self, step: int, values: Mapping[str, Any], *, tokens: int) -> None:
        """Hand in the metrics of `step`, which read `tokens`; the step before's are written now."""
        self.flush()
        now = time.time()  # the step before is over, and a step that the host waited for, too
        took, self._last = now - self._last, now
        self._seen += tokens
        speed = {"step_time": took, "tokens/s": tokens / max(took, 1e-9), "num_tokens": self._seen}
        self._pending = (step, dict(values) | speed)

    def flush(self) -> dict[str, float]:
        """Write what is pending and return it as floats."""
        if self._pending is None:
            return {}
        step, values = self._pending
        self._pending = None
        numbers = {name: float(np.asarray(value)) for name, value in values.items()}
        if self.active and (step % self.every == 0 or step == self.total):
            self.write(step, numbers)
        self._show(step, numbers)
        _check_finite(step, numbers)
        return numbers

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """One line of JSONL at once (evaluation uses this directly)."""
        if not self.active:
            return
        legal = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
        row = {"step": step, "time": round(time.time(), 3)} | legal
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)

    def _show(self, step: int, numbers: Mapping[str, float]) -> None:
        if not self.active:
            return
        line = "  ".join(f"{k} {numbers[k]:.4g}" for k in self.shown if k in numbers)
        self._bar.update(self._task, completed=step, line=line)
        tenth = max(1, self.total // 10)
        if not self.console.is_terminal and (step % tenth == 0 or step == self.total):
            left = (time.time() - self._began) / max(step - self._first, 1) * (self.total - step)
            self.console.print(
                f"step {step}/{self.total}  {line}  left {left:.0f} s", highlight=False
            )

    def say(self, text: str) -> None:
        if self.active:
            self.console.print(text, highlight=False, markup=False)

    def close(self) -> dict[str, float]:
        last = self.flush()
        if self.active:
            self._bar.stop()
            self._file.close()
            if self._board is not None:
                self._board.close()
        return last


def _check_finite(step: int, numbers: Mapping[str, float]) -> None:
    for name in ("loss", "grad_norm"):
        if not math.isfinite(numbers.get(name, 0.0)):
            raise ValueError(
                f"{name} is {numbers[name]} at step {step}; the last checkpoint is intact. Lower "
                f"optim.lr or look at the rows of that step"
            )


def _bar(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[line]}"),
        console=console,
        disable=not console.is_terminal,
    )


def _tensorboard(folder: pathlib.Path):
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ValueError(
            "train.tensorboard needs tensorboardX: pip install 'rljax[tensorboard]'"
        ) from error
    return SummaryWriter(str(folder / "tensorboard"))


def read(folder: str | pathlib.Path) -> list[dict[str, Any]]:
    """The rows of a run's JSONL; a last line that a crash cut short is left out."""
    path = pathlib.Path(folder) / FILE
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def _forget_after(path: pathlib.Path, step: int) -> None:
    """Drop the lines of steps that a resumed run will do again."""
    kept = [row for row in read(path.parent) if row["step"] <= step] if step else []
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
