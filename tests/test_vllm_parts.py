"""Parts of the vLLM plugin that run without vLLM: settings, a request's draft, the fit of costs. More in tests/vllm."""

from __future__ import annotations

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.length import Confidence, Fixed, LengthController, OnlineConfidence
from specpilot.controllers.length.batch_costs import BatchCosts
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.integrations.vllm.drafted_request import DraftedRequest, Drawn
from specpilot.infer.integrations.vllm.engine_config import check_version
from specpilot.infer.integrations.vllm.settings import Settings, settings_of


def request(length: LengthController) -> DraftedRequest:
    return DraftedRequest([5, 6, 7], length, SamplingParams(), budget=20, stop_tokens=frozenset({1}), read=3)


def drawn(token: int, probability: float = 0.5) -> Drawn:
    row = torch.full((1, 8), 0.5)
    return Drawn(token, probability, row, row, row, row)


def test_settings() -> None:
    assert settings_of({}, {}) is None
    assert settings_of({}, {"SPECPILOT_VLLM": '{"length": 4}'}) == Settings(4)
    assert settings_of({"specpilot": {"length": "none"}}, {"SPECPILOT_VLLM": "rubbish"}) == Settings("none")
    with pytest.raises(InputError, match=r"^specpilot: length=None: text is expected; give an object such as"):
        settings_of({"specpilot": {"length": None}}, {})
    check_version("0.32.1+cpu")
    with pytest.raises(InputError, match=r"^vllm 0.3: specpilot knows 0\.32"):
        check_version("0.3")


def test_a_token_stays_in_the_draft_that_it_ends() -> None:
    one = request(Confidence(0.4))
    assert one.add(drawn(3, 0.9), longest=4)
    assert not one.add(drawn(4, 0.1), longest=4)
    assert one.tokens == [3, 4]
    assert len(one.rows) == 2


def test_a_draft_ends_at_its_longest_and_at_a_stop_token() -> None:
    one = request(Fixed(8))
    assert [one.add(drawn(3), 3), one.add(drawn(3), 3), one.add(drawn(3), 3)] == [True, True, False]
    assert not request(Fixed(8)).add(drawn(1), 3)


@pytest.mark.parametrize(("sampled", "read"), [([2], 3), ([3, 2], 4), ([3, 4, 2], 5), ([3, 4, 5, 2], 5)])
def test_what_the_draft_model_has_read_of_the_text(sampled: list[int], read: int) -> None:
    """It has read all drafted tokens but the last; those of them that were accepted stay."""
    one = request(Fixed(3))
    for token in (3, 4, 5):
        one.add(drawn(token), 3)
    one.verified(3, sampled)
    assert one.text == [5, 6, 7, *sampled]
    assert (one.read, one.tokens, one.rows) == (read, [], [])
    one.restart()
    assert one.read == 0


def test_requests_have_controllers_of_their_own() -> None:
    shared = Fixed(2)
    assert len({id(one.length) for one in (request(shared), request(shared))} | {id(shared)}) == 3


def test_online_confidence_goes_by_the_number_of_requests() -> None:
    costs = BatchCosts((1, 64), (CostModel(0.1, 1.0, 0.0), CostModel(0.5, 0.5, 0.0)))
    length = OnlineConfidence(cost=costs.at(1), batch=costs)
    length.shared_by(1)
    assert length.start_round()
    length.shared_by(64)
    assert not length.start_round()
    length.shared_by(1)
    assert length.start_round()
