"""Transformers' own generation, plain and assisted, behind one call: what our decoder is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..controllers.warp import Warp

CONSTANT = tuple(range(1, 9))  # draft lengths that constant assistance is tuned over


@dataclass(frozen=True)
class Assistance:
    """How transformers' assisted generation decides on the draft's length.

    Attributes:
        tokens: draft length, or the first one, or the longest.
        schedule: ``"constant"`` or ``"heuristic"``.
        confidence: threshold of the draft's probability; above 0 transformers keeps adjusting it by the ROC curve.
    """

    tokens: int
    schedule: str = "constant"
    confidence: float = 0.0


ASSISTED = {f"transformers-assisted-{k}": Assistance(k) for k in CONSTANT} | {
    "transformers-assisted-heuristic": Assistance(5, "heuristic"),
    "transformers-assisted-confidence": Assistance(20, confidence=0.4),
}


class Transformers:
    """``generate`` of one target, with or without a draft.

    Whatever a schedule or the ROC curve has learnt in one call, transformers keeps in the draft's generation
    configuration for the next; it is set anew only when another form of assistance takes its turn, as each has its own.
    """

    def __init__(self, target: PreTrainedModel, draft: PreTrainedModel, warp: Warp, max_new_tokens: int) -> None:
        self.target: Any = target
        self.draft: Any = draft
        self.learnt = {name: vars(assistance).copy() for name, assistance in ASSISTED.items()}
        self.options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": warp.temperature > 0}
        if warp.temperature > 0:
            self.options |= {"temperature": warp.temperature, "top_k": warp.top_k or 0, "top_p": warp.top_p}

    def generate(self, prompt: list[int], assistance: str | None) -> list[int]:
        """New tokens after ``prompt``; ``assistance`` names one of ``ASSISTED``, None takes no draft."""
        ids = torch.tensor([prompt], device=self.target.device)
        options = dict(self.options)
        if assistance is not None:
            config, learnt = self.draft.generation_config, self.learnt[assistance]
            config.num_assistant_tokens = learnt["tokens"]
            config.num_assistant_tokens_schedule = learnt["schedule"]
            config.assistant_confidence_threshold = learnt["confidence"]
            options["assistant_model"] = self.draft
        output = self.target.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
        if assistance is not None:
            learnt["tokens"], learnt["confidence"] = config.num_assistant_tokens, config.assistant_confidence_threshold
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens
