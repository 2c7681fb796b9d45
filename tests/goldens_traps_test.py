"""Public faults of other libraries as traps: each case's right value from our own functions.

Reads the folder RLJAX_TRAPS, by default tests/goldens/traps (its README gives the layout).
"""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from transformers import AutoTokenizer

from rljax import sharding
from rljax.data import batches, chat, encode, pipeline, tokenizer
from rljax.losses import completions, controllers, group_advantage, kl, logprobs, masked, policy
from rljax.losses.mean import Mean
from rljax.models import decoder, export, files, load
from rljax.models.config import DecoderConfig
from rljax.rewards import call
from rljax.rollout import stops
from rljax.rollout.generate import generate
from rljax.rollout.sampling import SamplingParams, draw, filter_logits
from rljax.rollout.score import score
from rljax.train import checkpoint, optimizer
from rljax.train import state as state_lib
from rljax.train.optimizer import OptimConfig
from rljax.train.step import make_train_step

pytestmark = pytest.mark.goldens

HERE = pathlib.Path(__file__).parent
FOLDER = pathlib.Path(os.environ.get("RLJAX_TRAPS", HERE / "goldens/traps"))
CASES = json.loads((FOLDER / "cases.json").read_text())

NOT_YET_COVERED = {
    "P18": "restoring a bare Orbax checkpoint of another mesh: part of the work on pods",
    "P20": "fused phi3 projections: another family",
    "P21": "soft-caps and windows of gemma2: another family",
    "P23": "router balance loss: mixture-of-experts families",
    "P25": "several processes: part of the work on pods",
}


def case(name):
    return CASES[name]["input"], CASES[name]["expect"]


def tok(name):
    return AutoTokenizer.from_pretrained(str(FOLDER / name))


def covered():
    return {
        n.removeprefix("test_trap_")[:3].upper() for n in globals() if n.startswith("test_trap_")
    }


def test_trap_list_names_every_case():
    assert covered() - {"LIS"} | set(NOT_YET_COVERED) == set(CASES)


def test_trap_p01_masks_are_by_length_and_not_by_pad_id():
    given, want = case("P01")
    name = tok(given["tokenizer"])
    assert tokenizer.pad_id(name) == given["pad_id"] == name.eos_token_id
    examples = [
        encode.Encoded(prompt=given["prompt_ids"], completions=(ids[:n],), columns={}, text="")
        for ids, n in zip(given["completion_ids_padded"], given["completion_lengths"])
    ]
    batch = batches.training_batch(examples, range(3), [1, 1, 1], (32,))
    P, L = len(given["prompt_ids"]), len(want["completion_mask"][0])
    np.testing.assert_array_equal(batch["mask"][:, P : P + L], want["completion_mask"])
    np.testing.assert_array_equal(batch["segments"][0, :P], want["prompt_mask_real"])
    for example, pads in zip(examples, given["left_pad_prompt_by"]):
        rows = batches.left_padded([example.prompt], P + pads, given["pad_id"])
        np.testing.assert_array_equal(rows["segments"][0], [0] * pads + want["prompt_mask_real"])
    ids = jnp.asarray(given["completion_ids_padded"])
    _, lengths, ended = completions.truncate(ids, jnp.asarray([given["eos_id"]]), given["pad_id"])
    np.testing.assert_array_equal(completions.length_mask(lengths, ids), want["completion_mask"])
    np.testing.assert_array_equal(ended, want["eos_is_scored"])


def test_trap_p02_prompt_and_completion_are_encoded_apart():
    given, want = case("P02")
    name = tok(given["tokenizer"])
    prompt = chat.prompt_ids(name, given["prompt"])
    completion = chat.completion_ids(name, given["prompt"], given["completion"])
    assert prompt + completion == want["ids"]
    assert (len(prompt), completion) == (want["completion_start"], want["scored_tokens"])


