"""Prompts in every supported form, and refused forms."""

import warnings
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.infer.prompting import as_plain_text, as_prompts, day_of, encode_prompt, turn_end, uses_template
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from ..helpers.refusals import refused
from ..helpers.tiny import byte_tokenizer

IDS = [5, 9, 2]
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    byte_level = byte_tokenizer()
    byte_level.pad_token = byte_level.eos_token
    return byte_level


SINGLE = {
    "text": ("hello", "hello"),
    "list": (IDS, IDS),
    "tensor": (torch.tensor(IDS), IDS),
    "numbers of libraries": ([np.int64(5), torch.tensor(9), 2], IDS),
    "messages": (CHAT, CHAT),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "a"}]}],) * 2,
    "a dict": ({"input_ids": IDS}, IDS),
    "padded on both sides": ({"input_ids": [0, *IDS, 0], "attention_mask": np.array([0, 1, 1, 1, 0])}, IDS),
}
SEVERAL = {
    "texts": (["a", "b"], ["a", "b"]),
    "lists": ([IDS, [1]], [IDS, [1]]),
    "tensors": ([torch.tensor(IDS), np.array([1])], [IDS, [1]]),
    "conversations": ([CHAT, CHAT * 2], [CHAT, CHAT * 2]),
    "a dict of rows": ({"input_ids": [IDS, [1]], "attention_mask": [[1, 1, 1], [1]]}, [IDS, [1]]),
    "dicts": ([{"input_ids": IDS}, {"input_ids": [0, 1], "attention_mask": [0, 1]}], [IDS, [1]]),
    "a mask of bools": (
        {"input_ids": torch.tensor([IDS, [1, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()},
        [IDS, [1]],
    ),
}


@pytest.mark.parametrize("form", SINGLE | SEVERAL)
def test_forms_of_prompts(form: str, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt, expected = (SINGLE | SEVERAL)[form]
    assert as_prompts(prompt) == (([expected], True) if form in SINGLE else (expected, False))
    if form in SEVERAL:
        with pytest.raises(InputError, match=r"prompt: \d prompts in a batch, where one is needed"):
            encode_prompt(tokenizer, prompt)
    elif form != "parts":  # the template here takes text alone
        assert {type(token) for token in encode_prompt(tokenizer, prompt)} == {int}


def test_text_and_chat(tokenizer: PreTrainedTokenizerFast) -> None:
    def text(*arguments: Any, **options: Any) -> str:
        return str(tokenizer.decode(encode_prompt(tokenizer, *arguments, **options)))

    assert text("hello") == "hello"
    assert text("hello", chat=True) == "[user]hello"
    assert text("hello", system="be brief") == "[system]be brief[user]hello"
    assert text(CHAT) == "[user]hello"
    assert text(CHAT, system="be brief") == "[system]be brief[user]hello"


@pytest.mark.filterwarnings("error")
def test_the_template_is_applied_where_there_is_one(tokenizer: PreTrainedTokenizerFast) -> None:
    """The template is applied by chat="auto". Token ids are never changed."""
    bare = templated(None)
    assert uses_template(tokenizer, "auto")
    assert not uses_template(bare, "auto")
    assert not uses_template(None, "auto")
    assert uses_template(bare, True)
    assert encode_prompt(tokenizer, "hello", chat="auto") == encode_prompt(tokenizer, "hello", chat=True)
    assert encode_prompt(bare, "hello", chat="auto") == encode_prompt(bare, "hello", chat=False)
    for each_tokenizer in (tokenizer, bare, None):
        assert encode_prompt(each_tokenizer, IDS, chat="auto") == IDS


def test_text_in_the_form_of_the_template_is_warned_of(tokenizer: PreTrainedTokenizerFast) -> None:
    """Such a text begins with a special token. A call with chat=True or False gets no warning."""
    with pytest.warns(UserWarning, match=r"begins with the special token '<\|end\|>'.*chat=False \(--no-chat\)"):
        encode_prompt(tokenizer, "<|end|>hello", chat="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_prompt(tokenizer, "<|end|>hello", chat=True)
        encode_prompt(tokenizer, "<|end|>hello", chat=False)
        encode_prompt(tokenizer, "hello<|end|>", chat="auto")


MALFORMED: dict[str, tuple[Any, str]] = {
    "nothing": ([], r"prompt=\[\]:"),
    "a bool": ([1, True], r"prompt\[1\]=True:"),
    "a negative id": ([1, -100], r"prompt\[1\]=-100:"),
    "floats": (torch.ones(3), r"prompt: ids of type torch\.float32; give integers"),
    "three dimensions": (torch.ones(1, 2, 3, dtype=torch.long), r"prompt: an array of shape \(1, 2, 3\)"),
    "text within ids": ([IDS, [1, "a"]], r"prompt\[1\]: a list that mixes texts and token ids"),
    "too deep": ([[[1], [2]]], r"prompt\[0\]: several prompts within several"),
    "bytes": (b"hello", "prompt: of type bytes; give text"),
    "a message": (CHAT[0], "prompt: one message; put it in a list"),
    "text for ids": ({"input_ids": "abc"}, r"prompt\['input_ids'\]: no token ids"),
    "no role": ([{"content": "a"}], r"prompt\[0\]: a message without 'role'"),
    "no content": ([*CHAT, {"role": "user"}], r"prompt\[1\]: a message without 'content'"),
    "a role that is a number": ([{"role": 3, "content": "a"}], r"prompt\[0\]\['role'\]=3: of type int; give text"),
    "content that is None": ([{"role": "user", "content": None}], r"prompt\[0\]\['content'\]=None: of type NoneType"),
    "half a character": ("a\ud83d", r"prompt: character 2 is '\\ud83d': half of a character"),
    "half a character in a part": (
        [*CHAT, {"role": "user", "content": [{"type": "text", "text": "\ude00"}]}],
        r"prompt\[1\]\.content\.0\.text: character 1",
    ),
    "half a character in a key": ([{"role": "user", "content": "a", "\ud83d": "b"}], r"key '\\ud83d': character 1"),
    "a hole": ({"input_ids": IDS, "attention_mask": [1, 0, 1]}, r"prompt\['attention_mask'\]: zeros within the text"),
    "all padding": ({"input_ids": IDS, "attention_mask": [0, 0, 0]}, r"prompt\['attention_mask'\]: 0 everywhere"),
    "a short mask": ({"input_ids": IDS, "attention_mask": [1, 1]}, r"\['attention_mask'\]: must have the shape"),
    "a mask of twos": ({"input_ids": IDS, "attention_mask": [1, 2, 1]}, "entries other than 0 and 1"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_prompts(case: str, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt, message = MALFORMED[case]
    for call in (as_prompts, lambda value: encode_prompt(tokenizer, value)):
        with refused(message):
            call(prompt)


def templated(template: str | None) -> PreTrainedTokenizerFast:
    byte_level = byte_tokenizer()
    byte_level.chat_template = template
    return byte_level


PLAIN, RAISING = "{% for m in messages %}{{ m.content }}{% endfor %}", r"\(roles: system, user\): "
BRIEF = {"system": "be brief"}


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "options", "message"),
    [
        (templated(PLAIN), "", {}, "empty; give some text"),
        (templated(PLAIN), "  \n", {}, "empty; give some text"),
        (templated(PLAIN), "hello", {"vocab_size": 16}, "outside the model's vocabulary of 16 tokens"),
        (None, [63, 64], {"vocab_size": 64}, "the id 64 at position 1 is outside the model's vocabulary of 64 tokens"),
        (None, "hello", {}, "text needs a tokenizer"),
        (None, CHAT, {}, "text needs a tokenizer"),
        (templated(None), "hello", {"chat": True}, r"has no chat template.*chat=False \(--no-chat\)"),
        (templated(None), "hello", BRIEF, r"has no chat template.*chat=False \(--no-chat\)"),
        (templated("{{ '' }}"), CHAT, {}, r"^TokenizersBackend: the chat template gives no tokens for the messages"),
        (templated("{{ raise_exception('roles must\nalternate') }}"), CHAT, BRIEF, f"{RAISING}roles must alternate"),
        (templated("{{ messages[7]['content'] }}"), CHAT, BRIEF, f"{RAISING}.*has no element 7"),
        (templated("{% if %}"), CHAT, BRIEF, f"{RAISING}Expected an expression"),
    ],
)
def test_prompts_that_cannot_be_encoded(tokenizer: Any, prompt: Any, options: dict[str, Any], message: str) -> None:
    with refused(message):
        encode_prompt(tokenizer, prompt, **options)


def test_prompts_without_tokenizer_or_template() -> None:
    assert encode_prompt(None, [63, 0], vocab_size=64) == [63, 0]
    assert encode_prompt(templated(None), "hello")
    with pytest.raises(InputError, match="a conversation, which needs the chat template; give text, since"):
        as_plain_text(templated(None), CHAT)


def test_text_that_begins_with_the_bos_token() -> None:
    """Text may begin with the BOS token, as a rendered chat template. The tokenizer then adds no second one."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    written = tokenizer("<s>a")["input_ids"]
    assert encode_prompt(tokenizer, "<s><s>a") == [written[0], *written]  # none is added, so none is too many
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", written[0])]
    )
    assert encode_prompt(tokenizer, "<s>a") == encode_prompt(tokenizer, "a") == written


def test_a_prompt_does_not_end_with_the_token_that_the_tokenizer_appends() -> None:
    """A prompt for an encoder ends with it. An end token in the text itself stays."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    start, (letter,), end = tokenizer.bos_token_id, tokenizer("a")["input_ids"], tokenizer.eos_token_id
    for form, before in (("$A <|end|>", []), ("<s> $A <|end|>", [start]), ("<s> $A <|end|> <s>", [start])):
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=form, special_tokens=[("<s>", start), ("<|end|>", end)]
        )
        assert tokenizer("a")["input_ids"][: len(before) + 2] == [*before, letter, end]
        assert encode_prompt(tokenizer, "a") == [*before, letter]
        assert encode_prompt(tokenizer, "a<|end|>") == [*before, letter, end]
        assert encode_prompt(tokenizer, "a", encoder=True) == tokenizer("a")["input_ids"]


TEMPLATES = {  # chat template → what ends a turn
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}": "<|im_end|>",
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}": (
        "<end_of_turn>"
    ),
    "{% for m in messages %}[{{ m.role }}]{{ m.content }} {% if m.role == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}": "</s>",
    "{% for m in messages %}{{ m.content }}\n{% endfor %}": "<|stop|>",  # none: what generation_config names
    "{{ raise_exception('no') }}": "<|stop|>",
}


@pytest.mark.parametrize(("template", "end"), TEMPLATES.items())
def test_end_of_turn_tokens(template: str, end: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "</s>", "<|stop|>"], True)
    tokenizer.eos_token = "</s>"
    tokenizer.chat_template = template
    (stop,) = tokenizer.convert_tokens_to_ids(["<|stop|>"])
    assert tokenizer.convert_ids_to_tokens(turn_end(tokenizer, {stop}, chat=True)) == [end]
    assert turn_end(tokenizer, {stop}, chat=False) == [stop]
    assert turn_end(tokenizer, {stop, tokenizer.eos_token_id}, chat=False) == [tokenizer.eos_token_id]


PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
FORMS = {  # chat template → parts, and text, as it shows them
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}": ("[user]one\ntwo", "[user]abc"),
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}": ("[user]one\ntwo", "[user]abc"),
    "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}": ("<one><two>", "<abc>"),
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}": ("<one><two>", "abc"),
}


