"""Every checkpoint against what transformers computes with it: logits to gradients to decoding.

Reads the folder RLJAX_GOLDEN_MODELS, by default tests/goldens/models (its README gives the layout).
A folder of a kind listed in NOT_YET_COVERED must be refused by name; all others must agree.
"""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import logprobs
from rljax.models import decoder, heads, load, names
from rljax.rollout.generate import generate
from rljax.rollout.sampling import SamplingParams
from rljax.rollout.score import score

pytestmark = pytest.mark.goldens

HERE = pathlib.Path(__file__).parent
FOLDER = pathlib.Path(os.environ.get("RLJAX_GOLDEN_MODELS", HERE / "goldens/models"))
FOLDERS = sorted(path.parent for path in FOLDER.glob("*/meta.json"))

# By kind, so that the list holds for any folder of checkpoints. It can only shrink.
NOT_YET_COVERED = {
    "adapter",
    "chatglm",
    "deepseek_v2",
    "deepseek_v3",
    "falcon",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "glm",
    "glm4",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "internlm2",
    "llama4_text",
    "mixtral",
    "nemotron",
    "olmo2",
    "phi",
    "phi3",
    "qwen2 sliding",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "starcoder2",
}


def kind(folder):
    if not (folder / "config.json").is_file():
        return "adapter"
    hf = json.loads((folder / "config.json").read_text())
    if hf["model_type"] == "qwen2" and "sliding_attention" in (hf.get("layer_types") or ()):
        return "qwen2 sliding"
    return hf["model_type"]


def expected(folder):
    return np.load(folder / "expected.npz")


def prompts(want, padding=""):
    """Ids and attention mask as device arrays; 1 in the mask is segment 1."""
    return jnp.asarray(want[f"{padding}input_ids"]), jnp.asarray(want[f"{padding}attention_mask"])


def tolerance(folder, name, default=1e-4):
    return json.loads((folder / "meta.json").read_text())["tolerances"].get(name, default)


def having(*keys):
    """The covered folders whose numbers hold all of `keys`, as test parameters."""
    return [
        pytest.param(f, id=f"model-{f.name}")
        for f in FOLDERS
        if kind(f) not in NOT_YET_COVERED and set(keys) <= set(expected(f).files)
    ]


def opened(folder, config_name="config.json", tmp_path=None):
    """(params, cfg) as float32; with another config file, of a copy that has only that one."""
    if config_name == "config.json":
        return load.load(folder)
    copy = tmp_path / folder.name
    copy.mkdir()
    for file in folder.glob("model*.safetensors*"):
        (copy / file.name).symlink_to(file.absolute())
    (copy / "config.json").write_text((folder / config_name).read_text())
    return load.load(copy)


@pytest.mark.parametrize("folder", [pytest.param(f, id=f"model-{f.name}") for f in FOLDERS])
def test_what_is_not_covered_is_refused_by_name(folder):
    if kind(folder) not in NOT_YET_COVERED:
        pytest.skip("covered: the other tests compare it")
    with pytest.raises(ValueError, match="config.json"):
        load.load(folder)


@pytest.mark.parametrize("config_name", ["config.json", "config.hub_v4.json"])
@pytest.mark.parametrize("folder", having("logits", "attention_mask"))
def test_logits(folder, config_name, tmp_path):
    if not (folder / config_name).is_file():
        pytest.skip(f"the folder has no {config_name}")
    want = expected(folder)
    if kind(folder) == "llama" and "v_head.summary" in str(want.files):
        pytest.skip("a value-head layout")
    if "values" in want.files or "step_labels" in want.files:
        pytest.skip("read with its head, below")
    params, cfg = opened(folder, config_name, tmp_path)
    ids, mask = prompts(want)
    hidden, _ = decoder.apply(params, cfg, ids, segments_BT=mask, collect=True)
    atol = tolerance(folder, "atol_logits")
    got = np.where(mask[..., None] > 0, decoder.logits(params, cfg, hidden[-1]), 0.0)
    np.testing.assert_allclose(got, want["logits"], atol=atol, rtol=0)
    if "hidden_states" in want.files:
        real = np.broadcast_to(np.asarray(mask)[None, :, :, None] > 0, hidden.shape)
        atol = tolerance(folder, "atol_hidden")
        np.testing.assert_allclose(
            np.asarray(hidden)[real], want["hidden_states"][real], atol=atol, rtol=0
        )


