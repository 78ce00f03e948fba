"""Traces as tensors, for the shards of a feature dataset."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from ..controllers.acceptance.ngram_index import NgramMatch
from ..controllers.sampling import SamplingParams
from ..data_gen.labels import readable
from ..data_gen.texts import Text
from ..infer.models import LanguageModel
from ..infer.random_source import RandomSource
from .trace import Trace, trace

LISTS = {
    "text": torch.int32, "kept": torch.bool, "after": torch.int32, "tokens": torch.int32, "q": torch.float64,
    "signals": torch.float64, "accept": torch.float64,
}  # fmt: skip


def trace_text(
    target: LanguageModel,
    draft: LanguageModel,
    text: Text,
    budget: int,
    sampling: SamplingParams,
    stop_tokens: frozenset[int],
) -> Trace:
    """The trace of one text; the random draws depend only on its prompt's id."""
    seed = int.from_bytes(hashlib.sha256(text.prompt_id.encode()).digest()[:8])
    x, room = traceable(text.x, budget, draft.vocab_size, stop_tokens)
    return trace(target, draft, text.prompt_ids, x, room, sampling, RandomSource(seed), stop_tokens)


def traceable(text: list[int], budget: int, vocab_size: int, stop_tokens: frozenset[int]) -> tuple[list[int], int]:
    """``text`` and ``budget`` as arguments of :func:`~.trace.trace`, where the draft reads all tokens but the last.

    The text is cut after the first token that a draft of ``vocab_size`` embeddings cannot read. If a text is shorter
    than its budget and does not end with a stop token, it was cut, and the budget becomes its length.
    """
    text = text[: readable(text, vocab_size) + 1]
    return text, budget if text[-1] in stop_tokens else len(text)


def as_tensors(trace: Trace) -> dict[str, Tensor]:
    """The tensors of a trace, to be read by :func:`from_tensors`."""
    matches = [(m.agrees, m.matches, m.share, -1 if m.copy is None else m.copy) for m in trace.ngram_matches]
    return {
        **{name: torch.tensor(vars(trace)[name], dtype=dtype) for name, dtype in LISTS.items()},
        "budget": torch.tensor(trace.budget),
        "ngram_matches": torch.tensor(matches, dtype=torch.float64),
        "states": trace.states,
    }


def from_tensors(tensors: dict[str, Tensor]) -> Trace:
    """The trace whose tensors :func:`as_tensors` returned."""
    lists = {name: tensors[name].tolist() for name in LISTS}
    matches = [
        NgramMatch(int(agrees), int(longest), share, None if copy < 0 else int(copy))
        for agrees, longest, share, copy in tensors["ngram_matches"].tolist()
    ]
    signals = [(confidence, top, entropy) for confidence, top, entropy in lists.pop("signals")]
    return Trace(
        **lists, signals=signals, budget=int(tensors["budget"]), ngram_matches=matches, states=tensors["states"].float()
    )
