import pytest

from rljax.data import rows

CHAT = [{"role": "user", "content": "hi"}]


def read(row, kind, **options):
    return rows.normalise(row, kind, where="file row 7", **options)


def test_plain_rows_keep_every_column():
    row = {"prompt": "a", "completion": "b", "id": 3, "meta": {"x": [1, None]}}
    example = read(row, "sft")
    assert (example.prompt, example.completion, example.columns) == ("a", "b", row)


def test_columns_can_be_renamed_and_prompts_built():
    row = {"question": "2+2?", "answer": "4"}
    assert read(row, "prompt", rename={"prompt": "question"}).prompt == "2+2?"
    built = read(row, "sft", rename={"completion": "answer"}, template="Q: {question}\nA:")
    assert (built.prompt, built.completion) == ("Q: 2+2?\nA:", "4")


def test_chat_wraps_both_sides():
    example = read({"prompt": "a", "completion": "b"}, "sft", chat=True)
    assert example.prompt == [{"role": "user", "content": "a"}]
    assert example.completion == [{"role": "assistant", "content": "b"}]


def test_messages_are_split_before_the_last_answer():
    answer = {"role": "assistant", "content": "hello"}
    example = read({"messages": [*CHAT, answer]}, "sft")
    assert (example.prompt, example.completion) == (CHAT, [answer])
    with pytest.raises(ValueError, match="must end with an assistant message"):
        read({"messages": CHAT}, "sft")


def test_an_implicit_prompt_ends_at_the_last_common_turn_of_a_dialogue():
    shared = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
    example = read({"chosen": shared + " yes", "rejected": shared + " yet"}, "preference")
    assert (example.prompt, example.chosen, example.rejected) == (shared, " yes", " yet")
    with pytest.raises(ValueError, match="share no"):
        read({"chosen": "yes", "rejected": "no"}, "preference")


def test_an_implicit_prompt_of_messages_is_what_both_share():
    yes, no = ({"role": "assistant", "content": c} for c in ("yes", "no"))
    example = read({"chosen": [*CHAT, yes], "rejected": [*CHAT, no]}, "preference")
    assert (example.prompt, example.chosen, example.rejected) == (CHAT, [yes], [no])


def test_dialogues_become_messages():
    text = "\n\nHuman: a\n\nAssistant: b: c\n\nHuman: d\n\nAssistant:"
    assert rows.dialogue_messages(text) == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b: c"},
        {"role": "user", "content": "d"},
    ]


@pytest.mark.parametrize(
    ("row", "kind", "options", "says"),
    [
        (
            {"text": "a"},
            "prompt",
            {},
            "file row 7: no column 'prompt' for the prompt; the row has 'text'",
        ),
        ({"prompt": None}, "prompt", {}, "column 'prompt' is NoneType; wants text or a list"),
        ({"prompt": [{"role": "user"}]}, "prompt", {}, "column 'prompt'[0] is not a message"),
        ({"prompt": "a", "completion": CHAT}, "sft", {}, "mix plain text and messages"),
        (
            {"prompt": "a", "prompts": "b"},
            "prompt",
            {},
            "column 'prompts' is a name reward functions",
        ),
        (
            {"q": "a"},
            "prompt",
            {"template": "{z}"},
            "data.prompt_template names 'z', which the row lacks",
        ),
        (
            {"q": "a"},
            "prompt",
            {"rename": {"promt": "q"}},
            "'promt' is not a column that rljax reads",
        ),
    ],
)
def test_a_wrong_row_is_named(row, kind, options, says):
    with pytest.raises(ValueError) as error:
        read(row, kind, **options)
    assert says in str(error.value)
