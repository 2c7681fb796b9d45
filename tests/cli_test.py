"""The command line: what it prints when all is well, and one clear line when it is not."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rljax.cli.main import main
from rljax.models import load
from tests import small_runs
from tests.run_test import same, saved_state

GOLDENS = pathlib.Path(__file__).parent / "goldens"


def failing(capsys, *argv):
    """The one line that a command ends with when the user must mend something."""
    assert main([str(a) for a in argv]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    return line


def config_file(tmp_path, algorithm="sft", **changes):
    return small_runs.written(tmp_path / "c.yaml", algorithm, tmp_path / "run", **changes)


def broken_model(tmp_path, change):
    """A copy of a good checkpoint after `change(folder)`."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDENS / "models" / "llama2", folder)
    change(folder)
    return folder


def edit_config(**fields):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "holds no weights: wants model.safetensors"),
        (lambda f: (f / "config.json").unlink(), "holds no config.json"),
        (truncate, "is not a whole safetensors file"),
        (
            edit_config(model_type="mamba"),
            "model_type 'mamba' is not supported; choose among llama",
        ),
        (
            edit_config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}),
            "rope type 'yarn' is not supported; choose among",
        ),
        (
            edit_config(attention_sinks=4),
            "fields of llama that rljax does not read: {'attention_sinks': 4}",
        ),
        (edit_config(auto_map={"AutoModel": "x.Y"}), "never does; model_type 'llama'"),
        (
            edit_config(num_hidden_layers=9),
            "tensor model.layers.3.self_attn.q_proj.weight is missing",
        ),
        (edit_config(intermediate_size=8), "mlp.gate_proj.weight is (72, 32), wants (8, 32)"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "can run code when opened and are refused",
        ),
    ],
)
def test_a_bad_checkpoint(tmp_path, capsys, change, says):
    folder = broken_model(tmp_path, change)
    path = config_file(tmp_path, model={"fresh": None, "path": str(folder), "tokenizer": "bytes"})
    assert says in failing(capsys, "train", path)
    assert not (tmp_path / "run").exists()


def test_no_model_there(tmp_path, capsys):
    path = config_file(tmp_path, model={"fresh": None, "path": "/nowhere", "tokenizer": "bytes"})
    assert "no model at /nowhere: wants a folder" in failing(capsys, "train", path)


def rows_file(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    return {"train": str(path)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no rows"),
        ('{"prompt": "a"}\n{"prompt"\n', "line 2 is not valid JSON"),
        ('{"question": "a"}\n', "row 0: no column 'prompt' for the prompt; the row has 'question'"),
        ('{"prompt": "a"}\n', "row 0: no column 'completion' for the completion"),
        ('{"prompt": 3, "completion": "b"}\n', "column 'prompt' is int; wants text or a list"),
        (
            '{"prompt": "a", "completion": "b", "completions": 1}\n',
            "column 'completions' is a name reward",
        ),
    ],
)
def test_bad_rows(tmp_path, capsys, text, says):
    path = config_file(tmp_path, data=rows_file(tmp_path, text))
    assert says in failing(capsys, "train", path)


def test_overlong_rows_are_counted_and_nothing_left_is_an_error(tmp_path, capsys):
    row = '{"prompt": "%s", "completion": "b"}\n'
    data = rows_file(tmp_path, row % ("x" * 50) + row % "ab")
    path = config_file(
        tmp_path, data=data | {"overlong": "drop"}, train={"batch_size": 1, "steps": 1}
    )
    assert main(["train", str(path)]) == 0
    assert "train: 1 of 2 rows; 1 dropped: prompt over 8 tokens" in capsys.readouterr().out
    only = config_file(tmp_path, data=rows_file(tmp_path, row % ("x" * 50)) | {"overlong": "drop"})
    assert "no row is left to train on" in failing(
        capsys, "train", only, f"output={tmp_path / 'other'}"
    )


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.batch_sise=4", "unknown field train.batch_sise; did you mean batch_size?"),
        ("ppo.epochs=2", "ppo: nothing reads this section when algorithm=sft"),
        ("mesh.tensor=3", "does not cover 1 devices"),
        ("mesh.devices=99", "mesh.devices=99; there are 8"),
        ("optim.warmup=9", "optim.warmup=9 leaves nothing of 3 optimizer steps"),
        ("train.microbatches=3", "8 rows do not divide into 3 microbatches"),
        ("data.buckets=[4]", "wants rising lengths, the last at least 24"),
        ("data.eval_rows=999", "leaves nothing of 64 rows"),
        ("data.train=toy:chess", "toy task 'chess' does not exist"),
        ("model.tokenizer=/nowhere", "no tokenizer at /nowhere"),
    ],
)
def test_a_wrong_config(tmp_path, capsys, override, says):
    path = config_file(tmp_path)
    assert says in failing(capsys, "train", path, override)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_batch_that_eight_devices_cannot_divide_names_sizes(tmp_path, capsys):
    path = config_file(tmp_path, mesh={"devices": 8}, train={"batch_size": 12})
    assert "a multiple of 8 does, e.g. 8 or 16" in failing(capsys, "train", path)


