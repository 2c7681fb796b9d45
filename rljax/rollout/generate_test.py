import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import sharding
from rljax.models import decoder
from rljax.models.config import DecoderConfig
from rljax.rollout.generate import LENGTH, STOP_ID, STOP_STRING, generate
from rljax.rollout.sampling import SamplingParams
from rljax.rollout.score import score
from rljax.rollout.stops import stop_table

CFG = DecoderConfig(
    vocab=40, embed=16, mlp=24, layers=2, heads=4, kv_heads=2, head_dim=4, window=6,
    tie_embedding=True,
)  # fmt: skip
PARAMS = jax.tree.map(lambda x: 3.0 * x, decoder.init(jax.random.key(0), CFG))
PROMPTS = [[5], [7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12]]


def left_padded(prompts, length):
    rows = np.zeros((len(prompts), length), np.int32)
    segments = np.zeros_like(rows)
    for b, ids in enumerate(prompts):
        rows[b, length - len(ids) :], segments[b, length - len(ids) :] = ids, 1
    return jnp.asarray(rows), jnp.asarray(segments)


def sampled(order=(0, 1, 2, 3), length=10, stops=None, params=PARAMS, **options):
    """Rows of PROMPTS in `order`, each with the key that belongs to its prompt."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(7), i))(jnp.asarray(order))
    sampling = SamplingParams(**({"max_new_tokens": 12, "temperature": 0.8} | options))
    prompts = left_padded([PROMPTS[i] for i in order], length)
    return generate(params, CFG, *prompts, keys, sampling=sampling, stops=stops, pad_id=0)


@pytest.mark.parametrize(("order", "length"), [((3, 1, 0, 2), 10), ((2,), 10), ((1, 2), 16)])
def test_a_row_depends_on_its_prompt_and_key_only(order, length):
    whole, part = sampled(), sampled(order, length)
    for b, i in enumerate(order):
        np.testing.assert_array_equal(part.tokens[b], whole.tokens[i])
        np.testing.assert_allclose(part.logprobs[b], whole.logprobs[i], atol=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_log_probabilities_are_those_that_training_scores(temperature):
    """Past the window of 6, for prompts of 1 to 10 tokens and any padding."""
    done = sampled(temperature=temperature, stop_ids=(5, 9))
    rows, segments = left_padded(PROMPTS, 10)
    mask = done.mask()
    both = jnp.concatenate([rows, done.tokens], 1)
    inside = jnp.concatenate([segments, mask.astype(jnp.int32)], 1)
    scored = score(
        PARAMS, CFG, both, inside, jnp.pad(mask, ((0, 0), (10, 0))), temperature=temperature
    )
    np.testing.assert_allclose(scored.logprobs[:, 10:], done.logprobs, atol=1e-4)


def test_rows_end_at_any_stop_id_and_keep_it():
    done = sampled(stop_ids=(5, 9), max_new_tokens=40)
    for tokens, length, finish, logps in zip(done.tokens, done.lengths, done.finish, done.logprobs):
        hits = np.flatnonzero(np.isin(tokens[:length], (5, 9)))
        if finish == STOP_ID:
            assert hits.tolist() == [int(length) - 1]
        else:
            assert finish == LENGTH and not hits.size and length == 40
        assert (np.asarray(tokens[length:]) == 0).all() and (np.asarray(logps[length:]) == 0).all()
    assert (np.asarray(done.finish) == STOP_ID).any()


def test_a_stop_in_the_last_slot_is_a_finish():
    whole = np.asarray(sampled(max_new_tokens=3, temperature=1.7).tokens)
    new_at_the_end = [b for b, row in enumerate(whole) if row[-1] not in row[:-1]]
    assert new_at_the_end
    for b in new_at_the_end:
        done = sampled(max_new_tokens=3, temperature=1.7, stop_ids=(int(whole[b, -1]),))
        assert (int(done.lengths[b]), int(done.finish[b])) == (3, STOP_ID)


def test_no_stop_id_is_sampled_before_the_minimum():
    done = sampled(stop_ids=tuple(range(20)), min_new_tokens=5)
    assert (np.asarray(done.lengths) >= 5).all()
    assert (np.asarray(done.tokens)[:, :5] >= 20).all()


def test_a_stop_string_may_span_tokens():
    letters = [bytes([97 + i % 5, 97 + i % 3]) for i in range(40)]
    free = sampled(max_new_tokens=8)
    text = b"".join(letters[int(t)] for t in free.tokens[0])
    stop = text[5:8].decode()  # begins in the middle of the third token
    done = sampled(max_new_tokens=8, stops=stop_table(letters, [stop]))
    kept = b"".join(letters[int(t)] for t in done.tokens[0, : done.lengths[0]])
    assert int(done.finish[0]) == STOP_STRING
    # The first token after which the text holds the stop is the last one kept.
    assert stop.encode() in kept and stop.encode() not in kept[:-2]


def test_filtered_log_probabilities_are_of_the_distribution_sampled_from():
    done = sampled(top_k=1)
    greedy = sampled(temperature=0.0)
    np.testing.assert_array_equal(done.tokens, greedy.tokens)
    np.testing.assert_allclose(done.sampled_logprobs, 0.0, atol=1e-6)
    assert (np.asarray(done.logprobs) < -1e-3).any()


def test_another_key_gives_another_completion():
    keys = jax.random.split(jax.random.key(1), 4)
    prompts = left_padded([PROMPTS[2]] * 4, 10)
    sampling = SamplingParams(max_new_tokens=12, temperature=1.5)
    done = generate(PARAMS, CFG, *prompts, keys, sampling=sampling, pad_id=0)
    assert len({tuple(row.tolist()) for row in np.asarray(done.tokens)}) == 4


def test_the_loop_stops_when_all_rows_are_done():
    """A limit of a million tokens would take minutes if the loop ran on."""
    text = generate.lower(
        PARAMS,
        CFG,
        *left_padded(PROMPTS, 10),
        jax.random.split(jax.random.key(0), 4),
        sampling=SamplingParams(max_new_tokens=3),
        pad_id=0,
    ).as_text()
    assert "stablehlo.while" in text
    done = sampled(max_new_tokens=20_000, stop_ids=tuple(range(1, 40)))
    assert (np.asarray(done.lengths) <= 30).all()


def test_lengths_within_a_bucket_share_one_program():
    before = generate._cache_size()
    for n in range(1, 11):
        keys = jax.random.split(jax.random.key(n), 1)
        prompts = left_padded([list(range(1, n + 1))], 24)
        generate(PARAMS, CFG, *prompts, keys, sampling=SamplingParams(max_new_tokens=3), pad_id=0)
    assert generate._cache_size() - before == 1


def test_eight_devices_sample_what_one_samples():
    mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    placed = jax.device_put(PARAMS, sharding.tree(decoder.logical_axes(CFG), mesh))
    with jax.set_mesh(mesh):
        many = sampled(params=placed)
    one = sampled()
    np.testing.assert_array_equal(many.tokens, one.tokens)
    np.testing.assert_allclose(many.logprobs, one.logprobs, atol=1e-4)


def test_weights_that_decode_are_not_cut_along_fsdp():
    """In the training layout every decoded token would gather every weight again."""
    mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
    placed = jax.device_put(PARAMS, sharding.tree(decoder.logical_axes(CFG), mesh))
    with jax.set_mesh(mesh):
        laid_out = jax.jit(lambda p: decoder.decode_layout(p, CFG))(placed)

    def axes(tree):
        return {a for x in jax.tree.leaves(tree) for a in jax.tree.leaves(tuple(x.sharding.spec))}

    assert axes(placed) == {"fsdp", "tensor"}
    assert axes(laid_out) == {"tensor"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0; wants 1 or more"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_k": 0}, "top_k=0"),
        ({"min_new_tokens": 13}, "min_new_tokens=13"),
        ({"stop_ids": (40,)}, "stop id 40 is outside the vocabulary of 40"),
    ],
)
def test_impossible_settings_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        sampled(**options)
