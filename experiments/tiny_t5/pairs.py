"""Training data of encoder-decoders: prompts with outputs, batched by length to reduce padding."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from specpilot.train.data_module import ResumableLoader
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100  # label after the end of an output


@dataclass(frozen=True)
class Pair:
    """A prompt and its output.

    Attributes:
        prompt: tokens of the encoder's input.
        output: T output tokens, including the end token unless the output was truncated.
        soft: the target's distribution of each output token, as probabilities (T, k) of its most probable tokens and
            their ids (T, k); None for text.
    """

    prompt: list[int]
    output: list[int]
    soft: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.prompt) + len(self.output)


@dataclass(frozen=True)
class PairBatch:
    """A batch of B pairs, padded on the right.

    Attributes:
        prompts: (B, S) tokens.
        real: (B, S) attention mask of the prompts.
        outputs: (B, T) tokens, ``IGNORED`` after the end of an output.
        soft: probabilities and ids (B, T, k), or None.
    """

    prompts: Tensor
    real: Tensor
    outputs: Tensor
    soft: tuple[Tensor, Tensor] | None

    @property
    def read(self) -> Tensor:
        """The decoder's input (B, T): the start token 0, then the outputs except their last token."""
        return torch.nn.functional.pad(self.outputs[:, :-1], (1, 0)).clamp(min=0)


def collate(pairs: list[Pair]) -> PairBatch:
    """Return a batch of pairs, either all or none of which have soft labels."""
    prompts = pad_sequence([torch.tensor(pair.prompt) for pair in pairs], batch_first=True, padding_value=-1)
    outputs = pad_sequence([torch.tensor(pair.output) for pair in pairs], batch_first=True, padding_value=IGNORED)
    labels = [pair.soft for pair in pairs if pair.soft is not None]
    soft = None
    if labels:
        soft = (
            pad_sequence([p.float() for p, _ in labels], batch_first=True),
            pad_sequence([ids.long() for _, ids in labels], batch_first=True),
        )
    return PairBatch(prompts.clamp(min=0), prompts >= 0, outputs, soft)


def by_length(pairs: list[Pair], batch_tokens: int, seed: int) -> list[list[int]]:
    """Return batches of indices of ``pairs``: each has at most ``batch_tokens`` tokens with padding, or one pair."""
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)  # random order of pairs of the same length
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
    """Return batches of ``pairs``, the same in every epoch but in another order."""
    batches = by_length(pairs, batch_tokens, seed)

    def batch(epoch: int, rows: Tensor) -> PairBatch:
        return collate([pairs[i] for row in rows.tolist() for i in batches[row]])

    return ResumableLoader(len(batches), 1, seed, batch, shuffle)
