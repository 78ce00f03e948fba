"""Plain and assisted generation of transformers, the baselines of our decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ...controllers.sampling import SamplingParams

CONSTANT = tuple(range(1, 9))  # draft lengths that constant assistance is tuned over


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


ASSISTED = {f"transformers-assisted-{k}": Assistance(k) for k in CONSTANT} | {
    "transformers-assisted-heuristic": Assistance(5, "heuristic"),
    "transformers-assisted-confidence": Assistance(20, confidence=0.4),
}


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


class Transformers:
    """``generate`` of one target, with or without a draft.

    Transformers keeps the state of a schedule or of the ROC curve in the draft's generation configuration between
    calls. Here each kind of assistance has its own state, so that they can run in turn.
    """

    def __init__(
        self, target: PreTrainedModel, draft: PreTrainedModel, sampling: SamplingParams, max_new_tokens: int
    ) -> None:
        self.target: Any = target
        self.draft: Any = draft
        self.states = {name: vars(assistance).copy() for name, assistance in ASSISTED.items()}
        self.options = sampling_options(sampling) | {"max_new_tokens": max_new_tokens}

    def generate(self, prompt: list[int], assistance: str | None) -> list[int]:
        """New tokens after ``prompt``. ``assistance`` is a key of ``ASSISTED``, or None for no draft."""
        if assistance is None:
            return generate(self.target, prompt, **self.options)
        config, state = self.draft.generation_config, self.states[assistance]
        config.num_assistant_tokens = state["tokens"]
        config.num_assistant_tokens_schedule = state["schedule"]
        config.assistant_confidence_threshold = state["confidence"]
        tokens = generate(self.target, prompt, assistant_model=self.draft, **self.options)
        state["tokens"], state["confidence"] = config.num_assistant_tokens, config.assistant_confidence_threshold
        return tokens
