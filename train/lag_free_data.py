"""What a lag-free head learns from: drafted tokens after the target's own text, and what the target says of them.

Two kinds of data hold such tokens. *Acceptance data* has one at every position of a text. *Rounds*, logged by the
decoder, have those that a controller drafted, and often the token drafted next, which the head's second output is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import torch
from rich.progress import track
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..controllers.acceptance.draft_signals import draft_signals
from ..controllers.acceptance.lag_free_head import all_evidence, copies_of
from ..controllers.acceptance.ngram_index import NOTHING, NgramIndex, NgramMatch
from ..controllers.errors import InputError
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import read_dataset, read_manifest
from ..data_gen.on_policy import read_rounds
from ..infer.distribution import TokenDistribution
from ..infer.models.hidden import forward_with_hidden

TOGETHER = 16  # texts read in one forward


@dataclass(frozen=True)
class Text:
    """A text and M tokens drafted in it, each after a prefix of the text.

    Attributes:
        places: (M,) how many tokens of the text stand before each.
        tokens: (M,) the drafted tokens.
        accept: (M,) the chance that the target keeps it.
        then: (M,) the same of the token drafted after it; NaN where none was, or not after this one.
    """

    prompt_id: str
    prompt_ids: list[int]
    x: list[int]
    places: list[int]
    tokens: list[int]
    accept: list[float]
    then: list[float]


@dataclass(frozen=True)
class Examples:
    """N drafted tokens, as a lag-free head meets them.

    Attributes:
        evidence: (N, 7) what the draft and the text say of the token.
        hidden: (N, d) the draft's last hidden state before it.
        tokens: (N,) the token.
        copies: (N,) the token that the text would go on with, -1 where there is none.
        accept, then: (N,) as in :class:`Text`.
    """

    evidence: Tensor
    hidden: Tensor
    tokens: Tensor
    copies: Tensor
    accept: Tensor
    then: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


def read_texts(folder: str | Path) -> list[Text]:
    """The texts of a dataset of either kind that have a drafted token.

    Raises:
        InputError: the dataset is of another kind, or incomplete.
    """
    manifest = read_manifest(folder)
    if not manifest["complete"]:
        raise InputError(f"{folder}: the dataset is incomplete; run the command that made it again to finish it")
    if manifest["kind"] == "acceptance":
        texts = [
            Text(
                row.prompt_id, row.prompt_ids, row.x,
                # The first token of a text comes from the prefill; no draft is ever made there.
                [*range(1, len(row.x))], row.y[1:], row.p[1:], [nan] * (len(row.x) - 1),
            )
            for row in read_dataset(folder)
        ]  # fmt: skip
    elif manifest["kind"] == "rounds":
        texts = [
            Text(
                row.prompt_id, row.prompt_ids, row.x,
                [start + i for start, draft in zip(row.starts, row.drafted, strict=True) for i in range(len(draft))],
                [token for draft in row.drafted for token in draft],
                [chance for accept in row.accept for chance in accept],
                [then for accept in row.accept for then in [*accept[1:], nan]],
            )
            for row in read_rounds(folder)
        ]  # fmt: skip
    else:
        raise InputError(
            f"{folder}: a dataset of kind {manifest['kind']!r}; make one with 'specpilot data acceptance' or "
            "'specpilot data on-policy'"
        )
    return [text for text in texts if text.tokens]


@torch.inference_mode()
def read_examples(
    draft: PreTrainedModel, texts: Sequence[Text], sampling: SamplingParams, vocab_size: int, *, use_ngrams: bool = True
) -> Examples:
    """Read ``texts`` with the draft, in order, several in one forward; V = ``vocab_size`` is the target's.

    Unless ``use_ngrams``, a text says nothing of what is drafted after it.
    """
    parts: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].prompt_ids) + len(texts[i].x))
    batches = [order[start : start + TOGETHER] for start in range(0, len(order), TOGETHER)]
    for batch in track(batches, "reading texts", transient=True):
        # No further than the last token that is asked for: after it there may be one that the draft cannot read.
        rows = [torch.tensor([*texts[i].prompt_ids, *texts[i].x[: max(texts[i].places)]]) for i in batch]
        tokens = pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows])
        real = (torch.arange(tokens.shape[1]) < lengths[:, None]).long()
        first = min(len(texts[i].prompt_ids) for i in batch) - 1  # nothing before is asked for
        logits, hidden = forward_with_hidden(
            draft,
            input_ids=tokens.to(draft.device),
            attention_mask=real.to(draft.device),
            logits_to_keep=tokens.shape[1] - first,
            use_cache=False,
        )
        for row, i in enumerate(batch):
            text = texts[i]
            columns = torch.tensor(text.places, device=draft.device) + len(text.prompt_ids) - 1 - first
            scores = logits[row, columns]
            q = TokenDistribution.from_logits(sampling, scores, vocab_size)
            said = draft_signals(q.of(text.tokens), text.tokens, q.probabilities, scores)
            ngram_match = match_all(text) if use_ngrams else [NOTHING] * len(text.tokens)
            numbers = all_evidence(said, ngram_match, text.tokens)
            parts[i] = numbers, hidden[row, columns].cpu(), copies_of(ngram_match)
    ordered = [parts[i] for i in range(len(texts))]
    return Examples(
        torch.cat([numbers for numbers, _, _ in ordered]),
        torch.cat([states for _, states, _ in ordered]),
        torch.tensor([token for text in texts for token in text.tokens]),
        torch.cat([copies for _, _, copies in ordered]),
        torch.tensor([chance for text in texts for chance in text.accept]),
        torch.tensor([chance for text in texts for chance in text.then]),
    )


def match_all(text: Text) -> list[NgramMatch]:
    """(M,) what the prompt and the text before each drafted token say of it."""
    before = [*text.prompt_ids]
    lookup = NgramIndex(before)
    ngram_match = []
    for place, token in zip(text.places, text.tokens, strict=True):  # places rise
        before += text.x[len(before) - len(text.prompt_ids) : place]
        ngram_match.append(lookup.match([token]))
    return ngram_match
