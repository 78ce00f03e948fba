"""Prefill: reads prompts, each into its own row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from torch import Tensor

from .models import LanguageModel, Read, TextCache

Key = TypeVar("Key", bound=Hashable)


def read_prompts(
    model: LanguageModel, cache: TextCache, prompts: Mapping[Key, list[int]], room: Callable[[Key], int]
) -> Tensor:
    """Read ``prompts``, each as a new text of ``cache``; return the last hidden state of each, (N, d).

    Args:
        room: number of tokens to reserve for each text after its prompt.
    """
    reads = [Read(key, model.begin(cache, key, prompt, room(key))) for key, prompt in prompts.items()]
    return model.forward(cache, reads)[1]
