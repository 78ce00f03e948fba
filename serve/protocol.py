"""Requests of OpenAI's completions API. Unsupported fields are refused by name."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from ..common.errors import InputError
from ..common.json_file import JsonObject, naming_file, parse_object
from ..infer.text_stream import TextStyle
from .errors import ApiError

MAX_STOPS = 16  # stop strings of a request
MAX_TOP_LOGPROBS = 20
# Unsupported fields of the API, with the values besides null that have no effect. Other values are refused.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("audio", "moderation", "prediction", "reasoning_effort", "web_search_options"), ()),
    **dict.fromkeys(("bad_words", "documents", "functions", "images", "tool_calls", "tools"), ([],)),
    **dict.fromkeys(("chat_template_kwargs", "logit_bias"), ({},)),
    **dict.fromkeys(("refusal", "suffix"), ("",)),
    **dict.fromkeys(("frequency_penalty", "min_p", "min_tokens", "presence_penalty"), (0,)),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "typical_p"), (1,)),
    **dict.fromkeys(("continue_final_message", "early_stopping", "echo", "prefix", "use_beam_search"), (False,)),
    "return_tokens_as_token_ids": (False,),
    **dict.fromkeys(("add_generation_prompt", "add_special_tokens", "detokenize"), (True,)),
    "spaces_between_special_tokens": (True,),
    **dict.fromkeys(("function_call", "tool_choice"), ("none", "auto")),
    "modalities": (["text"], []),
    "response_format": ({"type": "text"},),
    "verbosity": ("medium",),
}
# Fields that do not affect the text, whatever their value: about the caller, billing, caches, sources, numbers.
IGNORED = {
    "annotations", "cache_control", "cache_prompt", "cache_salt", "id", "include_obfuscation", "index", "keep_alive",
    "metadata", "parallel_tool_calls", "priority", "prompt_cache_breakpoint", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "provider_specific_fields", "request_id", "safety_identifier",
    "service_tier", "store", "user",
}  # fmt: skip

StopString = Annotated[str, Field(min_length=1)]
Stop = StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None
Ids = Annotated[list[int], Field(fail_fast=True)]  # reporting a fault in each of many entries takes seconds


class _Fields(BaseModel):
    """Base class of objects of a request.

    Fields without an effect are dropped: null, ignored fields, neutral values.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, content: Any) -> Any:
        """Return the content without the fields that have no effect."""
        if not isinstance(content, dict):
            return content
        return {
            name: value
            for name, value in content.items()
            if value is not None and (name in cls.model_fields or not has_no_effect(name, value))
        }


def has_no_effect(name: str, value: Any) -> bool:
    """Return true if the unsupported field ``name`` has a value that may be left out."""
    matches = (
        isinstance(value, bool) == isinstance(neutral, bool) and value == neutral for neutral in NEUTRAL.get(name, ())
    )
    return name in IGNORED or any(matches)


class StreamOptions(_Fields):
    """Token counts in a stream.

    Attributes:
        include_usage: end the stream with a chunk of token counts.
        continuous_usage_stats: also put the counts so far into every chunk, as vLLM does.
    """

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Speculation(_Fields):
    """Drafting options of a single request; an extension of OpenAI's API.

    Attributes:
        length: a number of tokens, ``"none"``, or a rule; None for the server's controller.
        trace: add every round to the response: drafted tokens with p, q and predicted acceptance.
    """

    length: str | int | None = None
    trace: bool = False


