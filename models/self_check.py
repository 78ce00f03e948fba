"""A check of a loaded model: reading a text in parts must give the same logits as reading it at once.

Decoding reads a text in parts into the KV cache and removes rejected tokens from the cache. If a model attends to later
tokens, or its forward misinterprets the cache, decoding would give wrong text without an error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.errors import InputError
from .causal_lm import CausalLM
from .forwards import Lean
from .model_snapshot import has_active_dropout
from .read import Read

PART = 5  # tokens read at a time
REJECTED = 2  # tokens read and removed again
DIFFERENT = 0.2  # maximum median relative error of a part's logits: far above rounding, also of 8-bit activations


@torch.no_grad()
def check_reading_in_parts(model: CausalLM) -> None:
    """Compare the logits of a text read in parts, with rejected tokens in between, with those without a cache.

    The check is left out for the lean forward, which is tested; for a draft that reads states, which has no other
    forward; for a model with dropout, which the decoder refuses; and for a context of fewer than fifteen tokens.

    Raises:
        InputError: the logits differ, or the model cannot read a text in parts.
    """
    if (
        isinstance(model.strategy, Lean)
        or model.reads_states
        or any(has_active_dropout(module) for module in model.model.modules())
    ):
        return
    if model.context is not None and model.context < 3 * PART:
        return
    text = [(10 + 7 * i) % model.vocab_size for i in range(3 * PART)]
    rejected = [(13 + 7 * i) % model.vocab_size for i in range(REJECTED)]
    first, second, third = (text[start : start + PART] for start in range(0, 3 * PART, PART))
    cache = model.new_cache()
    cache.add(0, 3 * PART + REJECTED)
    try:
        expected = model.packed(input_ids=torch.tensor([text], device=model.device), use_cache=False).logits[0]
        parts = [
            model.forward(cache, [Read(0, first, PART)])[0],
            model.forward(cache, [Read(0, [*second, *rejected], PART + REJECTED)])[0][:PART],
        ]
        cache.crop_text(0, 2 * PART)
        parts.append(model.forward(cache, [Read(0, third, PART)])[0])
        model.column_bytes = cache.column_bytes
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{model.name}: cannot read a text in parts ({reason}); choose another model") from error
    for part_logits, expected_part in zip(parts, expected.split(PART), strict=True):
        if relative_error(part_logits, expected_part[:, : part_logits.shape[-1]]) > DIFFERENT:
            raise InputError(
                f"{model.name}: reading a text in parts gives other logits than reading it whole, so that it cannot be "
                "decoded exactly; choose a causal model (BERT and its relatives: with is_decoder=True in the config)"
            )


def relative_error(logits: Tensor, expected: Tensor) -> float:
    """Return the median over rows of the error of ``logits`` (n, V) relative to the spread of ``expected`` (n, V)."""
    finite = expected.isfinite().all(0)  # some models have no logits for some tokens
    logits, expected = logits[:, finite].float(), expected[:, finite].float()
    scale = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    return float(((logits - expected).norm(dim=-1) / scale).median())
