"""What encoder-decoders learn from: prompts with outputs, batched by length so that little of a batch is padding."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from specpilot.train.loader import ResumableLoader
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100  # where an output has ended


@dataclass(frozen=True)
class Pair:
    """A prompt and what is to come of it.

    Attributes:
        prompt: its tokens, as the encoder reads them.
        output: its T tokens, the end token among them unless the output was cut short.
        soft: what the target expected at each of them, as probabilities (T, k) of its most likely tokens and their ids
            (T, k); None for text.
    """

    prompt: list[int]
    output: list[int]
    soft: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass(frozen=True)
class PairBatch:
    """B pairs side by side, padded at the right.

    Attributes:
        prompts: (B, S) tokens, and ``real`` (B, S) which of them are no padding.
        outputs: (B, T) tokens, ``IGNORED`` where an output has ended.
        soft: probabilities and ids (B, T, k), or None.
    """

    prompts: Tensor
    real: Tensor
    outputs: Tensor
    soft: tuple[Tensor, Tensor] | None

    @property
    def read(self) -> Tensor:
        """(B, T) what the decoder reads: the start token 0, then the outputs but for their last."""
        return torch.nn.functional.pad(self.outputs[:, :-1], (1, 0)).clamp(min=0)


def collate(pairs: list[Pair]) -> PairBatch:
    """Pairs, all of them with soft labels or none."""
    prompts = pad_sequence([torch.tensor(pair.prompt) for pair in pairs], batch_first=True, padding_value=-1)
    outputs = pad_sequence([torch.tensor(pair.output) for pair in pairs], batch_first=True, padding_value=IGNORED)
    taught = [pair.soft for pair in pairs if pair.soft is not None]
    soft = None
    if taught:
        soft = (
            pad_sequence([p.float() for p, _ in taught], batch_first=True),
            pad_sequence([ids.long() for _, ids in taught], batch_first=True),
        )
    return PairBatch(prompts.clamp(min=0), prompts >= 0, outputs, soft)


def by_length(pairs: list[Pair], batch_tokens: int, seed: int) -> list[list[int]]:
    """Indices of ``pairs`` in batches of at most ``batch_tokens`` tokens, padding included (or of one pair)."""
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)  # pairs of one length are in no order
    order.sort(key=lambda i: (len(pairs[i].output) // 4, len(pairs[i].prompt)))
    batches: list[list[int]] = []
    widest = (0, 0)
    for i in order:
        size = len(pairs[i].prompt), len(pairs[i].output)
        wider = max(widest[0], size[0]), max(widest[1], size[1])
        if batches and (len(batches[-1]) + 1) * sum(wider) <= batch_tokens:
            batches[-1].append(i)
            widest = wider
        else:
            batches.append([i])
            widest = size
    return batches


def loader(pairs: list[Pair], batch_tokens: int, seed: int, shuffle: bool = True) -> ResumableLoader[PairBatch]:
    """Batches of ``pairs``: the same ones in every epoch, each time in another order."""
    batches = by_length(pairs, batch_tokens, seed)

    def batch(epoch: int, rows: Tensor) -> PairBatch:
        return collate([pairs[i] for row in rows.tolist() for i in batches[row]])

    return ResumableLoader(len(batches), 1, seed, batch, shuffle)
