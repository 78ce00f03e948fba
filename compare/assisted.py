"""Generation of transformers as a decoder: without drafts, assisted by the draft model, or with prompt lookup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import torch
from rich.console import Console

from ..common.errors import InputError, Misspelt, is_whole
from ..controllers.length.cost_model import CostModel
from ..controllers.length.running_cost import fit_rounds
from ..controllers.sampling import SamplingParams
from ..infer.core import Generation, Stats
from ..models import GgufModel, LanguageModel
from .runner import interleave

ASSISTED, LOOKUP = "assisted", "lookup"
COSTED = (0, 1, 3, 6)  # draft lengths from which the costs of assisted generation are measured


class TransformersSampling(TypedDict, total=False):
    """Keywords of transformers' ``generate`` for sampling."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float


def sampling_options(sampling: SamplingParams) -> TransformersSampling:
    """Return the keywords of transformers' ``generate`` for the sampling parameters ``sampling``."""
    if sampling.temperature == 0:
        return {"do_sample": False}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
    }


def generate(model: Any, prompt: list[int], **options: Any) -> list[int]:
    """Return the new tokens of transformers' ``generate`` after ``prompt``, without the prompt.

    Args:
        model: a model of transformers.
        prompt: token ids.
        options: keywords of ``generate``.
    """
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


class TransformersLoop:
    """A function that decodes prompts with transformers' ``generate``.

    Args:
        target: the target.
        draft: the draft model; None without one.
        method: empty for no drafts; ``"assisted-3"`` for drafts of three tokens by the draft model; ``"lookup-10"`` for
            prompt lookup of ten tokens. The numbers are examples.
        sampling: the sampling parameters.
        max_new_tokens: maximum number of new tokens of a text.

    Attributes:
        forwards: number of forwards of the target so far, prefills included.

    Raises:
        InputError: ``method`` is none of these; or it needs a draft model, and there is none, or the draft model reads
            the target's states or has a vocabulary of another size.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        method: str,
        sampling: SamplingParams,
        max_new_tokens: int,
    ) -> None:
        self.target: Any = target.model
        self.forwards = 0
        self.options = {**sampling_options(sampling), "max_new_tokens": max_new_tokens}
        self.config: Any = None
        kind, _, value = method.partition("-")
        self.tokens = int(value) if is_whole(value) else None
        if kind == LOOKUP and self.tokens is not None:
            self.options["prompt_lookup_num_tokens"] = self.tokens
        elif kind == ASSISTED and self.tokens is not None:
            if draft is None:
                raise InputError(f"transformers:{method}: needs a draft model; pass one with --draft")
            if not _reads_tokens_of(target, draft):
                raise InputError(
                    f"transformers:{method}: needs a draft that reads only tokens and has the target's vocabulary "
                    f"(vocab_size of the target: {target.vocab_size}, of the draft: {draft.vocab_size}); leave it out"
                )
            self.options["assistant_model"] = draft.model
            self.config = draft.model.generation_config
        elif method:
            raise Misspelt(
                f"transformers:{method}: no such generation method; choose assisted-3 or lookup-10, with any number"
            )

    def __call__(self, prompt: list[int], seed: int) -> Generation:
        """Return the generation after ``prompt``; its only counter is the number of tokens."""
        torch.manual_seed(seed)
        if self.config is not None:  # set here, because loops with other settings may use the same draft in turn
            self.config.num_assistant_tokens = self.tokens
            self.config.num_assistant_tokens_schedule = "constant"
            self.config.assistant_confidence_threshold = 0.0
        hook = self.target.register_forward_pre_hook(self._count)
        try:
            tokens = generate(self.target, prompt, **self.options)
        finally:
            hook.remove()
        return Generation(prompt, tokens, stats=Stats(n_generated=len(tokens)))

    def _count(self, *_: object) -> None:
        self.forwards += 1


def can_assist(target: LanguageModel, draft: LanguageModel) -> bool:
    """Return true if transformers can draft with this pair.

    It cannot with an encoder-decoder, a GGUF model, a target whose state cannot be rolled back, or a draft that reads
    the target's states or has a vocabulary of another size.
    """
    return (
        not target.encodes_prompts
        and not isinstance(target.model, GgufModel)
        and not isinstance(draft.model, GgufModel)
        and not getattr(target.model, "_is_stateful", False)
        and _reads_tokens_of(target, draft)
    )


def _reads_tokens_of(target: LanguageModel, draft: LanguageModel) -> bool:
    """Return true if the draft reads only tokens, and its vocabulary has the size of the target's."""
    return draft.vocab_size == target.vocab_size and not draft.reads_states


def assisted_costs(
    target: LanguageModel,
    draft: LanguageModel,
    prompts: Sequence[list[int]],
    sampling: SamplingParams,
    max_new_tokens: int,
    console: Console,
) -> CostModel:
    """Return the costs of rounds of assisted generation, from decodings of the prompts with ``COSTED`` drafted tokens.

    Args:
        target, draft: the pair.
        prompts: token ids of the prompts.
        sampling: the sampling parameters.
        max_new_tokens: maximum number of new tokens of a text.
        console: the console that shows the progress.

    Raises:
        InputError: transformers cannot draft with this draft.
    """
    methods = {length: f"{ASSISTED}-{length}" if length else "" for length in COSTED}
    loops = {
        length: TransformersLoop(target, draft, method, sampling, max_new_tokens) for length, method in methods.items()
    }

    def run(loop: TransformersLoop, item: int) -> int:
        before = loop.forwards
        loop(prompts[item], item)
        return loop.forwards - before

    runs = {str(length): lambda item, _, loop=loop: run(loop, item) for length, loop in loops.items()}
    timings = interleave(runs, len(prompts), console, label="generations of transformers")
    return round_costs((int(name), each.seconds, each.value) for name, _, each in timings)


def round_costs(decodings: Iterable[tuple[int, float, float]]) -> CostModel:
    """Return the costs of an engine's rounds, fitted to the mean seconds of a round of each draft length.

    Args:
        decodings: draft length, seconds and forwards of the target of each decoding.
    """
    sums: dict[int, tuple[float, float]] = {}
    for length, seconds, forwards in decodings:
        before = sums.get(length, (0.0, 0.0))
        sums[length] = before[0] + seconds, before[1] + forwards
    return fit_rounds((length, length, seconds / forwards) for length, (seconds, forwards) in sums.items())
