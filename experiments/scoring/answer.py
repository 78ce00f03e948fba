"""Exact match of a numeric answer, as GSM8K is scored (Cobbe et al. 2021): the number after ``####``, else the last."""

from __future__ import annotations

import re
from decimal import Decimal

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")


def final_number(text: str) -> Decimal | None:
    """The final number of a text; None if there is none."""
    _, marked, after = text.rpartition("####")
    found = _NUMBER.findall(after) if marked else []
    number = found[0] if found else next(iter(reversed(_NUMBER.findall(text))), None)
    return None if number is None else Decimal(number.replace(",", "").replace("$", ""))


def answer_score(text: str, reference: str) -> float:
    """1 if both texts' final numbers are equal as numbers (``1,000.0`` is ``1000``), else 0."""
    given, right = final_number(text), final_number(reference)
    return float(given is not None and given == right)
