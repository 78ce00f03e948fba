"""N-gram drafts along a text, for router data with an n-gram arm."""

from __future__ import annotations

from collections.abc import Sequence

from ..infer.drafters.ngram import Ngram
from ..infer.drafters.prompt_lookup import PromptLookup


def copied(prompt: Sequence[int], text: Sequence[int]) -> list[bool]:
    """Whether each token of ``text`` equals the copy proposed by an n-gram match of the tokens before it.

    If the text was sampled from the target, this is a draw of the copy's acceptance: token x_t has the distribution p
    and equals the copy y with probability p(y), the acceptance probability of y.
    """
    lookup, found = PromptLookup(prompt, [], Ngram().longest), []
    for place in range(1, len(text) + 1):
        found.append(any(right for _, right in lookup.extend(text[:place])))
    return found


def copies(prompt: Sequence[int], text: Sequence[int]) -> list[int]:
    """The tokens of ``text`` that equal the proposed copy, in order."""
    return [token for token, right in zip(text, copied(prompt, text), strict=True) if right]
