"""Time that tests move: what is timed takes a known time, however busy the machine is."""

import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta

import pytest
import torch
from specpilot.infer.models import CausalLM, RaggedKVCache, Read
from transformers import PreTrainedModel


class Clock:
    """In place of ``time.perf_counter``: ``now``, which only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(CausalLM):
    """A model whose forward over n tokens moves ``clock`` by ``fixed + per_token·n`` seconds."""

    def __init__(self, model: PreTrainedModel, clock: Clock, fixed: float, per_token: float) -> None:
        super().__init__(model)
        self.clock, self.fixed, self.per_token = clock, fixed, per_token

    def forward(self, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[torch.Tensor, torch.Tensor]:
        self.clock.now += self.fixed + self.per_token * longest(reads)
        return super().forward(cache, reads)


def longest(reads: Sequence[Read]) -> int:
    """Tokens of the longest read."""
    return max(len(read.tokens) for read in reads)


def time_forwards(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[CausalLM, int], float]) -> Clock:
    """A clock in place of the machine's; every forward of any model over n tokens takes ``seconds(model, n)``."""
    clock, plain = Clock(), CausalLM.forward

    def forward(model: CausalLM, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[torch.Tensor, torch.Tensor]:
        clock.now += seconds(model, longest(reads))
        return plain(model, cache, reads)

    monkeypatch.setattr(CausalLM, "forward", forward)
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "process_time", clock)
    return clock


def one_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What chat templates take for today is tomorrow."""

    class Tomorrow(date):
        @classmethod
        def today(cls) -> date:
            return date.today() + timedelta(days=1)

    monkeypatch.setattr("specpilot.infer.prompting.date", Tomorrow)
