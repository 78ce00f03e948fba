"""The engine reports the right values of rounds to controllers that learn from them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specpilot.controllers.length import Confidence
from specpilot.infer import hooks
from specpilot.infer.core import Generation
from specpilot.infer.decoder import SpeculativeDecoder
from torch import Tensor

from ..helpers.architectures import pair
from ..helpers.drafts import PROMPTS, state_draft

NEW = 24


class Recorder(Confidence):
    """Stops by confidence, and records the reported values; all texts share the lists."""

    reads_target = True

    def __init__(self) -> None:
        super().__init__(0.3)
        self.ended: list[tuple[int, int]] = []
        self.times: list[tuple[int, int, float] | None] = []
        self.rows: list[int] = []
        self.states: list[Tensor] = []

    def end_round(self, drafted: int, accepted: int) -> None:
        self.ended.append((drafted, accepted))

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:
        self.times.append((tokens, forwards, seconds))

    def untimed(self) -> None:
        self.times.append(None)

    def shared_by(self, rows: int) -> None:
        self.rows.append(rows)

    def read_target(self, state: Tensor) -> None:
        self.states.append(state.clone())


@pytest.fixture
def decoder() -> SpeculativeDecoder:
    decoder = SpeculativeDecoder(*pair("llama"), length=Recorder())
    decoder.stop_tokens = frozenset()
    return decoder


def recorder_of(decoder: SpeculativeDecoder) -> Recorder:
    assert isinstance(decoder.length, Recorder)
    return decoder.length


def test_a_controller_is_told_what_of_its_drafts_was_accepted(decoder: SpeculativeDecoder) -> None:
    rounds = decoder.generate(PROMPTS[0], max_new_tokens=NEW, temperature=0.8, seed=1).rounds
    expected = [(len(round.drafted), len(round.path)) for round in rounds if round.drafted]
    assert recorder_of(decoder).ended == expected
    assert len({accepted for _, accepted in expected}) > 1
    assert any(accepted < drafted for drafted, accepted in expected)


def test_a_controller_is_told_the_longest_drafts_of_a_round_and_its_time(
    decoder: SpeculativeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is reported once for all its texts, with their number.

    Rounds with prompts or first drafts are not timed.
    """
    clock = iter(range(10**6))
    monkeypatch.setattr(hooks, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    outputs: list[Generation] = decoder.generate(
        PROMPTS[:2], max_new_tokens=NEW, temperature=0.8, seed=1, verifier="token-wise"
    )
    reports = recorder_of(decoder)
    turns = max(len(output.rounds) for output in outputs)
    drafts = [[len(output.rounds[i].drafted) for output in outputs if i < len(output.rounds)] for i in range(turns)]
    # Between the marks of a round's start and end the clock is read once more.
    assert reports.times == [None, *((max(lengths), max(lengths), 2.0) for lengths in drafts[2:])]
    assert any(len(lengths) == 2 and lengths[0] != lengths[1] for lengths in drafts[2:])
    assert reports.rows == [len(lengths) for lengths in drafts[1:] for _ in lengths]


@pytest.mark.parametrize("draft", ["model", "states"])  # the target returns all states to drafts that read them
def test_a_controller_reads_the_state_that_the_newest_token_came_from(draft: str) -> None:
    target, other = pair("llama")
    decoder = SpeculativeDecoder(target, other if draft == "model" else state_draft(target), length=Recorder())
    decoder.stop_tokens = frozenset()
    output = decoder.generate(PROMPTS[0], max_new_tokens=NEW, temperature=0.8, seed=1)
    text, states = list(PROMPTS[0]), recorder_of(decoder).states
    assert len(states) == len(output.rounds)
    model: Any = decoder.target.model
    for round, state in zip(output.rounds, states, strict=True):
        before = [*text, *round.emitted[:-1]]
        hidden = model.model(torch.tensor([before])).last_hidden_state[0, -1]
        if len(round.emitted) == len(round.path) + 1:  # not cut by the budget
            torch.testing.assert_close(state, hidden, rtol=1e-4, atol=1e-4)
        text += round.emitted
