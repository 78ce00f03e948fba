"""ROUGE-L F1 (Lin 2004) of a text against a reference, with stemming."""

from __future__ import annotations

from functools import cache
from typing import Any

from specpilot.common.errors import optional_import


@cache
def _scorer() -> Any:
    with optional_import("bench"):
        from rouge_score.rouge_scorer import RougeScorer  # slow to import

    return RougeScorer(["rougeL"], use_stemmer=True)


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence of words, in [0, 1]; 0 if either text is empty.

    Raises:
        InputError: rouge-score is not installed.
    """
    return float(_scorer().score(reference, text)["rougeL"].fmeasure)
