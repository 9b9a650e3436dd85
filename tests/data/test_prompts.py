import datasets
import pytest

from saki.data import PromptError, render_prompts, template_date

USER = [{"role": "user", "content": "a b"}]


def _tokens(tokenizer, prompt):
    return tokenizer.convert_ids_to_tokens(list(prompt.token_ids))


def test_plain_prompts_keep_the_tokenizers_own_special_tokens(make_tokenizer):
    tokenizer = make_tokenizer()
    rendered = render_prompts([{"prompt": "a b"}, {"prompt": "c"}], tokenizer, max_prompt_length=8)
    assert [_tokens(tokenizer, prompt) for prompt in rendered.prompts] == [["<bos>", "a", "b"], ["<bos>", "c"]]
    assert rendered.notes == ()


def test_conversations_are_templated_with_one_begin_token_and_thinking_off(make_tokenizer):
    tokenizer = make_tokenizer()
    (prompt,) = render_prompts([{"prompt": USER}], tokenizer, max_prompt_length=8).prompts
    assert _tokens(tokenizer, prompt) == ["<bos>", "<user>", "a", "b", "<eos>", "<assistant>"]
    thinking = {"enable_thinking": True}
    (prompt,) = render_prompts(
        [{"prompt": USER}], tokenizer, max_prompt_length=8, chat_template_kwargs=thinking
    ).prompts
    assert _tokens(tokenizer, prompt)[-2:] == ["<assistant>", "<think>"]


def test_template_is_applied_once_a_prompt(make_tokenizer, monkeypatch):
    tokenizer, calls = make_tokenizer(), []
    original = tokenizer.apply_chat_template
    monkeypatch.setattr(
        tokenizer, "apply_chat_template", lambda *args, **kwargs: calls.append(args) or original(*args, **kwargs)
    )
    rendered = render_prompts([{"prompt": USER}] * 3, tokenizer, max_prompt_length=8)
    assert len(calls) == len(rendered.prompts) == 3


@pytest.mark.parametrize("pad", ["<pad>", "<eos>", None])
def test_ids_do_not_depend_on_the_padding_token(make_tokenizer, pad):
    rows = [{"prompt": "a"}, {"prompt": "a b c d"}, {"prompt": USER}]
    rendered = render_prompts(rows, make_tokenizer(pad_token=pad, padding_side="left"), max_prompt_length=8)
    expected = render_prompts(rows, make_tokenizer(), max_prompt_length=8)
    assert rendered.prompts == expected.prompts


def test_long_and_empty_prompts_are_counted_and_keys_are_rows_before_filtering(make_tokenizer, caplog):
    long = [{"role": "user", "content": "a b c d e f g h"}]
    rows = [{"prompt": prompt} for prompt in ("a b c d e f g", "a", "  ", USER, [], long, "b c d e")]
    with caplog.at_level("WARNING", logger="saki.data"):
        rendered = render_prompts(rows, make_tokenizer(), max_prompt_length=6)
    assert rendered.rows == [prompt.key for prompt in rendered.prompts] == [1, 3, 6]
    assert rendered.dropped == {"too_long": 2, "empty": 2}
    assert all(len(prompt.token_ids) <= 6 for prompt in rendered.prompts)
    assert "4 of 7 prompts were dropped: 2 above 6 tokens, 2 empty" in caplog.text


def test_suffix_is_appended_to_the_last_user_message(make_tokenizer):
    tokenizer = make_tokenizer()
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
    ]
    rows = [{"prompt": "a"}, {"prompt": turns}]
    plain, chat = render_prompts(rows, tokenizer, max_prompt_length=32, prompt_suffix=" h").prompts
    assert _tokens(tokenizer, plain) == ["<bos>", "a", "h"]
    assert (
        "".join(_tokens(tokenizer, chat)) == "<bos><user>a<eos><assistant>b<eos><user>ch<eos><system>d<eos><assistant>"
    )
    assert turns[2]["content"] == "c"  # the data set is left alone
    with pytest.raises(PromptError, match="row 0 has no user message to append"):
        render_prompts([{"prompt": [turns[3]]}], tokenizer, max_prompt_length=32, prompt_suffix=" h")


def test_without_a_template_a_single_user_message_is_plain_text_with_a_note(make_tokenizer, caplog):
    tokenizer = make_tokenizer(template=None)
    rendered = render_prompts([{"prompt": USER}, {"prompt": "a b"}], tokenizer, max_prompt_length=8)
    assert rendered.prompts[0].token_ids == rendered.prompts[1].token_ids
    assert "1 single user messages were rendered as plain text" in caplog.text
    assert len(rendered.notes) == 1
    system = [{"role": "system", "content": "a"}, *USER]
    with pytest.raises(PromptError, match="row 1 is a conversation of 2 messages, but the tokenizer has no chat"):
        render_prompts([{"prompt": USER}, {"prompt": system}], tokenizer, max_prompt_length=8)


