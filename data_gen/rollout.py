"""Rollouts: many prompts continued by one model, each with its own random numbers.

The decoder's loop runs without drafts: prompts are admitted as others finish, and a prompt's tokens depend on its own
uniforms, not on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..controllers.acceptance.step import FEW
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


@dataclass(frozen=True)
class Rollout:
    """One continuation.

    Attributes:
        tokens: x_1 … x_T.
        p: what each of them was drawn from, where greedy or top-k sampling makes it small; None if it was not kept.
    """

    tokens: list[int]
    p: TokenDistribution | None = None

    def first(self, count: int) -> Rollout:
        """The first ``count`` tokens."""
        return Rollout(self.tokens[:count], None if self.p is None else self.p.part(0, count))


class GivenUniforms(RandomSource):
    """A random source that returns given numbers in [0, 1), one per token."""

    def __init__(self, uniforms: Tensor) -> None:
        self.uniform = iter(uniforms.tolist()).__next__


class Recording:
    """Verifies no drafts, and keeps the distribution that each token is drawn from."""

    def __init__(self) -> None:
        self.kept: list[TokenDistribution] = []

    def __call__(self, p: TokenDistribution, draft: Draft, rng: RandomSource) -> Verdict:
        self.kept.append(p.take([0]))  # without the lists of the whole batch
        return token_wise(p, draft, rng)


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
    small = sampling.temperature == 0 or (sampling.top_k is not None and sampling.top_k <= FEW)
    verifiers = [Recording() if small else token_wise for _ in prompts]
    requests = [
        Request(prompt, sampling, GivenUniforms(row), len(row), stop_tokens, verifier, arms, Generation(prompt))
        for prompt, row, verifier in zip(prompts, uniforms, verifiers, strict=True)
    ]
    for request in scheduler.as_finished(requests):
        on_done(len(request.output.tokens))
    return [
        Rollout(
            request.output.tokens,
            TokenDistribution.joined(verifier.kept) if isinstance(verifier, Recording) else None,
        )
        for request, verifier in zip(requests, verifiers, strict=True)
    ]
