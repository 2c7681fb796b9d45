import pytest

from rljax.data import batches, encode, pipeline, tokenizer, toy

TOK = tokenizer.byte_tokenizer()


def encoded(data, kind="sft", **options):
    limits = {"max_prompt_length": 6, "max_length": 10} | options
    return encode.encode_rows(data, kind, TOK, where="rows", **limits)


def test_prompt_and_completion_are_bos_bytes_eos():
    (one,), report = encoded([{"prompt": "ab", "completion": "c"}])
    assert one.prompt == [1, ord("a") + 3, ord("b") + 3]
    assert one.completions == ([ord("c") + 3, 2],)
    assert str(report) == "1 of 1 rows"


def test_a_long_prompt_loses_its_left_and_keeps_its_bos():
    (one,), report = encoded([{"prompt": "abcdefgh", "completion": "x"}])
    assert one.prompt == [1] + [ord(c) + 3 for c in "defgh"]
    assert report.counts == {"cut: prompt over 6 tokens, from the left": 1}


def test_a_long_completion_is_cut_at_the_right_without_an_end():
    (one,), report = encoded([{"prompt": "abc", "completion": "0123456789"}])
    assert one.completions == ([ord(c) + 3 for c in "012345"],)
    assert report.counts == {"cut: completion at 10 tokens in all": 1}


def test_dropped_rows_are_counted_by_reason():
    data = [
        {"prompt": "abcdefgh", "completion": "x"},
        {"prompt": "a", "completion": "0123456789"},
        {"prompt": "a", "completion": "x"},
    ]
    kept, report = encoded(data, overlong="drop")
    assert len(kept) == 1
    assert report.counts == {
        "dropped: prompt over 6 tokens": 1,
        "dropped: over 10 tokens": 1,
    }


def test_a_pair_without_a_difference_is_dropped():
    same = {"prompt": "a", "chosen": "x", "rejected": "x"}
    kept, report = encoded([same, same | {"rejected": "y"}], "preference")
    assert len(kept) == 1
    assert report.counts == {"dropped: chosen equals rejected": 1}


def test_batches_are_right_padded_to_a_bucket_with_masks_by_length():
    examples, _ = encoded(
        [{"prompt": "ab", "completion": "c"}, {"prompt": "a", "completion": "cde"}]
    )
    batch = batches.training_batch(examples, [4, 5], [1.0, 0.0], (8, 16))
    assert batch["tokens"].shape == (2, 8)
    assert batch["segments"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0]]
    assert batch["mask"].tolist() == [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0, 0]]
    assert (batch["weight"].tolist(), batch["row"].tolist()) == ([1.0, 0.0], [4, 5])


def test_preferences_have_an_axis_of_chosen_and_rejected():
    (one,), _ = encoded([{"prompt": "a", "chosen": "x", "rejected": "yz"}], "preference")
    batch = batches.training_batch([one], [0], [1.0], (8,))
    assert batch["tokens"].shape == (1, 2, 8)
    assert batch["mask"].sum(-1).tolist() == [[2.0, 3.0]]


def test_buckets_rise_to_the_limit():
    assert batches.buckets_for(384) == (128, 256, 384)
    assert batches.buckets_for(5) == (8,)
    with pytest.raises(ValueError, match="the last at least 20"):
        batches.buckets_for(20, (8, 16))


def test_each_epoch_sees_each_row_once_in_another_order():
    order = pipeline.training_order(10, 4, seed=1)
    seen = [i for _ in range(5) for i in next(order).tolist()]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]
    other = pipeline.training_order(10, 4, seed=2)
    assert [i for _ in range(5) for i in next(other).tolist()] != seen


def test_processes_cut_the_same_batches():
    whole = pipeline.training_order(10, 4, seed=1)
    parts = [pipeline.training_order(10, 4, seed=1, process=p, processes=2) for p in (0, 1)]
    for _ in range(6):
        assert [i for part in parts for i in next(part).tolist()] == next(whole).tolist()
    with pytest.raises(ValueError, match="does not divide over 3 processes"):
        pipeline.training_order(10, 4, seed=1, processes=3)


def test_evaluation_sees_every_row_once_and_fills_up_with_weight_0():
    parts = list(pipeline.in_order(5, 2))
    used = [int(i) for index, weight in parts for i, w in zip(index, weight) if w]
    assert used == list(range(5))
    assert all(len(index) == 2 for index, _ in parts)


def test_byte_tokens_are_their_bytes_also_after_saving(tmp_path):
    text = "é🙂\n\tx"
    TOK.save_pretrained(str(tmp_path))
    for tok in (TOK, tokenizer.load_tokenizer(tmp_path)):
        ids = tok(text, add_special_tokens=False)["input_ids"]
        assert ids == [b + 3 for b in text.encode()]
        table = tokenizer.token_bytes(tok)
        assert b"".join(table[i] for i in ids) == text.encode()
        assert tok.decode(ids) == text
        assert tok("")["input_ids"] == [1]


def test_held_out_toy_prompts_never_occur_in_training():
    train = {r["prompt"] for r in toy.rows("sort", "prompt", seed=0)}
    held = {r["prompt"] for r in toy.rows("sort", "prompt", seed=0, held_out=True)}
    assert len(held) > 100 and not train & held
    assert toy.sort_reward(["abc.", "abc", "acb!", "abc!"], ["abc"] * 4) == [1.0, 0.0, 0.0, 1.0]
