"""What the routes do: a request becomes jobs, their news become a response. No HTTP here."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from ..common.errors import InputError
from ..common.json_file import JsonObject
from ..controllers.length import LengthController, parse_rule
from ..controllers.sampling import SamplingParams
from ..infer.build import Setup
from ..infer.core import Request
from ..infer.decoder import SpeculativeDecoder
from ..infer.prompting import Prompt, as_prompts, encode_prompt, text_of
from ..infer.random_source import drawn_seed, seeds_of
from ..infer.recorder import RoundRecorder
from ..infer.text_stream import TokenTexts
from .choice import Choice, Delta
from .errors import ApiError
from .metrics import Metrics
from .protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest
from .responses import ChatFormat, Format, TextFormat, whole_response
from .worker import Job, News, Worker

TEXT_BUDGET = 16  # max_tokens of a text completion by default, as in OpenAI's API


@dataclass
class Call:
    """A request that has been checked and queued.

    Attributes:
        news: of all its jobs, in the order it came.
        started: ``time.perf_counter()`` at which it was queued.
        first: seconds until each choice had its first token.
        token_ids: whether the response is to have them.
    """

    format: Format
    choices: list[Choice]
    jobs: list[Job]
    prompt_tokens: int
    news: asyncio.Queue[tuple[Job, News]]
    started: float
    first: dict[Choice, float]
    token_ids: bool

    def cancel(self) -> None:
        """Nobody waits for it any longer."""
        for job in self.jobs:
            job.cancel()


class Service:
    """A decoder behind OpenAI's API.

    Args:
        name: of the model, in requests and responses.
        time_limit: seconds a request may take.
        on_finished: called with every text that was generated to its end.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        name: str,
        worker: Worker,
        metrics: Metrics,
        time_limit: float,
        on_finished: Callable[[Request], None] = lambda request: None,
    ) -> None:
        assert decoder.tokenizer is not None
        self.decoder, self.tokenizer, self.name = decoder, decoder.tokenizer, name
        self.worker, self.metrics, self.time_limit, self.on_finished = worker, metrics, time_limit, on_finished
        self.texts = TokenTexts(decoder.tokenizer)
        self.longest_token = max(len(text) for text in self.tokenizer.get_vocab())
        self.created = int(time.time())

    async def accept(self, given: ChatCompletionRequest | CompletionRequest) -> Call:
        """Check a request and queue its jobs.

        Raises:
            ApiError: it is refused.
        """
        if given.model not in (None, self.name):
            message = f"model={given.model!r}: not served here; it is {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")
        try:
            prompts = await asyncio.to_thread(self._encode, given)
            sampling = self._sampling(given)
            setup = self._setup(given, sampling)
            return self._queue(given, prompts, sampling, setup)
        except InputError as error:
            named = str(error).partition("=")[0].partition(":")[0]
            text = "messages" if isinstance(given, ChatCompletionRequest) else "prompt"
            raise ApiError(400, str(error), param=named if named in type(given).model_fields else text) from None

    def _encode(self, given: ChatCompletionRequest | CompletionRequest) -> list[list[int]]:
        """The token ids of each prompt, for models that are as they were."""
        self.decoder.check_models()
        size, encoder = self.decoder.target.vocab_size, self.decoder.target.encodes_prompts
        n = given.n or 1
        if isinstance(given, ChatCompletionRequest):
            self._check_number(1, n)
            messages = [message.to_dict() for message in given.messages]
            self._check_size("messages", sum(len(text_of(message["content"])) for message in messages))
            return [encode_prompt(self.tokenizer, messages, vocab_size=size)]
        prompts: list[Prompt] = as_prompts(given.prompt)[0]
        self._check_number(len(prompts), n)
        for prompt in prompts:
            self._check_size("prompt", len(prompt) if isinstance(prompt, str) else 0)
        return [encode_prompt(self.tokenizer, prompt, vocab_size=size, encoder=encoder) for prompt in prompts]

    def _check_number(self, prompts: int, n: int) -> None:
        """Refuse what would not even fit if nothing else ran: trying again would never help."""
        if prompts * n > self.worker.places:
            raise ApiError(
                400,
                f"prompts={prompts} and n={n}: {prompts * n} texts, but {self.worker.places} can run and wait here; "
                "send them in several requests",
                param="n" if prompts == 1 else "prompt",
                code="too_many_texts",
            )

    def _check_size(self, name: str, characters: int) -> None:
        """Refuse a text too long for the context before it is tokenised, which would take long."""
        context = self.decoder.context
        if context is not None and characters > context * self.longest_token:
            raise ApiError(
                400, f"{name}: {characters} characters, but the context holds {context} tokens; shorten it",
                param=name, code="context_length_exceeded",
            )  # fmt: skip

    def _sampling(self, given: GenerationRequest) -> SamplingParams:
        """What the request leaves open is the server's default."""
        settings: JsonObject = {
            name: "auto" if value is None else value
            for name, value in (("temperature", given.temperature), ("top_k", given.top_k), ("top_p", given.top_p))
        }
        if settings["top_k"] in (0, -1):
            settings["top_k"] = None
        return self.decoder.defaults.sampling_params(**settings)

    def _setup(self, given: GenerationRequest, sampling: SamplingParams) -> Setup:
        """The decoder's setup, or one with the length rule that the request names or for the seed that it gives."""
        length = None if given.speculation is None else given.speculation.length
        if length is None:
            return self.decoder.setup_for(seed=given.seed, temperature=sampling.temperature)
        rule: LengthController | None = parse_rule(str(length))
        if rule is None:
            raise ApiError(
                400,
                f"speculation.length={length!r}: a request may name a number or a rule, such as 'none' or "
                "'confidence:0.4'",
                param="speculation.length",
            )
        return self.decoder.setup_for(rule, seed=given.seed, temperature=sampling.temperature)

    def _queue(
        self, given: GenerationRequest, prompts: list[list[int]], sampling: SamplingParams, setup: Setup
    ) -> Call:
        n, news = given.n or 1, asyncio.Queue[tuple[Job, News]]()
        if given.seed is not None and given.seed < 0:
            raise ApiError(400, f"seed={given.seed}: must be at least 0", param="seed")
        seeds = seeds_of(drawn_seed() if given.seed is None else given.seed, n * len(prompts))
        budgets = [self._budget(given, len(prompt)) for prompt in prompts]
        form: type[Format] = ChatFormat if isinstance(given, ChatCompletionRequest) else TextFormat
        choices, jobs, style = [], [], given.style(self.decoder.stop_tokens)
        deadline = time.monotonic() + self.time_limit
        for i, seed in enumerate(seeds):
            prompt = prompts[i // n]
            request = self.decoder.new_request(
                prompt,
                sampling,
                budgets[i // n],
                seed,
                stop_tokens=frozenset() if given.ignore_eos else None,
                setup=setup,
                style=style,
            )
            request.streamed = bool(given.stream)
            drafts = given.speculation is not None and given.speculation.trace
            recorder: RoundRecorder | None = None
            if given.top_logprobs_wanted is not None or drafts:
                recorder = RoundRecorder(given.top_logprobs_wanted, drafts)
                request.hooks = [recorder]
            stream = self.decoder.text_stream(prompt, style, by_token=given.top_logprobs_wanted is not None)
            choices.append(Choice(i, request, stream, recorder))
            jobs.append(Job(request, lambda job, one: news.put_nowait((job, one)), deadline))
        self.worker.submit(jobs)
        token_ids = isinstance(given, CompletionRequest) and bool(given.return_token_ids)
        head = form(secrets.token_hex(12), self.name, int(time.time()), self.texts)
        total = sum(map(len, prompts))
        return Call(head, choices, jobs, total, news, time.perf_counter(), {}, token_ids)

    def _budget(self, given: GenerationRequest, prompt: int) -> int:
        """The most tokens to generate after ``prompt`` tokens.

        Raises:
            ApiError: prompt and budget together exceed the context.
        """
        context = self.decoder.context
        room = None if context is None else context - prompt
        budget = given.budget
        if budget is None:
            text = not isinstance(given, ChatCompletionRequest)
            budget = TEXT_BUDGET if text else self.decoder.defaults.budget("auto", prompt) if room is None else room
            budget = budget if room is None else max(1, min(budget, room))
        if room is not None and budget > room:
            asked = "" if given.budget is None else f" and max_tokens={budget}"
            raise ApiError(
                400,
                f"prompt of {prompt} tokens{asked}: the context holds {context} tokens; shorten them",
                param="max_tokens" if prompt < (context or 0) else "prompt",
                code="context_length_exceeded",
            )
        return budget

    async def deltas(self, call: Call) -> AsyncIterator[tuple[Choice, Delta]]:
        """What the choices gain, until all have ended; the call is cancelled if the caller stops early.

        Raises:
            ApiError: 408: its time was up; 500: decoding failed.
        """
        growing = dict(zip(call.jobs, call.choices, strict=True))
        try:
            while growing:
                job, news = await call.news.get()
                choice = growing[job]
                if news.rounds:
                    call.first.setdefault(choice, time.perf_counter() - call.started)
                if news.finished:
                    self._check(job)
                yield choice, choice.push(news)
                if choice.finish_reason is not None:
                    del growing[job]
                    self._count(call, choice)
        finally:
            if growing:
                self.metrics.cancelled.inc(len(growing))
                call.cancel()

    def _check(self, job: Job) -> None:
        if job.late:
            raise ApiError(408, f"the request took longer than {self.time_limit:g} s", code="time_limit")
        error = job.request.error
        if error is not None:
            status = 400 if isinstance(error, InputError) else 500
            raise ApiError(status, f"decoding failed: {error}", code="decoding_failed")

    def _count(self, call: Call, choice: Choice) -> None:
        total = time.perf_counter() - call.started
        assert choice.finish_reason is not None
        self.metrics.finished(choice.request.output, choice.finish_reason, call.first[choice], total)
        self.on_finished(choice.request)

    async def whole(self, call: Call) -> JsonObject:
        """The response in one piece."""
        found = {choice: Delta() for choice in call.choices}
        async for choice, delta in self.deltas(call):
            whole = found[choice]
            whole.text += delta.text
            whole.tokens += delta.tokens
            whole.logprobs += delta.logprobs
            whole.places += delta.places
            whole.rounds += delta.rounds
        deltas = [found[choice] for choice in call.choices]
        response = whole_response(call.format, call.choices, deltas, call.prompt_tokens)
        if call.token_ids:
            for entry, delta in zip(response["choices"], deltas, strict=True):
                entry["token_ids"] = delta.tokens
        return response
