"""The precision of drafts: a dtype, or the number of bits that their weights are rounded to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...common.errors import InputError
from ..models.devices import DTYPES
from ..models.quantized_linear import QUANTIZATIONS, Quantization


def draft_precision(draft_dtype: str | None, loading: Mapping[str, Any]) -> tuple[dict[str, Any], Quantization | None]:
    """How drafts are loaded, and what their weights are rounded to.

    Args:
        draft_dtype: a dtype, ``int8`` or ``int4``; None for the target's dtype.
        loading: keywords of :func:`.loading.load_any_model`.

    Raises:
        InputError: there is no such precision.
    """
    if draft_dtype is None:
        return {**loading}, None
    if draft_dtype in QUANTIZATIONS:
        return {**loading, "dtype": "bfloat16"}, draft_dtype
    if draft_dtype not in DTYPES:
        raise InputError(f"draft_dtype={draft_dtype!r}: choose one of {', '.join([*DTYPES, *QUANTIZATIONS])}")
    return {**loading, "dtype": draft_dtype}, None
