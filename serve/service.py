"""Converts requests to jobs of the worker, and the updates of jobs to responses. It does not use HTTP."""

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
from ..infer.random_source import drawn_seed, text_seeds
from ..infer.recorder import RoundRecorder
from ..infer.text_stream import TokenTexts
from .choice import Choice, Delta
from .errors import ApiError
from .metrics import Metrics
from .protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest
from .responses import ChatFormat, Format, TextFormat, whole_response
from .worker import Job, Update, Worker

TEXT_BUDGET = 16  # default of max_tokens for text completions, as in OpenAI's API


@dataclass
class Call:
    """A request that was checked and queued.

    Attributes:
        format: the format of the response.
        choices: the texts of the response.
        jobs: the jobs that decode the choices.
        prompt_tokens: number of tokens of all prompts.
        updates: updates of the jobs, in the order of their arrival.
        started: the value of ``time.perf_counter()`` when the request was queued.
        first: seconds until the first token of each choice.
        token_ids: whether the response contains token ids.
    """

    format: Format
    choices: list[Choice]
    jobs: list[Job]
    prompt_tokens: int
    updates: asyncio.Queue[tuple[Job, Update]]
    started: float
    first: dict[Choice, float]
    token_ids: bool

    def cancel(self) -> None:
        """Cancel all jobs, because no client waits for them."""
        for job in self.jobs:
            job.cancel()


