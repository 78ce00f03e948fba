"""Reading prompts: several in one forward where their lengths are alike, each in its own row of the cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from torch import Tensor

from .models import LanguageModel, RaggedKVCache, Read

Key = TypeVar("Key", bound=Hashable)
PADDED = 1.3  # a group's padded size over its tokens, at most
LARGEST = 4096  # tokens of a group, unless one prompt alone is longer


def read_prompts(
    model: LanguageModel,
    cache: RaggedKVCache,
    prompts: Mapping[Key, list[int]],
    room: Callable[[Key], int],
) -> dict[Key, tuple[list[int], Tensor, Tensor]]:
    """Read ``prompts``; by key the tokens that were read, their last logits (1, V) and hidden state (1, d).

    Args:
        room: how many tokens each text may grow by.
    """
    tokens = {
        key: model.begin(cache, key, prompt, room(key))
        for key, prompt in sorted(prompts.items(), key=lambda item: len(item[1]))
    }
    results = {}
    for group in _groups(tokens):
        logits, hidden = model.forward(cache, [Read(key, tokens[key]) for key in group])
        for row, key in enumerate(group):
            results[key] = tokens[key], logits[row : row + 1], hidden[row : row + 1]
    return results


def _groups(tokens: Mapping[Key, list[int]]) -> list[list[Key]]:
    """Texts, shortest first, that are read together: little of a group is padding."""
    groups: list[list[Key]] = []
    total = 0
    for key, text in tokens.items():
        padded = len(text) * (len(groups[-1]) + 1) if groups else 0
        if not groups or padded > PADDED * (total + len(text)) or padded > LARGEST:
            groups.append([])
            total = 0
        groups[-1].append(key)
        total += len(text)
    return groups