@pytest.mark.parametrize(("template", "shown"), FORMS.items())
def test_content_in_the_form_that_the_template_takes(template: str, shown: tuple[str, str]) -> None:
    tokenizer = templated(template)
    assert tokenizer.decode(encode_prompt(tokenizer, PARTS)) == shown[0]
    assert tokenizer.decode(encode_prompt(tokenizer, "abc", chat=True)) == shown[1]
    with pytest.raises(InputError, match=r"prompt\[0\]\['content'\]\[0\]=.*only parts of text"):
        encode_prompt(tokenizer, [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])


def test_arguments_of_calls_in_the_form_that_the_template_takes() -> None:
    """OpenAI's messages have arguments as JSON text, and no content. Templates of transformers need objects."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
    answer, tokenizer = {"role": "assistant", "content": None, "tool_calls": [call]}, byte_tokenizer()
    for template, shown in (
        ("{{ f.arguments | tojson }}", '{"a": "b"}'), ("{{ f.name + f.arguments }}", 'f{"a": "b"}'),
        ("{% for key, value in f.arguments | items %}{{ key }}={{ value }}{% endfor %}", "a=b"),
    ):  # fmt: skip
        tokenizer.chat_template = "{% set f = messages[-1].tool_calls[0].function %}" + template
        assert tokenizer.decode(encode_prompt(tokenizer, [*CHAT, answer])) == shown


def test_the_date_in_a_template() -> None:
    tokenizer = byte_tokenizer()
    assert day_of(tokenizer) is None
    tokenizer.chat_template = (
        "{% if strftime_now is defined %}\n{{ strftime_now('%-d %b %Y') }}{% endif %}{{ messages[0].content }}"
    )
    assert day_of(tokenizer) == date.today().isoformat()
    day = day_of(tokenizer, "2024-07-06")
    assert tokenizer.decode(encode_prompt(tokenizer, "x", chat=True, day=day)) == "6 Jul 2024x"
