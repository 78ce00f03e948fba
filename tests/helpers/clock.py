"""A clock that tests move, so that timed code takes a known time on any machine."""

import time
from collections.abc import Callable, Sequence
from datetime import date, timedelta

import pytest
import torch
from specpilot.models import CausalLM, RaggedKVCache, Read

from .tiny import make


class Clock:
    """A replacement for ``time.perf_counter``. It returns ``now``, which only the test changes."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def time_forwards(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[CausalLM, int], float]) -> Clock:
    """Replace the machine's clock by one in which a forward of a model over n tokens takes ``seconds(model, n)``."""
    clock, plain = Clock(), CausalLM.forward

    def forward(model: CausalLM, cache: RaggedKVCache, reads: Sequence[Read]) -> tuple[torch.Tensor, torch.Tensor]:
        clock.now += seconds(model, max(len(read.tokens) for read in reads))
        return plain(model, cache, reads)

    monkeypatch.setattr(CausalLM, "forward", forward)
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "process_time", clock)
    return clock


def one_day_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chat templates see tomorrow as today's date."""

    class Tomorrow(date):
        @classmethod
        def today(cls) -> date:
            return date.today() + timedelta(days=1)

    monkeypatch.setattr("specpilot.infer.prompting.date", Tomorrow)


def timed_pair(
    monkeypatch: pytest.MonkeyPatch, read: tuple[float, float], step: float, *, start: float = 0.0, seed: int = 0
) -> tuple[Clock, CausalLM, CausalLM]:
    """A target that reads n tokens in ``read[0] + read[1]·n`` seconds, ``start`` more after a draft, whose step takes
    ``step``, and the clock that goes by them."""
    target, draft = CausalLM(make(seed=0)), CausalLM(make(seed=seed, layers=1))
    drafted = False

    def takes(model: CausalLM, tokens: int) -> float:
        nonlocal drafted
        after, drafted = drafted, model is draft
        return step if drafted else read[0] + read[1] * tokens + start * after

    return time_forwards(monkeypatch, takes), target, draft
