"""`specpilot trim-vocabulary`: restrict the output of a draft to its most frequent tokens."""

from __future__ import annotations

from ..train.options import TrimOptions


def trim_vocabulary(options: TrimOptions) -> None:
    """Restrict the output of a draft to the most frequent tokens of some text; all others get probability 0."""
    from ..common.quiet import quiet
    from ..train.trim import trim_vocabulary as trim

    quiet()
    folder = trim(options)
    print(f"{folder}: proposes {options.keep} tokens; use it with specpilot generate --draft {folder}")