def test_trap_p03_there_is_exactly_one_bos():
    given, want = case("P03")
    name = tok(given["tokenizer"])
    assert chat.prompt_ids(name, given["messages"]) == want["chat_ids"]
    assert chat.prompt_ids(name, given["plain_text"]) == want["plain_ids"]
    # A template that writes none still gets the tokenizer's.
    name.chat_template = name.chat_template.replace("{{ bos_token }}", "").replace(
        "{{bos_token}}", ""
    )
    assert chat.prompt_ids(name, given["messages"]).count(name.bos_token_id) == want["bos_count"]


def tied(name="llama_tied"):
    return load.load(FOLDER / name)


def test_trap_p04_left_padding_does_not_move_scores():
    """The kind, on a rotary model; gpt2_tiny's own numbers wait for its family."""
    given, want = case("P04")
    params, cfg = tied()
    ids, got = given["ids"], []
    for pads in given["left_pads"]:
        rows = batches.left_padded([ids], len(ids) + pads, given["pad_id"])
        segments = jnp.asarray(rows["segments"])
        scored = score(params, cfg, jnp.asarray(rows["tokens"]), segments, segments * 1.0)
        got.append(np.asarray(scored.logprobs[0, pads + 1 :]))
    for other in got[1:]:
        np.testing.assert_allclose(other, got[0], atol=want["tol"])
    with pytest.raises(ValueError, match="gpt2"):
        tied(given["model"])


def test_trap_p05_an_end_in_the_last_slot_is_an_end():
    given, want = case("P05")
    ids, stop = jnp.asarray(given["completion_ids"]), jnp.asarray(given["eos_ids"])
    _, lengths, ended = completions.truncate(ids, stop, given["pad_id"])
    np.testing.assert_array_equal(~ended, want["truncated"])
    penalised = np.asarray(given["rewards"]) - given["missing_eos_penalty"] * ~np.asarray(ended)
    np.testing.assert_allclose(penalised, want["rewards_with_penalty"])
    mask = completions.mask_unfinished(completions.length_mask(lengths, ids), ended)
    np.testing.assert_array_equal(mask, want["loss_mask_when_masking_truncated"])
    losses = jnp.asarray(given["per_token_loss"])
    np.testing.assert_allclose(
        masked.mean(losses, mask), want["token_mean_when_masking"], rtol=1e-6
    )


def test_trap_p06_any_of_several_stop_ids_ends():
    given, want = case("P06")

    name = tok("tok")
    name.eos_token_id = given["tokenizer_eos"]
    ids = tokenizer.stop_ids(name, given["generation_config"])
    assert set(ids) == set(given["generation_config"]["eos_token_id"])
    tokens = jnp.asarray(given["completion_ids"])
    _, lengths, ended = completions.truncate(tokens, jnp.asarray(ids), 0)
    np.testing.assert_array_equal(lengths, want["lengths"])
    np.testing.assert_array_equal(~ended, want["truncated"])


def test_trap_p07_a_token_is_scored_by_the_position_before_it():
    """An identity head makes the hidden states the logits, so that `score`'s own shift is read."""
    given, want = case("P07")
    logits, ids = jnp.asarray(given["logits_values"]), jnp.asarray(given["ids"])
    logp, _ = logprobs.token_logprobs(logits[:, :-1], jnp.eye(logits.shape[2]), ids[:, 1:])
    np.testing.assert_allclose(logp[0], want["logp_of_tokens_1_to_3"], atol=1e-5)
    np.testing.assert_allclose(
        logp[0, given["prompt_len"] - 1 :], want["completion_logps"], atol=1e-5
    )
    params, cfg = tied()
    tokens, ones = jnp.asarray([[1, 9, 30]]), jnp.ones((1, 3), jnp.int32)
    scored = score(params, cfg, tokens, ones, ones * 1.0)
    hidden, _ = decoder.apply(params, cfg, tokens)
    by_hand = jax.nn.log_softmax(decoder.logits(params, cfg, hidden))
    want_logps = [0.0, by_hand[0, 0, 9], by_hand[0, 1, 30]]
    np.testing.assert_allclose(scored.logprobs[0], want_logps, atol=1e-5)


