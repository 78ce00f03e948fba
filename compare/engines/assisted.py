"""Generation of transformers as a decoder: plain, assisted by the draft, or with copies of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...common.errors import InputError, is_whole
from ...controllers.sampling import SamplingParams
from ...infer.generation import Stats
from ...infer.models import LanguageModel

ASSISTED, LOOKUP = "assisted", "lookup"


@dataclass(frozen=True)
class Assistance:
    """How transformers' assisted generation sets the draft length.

    Attributes:
        tokens: the draft length, the initial one for the heuristic schedule, or the longest with a ``confidence``.
        schedule: ``"constant"`` or ``"heuristic"``.
        confidence: initial threshold on the draft's probability, adjusted by transformers from the ROC curve; 0: none.
    """

    tokens: int
    schedule: str = "constant"
    confidence: float = 0.0


NAMED = {"heuristic": Assistance(5, "heuristic"), "confidence": Assistance(20, confidence=0.4)}


def sampling_options(sampling: SamplingParams) -> dict[str, Any]:
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

    Transformers keeps the state of a schedule or of the ROC curve in the draft's generation configuration between
    calls. Here each loop has its own, so that several can run in turn.

    Args:
        how: empty for no draft; ``"assisted-3"``, ``"assisted-heuristic"``, ``"assisted-confidence"`` or
            ``"lookup-10"``.

    Raises:
        InputError: ``how`` is none of these, or there is no draft to assist.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        how: str,
        sampling: SamplingParams,
        max_new_tokens: int,
    ) -> None:
        self.target: Any = target.model
        self.options = sampling_options(sampling) | {"max_new_tokens": max_new_tokens}
        self.config: Any = None
        kind, _, value = how.partition("-")
        if kind == LOOKUP and is_whole(value):
            self.options["prompt_lookup_num_tokens"] = int(value)
        elif kind == ASSISTED and (is_whole(value) or value in NAMED):
            if draft is None:
                raise InputError(f"transformers:{how}: needs a draft model; name one as draft")
            if draft.vocab_size != target.vocab_size or draft.reads_states:
                raise InputError(
                    f"transformers:{how}: needs a draft that reads tokens of the same vocabulary alone (vocab_size: "
                    f"{target.vocab_size} of the target, {draft.vocab_size} of the draft); leave it out"
                )
            self.options["assistant_model"] = draft.model
            self.config = draft.model.generation_config
            assistance = Assistance(int(value)) if is_whole(value) else NAMED[value]
            self.state = assistance.tokens, assistance.schedule, assistance.confidence
        elif how:
            raise InputError(
                f"transformers:{how}: no such generation; give assisted-3, assisted-heuristic, assisted-confidence or "
                "lookup-10"
            )

    def __call__(self, prompt: list[int], seed: int) -> Stats:
        """Decode one prompt; only the number of tokens is reported."""
        torch.manual_seed(seed)
        config = self.config
        if config is not None:
            (config.num_assistant_tokens, config.num_assistant_tokens_schedule,
             config.assistant_confidence_threshold) = self.state  # fmt: skip
        tokens = generate(self.target, prompt, **self.options)
        if config is not None:
            self.state = config.num_assistant_tokens, self.state[1], config.assistant_confidence_threshold
        return Stats(n_generated=len(tokens))