@pytest.mark.parametrize("padding", ["", "rp_"])
@pytest.mark.parametrize("folder", having("logprobs", "rp_logprobs"))
def test_log_probabilities_on_either_padding_side(folder, padding):
    want = expected(folder)
    params, cfg = opened(folder)
    ids, mask = prompts(want, padding)
    scored = score(params, cfg, ids, mask, mask.astype(jnp.float32))
    atol = tolerance(folder, "atol_logprobs")
    np.testing.assert_allclose(
        scored.logprobs[:, 1:], want[f"{padding}logprobs"], atol=atol, rtol=0
    )


@pytest.mark.parametrize("folder", having("entropy"))
def test_entropy(folder):
    want = expected(folder)
    params, cfg = opened(folder)
    hidden, _ = decoder.apply(params, cfg, want["input_ids"], segments_BT=prompts(want)[1])
    logp = jax.nn.log_softmax(decoder.logits(params, cfg, hidden))
    got = logprobs.entropy_of(logp)
    got = np.where(want["attention_mask"] > 0, got, 0.0)
    wanted = np.where(want["attention_mask"] > 0, want["entropy"], 0.0)
    np.testing.assert_allclose(got, wanted, atol=tolerance(folder, "atol_logits"), rtol=0)


def checkpoint_gradients(grads, cfg):
    """The gradient of each tensor of the checkpoint, in its layout."""
    out = {}
    for row in names.table(cfg):
        leaf = grads
        for key in row.path:
            leaf = leaf[key]
        for n, name in enumerate(row.names(cfg.layers)):
            out[name] = row.save(np.asarray(leaf[n] if row.per_layer else leaf))
    return out


@pytest.mark.parametrize("folder", having("loss", "grad_norm", "logprob_mask"))
def test_loss_and_gradients(folder):
    want = expected(folder)
    params, cfg = opened(folder)
    ids, mask = prompts(want)

    @jax.jit
    @jax.value_and_grad
    def loss_of(params):
        scored = score(params, cfg, ids, mask, jnp.asarray(mask, jnp.float32))
        return -scored.logprobs.sum() / want["logprob_mask"].sum()

    loss, grads = loss_of(params)
    np.testing.assert_allclose(loss, want["loss"], atol=tolerance(folder, "atol_loss"), rtol=0)
    got = checkpoint_gradients(grads, cfg)
    assert set(got) == set(want["grad_names"])
    for name, norm, dot in zip(want["grad_names"], want["grad_norm"], want["grad_dot"]):
        g = got[name].astype(np.float64).ravel()
        rtol = tolerance(folder, "rtol_grad_norm")
        np.testing.assert_allclose(np.linalg.norm(g), norm, rtol=rtol, err_msg=name)
        near = tolerance(folder, "tol_grad_dot_rel_to_norm") * norm
        probe = g @ np.cos(0.37 * np.arange(g.size) + 0.1)
        np.testing.assert_allclose(probe, dot, atol=near, rtol=0, err_msg=name)


@pytest.mark.parametrize("folder", having("greedy_tokens", "greedy_logprobs"))
def test_greedy_decoding_with_the_cache(folder):
    want = expected(folder)
    params, cfg = opened(folder)
    keys = jax.random.split(jax.random.key(0), len(want["input_ids"]))

    def decode(stop_ids):
        steps = want["greedy_tokens"].shape[1]
        sampling = SamplingParams(max_new_tokens=steps, temperature=0.0, stop_ids=stop_ids)
        return generate(params, cfg, *prompts(want), keys, sampling=sampling, pad_id=0)

    done = decode(())
    np.testing.assert_array_equal(done.tokens, want["greedy_tokens"])
    np.testing.assert_allclose(done.logprobs, want["greedy_logprobs"], atol=1e-4, rtol=0)
    if "eos_demo_id" in want.files:
        stopped = decode((int(want["eos_demo_id"]),))
        np.testing.assert_array_equal(stopped.tokens, want["eos_demo_tokens"])


