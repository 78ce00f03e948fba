"""pass@1 of generated Python, as HumanEval is scored (Chen et al. 2021): 1 if all tests pass."""

from __future__ import annotations

import re

from .sandbox import DEFAULT, Limits, passes

# The paper's stop sequences: they mark the end of a completed function.
_ENDS = re.compile(r"\n(?:class |def |#|if |print\()")


def extract_code(text: str, prompt: str) -> str:
    """The program in an output: its fenced block, else ``prompt`` and the text that completes its function."""
    fenced = re.search(r"```(?:python|py)?\s*\n(.*?)(?:```|$(?![\s\S]))", text, re.DOTALL)
    if fenced:
        return fenced[1] if re.search(r"^\s*def ", fenced[1], re.MULTILINE) else prompt + fenced[1]
    end = _ENDS.search(text)
    return prompt + (text[: end.start()] if end else text)


def code_score(text: str, prompt: str, tests: str, entry_point: str | None = None, limits: Limits = DEFAULT) -> float:
    """1 if the program passes ``tests``, else 0. With ``entry_point``, ``tests`` define ``check(entry_point)``."""
    call = f"\ncheck({entry_point})\n" if entry_point else "\n"
    return float(passes(f"{extract_code(text, prompt)}\n{tests}\n{call}", limits))
