"""Whole runs at the smallest size: what every stage promises whatever it learns."""

import io
import json
import pathlib

import jax
import numpy as np
import pytest
from rich.console import Console

from rljax.config import ConfigError
from rljax.models import load
from rljax.train import checkpoint, metrics, run, setup
from tests import small_runs

ALL = ("sft", "dpo", "ppo")


def go(config):
    console = Console(file=io.StringIO(), width=120)
    code = run.run(config, console)
    return code, console.file.getvalue()


def saved_state(folder, step):
    """Every array of a checkpoint, by its path."""
    manager = checkpoint.open_existing(pathlib.Path(folder))
    raw = manager._manager.restore(step)["state"]
    manager.close()
    return {name: np.asarray(x) for name, x in raw.items()}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("algorithm", ALL)
def test_three_and_three_steps_are_six_bitwise(tmp_path, algorithm, monkeypatch):
    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "cache"))
    whole = small_runs.run_config(
        algorithm, tmp_path / "whole", train={"steps": 6, "save_every": 3}
    )
    go(whole)
    # The same run stopped after its third step, as SIGTERM does.
    halves = small_runs.run_config(
        algorithm, tmp_path / "halves", train={"steps": 6, "save_every": 3}
    )
    calls = []

    class Stopped:
        def __enter__(self):
            return lambda: calls.append(1) or len(calls) >= 3

        def __exit__(self, *_):
            return False

    with monkeypatch.context() as patch:
        patch.setattr(run.stop, "on_signals", Stopped)
        code, text = go(halves)
    assert code == 42
    assert "the same command goes on" in text
    code, text = go(halves)
    assert code == 0
    assert "resuming after step 3 of 6" in text
    same(saved_state(tmp_path / "whole", 6), saved_state(tmp_path / "halves", 6))
    rows = [metrics.read(tmp_path / name) for name in ("whole", "halves")]
    timed = {"time", "step_time", "tokens/s", "num_tokens"}
    for a, b in zip(*rows, strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {
            k: v for k, v in b.items() if k not in timed
        }


@pytest.mark.parametrize("algorithm", ALL)
def test_evaluation_does_not_change_training(tmp_path, algorithm, monkeypatch):
    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "cache"))
    states = []
    for every in (0, 1):
        out = tmp_path / f"every{every}"
        held = {"eval_rows": 8}
        go(
            small_runs.run_config(
                algorithm, out, train={"eval_every": every}, data=_data(algorithm, held)
            )
        )
        states.append(saved_state(out, 3))
    same(*states)


def _data(algorithm, more):
    return (
        {"train": "toy:sort", "max_prompt_length": 8, "limit": 64}
        | small_runs.STAGES[algorithm].get("data", {})
        | more
    )


@pytest.mark.parametrize("algorithm", ALL)
def test_eight_devices_learn_what_one_learns(tmp_path, algorithm, monkeypatch):
    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "cache"))
    states = []
    for name, mesh in (("one", {"devices": 1}), ("eight", {"devices": 8, "data": 2, "fsdp": 4})):
        optim = {"lr": 1e-3, "schedule": "constant", "eps": 1e-3}  # Adam must not blow up rounding
        go(small_runs.run_config(algorithm, tmp_path / name, mesh=mesh, optim=optim))
        states.append(saved_state(tmp_path / name, 3))
    one, eight = states
    for name in one:
        if name.startswith("params."):
            np.testing.assert_allclose(one[name], eight[name], atol=1e-5, err_msg=name)


def test_live_and_precomputed_references_learn_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "cache"))
    states = []
    for kind in ("live", "precomputed"):
        go(small_runs.run_config("dpo", tmp_path / kind, dpo={"reference": kind}))
        states.append(saved_state(tmp_path / kind, 3))
    for name in states[0]:
        if name.startswith("params."):
            np.testing.assert_allclose(states[0][name], states[1][name], atol=1e-5, err_msg=name)


def test_the_reference_cache_is_by_content(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("RLJAX_CACHE", str(cache))
    files = lambda: sorted(p.name for p in (cache / "reference").iterdir())
    go(small_runs.run_config("dpo", tmp_path / "a"))
    first = files()
    go(small_runs.run_config("dpo", tmp_path / "b"))
    assert files() == first
    # Another model: the seed draws other weights (and other pairs).
    go(small_runs.run_config("dpo", tmp_path / "c", seed=1))
    assert len(files()) == len(first) + 1


@pytest.mark.parametrize("algorithm", ["ppo", "dpo"])
def test_every_trained_leaf_moves(tmp_path, algorithm, monkeypatch):
    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "cache"))
    config = small_runs.run_config(
        algorithm, tmp_path / "run", train={"save_every": 1, "keep_last": 9}
    )
    go(config)
    first, last = (saved_state(tmp_path / "run", step) for step in (1, 3))
    for name in first:
        if name.startswith("params."):
            assert not np.array_equal(first[name], last[name]), f"{name} never moved"


def test_critic_warmup_moves_the_critic_and_nothing_of_the_policy(tmp_path):
    ppo = small_runs.STAGES["ppo"]["ppo"] | {"critic_warmup": 3, "critic": "separate"}
    go(
        small_runs.run_config(
            "ppo", tmp_path / "run", ppo=ppo, optim={"lr": 1e-2, "weight_decay": 0.1}
        )
    )
    fresh = setup.make(small_runs.run_config("ppo", tmp_path / "run")).policy
    state = saved_state(tmp_path / "run", 3)
    for path, leaf in jax.tree.leaves_with_path(fresh):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        np.testing.assert_array_equal(state[f"params.policy.{name}"], leaf, err_msg=name)
    assert not np.array_equal(
        state["params.critic.embed.tokens"], state["params.policy.embed.tokens"]
    )


def test_a_run_leaves_curves_samples_and_a_model_that_loads(tmp_path):
    config = small_runs.run_config(
        "sft", tmp_path / "run", train={"samples": 2, "export": True}, rollout={"max_new_tokens": 4}
    )
    code, _ = go(config)
    assert code == 0
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").open()]
    assert [s["when"] for s in samples] == ["before", "before", "after", "after"]
    params, cfg = load.load(tmp_path / "run" / "model")
    state = saved_state(tmp_path / "run", 3)
    np.testing.assert_array_equal(params["embed"]["tokens"], state["params.policy.embed.tokens"])
    assert cfg.layers == 2


def test_another_config_in_the_same_folder_is_refused_and_named(tmp_path):
    go(small_runs.run_config("sft", tmp_path / "run"))
    other = small_runs.run_config(
        "sft", tmp_path / "run", optim={"lr": 2e-2, "schedule": "constant"}
    )
    with pytest.raises(
        ConfigError, match=r"holds another run \(optim.lr is 0.01 there and 0.02 here\)"
    ):
        go(other)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        go(small_runs.run_config("sft", tmp_path / "run"))
    assert (tmp_path / "run" / "thesis.tex").exists()
