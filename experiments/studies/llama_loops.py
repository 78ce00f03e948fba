"""Speed of llama.cpp's own loops and of the decoder on the weights of a GGUF pair.

The loops are those of llama.cpp's examples ``simple`` and ``speculative-simple``: a context with its defaults (keys and
values in float16), its decode, its chain of samplers, and as little Python as possible between two calls. A draft has
the draft model's most probable tokens. The target samples after each token and goes on as long as it samples the same.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.errors import InputError
from specpilot.common.options import Natural, OutputFileOptions, Several
from specpilot.compare.decoders import NONE, ComparedDecoder, Generate, Loader, encoded_prompts
from specpilot.compare.options import RepeatOptions, WorkloadOptions
from specpilot.compare.runner import Run, interleave
from specpilot.compare.table import Table
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.core import Generation, Stats
from specpilot.models import GgufModel, LanguageModel
from specpilot.models.llama_context import library

BATCH = 512


@dataclass(frozen=True, kw_only=True)
class LlamaLoopsOptions(WorkloadOptions, RepeatOptions, OutputFileOptions):
    """Study.

    Options of ``python -m experiments llama-loops``.

    Attributes:
        lengths: Tokens of a draft, for llama.cpp and for specpilot; 0 decodes without drafts.
    """

    lengths: Annotated[tuple[Natural, ...], Several()] = (0, 1, 2, 4)


class Loop:
    """One model in a context of its own, one text at a time.

    Attributes:
        length: number of tokens in the context.
        reads: number of forwards so far.
    """

    def __init__(self, model: GgufModel, cells: int) -> None:
        self.llama, self.model = library(), model
        settings = self.llama.llama_context_default_params()
        settings.n_ctx, settings.n_batch = cells, BATCH
        settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
        settings.no_perf = True
        self.pointer = ctypes.c_void_p(self.llama.llama_init_from_model(model.pointer, settings))
        self.memory = ctypes.c_void_p(self.llama.llama_get_memory(self.pointer))
        self.batch = self.llama.llama_batch_init(BATCH, 0, 1)
        self.length = self.reads = 0
        weakref.finalize(self, self.llama.llama_batch_free, self.batch)
        weakref.finalize(self, self.llama.llama_free, self.pointer)

    def read(self, tokens: Sequence[int], outputs: int) -> None:
        """Append ``tokens``, with logits after the last ``outputs`` of them."""
        batch = self.batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self.length + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i >= len(tokens) - outputs
        assert self.llama.llama_decode(self.pointer, batch) == 0
        self.length += len(tokens)
        self.reads += 1

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self.llama.llama_memory_seq_rm(self.memory, 0, length, -1)
        self.length = length


class LlamaLoop:
    """Autoregressive or speculative decoding by llama.cpp alone.

    Args:
        longest: tokens of a draft; 0 decodes without drafts.
    """

    def __init__(
        self,
        target: GgufModel,
        draft: GgufModel | None,
        longest: int,
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_tokens: frozenset[int],
    ) -> None:
        self.llama, self.sampling = library(), sampling
        self.budget, self.stop_tokens = max_new_tokens, stop_tokens
        self.longest = longest
        self.target = Loop(target, target.context)
        self.draft = Loop(draft, draft.context) if longest and draft is not None else None

    def __call__(self, prompt: list[int], seed: int) -> Generation:
        """Decode one prompt; of the counters only the number of tokens is reported."""
        tokens = self.generate(prompt, seed)
        return Generation(prompt, tokens, stats=Stats(n_generated=len(tokens)))

    def generate(self, prompt: list[int], seed: int) -> list[int]:
        """Return the new tokens of a text that continues ``prompt``, decoded with ``seed``."""
        sampler = self._sampler(seed)
        try:
            if self.draft is None:
                return self._autoregressive(prompt, sampler)
            return self._speculative(prompt, sampler)
        finally:
            self.llama.llama_sampler_free(sampler)

    def _sampler(self, seed: int) -> Any:
        llama, sampling = self.llama, self.sampling
        if sampling.temperature == 0:
            return llama.llama_sampler_init_greedy()
        chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        if sampling.top_k is not None:
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p < 1:
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_p(sampling.top_p, 1))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_temp(sampling.temperature))
        llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(seed))
        return chain

    def _autoregressive(self, prompt: list[int], sampler: Any) -> list[int]:
        target, sample = self.target, self.llama.llama_sampler_sample
        target.crop(0)
        written: list[int] = []
        unread = prompt
        while True:
            target.read(unread, 1)
            token = sample(sampler, target.pointer, -1)
            written.append(token)
            if token in self.stop_tokens or len(written) == self.budget:
                return written
            unread = [token]

    def _speculative(self, prompt: list[int], sampler: Any) -> list[int]:
        target, draft, sample = self.target, self.draft, self.llama.llama_sampler_sample
        assert draft is not None
        for loop in (target, draft):
            loop.crop(0)
            loop.read(prompt[:-1], 1)
        text = list(prompt)
        while True:
            drafted = self._draft(text, min(self.longest, self.budget - (len(text) - len(prompt)) - 1))
            target.read([text[-1], *drafted], len(drafted) + 1)
            for i in range(len(drafted) + 1):
                token = sample(sampler, target.pointer, i)
                text.append(token)
                if token in self.stop_tokens or len(text) - len(prompt) == self.budget:
                    return text[len(prompt) :]
                if i == len(drafted) or token != drafted[i]:
                    break
            target.crop(len(text) - 1)
            draft.crop(min(draft.length, len(text) - 1))

    def _draft(self, text: list[int], longest: int) -> list[int]:
        """Return a chain of ``longest`` tokens, the draft's most probable one at each position."""
        draft = self.draft
        assert draft is not None
        drafted: list[int] = []
        unread = text[draft.length :]
        while len(drafted) < longest:
            draft.read(unread, 1)
            logits = np.ctypeslib.as_array(
                self.llama.llama_get_logits_ith(draft.pointer, -1), shape=(draft.model.vocab_size,)
            )
            unread = [int(logits.argmax())]
            drafted += unread
        return drafted