def test_trap_p08_scores_are_tempered_like_the_sampler():
    given, want = case("P08")
    z, T = jnp.asarray([given["logits"]]), given["temperature"]
    target = jnp.asarray([[given["token"]]])
    logp, _ = logprobs.token_logprobs(
        z[:, None], jnp.eye(len(given["logits"])), target, temperature=T
    )
    np.testing.assert_allclose(logp[0, 0], want["logp"], atol=1e-5)
    params, cfg = tied()
    prompts, segments = jnp.asarray([[1, 9, 30]]), jnp.ones((1, 3), jnp.int32)
    keys = jax.random.split(jax.random.key(0), 1)
    sampling = SamplingParams(max_new_tokens=5, temperature=T)
    done = generate(params, cfg, prompts, segments, keys, sampling=sampling, pad_id=0)
    rows = jnp.concatenate([prompts, done.tokens], 1)
    mask = jnp.pad(done.mask(), ((0, 0), (3, 0)))
    scored = score(params, cfg, rows, jnp.ones_like(rows), mask, temperature=T)
    ratio = jnp.exp(scored.logprobs[:, 3:] - done.logprobs)
    np.testing.assert_allclose(ratio, want["first_step_ratio"], atol=1e-4)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1], [3], [1, 2]])
@pytest.mark.parametrize("pads", [0, 5])
def test_trap_p09_decoding_equals_scoring_in_any_batch(order, pads):
    given, want = case("P09")
    params, cfg = tied(given["model"])
    prompts = [given["rows"][i] for i in order]
    P = max(map(len, prompts)) + pads
    rows = batches.left_padded(prompts, P, 0)
    ids, segments = jnp.asarray(rows["tokens"]), jnp.asarray(rows["segments"])
    keys = jax.random.split(jax.random.key(0), len(order))
    sampling = SamplingParams(max_new_tokens=given["new_tokens"], temperature=0.0)
    done = generate(params, cfg, ids, segments, keys, sampling=sampling, pad_id=0)
    both = jnp.concatenate([ids, done.tokens], 1)
    inside = jnp.concatenate([segments, jnp.ones_like(done.tokens)], 1)
    scored = score(params, cfg, both, inside, inside * 1.0)
    for b, i in enumerate(order):
        row = want["rows"][i]
        np.testing.assert_array_equal(done.tokens[b], row["greedy"])
        np.testing.assert_allclose(done.logprobs[b], row["logps"], atol=want["tol_fp32"])
        np.testing.assert_allclose(scored.logprobs[b, P:], row["logps"], atol=want["tol_fp32"])


def test_trap_p09_bf16_is_near_without_a_fixed_sign():
    given, want = case("P09")
    params, cfg = tied(given["model"])
    rows = batches.left_padded(given["rows"], 17, 0)
    ids, segments = jnp.asarray(rows["tokens"]), jnp.asarray(rows["segments"])
    full, half = (
        np.asarray(score(params, cfg, ids, segments, segments * 1.0, dtype=dtype).logprobs)
        for dtype in (None, jnp.bfloat16)
    )
    scored = np.asarray(segments)[:, 1:] * np.asarray(segments)[:, :-1] > 0
    gap = (half - full)[:, 1:][scored]
    assert abs(gap.mean()) < want["tol_bf16_mean"]
    assert (gap > 0).any() and (gap < 0).any()


def test_trap_p10_bf16_logits_are_normalised_in_fp32():
    given, want = case("P10")
    i = np.arange(given["vocab"])
    logits = jnp.asarray(4 * ((i * 7919) % 1000) / 1000 - 2, jnp.bfloat16)
    picks = jnp.asarray([given["picks"]])
    got, _ = logprobs.token_logprobs_from_logits(
        jnp.broadcast_to(logits, (1, picks.shape[1], logits.size)), picks
    )
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got[0], want["logps_of_the_bf16_logits"], atol=want["tol"])