class Service:
    """OpenAI's API for a decoder.

    Args:
        decoder: the decoder.
        name: name of the model in requests and responses.
        worker: decodes the jobs.
        metrics: counts texts and errors.
        time_limit: maximum duration of a request in seconds.
        on_finished: called with every completed text.
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

    async def accept(self, api_request: ChatCompletionRequest | CompletionRequest) -> Call:
        """Check a request and queue its jobs.

        Raises:
            ApiError: the request is refused.
        """
        if api_request.model not in (None, self.name):
            message = f"model={api_request.model!r}: this server has the model {self.name!r}; request that one"
            raise ApiError(404, message, param="model", code="model_not_found")
        try:
            prompts = await asyncio.to_thread(self._encode, api_request)
            sampling = self._sampling(api_request)
            setup = self._setup(api_request, sampling)
            return self._queue(api_request, prompts, sampling, setup)
        except InputError as error:
            field = str(error).partition("=")[0].partition(":")[0]
            text = "messages" if isinstance(api_request, ChatCompletionRequest) else "prompt"
            raise ApiError(400, str(error), param=field if field in type(api_request).model_fields else text) from None

    def _encode(self, api_request: ChatCompletionRequest | CompletionRequest) -> list[list[int]]:
        """Return the token ids of each prompt, after a check that the models are unchanged."""
        self.decoder.check_models()
        size, encoder = self.decoder.target.vocab_size, self.decoder.target.encodes_prompts
        n = api_request.n or 1
        if isinstance(api_request, ChatCompletionRequest):
            self._check_number(1, n)
            messages = [message.to_dict() for message in api_request.messages]
            self._check_size("messages", sum(len(text_of(message["content"])) for message in messages))
            return [encode_prompt(self.tokenizer, messages, vocab_size=size)]
        prompts: list[Prompt] = as_prompts(api_request.prompt)[0]
        self._check_number(len(prompts), n)
        for prompt in prompts:
            self._check_size("prompt", len(prompt) if isinstance(prompt, str) else 0)
        return [encode_prompt(self.tokenizer, prompt, vocab_size=size, encoder=encoder) for prompt in prompts]

    def _check_number(self, prompts: int, n: int) -> None:
        """Refuse more texts than an idle server can run and queue, because waiting would not help.

        Raises:
            ApiError: 400 if there are too many texts.
        """
        if prompts * n > self.worker.places:
            raise ApiError(
                400,
                f"prompts={prompts} and n={n}: {prompts * n} texts, but the server runs and queues at most "
                f"{self.worker.places}; send several requests",
                param="n" if prompts == 1 else "prompt",
                code="too_many_texts",
            )

    def _check_size(self, name: str, characters: int) -> None:
        """Refuse a text that cannot fit the context, before tokenisation, which would take long.

        Raises:
            ApiError: 400 if the text is too long.
        """
        context = self.decoder.context
        if context is not None and characters > context * self.longest_token:
            raise ApiError(
                400, f"{name}: {characters} characters, but the context holds {context} tokens; shorten it",
                param=name, code="context_length_exceeded",
            )  # fmt: skip

    def _sampling(self, api_request: GenerationRequest) -> SamplingParams:
        """Return the sampling parameters of a request, with the server's defaults for missing fields."""
        settings: JsonObject = {
            name: "auto" if value is None else value
            for name, value in (
                ("temperature", api_request.temperature),
                ("top_k", api_request.top_k),
                ("top_p", api_request.top_p),
            )
        }
        if settings["top_k"] in (0, -1):
            settings["top_k"] = None
        return self.decoder.defaults.sampling_params(**settings)

    def _setup(self, api_request: GenerationRequest, sampling: SamplingParams) -> Setup:
        """Return the decoder's setup for a request, with the length rule that the request names.

        Raises:
            ApiError: 400 if there is no such rule.
        """
        length = None if api_request.speculation is None else api_request.speculation.length
        if length is None:
            return self.decoder.setup_for(seed=api_request.seed, temperature=sampling.temperature)
        rule: LengthController | None = parse_rule(str(length))
        if rule is None:
            raise ApiError(
                400,
                f"speculation.length={length!r}: must be a number or a rule, such as 'none' or 'confidence:0.4'",
                param="speculation.length",
            )
        return self.decoder.setup_for(rule, seed=api_request.seed, temperature=sampling.temperature)

    def _queue(
        self, api_request: GenerationRequest, prompts: list[list[int]], sampling: SamplingParams, setup: Setup
    ) -> Call:
        """Queue a job for each text of a request and return the call.

        Raises:
            ApiError: the seed is negative, a prompt is too long, or the queue is full.
        """
        n, updates = api_request.n or 1, asyncio.Queue[tuple[Job, Update]]()
        if api_request.seed is not None and api_request.seed < 0:
            raise ApiError(400, f"seed={api_request.seed}: must be at least 0", param="seed")
        seeds = text_seeds(drawn_seed() if api_request.seed is None else api_request.seed, n * len(prompts))
        budgets = [self._budget(api_request, len(prompt)) for prompt in prompts]
        form: type[Format] = ChatFormat if isinstance(api_request, ChatCompletionRequest) else TextFormat
        choices, jobs, style = [], [], api_request.style(self.decoder.stop_tokens)
        deadline = time.monotonic() + self.time_limit
        for i, seed in enumerate(seeds):
            prompt = prompts[i // n]
            request = self.decoder.new_request(
                prompt,
                sampling,
                budgets[i // n],
                seed,
                stop_tokens=frozenset() if api_request.ignore_eos else None,
                setup=setup,
                style=style,
            )
            request.streamed = bool(api_request.stream)
            drafts = api_request.speculation is not None and api_request.speculation.trace
            recorder: RoundRecorder | None = None
            if api_request.top_logprobs_wanted is not None or drafts:
                recorder = RoundRecorder(api_request.top_logprobs_wanted, drafts)
                request.hooks = [recorder]
            stream = self.decoder.text_stream(prompt, style, by_token=api_request.top_logprobs_wanted is not None)
            choices.append(Choice(i, request, stream, recorder))
            jobs.append(Job(request, lambda job, update: updates.put_nowait((job, update)), deadline))
        self.worker.submit(jobs)
        token_ids = isinstance(api_request, CompletionRequest) and bool(api_request.return_token_ids)
        head = form(secrets.token_hex(12), self.name, int(time.time()), self.texts)
        total = sum(map(len, prompts))
        return Call(head, choices, jobs, total, updates, time.perf_counter(), {}, token_ids)

    def _budget(self, api_request: GenerationRequest, prompt: int) -> int:
        """Return the maximum number of new tokens after ``prompt`` tokens.

        Raises:
            ApiError: 400 if prompt and budget together exceed the context.
        """
        context = self.decoder.context
        available = None if context is None else context - prompt
        budget = api_request.budget
        if budget is None:
            text = not isinstance(api_request, ChatCompletionRequest)
            budget = (
                TEXT_BUDGET
                if text
                else self.decoder.defaults.budget("auto", prompt)
                if available is None
                else available
            )
            budget = budget if available is None else max(1, min(budget, available))
        if available is not None and budget > available:
            requested = "" if api_request.budget is None else f" and max_tokens={budget}"
            raise ApiError(
                400,
                f"prompt of {prompt} tokens{requested}: the context holds {context} tokens; shorten the prompt or "
                "max_tokens",
                param="max_tokens" if prompt < (context or 0) else "prompt",
                code="context_length_exceeded",
            )
        return budget

    async def deltas(self, call: Call) -> AsyncIterator[tuple[Choice, Delta]]:
        """Yield the growth of the choices until all have ended. The call is cancelled if the caller stops early.

        Raises:
            ApiError: 408 if the time limit passed; 500 if decoding failed.
        """
        growing = dict(zip(call.jobs, call.choices, strict=True))
        try:
            while growing:
                job, update = await call.updates.get()
                choice = growing[job]
                if update.rounds:
                    call.first.setdefault(choice, time.perf_counter() - call.started)
                if update.finished:
                    self._check(job)
                yield choice, choice.push(update)
                if choice.finish_reason is not None:
                    del growing[job]
                    self._count(call, choice)
        finally:
            if growing:
                self.metrics.cancelled.inc(len(growing))
                call.cancel()

    def _check(self, job: Job) -> None:
        """Raise the error of a finished job.

        Raises:
            ApiError: the job was late or failed.
        """
        if job.timed_out:
            raise ApiError(
                408,
                f"the request took longer than {self.time_limit:g} s; ask for fewer tokens, or start the server with a "
                "larger --time-limit",
                code="time_limit",
            )
        error = job.request.error
        if error is not None:
            status = 400 if isinstance(error, InputError) else 500
            raise ApiError(status, f"decoding failed: {error}", code="decoding_failed")

    def _count(self, call: Call, choice: Choice) -> None:
        """Count a finished choice in the metrics and report it."""
        total = time.perf_counter() - call.started
        assert choice.finish_reason is not None
        self.metrics.finished(choice.request.output, choice.finish_reason, call.first[choice], total)
        self.on_finished(choice.request)

    async def whole(self, call: Call) -> JsonObject:
        """Return the whole response when all choices have ended."""
        totals = {choice: Delta() for choice in call.choices}
        async for choice, delta in self.deltas(call):
            total = totals[choice]
            total.text += delta.text
            total.tokens += delta.tokens
            total.logprobs += delta.logprobs
            total.places += delta.places
            total.rounds += delta.rounds
        deltas = [totals[choice] for choice in call.choices]
        response = whole_response(call.format, call.choices, deltas, call.prompt_tokens)
        if call.token_ids:
            for entry, delta in zip(response["choices"], deltas, strict=True):
                entry["token_ids"] = delta.tokens
        return response
