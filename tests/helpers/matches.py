"""Matches of the last tokens earlier in the text, by their definition."""

from collections.abc import Sequence

from specpilot.infer.drafters.prompt_lookup import MAX_RUN, Match


def match_by_definition(tokens: Sequence[int], longest: int) -> Match | None:
    """The match by its definition, without an index."""
    for length in range(min(longest, len(tokens) - 1), 0, -1):
        starts = [i for i in range(len(tokens) - length) if tokens[i : i + length] == tokens[-length:]]
        if starts:
            position = starts[-1] + length
            agree = (tokens[position - 1 - n] == tokens[-1 - n] for n in range(position))
            return Match(position, min(MAX_RUN, next((n for n, same in enumerate(agree) if not same), position)))
    return None