def test_trap_p11_empty_rows_are_finite_in_value_and_gradient():
    given, want = case("P11")
    x, mask = jnp.asarray(given["per_token_loss"]), jnp.asarray(given["mask"])
    np.testing.assert_allclose(masked.mean(x, mask), want["token_mean"])
    for m in (mask, jnp.zeros_like(mask)):
        value, grad = jax.value_and_grad(lambda x, m=m: masked.mean(x, m))(x)
        assert np.isfinite(value) and np.isfinite(grad).all()
        assert (np.asarray(grad)[np.asarray(m) == 0] == 0).all()
    assert float(Mean(jnp.float32(0.0), jnp.float32(0.0)).value()) == 0.0
    ids = list(range(5, 5 + given["prompt_len"]))
    assert encode.cut_left(ids, given["max_length"], None) == ids[-given["max_length"] :]
    # A query row that sees no key: padding only.
    params, cfg = tied()
    tokens, segments = jnp.asarray([[0, 0, 0], [1, 9, 30]]), jnp.asarray([[0, 0, 0], [1, 1, 1]])

    def loss(params):
        return score(params, cfg, tokens, segments, segments * 1.0).logprobs.sum()

    assert all(np.isfinite(g).all() for g in jax.tree.leaves(jax.grad(loss)(params)))


def test_trap_p12_a_reward_of_none_is_a_hole():
    given, want = case("P12")
    flat = [r for row in given["rewards"] for r in row]
    ids = [[0]] * len(flat)
    asked = {"prompts": flat, "completions": flat, "completion_ids": ids, "columns": {}}
    matrix = call.score({"given": lambda completions: completions}, **asked)
    _, applicable = call.combine(matrix, [1.0])
    np.testing.assert_array_equal(applicable, [r is not None for r in flat])
    rewards = jnp.asarray(matrix[:, 0].reshape(-1, given["group_size"]), jnp.float32)
    got = group_advantage.center(rewards)
    np.testing.assert_allclose(got, want["advantages_centred_only"], atol=1e-6)


def test_trap_p13_the_mean_does_not_know_how_the_batch_was_cut():
    given, want = case("P13")

    def token_loss(params, frozen, batch, rng):
        x = params["policy"]["kernel"][0] * batch["x"]
        stats = {"rows": Mean((x * batch["mask"]).sum(), batch["mask"].sum())}
        return Mean((x * batch["mask"]).sum(), batch["mask"].sum()), stats

    width = max(map(len, given["micro_batches"]))
    x = np.zeros((2, width), np.float32)
    mask = np.zeros_like(x)
    for i, row in enumerate(given["micro_batches"]):
        x[i, : len(row)], mask[i, : len(row)] = row, 1
    got = []
    for microbatches in (1, 2):
        params = {"policy": {"kernel": jnp.ones(1)}}
        tx = optax.sgd(1.0)
        now = state_lib.TrainState(
            step=jnp.int32(0), params=params, frozen={}, opt_state=tx.init(params),
            rng=jax.random.key(0), extra={},
        )  # fmt: skip
        step = make_train_step(token_loss, tx, microbatches=microbatches)
        new, metrics = step(now, {"x": jnp.asarray(x), "mask": jnp.asarray(mask)})
        got.append((float(metrics["loss"]), 1.0 - float(new.params["policy"]["kernel"][0])))
    np.testing.assert_allclose(got, [[want["token_mean"]] * 2] * 2, rtol=1e-6)