@pytest.mark.parametrize("folder", having("scores", "token_scores"))
def test_reward_scores_and_their_gradients(folder):
    want = expected(folder)
    params, cfg = load.load_reward(folder)
    ids, mask = prompts(want)

    def scores_of(params):
        hidden, _ = decoder.apply(params["decoder"], cfg, ids, segments_BT=mask)
        return hidden, heads.pooled(params["head"], hidden, mask)

    hidden, scores = scores_of(params)
    atol = tolerance(folder, "atol")
    np.testing.assert_allclose(scores, want["scores"], atol=atol, rtol=0)
    tokens = np.where(mask[..., None] > 0, heads.scores(params["head"], hidden), 0.0)
    wanted = np.where(mask[..., None] > 0, want["token_scores"], 0.0)
    np.testing.assert_allclose(tokens, wanted, atol=atol, rtol=0)
    if "bt_loss" in want.files:

        @jax.jit
        @jax.value_and_grad
        def loss_of(params):
            s = scores_of(params)[1][:, 0]
            return -jnp.mean(jax.nn.log_sigmoid(jnp.stack([s[0] - s[1], s[2] - s[3]])))

        loss, grads = loss_of(params)
        np.testing.assert_allclose(loss, want["bt_loss"], atol=atol, rtol=0)
        got = checkpoint_gradients(grads["decoder"], cfg)
        # torch's nn.Embedding gives the pad id no gradient, wherever it stands in the text.
        pad = json.loads((folder / "config.json").read_text()).get("pad_token_id")
        embed = np.array(got["model.embed_tokens.weight"])
        embed[pad] = 0.0
        got["model.embed_tokens.weight"] = embed
        got["score.weight"] = np.asarray(grads["head"]["kernel"]).T
        norms = dict(zip(want["grad_names"], want["grad_norm"]))
        assert set(norms) == set(got)
        for name, norm in norms.items():
            np.testing.assert_allclose(np.linalg.norm(got[name]), norm, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("folder", having("values", "value_loss"))
def test_value_head(folder):
    want = expected(folder)
    params, cfg = load.load_reward(folder)
    ids, mask = prompts(want)

    def values_of(head):
        hidden, _ = decoder.apply(params["decoder"], cfg, ids, segments_BT=mask)
        return heads.value(head, hidden)

    def loss_of(head):
        return (((values_of(head) - 0.5) ** 2) * mask).sum() / mask.sum()

    atol = tolerance(folder, "atol")
    got = np.where(mask > 0, values_of(params["head"]), 0.0)
    np.testing.assert_allclose(got, np.where(mask > 0, want["values"], 0.0), atol=atol, rtol=0)
    loss, grads = jax.value_and_grad(loss_of)(params["head"])
    np.testing.assert_allclose(loss, want["value_loss"], atol=atol, rtol=0)
    np.testing.assert_allclose(grads["kernel"].T, want["grad_v_head_weight"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(grads["bias"], want["grad_v_head_bias"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("folder", having("step_labels"))
def test_process_reward_scores(folder):
    want = expected(folder)
    params, cfg = load.load_reward(folder)
    _, mask = prompts(want)
    hidden, _ = decoder.apply(params["decoder"], cfg, want["input_ids"], segments_BT=mask)
    got = np.where(mask[..., None] > 0, heads.scores(params["head"], hidden), 0.0)
    wanted = np.where(mask[..., None] > 0, want["logits"], 0.0)
    np.testing.assert_allclose(got, wanted, atol=tolerance(folder, "atol"), rtol=0)
    labelled = want["step_labels"] >= 0
    logp = jax.nn.log_softmax(got, -1)
    picked = np.take_along_axis(logp, np.maximum(want["step_labels"], 0)[..., None], -1)[..., 0]
    np.testing.assert_allclose(-picked[labelled].mean(), want["loss"], atol=1e-4, rtol=0)
