"""Batched rollouts: many prompts continued together, each under its own random numbers.

Rows are aligned at their ends (left-padded), so that all write their next token to the same column of one preallocated
KV cache. Rows that are done leave and waiting prompts take their places: nobody waits for the longest, and the batch
stays full. A row's tokens depend on its own uniforms, not on its company.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..controllers.sampling import SamplingParams
from ..infer.cache import PreallocatedCache
from ..infer.cached_model import CachedModel
from ..infer.random_source import draw

WIDEST = 128  # tokens a distribution may hold for the rollouts to keep it: beyond, memory would be dearer than time
REFILL_AT = 0.75  # refill once this share of the batch or less is running: each refill copies the cache


@dataclass(frozen=True)
class PaddedPrompts:
    """Prompts of unequal length side by side: ``tokens`` (B, P), ``real`` (B, P) false on the padding at the left."""

    tokens: Tensor
    real: Tensor

    @property
    def positions(self) -> Tensor:
        """(B, P) each token's position in its own prompt."""
        return (self.real.cumsum(-1) - 1).clamp(min=0)

    @property
    def padding(self) -> Tensor | None:
        """``real`` where there is any padding, as ``CachedModel.forward`` takes it."""
        return None if bool(self.real.all()) else self.real


def left_pad(prompts: list[list[int]], device: torch.device) -> PaddedPrompts:
    """Align prompts at their ends."""
    width = max(map(len, prompts))
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    real = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        real[row, width - len(prompt) :] = True
    return PaddedPrompts(tokens.to(device), real.to(device))


@dataclass(frozen=True)
class Rollout:
    """One continuation and, if the warp leaves few tokens, the distribution each of its tokens was drawn from.

    Attributes:
        tokens: x_1 … x_T.
        likely: (T, k) ids of the tokens that may have followed, or None.
        probabilities: (T, k) their probabilities, or None.
    """

    tokens: list[int]
    likely: Tensor | None
    probabilities: Tensor | None


@torch.inference_mode()
def roll_out(
    model: CachedModel,
    prompts: list[list[int]],
    uniforms: list[Tensor],
    warp: SamplingParams,
    stop_tokens: frozenset[int],
    *,
    batch_size: int,
    on_done: Callable[[int], None] = lambda tokens: None,
) -> list[Rollout]:
    """Continue every prompt until a stop token (included) or its budget. Prompts of like length should stand together.

    Args:
        prompts: N lists of token ids.
        uniforms: N tensors of numbers in [0, 1); a row's t-th number decides its t-th token, and their count is its
            budget.
        batch_size: rows that run together.
        on_done: called with the length of every finished continuation.
    """
    rollouts = Rollouts(model, prompts, uniforms, warp, stop_tokens, on_done)
    while True:
        running = rollouts.count_running()
        few = running <= REFILL_AT * batch_size
        if few and rollouts.waiting:
            rollouts.refill(batch_size - running)
        elif running == 0:
            return rollouts.results()
        elif few and running <= REFILL_AT * len(rollouts.owner):
            rollouts.refill(0)
        else:
            rollouts.step()


