"""The requests of OpenAI's completions API, as far as they are supported; everything else is refused by name."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from .errors import ApiError

MAX_STOPS = 16  # stop strings of a request
MAX_TOP_LOGPROBS = 20
# Fields that are accepted with these values only: those that change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "skip_special_tokens": (None, True),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None,),
    "web_search_options": (None,),
}
# Fields about the caller, not the text.
IGNORED = {"metadata", "prompt_cache_key", "safety_identifier", "user"}

StopString = Annotated[str, Field(min_length=1)]
Stop = StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


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
    seed: int | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    speculation: Speculation | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

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

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    return_token_ids: bool | None = False

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
    """A chat message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As chat templates take it."""
        content = self.content if isinstance(self.content, str) else [part.model_dump() for part in self.content]
        role = "system" if self.role == "developer" else self.role
        return {"role": role, "content": content} | ({} if self.name is None else {"name": self.name})


class ChatCompletionRequest(GenerationRequest):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
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


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object that a request's body is.

    Raises:
        ApiError: 400: not UTF-8, not JSON, or no object.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        found = json.loads(body.decode("utf-8"), parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"body: not UTF-8 ({error.reason} at byte {error.start}); send JSON in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"body: not JSON ({error}); send a JSON object") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"body: JSON of type {type(found).__name__}; send an object")
    return found


def parse_request(kind: type[R], body: bytes) -> R:
    """A request of ``kind`` from its body.

    Raises:
        ApiError: 400: naming the field that is missing, unknown, unsupported or out of range.
    """
    fields = {name: value for name, value in parse_json(body).items() if name not in IGNORED}
    for name in [name for name in fields if name not in kind.model_fields]:
        if name not in NEUTRAL:
            raise ApiError(400, f"{name}: unknown field; leave it out", param=name, code="unknown_field")
        value = fields.pop(name)
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in NEUTRAL[name]):
            raise ApiError(
                400, f"{name}={json.dumps(value)[:80]}: not supported; leave it out", param=name, code="unsupported"
            )
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> ApiError:
    """The first fault, and where it is."""
    fault = error.errors(include_url=False)[0]
    # Of a union every member reports a fault; names of types are no part of the place.
    place = [str(part) for part in fault["loc"] if part not in UNION and not str(part).startswith("list[")]
    name = ".".join(place) or "body"
    if fault["type"] == "missing":
        return ApiError(400, f"{name}: missing; give it", param=name)
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"{name}: unknown field; leave it out", param=name, code="unknown_field")
    value = json.dumps(fault["input"], default=str)
    message = fault["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{name}={value[:80]}: {message[0].lower()}{message[1:]}", param=name)