def gguf_model(role: str, name: Any, model: LanguageModel) -> GgufModel:
    """Return the GGUF model of a loaded ``role``.

    Raises:
        InputError: ``name`` is no GGUF file.
    """
    if not isinstance(model.model, GgufModel):
        raise InputError(f"{role}={name!r}: llama.cpp decodes GGUF files; give one")
    return model.model


def measure(options: LlamaLoopsOptions, console: Console) -> dict[str, float]:
    """Return tokens per second of each loop over all prompts, every prompt by every loop in turn.

    Raises:
        InputError: target or draft is no GGUF file.
    """
    base, sampling = options.base, SamplingParams(options.temperature, options.top_k, options.top_p)
    loader = Loader(base)
    target = gguf_model("target", options.target, loader.target().target)
    draft = None
    if any(options.lengths):
        draft = gguf_model("draft", options.draft, loader.draft(str(options.draft), base))
    prompts = encoded_prompts(options)
    stops = loader.decoder(ComparedDecoder.parse(NONE, base)).stop_tokens
    loops: dict[str, Generate] = {}
    for length in options.lengths:
        loops[f"llama.cpp {length}"] = LlamaLoop(target, draft, length, sampling, options.max_new_tokens, stops)
        decoder = ComparedDecoder.parse(length or NONE, base)
        loops[f"specpilot {length}"] = loader.generate(decoder, sampling, options.max_new_tokens)

    def runs(loop: Generate) -> Run[int]:
        return lambda item, repeat: loop(prompts[item], 1000 * repeat + item).stats.n_generated

    tokens, seconds = dict.fromkeys(loops, 0), dict.fromkeys(loops, 0.0)
    configurations = {name: runs(loop) for name, loop in loops.items()}
    for name, _, timed in interleave(configurations, len(prompts), console, repeats=options.repeats):
        tokens[name] += timed.value
        seconds[name] += timed.seconds
    return {name: tokens[name] / seconds[name] for name in loops}


def main(options: LlamaLoopsOptions) -> None:
    """Time llama.cpp's own loops and specpilot on a GGUF pair."""
    console = begin()
    result = measure(options, console)
    rows = [{"loop": name, "tokens per second": f"{speed:.0f}"} for name, speed in result.items()]
    console.print(Table("llama.cpp and specpilot on the same weights", rows))
    finish({"tokens_per_second": result}, options, options.output)
