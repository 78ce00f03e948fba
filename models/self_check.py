"""A check, when a model is loaded, that it can be decoded exactly: reading a text in parts is reading it whole.

Decoding reads a text piece by piece into the KV cache and removes rejected tokens from it. With a model that attends to
later tokens, or whose cache is not what its forward takes it for, that would give other text without a word.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..common.errors import InputError
from .causal_lm import CausalLM
from .forwards import Lean
from .given import drops
from .read import Read

PART = 5  # tokens read at a time
REJECTED = 2  # tokens read and removed again
DIFFERENT = 0.2  # relative error of half of a part's logits: far above rounding, that of 8-bit activations included


@torch.no_grad()
def check_reading_in_parts(model: CausalLM) -> None:
    """Compare the model's logits of a text read in parts, with rejected tokens in between, with those without a cache.

    The lean forward is known to be right; a draft that reads states has no other forward to compare with; and the
    decoder refuses a model with dropout.

    Raises:
        InputError: they differ, or the model cannot read a text in parts.
    """
    if isinstance(model.strategy, Lean) or model.reads_states or any(drops(module) for module in model.model.modules()):
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
    for found, wanted in zip(parts, expected.split(PART), strict=True):
        if relative_error(found, wanted[:, : found.shape[-1]]) > DIFFERENT:
            raise InputError(
                f"{model.name}: reading a text in parts gives other logits than reading it whole, so that it cannot be "
                "decoded exactly; choose a causal model (BERT and its relatives: with is_decoder=True in the config)"
            )


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The median over rows of the error of ``found`` (n, V) relative to the spread of ``expected`` (n, V)."""
    given = expected.isfinite().all(0)  # some models leave tokens out
    found, expected = found[:, given].float(), expected[:, given].float()
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    return float(((found - expected).norm(dim=-1) / spread).median())
