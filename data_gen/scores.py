"""A model's logits at every token of finished texts, in one forward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..infer.models import LanguageModel, Read

MAX_SCORES = 1 << 22  # logits computed at once, N·V; on a CPU larger pieces are slower because of memory allocation


def scores(model: LanguageModel, prompts: Sequence[list[int]], texts: Sequence[list[int]], size: int) -> Tensor:
    """(N, V') logits that predict each token of ``texts``, text by text, N tokens in all.

    Args:
        prompts: the prompt of each text; for an encoder-decoder the encoder's input.
        texts: at least one token each; the last one is scored and not read.
        size: the target's vocabulary size V, to which longer rows are cut: models of one tokenizer may be padded
            differently.
    """
    cache = model.new_cache()
    reads = [
        Read(row, [*model.begin(cache, row, prompt, len(text)), *text[:-1]], len(text))
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    logits, _ = model.forward(cache, reads)
    return logits[:, :size]
