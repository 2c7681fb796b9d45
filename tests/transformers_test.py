"""Exports as transformers itself loads them (needs torch: Python 3.11)."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models import decoder, export, load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

GOLDENS = pathlib.Path(__file__).parent / "goldens"
FAMILIES = ("llama2", "llama3", "llama3_tied", "llama_bias_linear", "mistral", "qwen2")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shard_bytes", [10**9, 8000])
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_loads_the_export_and_computes_the_same(tmp_path, family, shard_bytes, dtype):
    from transformers import AutoModelForCausalLM

    params, cfg = load.load(GOLDENS / "models" / family)
    out = export.export(params, cfg, tmp_path / "out", dtype=dtype, max_shard_bytes=shard_bytes)
    model, info = AutoModelForCausalLM.from_pretrained(
        str(out), output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    ids = np.arange(1, 25).reshape(2, 12)
    with torch.no_grad():
        want = model.eval()(torch.tensor(ids)).logits.numpy()
    again, cfg_again = load.load(out)
    hidden, _ = decoder.apply(again, cfg_again, jnp.asarray(ids))
    np.testing.assert_allclose(decoder.logits(again, cfg_again, hidden), want, atol=1e-4)
    if dtype == "float32":
        hidden, _ = decoder.apply(params, cfg, jnp.asarray(ids))
        np.testing.assert_allclose(decoder.logits(params, cfg, hidden), want, atol=1e-4)
