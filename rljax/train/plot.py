"""A picture of a run's curves, from its JSONL."""

import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from rljax.train import metrics

FILE = "curves.png"
PANELS = {
    "sft": ("loss", "eval_loss", "entropy", "grad_norm", "learning_rate", "tokens/s"),
    "dpo": (
        "loss",
        "rewards/accuracies",
        "rewards/margins",
        "logps/chosen",
        "grad_norm",
        "tokens/s",
    ),
    "ppo": (
        "reward",
        "objective/kl",
        "policy/entropy_avg",
        "completions/mean_length",
        "policy/clipfrac_avg",
        "loss/value_avg",
        "val/ratio",
        "grad_norm",
        "tokens/s",
    ),
}


def plot(folder: str | pathlib.Path, algorithm: str) -> pathlib.Path:
    """Write `curves.png`: one panel a metric, the held-out value beside the training one."""
    folder = pathlib.Path(folder)
    rows = metrics.read(folder)
    names = [n for n in PANELS[algorithm] if any(n in row for row in rows)]
    columns = 3
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4 * columns, 2.6 * lines), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes.flat, names):
        _panel(axis, rows, name)
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    figure.suptitle(f"{algorithm.upper()}  {folder.name}", fontsize=11)
    figure.savefig(folder / FILE, dpi=110)
    plt.close(figure)
    return folder / FILE


def _panel(axis, rows: Sequence[dict], name: str) -> None:
    for label, colour in ((name, "#2a6fb0"), (f"eval_{name}", "#c8552b")):
        points = [(row["step"], row[label]) for row in rows if row.get(label) is not None]
        if not points:
            continue
        x, y = map(np.asarray, zip(*points))
        if label == name and len(y) > 20:
            axis.plot(x, y, color=colour, alpha=0.25, linewidth=0.8)
            window = max(3, len(y) // 20)
            kernel = np.ones(window) / window
            y, x = np.convolve(y, kernel, "valid"), x[window - 1 :]
        marker = "o" if label != name or len(y) < 20 else None
        axis.plot(x, y, color=colour, linewidth=1.6, marker=marker, markersize=3.5, label=label)
    axis.set_title(name, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if f"eval_{name}" in {label for row in rows for label in row}:
        axis.legend(fontsize=7, frameon=False)
