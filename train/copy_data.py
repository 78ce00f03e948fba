"""Copied tokens of a target's own texts, as prompt lookup drafts them in decoding, and batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..controllers.acceptance.copy_head import EVIDENCE, copy_evidence
from ..controllers.acceptance.ngram_index import NgramIndex
from ..controllers.length.copy_rates import CopyRates
from ..data_gen.documents import Document
from ..infer.drafters.ngram import Ngram
from ..infer.drafters.prompt_lookup import PromptLookup
from .controller_module import Batch
from .data_module import ResumableData
from .datasets import require_both, split
from .options import CopyTrainingOptions


class Copies(NamedTuple):
    """M copied tokens.

    Attributes:
        evidence: (M, 9) evidence of each.
        rate: (M,) what is predicted without a head: the text's own rate after matches of this length.
        tokens: (M,) the copied tokens.
        last: (M,) the tokens before them.
        kept: (M,) 1 where the text goes on with the copy, else 0.
    """

    evidence: Tensor
    rate: Tensor
    tokens: Tensor
    last: Tensor
    kept: Tensor


class CopiedToken(NamedTuple):
    """One copied token, see :class:`Copies`."""

    evidence: list[float]
    rate: float
    token: int
    last: int
    kept: bool


def copied_tokens(prompt: list[int], answer: list[int]) -> Iterator[CopiedToken]:
    """The copy of every token of ``answer`` before which there is a match, with what decoding knows there.

    The answer was sampled from the target: token x_t has the distribution p, and equals the copy y with probability
    p(y), the acceptance probability of y. The first token comes with the prompt's forward.
    """
    text = [*prompt, *answer[:1]]
    lookup, index, rates = PromptLookup([], text, Ngram().longest), NgramIndex(text), CopyRates()
    for token in answer[1:]:
        match = lookup.match()
        if match is not None:
            (copy,) = lookup.copy(match, 1, frozenset())
            rate = rates.after(match.run)
            evidence = copy_evidence(
                rate, rates.recent.value, match.run, index.match([copy]),
                answer=match.position >= len(prompt), distance=lookup.distance(match),
            )  # fmt: skip
            yield CopiedToken(evidence, rate, copy, text[-1], copy == token)
        text.append(token)
        for run, kept in lookup.extend(text):
            rates.add(run, kept)


def copies_of(documents: Iterable[Document]) -> Copies:
    """The copied tokens of ``documents``, in order."""
    found = [
        one
        for document in documents
        for one in copied_tokens(document.tokens[: document.start], document.tokens[document.start :])
    ]
    evidence, rate, tokens, last, kept = zip(*found, strict=True) if found else [()] * 5
    return Copies(
        torch.tensor(evidence, dtype=torch.float32).reshape(-1, EVIDENCE),
        torch.tensor(rate, dtype=torch.float32),
        torch.tensor(tokens, dtype=torch.long),
        torch.tensor(last, dtype=torch.long),
        torch.tensor(kept, dtype=torch.float32),
    )


class CopyDataModule(ResumableData[Copies, Batch]):
    """Training and validation batches of copied tokens, some 60 bytes each in memory.

    Args:
        embedding: (V, d) the target's output embedding.

    Raises:
        InputError: training or validation would be empty.
    """

    def __init__(self, documents: Sequence[Document], embedding: Tensor, settings: CopyTrainingOptions) -> None:
        self.embedding = embedding
        fraction = settings.validation_fraction
        training, validation = map(copies_of, split(documents, [document.id for document in documents], fraction))
        require_both(len(training.kept), len(validation.kept), fraction, "copied tokens")
        super().__init__(settings, [training], validation)

    def sizes(self, examples: Copies) -> list[int]:
        return [len(examples.kept)]

    def batch(self, examples: Copies, rows: Tensor, epoch: int | None) -> Batch:
        mine, first, total = self.share(rows)
        evidence, rate, tokens, last, kept = (column[mine] for column in examples)
        return Batch((evidence, self.embedding[tokens], self.embedding[last]), kept, first, total, rate)
