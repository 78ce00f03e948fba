"""The requests of OpenAI's completions API, as far as they are supported; everything else is refused by name."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from ..common.errors import InputError
from ..common.json_file import JsonObject, blaming, parse_object
from ..infer.text_stream import TextStyle
from .errors import ApiError

MAX_STOPS = 16  # stop strings of a request
MAX_TOP_LOGPROBS = 20
# Fields that are known and not followed, with the values besides null that say nothing; any other value is refused.
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
# Fields that say nothing about the text, whatever their value: about the caller, his bill, caches, sources, numbers.
IGNORED = {
    "annotations", "cache_control", "cache_prompt", "cache_salt", "id", "include_obfuscation", "index", "keep_alive",
    "metadata", "parallel_tool_calls", "priority", "prompt_cache_breakpoint", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "provider_specific_fields", "request_id", "safety_identifier",
    "service_tier", "store", "user",
}  # fmt: skip

StopString = Annotated[str, Field(min_length=1)]
Stop = StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None
Ids = Annotated[list[int], Field(fail_fast=True)]  # a fault in each of many entries takes seconds to report


class _Fields(BaseModel):
    """An object of a request, without the fields that say nothing: null, ignored ones, and neutral values."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _telling(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        own = cls.model_fields
        return {
            name: value
            for name, value in given.items()
            if value is not None and (name in own or not says_nothing(name, value))
        }


def says_nothing(name: str, value: Any) -> bool:
    """Whether a field that is not followed has a value that could be left out."""
    neutral = (isinstance(value, bool) == isinstance(one, bool) and value == one for one in NEUTRAL.get(name, ()))
    return name in IGNORED or any(neutral)


class StreamOptions(_Fields):
    """Token counts in a stream.

    Attributes:
        include_usage: end the stream with a chunk that holds them.
        continuous_usage_stats: and put the counts so far into every chunk, as vLLM does.
    """

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Speculation(_Fields):
    """How to draft for this request alone; not part of OpenAI's API.

    Attributes:
        length: a number of tokens, ``"none"``, or a rule; None: the server's own controller.
        trace: add every round to the response: drafted tokens with p, q and predicted acceptance.
    """

    length: str | int | None = None
    trace: bool = False


class GenerationRequest(_Fields):
    """What both kinds of request have. None and absent mean the same: the server's default."""

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
        """What the text has and what ends it; ``stop_tokens`` are the model's."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        skip = self.skip_special_tokens is not False
        # As in vLLM no text shows the token that ends it.
        ends = frozenset(self.stop_token_ids or ()) | (frozenset() if skip or self.ignore_eos else stop_tokens)
        return TextStyle(tuple(stops), ends, skip, bool(self.include_stop_str_in_output))

    @property
    def usage_wanted(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def running_usage_wanted(self) -> bool:
        return self.usage_wanted and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def top_logprobs_wanted(self) -> int | None:
        """How many alternatives of each token to report; None: no log probabilities at all."""
        raise NotImplementedError

    @property
    def budget(self) -> int | None:
        """The most tokens to generate, if given."""
        return self.max_tokens


class CompletionRequest(GenerationRequest):
    """``POST /v1/completions``."""

    prompt: str | Annotated[list[str], Field(fail_fast=True)] | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_token_ids: bool | None = False
    best_of: int | None = None

    @field_validator("best_of")
    @classmethod
    def _all_returned(cls, value: int | None, given: ValidationInfo) -> int | None:
        if value not in (None, 1, given.data.get("n") or 1):
            raise ValueError("Not supported, all texts that are generated are returned; leave it out")
        return value

    @field_validator("return_token_ids")
    @classmethod
    def _whole(cls, value: bool | None, given: ValidationInfo) -> bool | None:
        if value and given.data.get("stream"):
            raise ValueError("Token ids are not streamed; leave it or stream out")
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
        reasoning_content: what came before an answer, for templates that show it; some servers name it ``reasoning``.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, given: Any) -> Any:
        """An answer of no text may come back as null."""
        silent = isinstance(given, dict) and given.get("role") == "assistant" and "content" in given
        return given | {"content": ""} if silent and given["content"] is None else given

    def to_dict(self) -> JsonObject:
        """As chat templates take it."""
        content = self.content if isinstance(self.content, str) else [part.model_dump() for part in self.content]
        role = "system" if self.role == "developer" else self.role
        told = {"name": self.name, "reasoning_content": self.reasoning_content or self.reasoning}
        return {"role": role, "content": content} | {name: value for name, value in told.items() if value}


class ChatCompletionRequest(GenerationRequest):
    """``POST /v1/chat/completions``."""

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
    """The JSON object that a request's body is.

    Raises:
        ApiError: 400: not UTF-8, not JSON, no object, or half a character in it.
    """
    try:
        with blaming("body", "send a JSON object"):
            return parse_object(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"body: not UTF-8 ({error.reason} at byte {error.start}); send JSON in UTF-8") from None
    except InputError as error:
        raise ApiError(400, str(error)) from None


def parse_request(kind: type[R], body: bytes) -> R:
    """A request of ``kind`` from its body.

    Raises:
        ApiError: 400: naming the field that is missing, unknown, unsupported or out of range.
    """
    try:
        return kind.model_validate(parse_json(body))
    except ValidationError as error:
        raise _refusal(error) from None
    except RecursionError:
        raise ApiError(400, "body: nested too deep; send a flat object") from None


def _refusal(error: ValidationError) -> ApiError:
    """The fault that is deepest in the body, and where it is: of a union every member reports one."""
    faults = error.errors(include_url=False)
    fault = max(faults, key=lambda one: (len(_place(one["loc"])), one["type"] != "missing"))
    place = _place(fault["loc"])
    name = ".".join(place) or "body"
    if fault["type"] == "missing":
        return ApiError(400, f"{name}: missing; give it", param=name)
    if fault["type"] == "extra_forbidden" and place[-1] not in NEUTRAL:
        return ApiError(400, f"{name}: unknown field; leave it out", param=name, code="unknown_field")
    value = json.dumps(fault["input"], default=str)[:80]
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"{name}={value}: not supported; leave it out", param=name, code="unsupported")
    message = fault["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{name}={value}: {message[0].lower()}{message[1:]}", param=name)


def _place(loc: tuple[str | int, ...]) -> list[str]:
    """The path to a field, without the names of types that pydantic adds for members of unions."""
    return [str(part) for part in loc if part not in UNION and not str(part).startswith("list[")]
