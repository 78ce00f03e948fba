"""Reading prompts: several in one forward where their lengths are alike, each in its own row of the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from .models import LanguageModel, RaggedKVCache, Read

if TYPE_CHECKING:
    from .request import Request

PADDED = 1.3  # a group's padded size over its tokens, at most
LARGEST = 4096  # tokens of a group, unless one prompt alone is longer


def read_prompts(
    model: LanguageModel,
    cache: RaggedKVCache,
    prompts: Mapping[Request, list[int]],
    room: Callable[[Request], int],
) -> dict[Request, tuple[list[int], Tensor, Tensor]]:
    """Read ``prompts``; by request the text that was read, its last logits (1, V) and hidden state (1, d)."""
    texts = {
        request: model.begin(cache, request, prompt, room(request))
        for request, prompt in sorted(prompts.items(), key=lambda item: len(item[1]))
    }
    results = {}
    for group in _groups(texts):
        logits, hidden = model.forward(cache, [Read(request, texts[request]) for request in group])
        for row, request in enumerate(group):
            results[request] = texts[request], logits[row : row + 1], hidden[row : row + 1]
    return results


def _groups(texts: Mapping[Request, list[int]]) -> list[list[Request]]:
    """Texts, shortest first, that are read together: little of a group is padding."""
    groups: list[list[Request]] = []
    total = 0
    for request, text in texts.items():
        padded = len(text) * (len(groups[-1]) + 1) if groups else 0
        if not groups or padded > PADDED * (total + len(text)) or padded > LARGEST:
            groups.append([])
            total = 0
        groups[-1].append(request)
        total += len(text)
    return groups
