"""Generation of transformers as a decoder: plain, assisted by the draft, or with copies of the prompt."""

from __future__ import annotations

from typing import Any, TypedDict

import torch

from ..common.errors import InputError, Misspelt, is_whole
from ..controllers.sampling import SamplingParams
from ..infer.core import Generation, Stats
from ..models import LanguageModel

ASSISTED, LOOKUP = "assisted", "lookup"


class TransformersSampling(TypedDict, total=False):
    """Keywords of transformers' ``generate`` for sampling."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float


def sampling_options(sampling: SamplingParams) -> TransformersSampling:
    """Keywords of transformers' ``generate`` that sample under ``sampling``."""
    if sampling.temperature == 0:
        return {"do_sample": False}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
    }


def generate(model: Any, prompt: list[int], **options: Any) -> list[int]:
    """The new tokens of transformers' ``generate`` for ``prompt``."""
    ids = torch.tensor([prompt], device=model.device)
    output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


class TransformersLoop:
    """Transformers' ``generate`` of one target.

    Args:
        method: empty for no draft; ``"assisted-3"`` for drafts of three tokens, or ``"lookup-10"``.

    Raises:
        InputError: ``method`` is none of these, or there is no draft to assist.
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
        self.options = {**sampling_options(sampling), "max_new_tokens": max_new_tokens}
        self.config: Any = None
        kind, _, value = method.partition("-")
        self.tokens = int(value) if is_whole(value) else None
        if kind == LOOKUP and self.tokens is not None:
            self.options["prompt_lookup_num_tokens"] = self.tokens
        elif kind == ASSISTED and self.tokens is not None:
            if draft is None:
                raise InputError(f"transformers:{method}: needs a draft model; pass one with --draft")
            if draft.vocab_size != target.vocab_size or draft.reads_states:
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
        """Decode one prompt; of the counters only the number of tokens is reported."""
        torch.manual_seed(seed)
        if self.config is not None:  # where several loops of one draft run in turn, each has its own
            self.config.num_assistant_tokens = self.tokens
            self.config.num_assistant_tokens_schedule = "constant"
            self.config.assistant_confidence_threshold = 0.0
        tokens = generate(self.target, prompt, **self.options)
        return Generation(prompt, tokens, stats=Stats(n_generated=len(tokens)))