def test_trap_p14_the_reference_stays_and_scoring_is_fixed():
    given, want = case("P14")
    start = jnp.asarray(given["policy_logits_start"])
    reference = np.array(start)
    after = start - given["sgd_lr"] * jnp.asarray(given["grad"])
    logp, ref = jax.nn.log_softmax(after)[None], jax.nn.log_softmax(jnp.asarray(reference))[None]
    np.testing.assert_allclose(kl.full(logp, ref)[0], want["kl_after_one_step"], rtol=1e-5)
    # Sharing buffers with the trained parameters is refused, not noticed later as a KL of 0.
    mesh = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1])
    params = {"policy": {"kernel": start}}
    with pytest.raises(ValueError, match="copy the reference"):
        state_lib.create(
            params=params, frozen={"reference": params["policy"]}, tx=optax.sgd(1.0), seed=0,
            axes={"policy": {"kernel": (None,)}}, mesh=mesh,
        )  # fmt: skip
    weights, cfg = tied()
    tokens, ones = jnp.asarray([[1, 9, 30, 5]]), jnp.ones((1, 4), jnp.int32)
    first, second = (
        np.asarray(score(weights, cfg, tokens, ones, ones * 1.0).logprobs) for _ in "ab"
    )
    np.testing.assert_array_equal(first, second)


def test_trap_p15_a_loss_of_zero_can_have_a_gradient():
    given, want = case("P15")
    actions, advantages = jnp.asarray(given["actions"]), jnp.asarray(given["advantages"])

    def loss(logits):
        logp = jax.nn.log_softmax(logits)[jnp.arange(2), actions][:, None]
        per_token, _ = policy.ppo_clip(
            logps=logp, old_logps=jax.lax.stop_gradient(logp), advantages=advantages[:, None]
        )
        return per_token.mean()

    value, grad = jax.value_and_grad(loss)(jnp.asarray(given["two_rows_logits"]))
    np.testing.assert_allclose(value, want["loss"], atol=1e-7)
    np.testing.assert_allclose(grad, want["grad"], atol=1e-6)


def test_trap_p16_cursor_and_controller_go_on_where_they_stopped():
    """Whole runs resume bitwise in run_test.py; here are the two that others forgot."""
    given, want = case("P16")
    coef, seen = jnp.float32(given["kl"]["init"]), []
    for value in given["kl_seen"]:
        coef = controllers.adaptive_kl(
            coef,
            jnp.float32(value),
            target=given["kl"]["target"],
            horizon=given["kl"]["horizon"],
            batch=given["kl"]["n_per_update"],
            clip=given["kl"]["clip"],
        )
        seen.append(float(coef))
    np.testing.assert_allclose(seen, want["coef_after_each"], rtol=1e-6)
    size = (given["prompts"], given["batch"])
    whole = pipeline.training_order(*size, seed=given["shuffle_seed"])
    batches_seen = [next(whole).tolist() for _ in range(12)]
    first = pipeline.training_order(*size, seed=given["shuffle_seed"])
    [next(first) for _ in range(5)]
    second = pipeline.training_order(*size, seed=given["shuffle_seed"])
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert [next(second).tolist() for _ in range(7)] == batches_seen[5:]
    epoch = np.concatenate(batches_seen[: given["prompts"] // given["batch"]]).tolist()
    assert sorted(epoch) == list(range(given["prompts"]))


def test_trap_p17_rotation_keeps_last_and_best_and_skips_half_written(tmp_path):
    given, want = case("P17")
    mesh = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1])
    now = state_lib.create(
        params={"policy": {"kernel": jnp.arange(4.0)}}, frozen={}, tx=optax.sgd(1.0), seed=0,
        axes={"policy": {"kernel": (None,)}}, mesh=mesh,
    )  # fmt: skip
    options = {"keep_last": given["keep_last"], "keep_best": given["keep_best"], "best": "score"}
    saved = checkpoint.Checkpoints(tmp_path, **options)
    for step, value in zip(given["steps"], given["metric_higher_is_better"]):
        saved.save(step, now, {}, {"score": value})
    saved.wait()
    saved.close()
    half = given["half_written_step"]
    (tmp_path / "checkpoints" / str(half) / "state").mkdir(parents=True)
    again = checkpoint.Checkpoints(tmp_path, **options)
    assert (again.steps(), again.latest()) == (want["left"], want["latest"])
    again.save(half, now, {}, {"score": 1.0})
    again.wait()
    assert again.latest() == half