class GenerationRequest(_Fields):
    """Fields that requests of completions and of chat completions share.

    Null or a missing field means the server's default.
    """

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop = None
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    include_stop_str_in_output: bool | None = False
    skip_special_tokens: bool | None = True
    seed: int | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    speculation: Speculation | None = None

    def style(self, stop_tokens: frozenset[int]) -> TextStyle:
        """Return the style of the text: stop strings, end tokens, and special tokens.

        Args:
            stop_tokens: the stop tokens of the model.
        """
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        skip = self.skip_special_tokens is not False
        # As in vLLM, a text does not contain the token that ends it.
        ends = frozenset(self.stop_token_ids or ()) | (frozenset() if skip or self.ignore_eos else stop_tokens)
        return TextStyle(tuple(stops), ends, skip, bool(self.include_stop_str_in_output))

    @property
    def usage_wanted(self) -> bool:
        """Return true if the last chunk of a stream has token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def running_usage_wanted(self) -> bool:
        """Return true if every chunk of a stream has token counts."""
        return self.usage_wanted and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def top_logprobs_wanted(self) -> int | None:
        """The number of alternatives of each token in the response; None without log probabilities."""
        raise NotImplementedError

    @property
    def budget(self) -> int | None:
        """The maximum number of new tokens; None if the request leaves it open."""
        return self.max_tokens


class CompletionRequest(GenerationRequest):
    """The body of ``POST /v1/completions``."""

    prompt: str | Annotated[list[str], Field(fail_fast=True)] | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_token_ids: bool | None = False
    best_of: int | None = None

    @field_validator("best_of")
    @classmethod
    def _all_returned(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value not in (None, 1, info.data.get("n") or 1):
            raise ValueError("Not supported, because all generated texts are returned; leave it out")
        return value

    @field_validator("return_token_ids")
    @classmethod
    def _not_streamed(cls, value: bool | None, info: ValidationInfo) -> bool | None:
        if value and info.data.get("stream"):
            raise ValueError("Token ids are not streamed; leave out this field or stream")
        return value

    @property
    def top_logprobs_wanted(self) -> int | None:
        return self.logprobs


class TextPart(_Fields):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(_Fields):
    """A chat message.

    Attributes:
        reasoning_content: the reasoning before an answer, for templates that show it. Some servers call it
            ``reasoning``.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _allow_empty_answer(cls, message: Any) -> Any:
        """Return the message with an empty text in place of null, which clients send for an empty answer."""
        is_answer = isinstance(message, dict) and message.get("role") == "assistant" and "content" in message
        return message | {"content": ""} if is_answer and message["content"] is None else message

    def to_dict(self) -> JsonObject:
        """Return the message in the form of chat templates."""
        content = self.content if isinstance(self.content, str) else [part.model_dump() for part in self.content]
        role = "system" if self.role == "developer" else self.role
        optional = {"name": self.name, "reasoning_content": self.reasoning_content or self.reasoning}
        return {"role": role, "content": content} | {name: value for name, value in optional.items() if value}


class ChatCompletionRequest(GenerationRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def top_logprobs_wanted(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def budget(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


UNION = ("str", "int", "constrained-str")  # members of unions, as pydantic names them
R = TypeVar("R", bound=BaseModel)


def parse_json(body: bytes) -> JsonObject:
    """Return the JSON object in a request's body.

    Raises:
        ApiError: 400 if the body is not UTF-8, not JSON or not an object, or contains half a character.
    """
    try:
        with naming_file("body", "send a JSON object"):
            return parse_object(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"body: is not UTF-8 ({error.reason} at byte {error.start}); send JSON in UTF-8") from None
    except InputError as error:
        raise ApiError(400, str(error)) from None


def parse_request(kind: type[R], body: bytes) -> R:
    """Return the request of class ``kind`` in a body.

    Raises:
        ApiError: 400 if a field is missing, unknown, unsupported or out of range; the message names the field.
    """
    try:
        return kind.model_validate(parse_json(body))
    except ValidationError as error:
        raise _refusal(error) from None
    except RecursionError:
        raise ApiError(400, "body: is nested too deep; send a flat object") from None


def _refusal(error: ValidationError) -> ApiError:
    """Return the error for a body that pydantic refuses.

    Every member of a union reports a fault. The error is about the fault that is deepest in the body.
    """
    faults = error.errors(include_url=False)
    fault = max(faults, key=lambda fault: (len(_place(fault["loc"])), fault["type"] != "missing"))
    path = _place(fault["loc"])
    name = ".".join(path) or "body"
    if fault["type"] == "missing":
        return ApiError(400, f"{name}: is missing; add it", param=name)
    if fault["type"] == "extra_forbidden" and path[-1] not in NEUTRAL:
        return ApiError(400, f"{name}: unknown field; leave it out", param=name, code="unknown_field")
    value = json.dumps(fault["input"], default=str)[:80]
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"{name}={value}: not supported; leave it out", param=name, code="unsupported")
    message = fault["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{name}={value}: {message[0].lower()}{message[1:]}", param=name)


def _place(loc: tuple[str | int, ...]) -> list[str]:
    """Return the path to a field, without the type names that pydantic adds for members of unions."""
    return [str(part) for part in loc if part not in UNION and not str(part).startswith("list[")]
