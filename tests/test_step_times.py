"""What the quick measurement of a pair reads."""

from __future__ import annotations

import pytest
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.costs import DRAFTED, READ, WARM, step_times, verification_costs
from specpilot.infer.loading.names import load_model
from specpilot.infer.models import TextReader, language_model


def test_what_is_read_in_which_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's own tokens; one by the target after one, several after a step of the draft."""
    target, draft = (language_model(load_model(name)) for name in ("tiny", "tiny-draft"))
    read: list[tuple[str, list[int]]] = []
    original = TextReader.read

    def recorded(self: TextReader, tokens: list[int], *args: int, **options: int) -> object:
        read.append(("target" if self.model is target else "draft", list(tokens)))
        return original(self, tokens, *args, **options)

    monkeypatch.setattr(TextReader, "read", recorded)
    prompt = [5, 6, 7, 8]
    cost, times = step_times(target, [draft, None], prompt, SamplingParams(), repeats=2)
    again = (prompt * 3)[: max(READ)]
    verified = [("target", again[:1]), ("target", again[:1])]
    for n in READ[1:]:
        verified += [("draft", again[:1]), ("target", again[:n])]
    turn = len(verified) + DRAFTED
    timed = read[2:]  # after the prompt
    assert len(timed) == (WARM + 2) * turn
    assert all(timed[start : start + len(verified)] == verified for start in range(0, len(timed), turn))
    assert cost.t_draft == times[0] > 0
    assert times[1] > 0


def test_every_draft_is_timed_after_a_forward_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    target = language_model(load_model("tiny"))
    drafts = [language_model(load_model("tiny-draft")) for _ in range(3)]
    order: list[TextReader] = []
    original = TextReader.read

    def recorded(self: TextReader, *args: int, **options: int) -> object:
        if not order or order[-1] is not self:
            order.append(self)
        return original(self, *args, **options)

    monkeypatch.setattr(TextReader, "read", recorded)
    step_times(target, drafts, [5, 6, 7, 8], SamplingParams(), repeats=2)
    models = [reader.model for reader in order][len(drafts) + 1 :]  # after the prompts
    verified = [target, *[drafts[0], target] * (len(READ) - 1)]
    assert models == [*verified, drafts[0], *(model for draft in drafts[1:] for model in (target, draft))] * (WARM + 2)


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        ({1: 8.0, 2: 18.0, 3: 24.0, 5: 36.0, 9: 60.0}, CostModel(0.5, 2.0, 6.0, 4.0)),  # other kernels from two tokens
        ({1: 20.0, 2: 21.0, 3: 22.0, 5: 24.0, 9: 28.0}, CostModel(0.5, 19.0, 1.0)),
        ({1: 20.0, 2: 20.0, 3: 20.0, 5: 20.0, 9: 34.0}, CostModel(0.5, 18.6824, 1.3176)),  # the first ones for nothing
        ({1: 20.0, 2: 30.0, 3: 28.0, 5: 20.0, 9: 16.0}, CostModel(0.5, 19.8, 0.2, 2.75)),
        ({1: 20.0, 2: 20.0, 3: 18.0, 5: 18.0, 9: 16.0}, CostModel(0.5, 19.8, 0.2)),  # noise: no token is free
        (
            {1: 2.0, 2: 8.0, 3: 14.0, 5: 26.0, 9: 50.0},
            CostModel(0.5, 0.0, 2.0),
        ),  # a token more costs more than one alone
    ],
)
def test_costs_of_a_target(t: dict[int, float], expected: CostModel) -> None:
    found = verification_costs(t, 0.5)
    assert found.as_dict() == pytest.approx(expected.as_dict(), abs=1e-4)
    assert found.round(0) == pytest.approx(t[1])