def test_trap_p19_a_tied_head_is_stored_once_and_shards_have_an_index(tmp_path):
    given, want = case("P19")
    params, cfg = tied(given["model"])
    golden = np.load(FOLDER / given["model"] / "expected.npz")
    out = export.export(params, cfg, tmp_path / "out", max_shard_bytes=given["max_shard_bytes"])
    index = json.loads((out / files.INDEX).read_text())["weight_map"]
    assert sorted(index) == sorted(want["tensors"])
    assert set(index.values()) == {p.name for p in out.glob("*.safetensors")}
    assert len(set(index.values())) > 1
    header = (out / next(iter(index.values()))).read_bytes()[8:400]
    assert b'"format":"' + want["metadata_format"].encode() in header
    again, cfg_again = load.load(out)
    for p, c in ((params, cfg), (again, cfg_again)):
        hidden, _ = decoder.apply(p, c, golden["ids"])
        np.testing.assert_allclose(decoder.logits(p, c, hidden), golden["logits"], atol=1e-3)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again)):
        np.testing.assert_array_equal(a, b)


def test_trap_p22_padding_rows_of_the_vocabulary_take_no_part(tmp_path):
    given, want = case("P22")
    real, padded = given["real_vocab"], given["padded_vocab"]
    logits = np.where(np.arange(padded) < real, -5 - 0.1 * (np.arange(padded) % 7), 0.0)
    cfg = DecoderConfig(
        vocab=real, embed=4, mlp=4, layers=1, heads=1, kv_heads=1, head_dim=4, tie_embedding=True
    )
    params = decoder.init(jax.random.key(0), cfg)
    table = np.zeros((padded, 4), np.float32)
    table[:, 0] = logits
    params["embed"]["tokens"] = jnp.asarray(table)
    hidden = jnp.zeros((1, 1, 4)).at[0, 0, 0].set(1.0)
    z = decoder.logits(params, cfg, hidden[:, 0])
    logp, entropy = logprobs.token_logprobs(
        hidden, decoder.head_weight(params, cfg), jnp.zeros((1, 1), jnp.int32)
    )
    np.testing.assert_allclose(logp[0, 0], want["logp_id0"], atol=1e-5)
    np.testing.assert_allclose(entropy[0, 0], want["entropy"], atol=1e-4)
    keys = jax.random.split(jax.random.key(1), given["draws"])
    rows = jnp.broadcast_to(z, (given["draws"], real))
    assert (
        int(draw(keys, jnp.int32(0), filter_logits(rows), greedy=False).max())
        <= want["max_sampled_id"]
    )
    out = export.export(params, cfg, tmp_path / "out")
    shapes = files.SafetensorsFiles(out).shapes()
    assert shapes["model.embed_tokens.weight"][0] == want["exported_vocab_rows"]


@pytest.mark.parametrize("number", range(len(CASES["P24"]["input"]["cases"])))
def test_trap_p24_stop_strings_are_found_across_tokens(number):
    given, _ = case("P24")
    name, one = tok(given["tokenizer"]), given["cases"][number]
    table = stops.stop_table(tokenizer.token_bytes(name), [one["stop"]])
    steps = np.asarray(table.next)
    matched, state, kept = len(steps) - 1, 0, 0
    for i in one["ids"]:
        state, kept = steps[state, i], kept + 1
        if state == matched:
            break
    assert kept == one["tokens_kept"]
    assert (state == matched) == (one["finish"] == "stop")
    text = name.decode(one["ids"][:kept])
    got = stops.cut_text(text, [one["stop"]]) if state == matched else text
    assert got == one["text_returned"]


def test_trap_p26_the_schedule_counts_updates():
    given, want = case("P26")
    rule = optimizer.schedule(
        OptimConfig(lr=given["peak"], warmup=given["warmup_updates"]),
        given["decay_updates"],
        given["peak"],
    )
    got = [float(rule(i)) for i in range(want["updates"])]
    np.testing.assert_allclose(got, want["lr_of_update_0_to_3"], rtol=1e-6)


