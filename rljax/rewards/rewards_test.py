import numpy as np
import pytest

from rljax.rewards import call, verify


def scored(*functions, completions=("a", "b"), columns=None):
    rows = len(completions)
    named = {f"f{i}": fn for i, fn in enumerate(functions)}
    return call.score(
        named,
        prompts=["p"] * rows,
        completions=list(completions),
        completion_ids=[[1]] * rows,
        columns=columns or {},
    )


def test_a_function_gets_what_its_signature_names():
    def plain(completions):
        return [len(c) for c in completions]

    def with_answer(prompts, completions, answer, **columns):
        assert set(columns) == {"completion_ids", "extra"}
        return [float(c == a) for c, a in zip(completions, answer)]

    got = scored(plain, with_answer, columns={"answer": ["a", "x"], "extra": [1, 2]})
    np.testing.assert_array_equal(got, [[1.0, 1.0], [1.0, 0.0]])


def test_none_is_a_hole_and_weights_skip_it():
    got = scored(lambda completions: [1.0, None], lambda completions: [None, None])
    scores, applicable = call.combine(got, [2.0, 5.0])
    assert scores.tolist() == [2.0, 0.0]
    assert applicable.tolist() == [True, False]


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda completions: [1.0], "reward f0 returned 1 values for 2 rows"),
        (lambda completions: None, "reward f0 returned None"),
        (lambda completions: [1.0, float("inf")], "gave inf for row 1 (completion 'b')"),
        (lambda completions: [1.0, "1"], "gave '1' for row 1"),
        (lambda completions: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_names_function_row_and_completion(fn, says):
    with pytest.raises(ValueError) as error:
        scored(fn)
    assert says in str(error.value)


def test_functions_are_found_in_modules_and_files(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def half(completions):\n    return [0.5] * len(completions)\n"
    )
    assert call.load_function(f"{tmp_path}/mine.py:half")(["x"]) == [0.5]
    assert call.load_function("rljax.rewards.verify.gsm8k_format") is verify.gsm8k_format
    for name, says in (
        (f"{tmp_path}/none.py:half", "no file"),
        (f"{tmp_path}/mine.py:whole", "has no function 'whole'"),
        ("no.such.module.fn", "cannot import 'no.such.module'"),
    ):
        with pytest.raises(ValueError, match=says):
            call.load_function(name)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 * 4 = 12\n#### 12", "12"),
        ("#### $1,234.50", "1234.5"),
        (r"thus \boxed{ -7 } apples", "-7"),
        ("first 3, then 4.0.", "4"),
        ("no number", None),
        ("#### 3 and #### 5", "5"),
    ],
)
def test_the_final_number(text, number):
    assert verify.final_number(text) == number


def test_gsm8k_rewards():
    answer = "2 + 2 = <<2+2=4>>4\n#### 4"
    texts = [
        "#### 4",
        "#### 5",
        "it is 4",
        [{"role": "assistant", "content": "#### 4\n"}],
        "#### 4 eggs",
    ]
    assert verify.gsm8k_correct(texts, [answer] * 5) == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert verify.gsm8k_format(texts) == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert verify.gsm8k_format_steps([*texts, "####", "x"]) == [1.0, 1.0, 0.0, 1.0, 0.5, 0.25, 0.0]
    assert verify.exact_match(["a ", "b", "c"], ["a", "x", None]) == [1.0, 0.0, None]
