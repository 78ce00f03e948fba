"""Rounds that may start in a text, as training examples: what is known before the draft, the draft, and its outcome.

They are read from traces, so they have the distribution of decoding: a draft goes on from its own tokens after a
rejected one. There is one for each token of the text but the last, whatever data the text comes from.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..controllers.acceptance.length_head import HORIZON, MEMORIES, Outcomes
from ..data_gen.draft_states import Examples
from ..simulate.trace import END, Trace

ACCEPTED, REJECTED = 1, 0  # a drafted token; one after a rejected token is rejected
BEYOND = -1  # one that is never drafted


def round_examples(traced: Trace) -> Examples:
    """The M rounds of one text.

    Returns:
        ``places`` (M,), tokens of the text before each, from 1; ``states`` (M, D) the target's that the last of these
        was drawn from; ``rates`` (M, 2) of :class:`.Outcomes`, where a draft would have told of every token before;
        ``drafted`` (M, 10, 2) q(y) and max q of the drafted tokens; ``kept`` (M, 10) what became of them; ``accept``
        (M,) acceptance probability of the first.
    """
    count, outcomes = len(traced.text) - 1, Outcomes()
    rates: list[list[float]] = []
    drafted, kept = torch.zeros(count, HORIZON, 2), torch.full((count, HORIZON), BEYOND, dtype=torch.int8)
    for row in range(count):
        rates.append(outcomes.rates)
        node, alive = row + 1, True
        for depth in range(HORIZON):
            if node == END:
                break
            alive = alive and traced.kept[node]
            drafted[row, depth] = torch.tensor(traced.signals[node][:2])
            kept[row, depth] = ACCEPTED if alive else REJECTED
            node = traced.after[node]
        outcomes.add(traced.kept[row + 1])
    return {
        "places": torch.arange(1, count + 1, dtype=torch.int32),
        "states": traced.target_states[:count],
        "rates": torch.tensor(rates).reshape(count, len(MEMORIES)),
        "drafted": drafted,
        "kept": kept,
        "accept": torch.tensor(traced.accept[1 : count + 1]),
    }


def reached(kept: Tensor) -> Tensor:
    """(M, 10) which drafted tokens the target decides on: those before which all were accepted."""
    first = torch.ones_like(kept[:, :1], dtype=torch.bool)
    return (kept != BEYOND) & torch.cat([first, kept[:, :-1] == ACCEPTED], 1)