REWARDS = """
def raises(completions, **_): raise KeyError("x")
def nothing(completions, **_): return None
def nan(completions, **_): return [float("nan")] * len(completions)
def short(completions, **_): return [1.0]
def text(completions, **_): return ["good"] * len(completions)
def asks(completions, label): return [1.0] * len(completions)
def never(completions, **_): return [None] * len(completions)
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "raised KeyError: 'x'"),
        ("nothing", "returned None; wants a list of 16"),
        ("nan", "gave nan for row 0"),
        ("short", "returned 1 values for 16 rows"),
        ("text", "gave 'good' for row 0"),
        ("asks", "asks for 'label'; the data has answer, completion_ids, completions, prompt"),
        ("absent", "has no function 'absent'"),
    ],
)
def test_a_bad_reward_function(tmp_path, capsys, name, says):
    (tmp_path / "rewards.py").write_text(REWARDS)
    path = config_file(tmp_path, "ppo", reward={"functions": [f"{tmp_path / 'rewards.py'}:{name}"]})
    assert says in failing(capsys, "train", path)


def test_a_reward_that_never_applies_moves_nothing(tmp_path):
    (tmp_path / "rewards.py").write_text(REWARDS)
    reward = {"functions": [f"{tmp_path / 'rewards.py'}:never"]}
    path = config_file(tmp_path, "ppo", reward=reward, train={"save_every": 1, "keep_last": 9})
    assert main(["train", str(path)]) == 0
    first, last = (saved_state(tmp_path / "run", step) for step in (1, 3))
    for name in first:
        if name.startswith("params."):
            np.testing.assert_array_equal(first[name], last[name], err_msg=name)


def started(path, log, **env):
    command = [sys.executable, "-m", "rljax.cli.main", "train", str(path)]
    env = os.environ | {"JAX_PLATFORMS": "cpu"} | env
    return subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)


@pytest.mark.parametrize("algorithm", ["dpo", "ppo"])
def test_killed_at_any_moment_the_same_command_ends_bitwise_the_same(tmp_path, algorithm):
    steps = {"train": {"steps": 12, "save_every": 2}}
    env = {"RLJAX_CACHE": str(tmp_path / "cache")}
    whole = small_runs.written(tmp_path / "whole.yaml", algorithm, tmp_path / "whole", **steps)
    path = small_runs.written(tmp_path / "killed.yaml", algorithm, tmp_path / "killed", **steps)
    with (tmp_path / "log").open("w") as log:
        assert started(whole, log, **env).wait(timeout=300) == 0
        first = started(path, log, **env)
        checkpoints = tmp_path / "killed" / "checkpoints"
        while not (checkpoints.is_dir() and any(p.name.isdigit() for p in checkpoints.iterdir())):
            assert first.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        time.sleep(random.uniform(0, 1.0))
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=60)
        assert started(path, log, **env).wait(timeout=300) == 0
    same(saved_state(tmp_path / "whole", 12), saved_state(tmp_path / "killed", 12))


def test_sigterm_saves_and_leaves_with_42(tmp_path):
    path = small_runs.written(
        tmp_path / "c.yaml", "sft", tmp_path / "run", train={"steps": 100_000}
    )
    with (tmp_path / "log").open("w") as log:
        process = started(path, log)
        while not (tmp_path / "run" / "metrics.jsonl").is_file() or not (
            (tmp_path / "run" / "metrics.jsonl").stat().st_size
        ):
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.05)
        process.terminate()
        assert process.wait(timeout=120) == 42
    assert [p for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit()]


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(tmp_path):
    """A file-size limit of the operating system stands in for the disk: writes fail for real."""
    train = {"steps": 4, "save_every": 2}
    path = small_runs.written(tmp_path / "c.yaml", "sft", tmp_path / "run", train=train)
    script = (
        "import resource, sys\n"
        "from rljax.train import checkpoint\n"
        "save = checkpoint.Checkpoints.save\n"
        "def limited(self, step, *a):\n"
        "    if step == 4:\n"
        "        self.wait()\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "    save(self, step, *a)\n"
        "checkpoint.Checkpoints.save = limited\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from rljax.cli.main import main\n"
        f"sys.exit(main(['train', {str(path)!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert done.returncode not in (0, 42), done.stdout
    assert (tmp_path / "run" / "checkpoints" / "2" / "commit_success.txt").is_file()
    code = main(["train", str(path)])
    assert code == 0
    assert saved_state(tmp_path / "run", 4)["step"] == 4


def test_generate_prints_completions_and_why_they_ended(tmp_path, capsys):
    path = config_file(tmp_path, train={"export": True}, rollout={"max_new_tokens": 4})
    assert main(["train", str(path)]) == 0
    capsys.readouterr()
    model = str(tmp_path / "run" / "model")
    assert main(["generate", model, "dbca=", "--max-new-tokens", "3", "--temperature", "0"]) == 0
    out = capsys.readouterr().out
    assert "> dbca=" in out and "tokens, " in out


def test_export_writes_the_checkpoint_of_a_step(tmp_path, capsys):
    path = config_file(tmp_path, train={"save_every": 1, "keep_last": 5})
    assert main(["train", str(path)]) == 0
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--step", "2"]) == 0
    params, _ = load.load(tmp_path / "out")
    state = saved_state(tmp_path / "run", 2)
    np.testing.assert_array_equal(params["embed"]["tokens"], state["params.policy.embed.tokens"])
    capsys.readouterr()
    line = failing(capsys, "export", tmp_path / "run", tmp_path / "no", "--step", "9")
    assert "has checkpoints of steps [1, 2, 3], not 9" in line


def test_prepare_then_train_on_it(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{i}", "completion": "x", "n": i}) + "\n" for i in range(20))
    )
    assert main(["prepare", str(rows), str(tmp_path / "prepared")]) == 0
    path = config_file(tmp_path, data={"train": str(tmp_path / "prepared")})
    assert main(["train", str(path)]) == 0
    assert "train: 20 of 20 rows" in capsys.readouterr().out
    assert "exists and is not empty" in failing(capsys, "prepare", rows, tmp_path / "prepared")


def test_data_show_marks_the_trained_tokens(tmp_path, capsys):
    path = config_file(tmp_path)
    assert main(["data", "show", str(path), "--rows", "1"]) == 0
    out = capsys.readouterr().out
    assert "|<eos>" in out and "tokens trained" in out
