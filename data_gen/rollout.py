"""Rollouts: many prompts continued by one model, each with its own random numbers.

The decoder's loop runs without drafts: prompts are admitted as others finish, and a prompt's tokens depend on its own
uniforms, not on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..controllers.length import Fixed
from ..controllers.sampling import SamplingParams
from ..infer.distribution import TokenDistribution
from ..infer.draft import Draft
from ..infer.drafters.base import Autoregressive
from ..infer.engine import Engine
from ..infer.generation import Generation
from ..infer.models import LanguageModel
from ..infer.random_source import RandomSource
from ..infer.request import DraftingArm, Request
from ..infer.scheduler import Scheduler
from ..infer.verify import Verdict
from ..infer.verify.token_wise import token_wise

ROOM = 1 << 20  # probabilities recorded for one text, 8 MiB; texts that need more are read again for them
MISSING = -1  # instead of a token, where a distribution has fewer than others of its text


@dataclass(frozen=True)
class Rollout:
    """One continuation and, if it is small, the distribution that each of its tokens was drawn from.

    Attributes:
        tokens: x_1 … x_T.
        likely: (T, k) ids of the tokens with positive probability, then ``MISSING``; None if they are not known.
        probabilities: (T, k) their probabilities, or None.
    """

    tokens: list[int]
    likely: Tensor | None
    probabilities: Tensor | None

    def first(self, count: int) -> Rollout:
        """The first ``count`` tokens."""
        likely, probabilities = self.likely, self.probabilities
        return Rollout(
            self.tokens[:count],
            None if likely is None else likely[:count],
            None if probabilities is None else probabilities[:count],
        )


class GivenUniforms(RandomSource):
    """A random source that returns given numbers in [0, 1), one per token."""

    def __init__(self, uniforms: Tensor) -> None:
        self.uniform = iter(uniforms.tolist()).__next__


class Recording:
    """A verifier without drafts that draws each token and records its distribution, if top-k or top-p make it small.

    Large ones on an accelerator are not recorded: a forward there is faster than reading them.
    """

    def __init__(self) -> None:
        self.room = ROOM
        self.rows: list[tuple[Tensor, Tensor]] = []

    def __call__(self, p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
        self._record(p)
        return token_wise(p, draft, rng)

    def _record(self, p: TokenDistribution) -> None:
        if self.room < 0:
            return
        if p.lists is not None:
            probabilities, tokens = (torch.tensor(part) for part in p.lists[0])
        elif p.tokens is not None and p.tokens.device.type == "cpu":
            probabilities, tokens = p.probabilities[0], p.tokens[0]
        else:
            self.room = -1
            return
        positive = probabilities > 0
        self.rows.append((probabilities[positive], tokens[positive].int()))
        self.room -= len(self.rows[-1][0])
        if self.room < 0:
            self.rows.clear()

    def rollout(self, tokens: list[int]) -> Rollout:
        if self.room < 0:
            return Rollout(tokens, None, None)
        likely = pad_sequence([row[1] for row in self.rows], batch_first=True, padding_value=MISSING)
        return Rollout(tokens, likely, pad_sequence([row[0] for row in self.rows], batch_first=True))


def roll_out(
    model: LanguageModel,
    prompts: Sequence[list[int]],
    uniforms: Sequence[Tensor],
    sampling: SamplingParams,
    stop_tokens: frozenset[int],
    *,
    batch_size: int,
    on_done: Callable[[int], None] = lambda tokens: None,
) -> list[Rollout]:
    """Continue every prompt until a stop token (included) or its budget.

    Args:
        prompts: N lists of token ids; for an encoder-decoder they are the encoder's input.
        uniforms: N tensors of numbers in [0, 1); a prompt's t-th number determines its t-th token, and their count is
            its budget.
        batch_size: number of prompts that run together.
        on_done: called with the length of every finished continuation.
    """
    scheduler = Scheduler(Engine(model), batch_size)
    arms = [DraftingArm(Autoregressive(), Fixed(0))]
    recordings = [Recording() for _ in prompts]
    requests = [
        Request(prompt, sampling, GivenUniforms(row), len(row), stop_tokens, recording, arms, Generation(prompt))
        for prompt, row, recording in zip(prompts, uniforms, recordings, strict=True)
    ]
    scheduler.submit(requests)
    running = requests
    while running:
        scheduler.step()
        for request in running:
            if request.error is not None:
                raise request.error
            if request.finished:
                on_done(len(request.output.tokens))
        running = [request for request in running if not request.finished]
    return [recording.rollout(request.output.tokens) for request, recording in zip(requests, recordings, strict=True)]
