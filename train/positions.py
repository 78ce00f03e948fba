"""A dataset's positions as they occur in decoding: each drafted token y_i after the target's x_<i.

A drafted token only matters if all tokens before it were accepted, and accepted tokens follow the target's
distribution. So the context at every position is the target's text, without mixing. One forward reads all y_i of a
rollout, each after its prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.progress import track

from ..common.errors import InputError
from ..controllers.sampling import SamplingParams
from ..data_gen.draft_states import Examples, at_drafted_tokens, examples_of, joined
from ..data_gen.texts import Text, read_texts
from ..infer.models import LanguageModel, language_model
from .datasets import load_same, split


def split_rows(rows: Sequence[Text], test: float, total: float = 1.0) -> tuple[list[Text], list[Text]]:
    """Split a share ``total`` of all prompts into rows to fit to and a share ``test`` to evaluate on.

    The shares are taken from the prompts that training holds out first, so that a ``total`` up to the validation
    fraction contains no training data.

    Raises:
        InputError: one of the two would be empty.
    """
    _, taken = split(rows, [row.prompt_id for row in rows], total)
    fitted, tested = split(taken, [row.prompt_id for row in taken], test)
    if not fitted or not tested:
        raise InputError(
            f"data: {len(fitted)} rollouts to fit to and {len(tested)} held out; each needs at least one: use more data"
        )
    return fitted, tested


def load_rows(*folders: str) -> list[Text]:
    """The rollouts of acceptance datasets that have at least one token; validates them."""
    return [text for folder in folders for text in read_texts(folder, "acceptance") if text.x]


def load_draft(name: str | None, manifest: dict[str, Any], *, device: str) -> LanguageModel:
    """The draft a dataset was made with, loaded from ``name``. Default: the name in the manifest.

    Raises:
        InputError: it is another model.
    """
    reader = language_model(
        load_same("draft", name or manifest["draft"], manifest, device=device, target=manifest["target"])
    )
    reader.require_tokens_alone("data")
    return reader


@torch.inference_mode()
def read_positions(
    draft: LanguageModel, rows: Sequence[Text], sampling: SamplingParams, vocab_size: int | None = None
) -> Examples:
    """Every position of ``rows`` in order, except those where q(y) is 0 by rounding.

    ``states`` are those at y_i, and ``places`` (N,) numbers of the rollout's tokens before it; see
    :data:`~specpilot.data_gen.draft_states.Examples` for the others.

    Args:
        vocab_size: the target's vocabulary size if the draft's is larger: the manifest's ``vocab_size``.
    """
    found = []
    for row in track(rows, "positions", transient=True):
        logits, _, states = at_drafted_tokens(draft, row)
        size = draft.vocab_size if vocab_size is None else vocab_size
        found.append(examples_of(row, logits, states, sampling, size, places=torch.tensor(row.places)))
    return joined(found)
