"""A model's logits along finished texts: at each of their tokens, in one forward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..infer.models import LanguageModel, Read

MAX_SCORES = 1 << 22  # logits held at once, N·V: larger pieces cost a CPU more in fresh memory than they save


def scores(model: LanguageModel, prompts: Sequence[list[int]], texts: Sequence[list[int]], size: int) -> Tensor:
    """(N, V') logits before every token of ``texts``, one text's after another's, N tokens in all.

    Args:
        prompts: what each text follows; an encoder-decoder encodes it.
        texts: at least one token each; the last one is scored and not read.
        size: V of the target; longer rows are cut there, for models of one tokenizer may pad theirs apart.
    """
    cache = model.new_cache()
    reads = [
        Read(row, [*model.begin(cache, row, prompt, len(text)), *text[:-1]], len(text))
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    logits, _ = model.forward(cache, reads)
    return logits[:, :size]
