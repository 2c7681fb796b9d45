"""Every loss against numbers computed by other people's code: values and gradients.

Reads the folder RLJAX_GOLDEN_LOSSES, by default tests/goldens/losses (its README gives the layout).
Each case runs in fp32 at its `tolerance_float32` and in fp64 at its `tolerance`.
"""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.loss_adapters import ADAPTERS, NOT_YET_COVERED

pytestmark = pytest.mark.goldens

HERE = pathlib.Path(__file__).parent
FOLDER = pathlib.Path(os.environ.get("RLJAX_GOLDEN_LOSSES", HERE / "goldens/losses"))
FILES = sorted(FOLDER.glob("*.json"))
CASES = {path.name: json.loads(path.read_text()) for path in FILES}

# What peers report beside the loss and we do not: the reason of each.
NOT_OURS = {
    "log_probs_peer_in_bfloat16",  # rounded to bf16: the fault that trap P10 names
    "approxkl_mean_over_all_positions",  # averages over padding
    "losses_chosen_then_rejected",  # kto_pair: one value per pair here
    "log_importance_weights",  # gmpo: an intermediate
    "kl",  # apo_zero_unpaired has none and logs 0
    "per_sequence_loss",  # gmpo with a KL, sft: a mean over tokens has no rows
}
NOT_OUR_METRICS = {
    "clip_ratio/low_min",  # extrema over rows are the caller's reduction
    "clip_ratio/high_max",
}


def arrays(inputs, dtypes, dtype):
    """Nested lists to arrays; whatever is ragged or a flag stays as it is."""

    def convert(name, value):
        if isinstance(value, bool) or not isinstance(value, list | float | int):
            return value
        try:
            x = np.asarray(value)
        except ValueError:
            return value
        if x.dtype.kind == "O":
            return value
        if x.dtype.kind == "f" or "float" in dtypes.get(name, ""):
            return jnp.asarray(x, dtype)
        return jnp.asarray(x)

    return {name: convert(name, value) for name, value in inputs.items()}


def compare(name, got, want, tolerance):
    if isinstance(want, dict):
        for key in want.keys() - NOT_OUR_METRICS:
            assert key in got, f"{name}: {key} is missing"
            compare(f"{name}.{key}", got[key], want[key], tolerance)
        return
    want = np.asarray(want, np.float64)
    valid = np.ones(want.shape, bool)
    if isinstance(got, tuple):
        got, mask = got
        valid = np.asarray(mask) != 0
    got = np.asarray(got, np.float64)
    # Where the peer says NaN (a deviation of fewer than two values), we must still be finite.
    undefined = np.isnan(want)
    assert np.isfinite(got[undefined]).all(), f"{name} is not finite"
    keep = valid & ~undefined
    assert got.shape == want.shape, f"{name}: shape {got.shape}, the peer's {want.shape}"
    np.testing.assert_allclose(got[keep], want[keep], **tolerance, err_msg=name)


def check(adapter, hp, x, expected, tolerance, *state):
    """Outputs, then every gradient; returns the adapter's new state."""

    def run(x):
        result = adapter(hp, x, *state)
        return result if state else (result, None)

    gradients = {name for name in expected if name.startswith("grad_")}
    inputs = {name: differentiated(name, x) for name in gradients}
    plain = {name: key for name, key in inputs.items() if name == f"grad_{key}"}
    chosen = {key: x[key] for key in plain.values()}
    if chosen:
        both = jax.jit(jax.value_and_grad(lambda c: objective(run(x | c)), has_aux=True))
        (_, (got, new_state)), grads = both(chosen)
    else:
        got, new_state = run(x)
    for name, want in expected.items():
        if name in gradients or (name in NOT_OURS and name not in got):
            continue
        assert name in got, f"the adapter gives no {name}"
        compare(name, got[name], want, tolerance)
    for name, key in plain.items():
        compare(name, grads[key], expected[name], tolerance)
    for name in sorted(gradients - plain.keys()):
        grad = jax.grad(lambda v, key, name: run(x | {key: v})[0][name])
        key = inputs[name]
        compare(name, grad(x[key], key, name), expected[name], tolerance)
    return new_state


def objective(result):
    return result[0]["loss"], result


def differentiated(gradient, x):
    """The input that a gradient's name speaks of."""
    if gradient.startswith("grad_k") and "logprobs" in x:
        return "logprobs"
    names = [key for key in x if gradient.startswith(f"grad_{key}")]
    assert names, f"{gradient}: which of {sorted(x)}?"
    return max(names, key=len)


def run_case(case, dtype, tolerance):
    adapter, hp = ADAPTERS[case["function"]], case["hyperparameters"]
    x = arrays(case["inputs"], case["input_dtypes"], dtype)
    steps = next((name for name in ("steps", "microbatches") if name in case["inputs"]), None)
    if steps is None:
        check(adapter, hp, x, case["outputs"], tolerance)
        return
    shared = {k: v for k, v in x.items() if k != steps}
    state = None
    for inputs, expected in zip(case["inputs"][steps], case["outputs"][steps], strict=True):
        one = shared | arrays(inputs, {}, dtype)
        state = check(adapter, hp, one, expected, tolerance, state)


@pytest.mark.parametrize("name", CASES, ids=[f"loss:{name}" for name in CASES])
def test_equals_the_peer(name):
    case = CASES[name]
    if case["function"] in NOT_YET_COVERED:
        pytest.xfail(f"{case['function']} is not yet covered")
    run_case(case, np.float32, case["tolerance_float32"])
    with jax.enable_x64(True):
        run_case(case, np.float64, case["tolerance"])


def test_loss_every_function_of_the_folder_is_covered_or_listed():
    present = {case["function"] for case in CASES.values()}
    assert CASES, f"no golden cases in {FOLDER}"
    assert not present - ADAPTERS.keys() - NOT_YET_COVERED
    assert not ADAPTERS.keys() & NOT_YET_COVERED
