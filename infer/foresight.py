"""What the oracle knows: where on the target's greedy text the draft would say the same."""

from __future__ import annotations

import torch

from .cache import as_row
from .cached_model import CachedModel


@torch.inference_mode()
def foresee(
    target: CachedModel, draft: CachedModel, prompt: list[int], budget: int, stop_tokens: frozenset[int]
) -> list[bool]:
    """Whether, after the first i tokens of the target's greedy continuation of ``prompt``, both choose the same next.

    Both caches are used up.
    """
    text = target.begin(prompt)
    target.start(len(text) + budget)
    unread, said = text, list[int]()
    while len(said) < budget and not (said and said[-1] in stop_tokens):
        logits, _ = target.forward(as_row(unread, target.device), keep=1)
        said.append(int(logits[0, -1].argmax()))
        unread = said[-1:]
    if max(text + said) >= draft.vocab_size:
        return []  # text the draft has no embedding for: it will not be asked
    draft.begin(prompt)
    draft.start(len(text) + len(said))
    logits, _ = draft.forward(as_row([*text, *said[:-1]], draft.device), keep=len(said))
    guesses: list[int] = logits[0, :, : target.vocab_size].argmax(-1).tolist()
    return [guess == token for guess, token in zip(guesses, said, strict=True)]