class Rollouts:
    """The state of :func:`roll_out`: N prompts and their continuations, B rows of a batch that runs."""

    def __init__(
        self,
        model: CachedModel,
        prompts: list[list[int]],
        uniforms: list[Tensor],
        warp: SamplingParams,
        stop_tokens: frozenset[int],
        on_done: Callable[[int], None],
    ) -> None:
        self.model, self.prompts, self.warp, self.on_done = model, prompts, warp, on_done
        device = model.device
        self.budgets = torch.tensor([len(row) for row in uniforms], device=device)  # (N,)
        self.uniforms = pad_sequence(uniforms, batch_first=True).to(device)  # (N, T)
        self.stops = torch.tensor(sorted(stop_tokens), dtype=torch.long, device=device)
        self.tokens = torch.zeros(self.uniforms.shape, dtype=torch.long, device=device)  # (N, T)
        self.counts = torch.zeros(len(prompts), dtype=torch.long, device=device)  # (N,) tokens chosen so far
        self.likely: Tensor | None = None  # (N, T, k) what each token was drawn from
        self.probabilities: Tensor | None = None
        if warp.support is not None and warp.support <= WIDEST:
            size = (*self.uniforms.shape, min(warp.support, model.vocab_size))
            self.likely = torch.zeros(size, dtype=torch.int32, device=device)
            self.probabilities = torch.zeros(size, device=device)
        self.arrived = 0  # prompts that have entered the batch

        self.owner = torch.empty(0, dtype=torch.long, device=device)  # (B,) the prompt each row continues
        self.lengths = torch.empty(0, dtype=torch.long, device=device)  # (B,) tokens each row has read
        self.last = torch.empty(0, dtype=torch.long, device=device)  # (B,) the token each row reads next
        self.running = torch.empty(0, dtype=torch.bool, device=device)  # (B,)
        self.real = torch.empty(0, 0, dtype=torch.bool, device=device)  # (B, columns) false on padding
        self.cache: PreallocatedCache | None = None

    @property
    def waiting(self) -> int:
        """Prompts that have not entered the batch."""
        return len(self.prompts) - self.arrived

    def count_running(self) -> int:
        return int(self.running.sum())

    def results(self) -> list[Rollout]:
        likely, probabilities = self.likely, self.probabilities
        return [
            Rollout(
                tokens[:count],
                None if likely is None else likely[row, :count],
                None if probabilities is None else probabilities[row, :count],
            )
            for row, (tokens, count) in enumerate(zip(self.tokens.tolist(), self.counts.tolist(), strict=True))
        ]

    def refill(self, places: int) -> None:
        """Send finished rows away and let up to ``places`` waiting prompts in."""
        device = self.model.device
        stay = self.running.nonzero().squeeze(1)
        coming = torch.arange(self.arrived, self.arrived + min(places, self.waiting), device=device)
        self.arrived += len(coming)
        self.owner = torch.cat([self.owner[stay], coming])
        self.lengths, self.last, self.running = self.lengths[stay], self.last[stay], self.running[stay]
        newcomers = self._prefill(coming) if len(coming) else None

        width = int(self.lengths.max())
        columns = width + int((self.budgets[self.owner] - self.counts[self.owner]).max())
        if self.cache is None:
            assert newcomers is not None
            self.cache, newcomers, stay = newcomers, None, torch.arange(len(coming), device=device)
        self.cache.refill(stay, width, newcomers, columns)
        self.model.cache = self.cache
        self.model.reserve(columns)
        self.real = torch.arange(columns, device=device) >= (width - self.lengths)[:, None]

    def _prefill(self, coming: Tensor) -> PreallocatedCache:
        """Read the prompts ``coming`` and choose their first tokens; their rows follow those of the batch."""
        group = left_pad([self.prompts[i] for i in coming.tolist()], self.model.device)
        self.model.start(group.tokens.shape[1])
        logits, _ = self.model.forward(group.tokens, keep=1, padding=group.padding, positions=group.positions)
        first, on = self._choose(logits[:, -1], coming)
        self.lengths = torch.cat([self.lengths, group.real.sum(-1)])
        self.last = torch.cat([self.last, first])
        self.running = torch.cat([self.running, on])
        return self.model.cache

    def step(self) -> None:
        """One token for every running row."""
        seen = self.real[:, : self.model.length + 1]
        logits, _ = self.model.forward(
            self.last.unsqueeze(1),
            keep=1,
            padding=None if bool(seen.all()) else seen,
            positions=self.lengths.unsqueeze(1),
        )
        self.lengths = self.lengths + 1
        rows = self.running.nonzero().squeeze(1)
        tokens, on = self._choose(logits[rows, -1], self.owner[rows])
        self.last = self.last.index_copy(0, rows, tokens)
        self.running = self.running.index_copy(0, rows, on)

    def _choose(self, logits: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """The next tokens (b,) of the prompts ``owner`` from logits (b, V), and whether those rows go on (b,)."""
        probabilities, likely = self.warp.top(logits)  # (b, k)
        place = owner, self.counts[owner]
        tokens = draw(probabilities, self.uniforms[place])
        if likely is not None:
            tokens = likely.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        self.tokens[place] = tokens
        if likely is not None and self.likely is not None and self.probabilities is not None:
            self.likely[place], self.probabilities[place] = likely.int(), probabilities.float()
        self.counts[owner] += 1
        on = ~torch.isin(tokens, self.stops) & (self.counts[owner] < self.budgets[owner])
        for count in self.counts[owner[~on]].tolist():
            self.on_done(count)
        return tokens, on
