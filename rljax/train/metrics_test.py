import io
import json

import jax.numpy as jnp
import pytest
from rich.console import Console

from rljax.train import metrics, plot


def log_into(folder, **options):
    console = Console(file=io.StringIO(), width=200)
    kw = {"total": 4, "shown": ("loss",), "console": console} | options
    return metrics.Log(folder, **kw), console.file


def test_values_are_written_one_step_late_and_all_at_the_end(tmp_path):
    log, _ = log_into(tmp_path)
    log.step(1, {"loss": jnp.float32(2.0)}, tokens=10)
    assert metrics.read(tmp_path) == []
    log.step(2, {"loss": jnp.float32(1.0)}, tokens=10)
    assert [row["step"] for row in metrics.read(tmp_path)] == [1]
    log.close()
    rows = metrics.read(tmp_path)
    assert [row["loss"] for row in rows] == [2.0, 1.0]
    assert [row["num_tokens"] for row in rows] == [10.0, 20.0]


def test_every_line_is_legal_json(tmp_path):
    log, _ = log_into(tmp_path)
    log.write(1, {"kl": float("inf"), "x": 1.0})
    log.close()
    (line,) = (tmp_path / metrics.FILE).read_text().splitlines()
    row = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert row["kl"] is None


def test_a_resumed_run_writes_no_step_twice(tmp_path):
    log, _ = log_into(tmp_path)
    for step in (1, 2, 3):
        log.step(step, {"loss": 1.0 * step}, tokens=1)
    log.close()
    with (tmp_path / metrics.FILE).open("a") as file:
        file.write('{"step": 4, "lo')  # what a kill leaves behind
    again, _ = log_into(tmp_path, start=2)
    again.step(3, {"loss": 30.0}, tokens=1)
    again.close()
    assert [(r["step"], r["loss"]) for r in metrics.read(tmp_path)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
    ]


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path):
    log, _ = log_into(tmp_path)
    log.step(3, {"loss": jnp.float32(jnp.nan)}, tokens=1)
    with pytest.raises(ValueError, match="loss is nan at step 3"):
        log.flush()


def test_without_a_terminal_a_plain_line_says_where_the_run_is(tmp_path):
    log, out = log_into(tmp_path)
    log.step(4, {"loss": 0.5}, tokens=1)
    log.close()
    assert "step 4/4  loss 0.5" in out.getvalue()


def test_tensorboard_gets_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboardX")
    log, _ = log_into(tmp_path, tensorboard=True)
    log.step(1, {"loss": 0.5}, tokens=1)
    log.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes()


def test_the_curves_are_a_picture_of_the_rows(tmp_path):
    log, _ = log_into(tmp_path)
    for step in range(1, 5):
        log.step(step, {"loss": 1.0 / step, "grad_norm": 1.0}, tokens=1)
    log.write(4, {"eval_loss": 0.3})
    log.close()
    picture = plot.plot(tmp_path, "sft")
    assert picture.read_bytes().startswith(b"\x89PNG")
