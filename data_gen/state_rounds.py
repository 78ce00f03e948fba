"""Training examples of drafts that read the target's states, from the rounds of decoding.

Such a draft reads the text with the target's states and its own drafted tokens with its own states, so that what it
computes for a token depends on how many tokens the round drafted before it. The rounds of a text are read together,
one drafted token of each at a time, as branches of a tree: n texts, m examples, d the draft's hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common.errors import InputError
from ..controllers.sampling import SamplingParams
from ..infer.models import CausalLM, Read, TextReader, TreeMask
from .draft_states import Examples, examples_of, joined
from .texts import Text


@torch.inference_mode()
def after_rounds(
    target: CausalLM, draft: CausalLM, texts: Sequence[Text], sampling: SamplingParams, vocab_size: int
) -> Examples:
    """Examples of the drafted tokens of ``texts``, as :func:`~.draft_states.after_target_text`.

    Raises:
        InputError: the draft's architecture does not read trees in one forward.
    """
    if not draft.ragged:
        raise InputError(f"draft: {draft.name} reads branches one by one, which is not supported with states")
    found = []
    for text in texts:
        logits, hidden = read_rounds(target, draft, text)
        found.append(examples_of(text, logits, hidden, sampling, vocab_size))
    return joined(found)


def read_rounds(target: CausalLM, draft: CausalLM, text: Text) -> tuple[Tensor, Tensor]:
    """Logits (m, V) and hidden states (m, d) before each drafted token of ``text``."""
    assert draft.state_input is not None
    tokens = [*text.prompt_ids, *text.x[: max(text.places)]]
    reader, _ = TextReader.begin(target, tokens)
    _, given = reader.read(tokens)
    states = draft.state_input.from_target(given, beginning=True)
    skipped = draft.state_input.skipped
    cache = draft.new_cache()
    cache.add(0, len(tokens) + len(text.tokens))
    unread = tokens[skipped:]  # each with the state before it; no token follows the last state
    logits, hidden = draft.forward(cache, [Read(0, unread, len(unread), states=states[: len(unread)])])

    trunk = len(text.prompt_ids) - skipped
    found: list[tuple[Tensor, Tensor]] = [(logits[:0], hidden[:0])] * len(text.tokens)
    above: dict[int, list[int]] = {}  # by example: the columns from the trunk on that its context consists of
    for depth in range(max(text.depths) + 1):
        here = [i for i, found_depth in enumerate(text.depths) if found_depth == depth]
        if depth:
            columns = cache.length(0)
            before = [above[i - 1] for i in here]
            read = Read(
                0, [text.tokens[i - 1] for i in here], len(here), TreeMask(trunk, before),
                states=torch.cat([found[i - 1][1] for i in here]),
            )  # fmt: skip
            logits, hidden = draft.forward(cache, [read])
            above |= {i: [*above[i - 1], columns + row] for row, i in enumerate(here)}
            rows = [*range(len(here))]
        else:
            above |= {i: [*range(trunk, trunk + text.places[i])] for i in here}
            rows = [trunk + text.places[i] - 1 for i in here]
        for row, i in zip(rows, here, strict=True):
            found[i] = logits[row : row + 1], hidden[row : row + 1]
    return torch.cat([scores for scores, _ in found]), torch.cat([state for _, state in found])