def test_trap_p27_lengths_share_programs_and_logits_are_never_whole():
    given, want = case("P27")
    cfg = DecoderConfig(
        vocab=given["V"], embed=given["hidden"], mlp=64, layers=1, heads=2, kv_heads=2, head_dim=8,
        tie_embedding=True,
    )  # fmt: skip
    params = decoder.init(jax.random.key(0), cfg)
    sampling = SamplingParams(max_new_tokens=2, stop_ids=())
    before = generate._cache_size()
    for n in given["prompt_lengths"]:
        P = batches.bucket(n, given["buckets"])
        rows = batches.left_padded([list(range(1, n + 1))] * given["B"], P, 0)
        keys = jax.random.split(jax.random.key(0), given["B"])
        ids, segments = jnp.asarray(rows["tokens"]), jnp.asarray(rows["segments"])
        generate(params, cfg, ids, segments, keys, sampling=sampling, pad_id=0)
    assert generate._cache_size() - before <= want["max_compilations_of_decode"]

    def loss(hidden, head, targets):
        return logprobs.token_logprobs(hidden, head, targets)[0].sum()

    shapes = ((given["B"], given["T"], given["hidden"]), (given["hidden"], given["V"]))
    targets = jnp.zeros((given["B"], given["T"]), jnp.int32)
    lowered = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*map(jnp.zeros, shapes), targets)
    used = lowered.compile().memory_analysis().temp_size_in_bytes
    assert used < want["peak_temp_bytes_less_than"] < want_whole(CASES["P27"])


def want_whole(one):
    return one["wrong"]["full_logits_fwd_bwd_bytes"]


def test_trap_p28_is_about_whole_runs():
    """run_test.py: test_evaluation_does_not_change_training, bitwise for every stage."""
    from tests import run_test

    assert run_test.ALL == ("sft", "dpo", "ppo")


def test_trap_p29_columns_stay_in_step_and_errors_come_at_the_start():
    given, want = case("P29")
    name, group = tok(given["tokenizer"]), given["group"]
    examples, report = encode.encode_rows(
        given["rows"],
        "prompt",
        name,
        where="rows",
        max_prompt_length=given["max_prompt"],
        max_length=99,
    )
    full = [len(chat.prompt_ids(name, row["prompt"])) for row in given["rows"]]
    assert full == [n if row["prompt"] else 1 for n, row in zip(full, given["rows"])]
    assert full[1] == want["tokens_per_prompt"][1] and full[2] == want["tokens_per_prompt"][2]
    assert len(examples[2].prompt) == given["max_prompt"]
    assert examples[2].prompt[0] == name.bos_token_id
    assert sum(report.counts.values()) == 1 and "cut" in str(report)
    repeated = [e for e in examples for _ in range(group)]
    columns = {c: [e.columns.get(c) for e in repeated] for c in ("answer", "id", "meta")}
    assert columns["answer"] == want["answer_given_to_reward"]
    heard = {}

    def plain(prompts, completions):
        return [0.0] * len(completions)

    def wants_answer(completions, answer, **kw):
        heard.update(answer=answer, kw=kw)
        return [None if a is None else 1.0 for a in answer]

    def wants_nope(completions, nope):
        return []

    texts = ["x"] * len(repeated)
    ids = [[0]] * len(texts)
    asked = {"prompts": texts, "completions": texts, "completion_ids": ids, "columns": columns}
    matrix = call.score({"plain": plain, "answer": wants_answer}, **asked)
    assert heard["answer"] == want["answer_given_to_reward"] and heard["kw"]["id"][0] == 7
    assert np.isnan(matrix[-1, 1]) and matrix[-1, 0] == 0.0
    with pytest.raises(ValueError, match="'nope'"):
        call.check_signature("wants_nope", wants_nope, list(columns))
    clash = [row | {given["colliding_column"]: "x"} for row in given["rows"]]
    with pytest.raises(ValueError, match=f"'{given['colliding_column']}'"):
        encode.encode_rows(clash, "prompt", name, where="rows", max_prompt_length=16, max_length=99)
