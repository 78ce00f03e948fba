"""Rollouts: many prompts continued by one model, each with its own random numbers.

The decoder's loop runs without drafts: prompts are admitted as others finish, and a prompt's tokens depend on its own
uniforms, not on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..controllers.length import Fixed
from ..controllers.sampling import SamplingParams
from ..infer.distribution import TokenDistribution
from ..infer.draft import Draft
from ..infer.drafters import Autoregressive
from ..infer.engine import Engine
from ..infer.generation import Generation
from ..infer.models import LanguageModel
from ..infer.random_source import RandomSource
from ..infer.request import Arm, Request
from ..infer.scheduler import Scheduler
from ..infer.verify import Verdict
from ..infer.verify.token_wise import token_wise

WIDEST = 128  # distributions of at most this many tokens are recorded in rollouts; larger ones are recomputed


@dataclass(frozen=True)
class Rollout:
    """One continuation and, if top-k is small, the distribution that each of its tokens was drawn from.

    Attributes:
        tokens: x_1 … x_T.
        likely: (T, k) ids of the tokens with positive probability, or None.
        probabilities: (T, k) their probabilities, or None.
    """

    tokens: list[int]
    likely: Tensor | None
    probabilities: Tensor | None


class GivenUniforms(RandomSource):
    """A random source that returns given numbers in [0, 1), one per token."""

    def __init__(self, uniforms: Tensor) -> None:
        self.uniform = iter(uniforms.tolist()).__next__


class Recording:
    """A verifier without drafts that draws each token and records its distribution.

    Args:
        keep: whether to record distributions.
    """

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.rows: list[tuple[list[float], list[int]]] = []

    def __call__(self, p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
        if self.keep:
            assert p.lists is not None
            self.rows.append(p.lists[0])
        return token_wise(p, draft, rng)

    def rollout(self, tokens: list[int]) -> Rollout:
        if not self.keep:
            return Rollout(tokens, None, None)
        probabilities, likely = zip(*self.rows, strict=True)
        return Rollout(tokens, torch.tensor(likely, dtype=torch.int32), torch.tensor(probabilities))


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
    arms = [Arm(Autoregressive(), Fixed(0))]
    keep = sampling.support is not None and sampling.support <= WIDEST
    recordings = [Recording(keep=keep) for _ in prompts]
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