def test_data_sets_and_lists_render_equally(make_tokenizer):
    rows = [{"prompt": USER, "answer": "1"}, {"prompt": [{"role": "system", "content": "c"}, *USER], "answer": "2"}]
    from_list = render_prompts(rows, make_tokenizer(), max_prompt_length=16)
    from_dataset = render_prompts(datasets.Dataset.from_list(rows), make_tokenizer(), max_prompt_length=16)
    assert from_list == from_dataset
    # Columnar files fill fields that other messages have with None; such fields reach no template.
    ragged = [[{"role": "user", "content": "a", "name": "x"}], [{"role": "user", "content": "b"}]]
    template = "{% for m in messages %}{{ m.content }}{{ ' ?' if m.name is defined else '' }}{% endfor %}"
    rendered = render_prompts(
        datasets.Dataset.from_dict({"prompt": ragged}), make_tokenizer(template), max_prompt_length=8
    )
    assert [len(prompt.token_ids) for prompt in rendered.prompts] == [2, 1]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], "no rows"),
        ([{"question": "a"}], r"row 0 has no 'prompt' column, only \['question'\]"),
        (datasets.Dataset.from_dict({"q": ["a"], "b": [1]}), r"the data set has no 'prompt' column, only \['b', 'q'\]"),
        ([{"prompt": "a"}, {"prompt": None}], "row 1 is a NoneType"),
        ([{"prompt": "a"}, {"prompt": 5}], "row 1 is a int"),
        (
            [{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}],
            "row 0 has a message whose content is a list",
        ),
        ([{"prompt": [{"content": "a"}]}], "row 0 has a message without a role"),
        ([{"prompt": [{"from": "human", "value": "a"}]}], "without a role.*'from' and 'value': rename these"),
        ([{"prompt": ["a"]}], "the prompt of row 0 is a list with a str in it"),
        (["a"], "row 0 is a str"),
        ([{"prompt": [*USER, {"role": "assistant", "content": "b"}]}], "row 0 ends in an assistant message"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"prompt": ["a"]})}), r"splits \['train'\]"),
        (iter([{"prompt": "a"}]), "streamed"),
        ([{"prompt": "a b c d e f g h a b"}, {"prompt": ""}], "no prompt is left of 2: 1 are above 9 tokens"),
    ],
)
def test_unusable_data_sets_are_refused_by_name(make_tokenizer, dataset, message):
    with pytest.raises(PromptError, match=message):
        render_prompts(dataset, make_tokenizer(), max_prompt_length=9)


def test_bad_arguments_and_template_errors_are_named(make_tokenizer):
    with pytest.raises(ValueError, match="max_prompt_length must be at least 1"):
        render_prompts([{"prompt": "a"}], make_tokenizer(), max_prompt_length=0)
    with pytest.raises(PromptError, match="may not set 'tokenize'"):
        render_prompts(
            [{"prompt": "a"}], make_tokenizer(), max_prompt_length=4, chat_template_kwargs={"tokenize": True}
        )
    strict = make_tokenizer("{{ raise_exception('system first') }}")
    with pytest.raises(PromptError, match="refuses the prompt of row 0: system first"):
        render_prompts([{"prompt": USER}], strict, max_prompt_length=4)


def test_a_template_that_writes_the_date_can_be_given_one(make_tokenizer, caplog):
    dated = make_tokenizer(
        "{% macro day() %}{{ strftime_now( '%d' ) }}{% endmacro %}<bos>"
        '{% if strftime_now is defined %}{{ strftime_now("%Y") }} {{ day() }}{% endif %}'
    )
    dated.add_tokens(["2031", "07"])
    given = {"strftime_now": "2031-05-07"}
    (prompt,) = render_prompts([{"prompt": USER}], dated, max_prompt_length=9, chat_template_kwargs=given).prompts
    assert dated.convert_ids_to_tokens(prompt.token_ids) == ["<bos>", "2031", "07"]
    template_date._warn.cache_clear()
    assert not caplog.records
    for _ in range(2):
        render_prompts([{"prompt": USER}], dated, max_prompt_length=9)
    assert len(caplog.records) == 1
    assert '{"strftime_now": "' in caplog.text
    for wrong in ("tomorrow", 7):
        with pytest.raises(ValueError, match=r"strftime_now of chat_template_kwargs is .*, expected a date"):
            render_prompts([{"prompt": USER}], dated, max_prompt_length=9, chat_template_kwargs={"strftime_now": wrong})
    caplog.clear()
    template_date._warn.cache_clear()
    undated = make_tokenizer()
    named = {"date_string": "7 May 2031"}
    render_prompts([{"prompt": "a"}], dated, max_prompt_length=9)  # plain text meets no template
    render_prompts([{"prompt": USER}], dated, max_prompt_length=9, chat_template_kwargs=named)
    render_prompts([{"prompt": USER}], dated, max_prompt_length=9, chat_template_kwargs={"chat_template": "a b"})
    assert not caplog.records
    given_dated = {"chat_template": "a b {{ strftime_now('%d') }}"}
    render_prompts([{"prompt": USER}], undated, max_prompt_length=9, chat_template_kwargs=given_dated)
    assert len(caplog.records) == 1
    with pytest.raises(ValueError, match="expected a date"):
        render_prompts([{"prompt": "a"}], undated, max_prompt_length=9, chat_template_kwargs={"strftime_now": "soon"})
    dated.chat_template = "{{ strftime_now(form) }}"
    with pytest.raises(ValueError, match="write the date into it yourself"):
        render_prompts([{"prompt": USER}], dated, max_prompt_length=9, chat_template_kwargs=given)
