"""Parts of the vLLM plugin that run without vLLM: settings, a request's draft, the fit of costs. More in tests/vllm."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead, LagFreePredictor
from specpilot.controllers.acceptance.length_head import LengthHead, Outcomes, Survivals
from specpilot.controllers.acceptance.ngram_index import NOTHING
from specpilot.controllers.length import Confidence, Fixed, LengthController, OnlineConfidence
from specpilot.controllers.length.cost_model import BatchCosts, CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.integrations.vllm_build import check_version
from specpilot.serve.vllm.controllers import BatchPlanner, TrainedAcceptanceEstimator
from specpilot.serve.vllm.drafted_request import DraftedRequest, Drawn
from specpilot.serve.vllm.settings import Settings, settings_of
from torch import Tensor


def request(length: LengthController) -> DraftedRequest:
    return DraftedRequest([5, 6, 7], length, SamplingParams(), budget=20, stop_tokens=frozenset({1}), read=3)


def drawn(token: int, probability: float = 0.5) -> Drawn:
    row = torch.full((1, 8), 0.5)
    return Drawn(token, probability, row, row, row, row)


def test_settings() -> None:
    assert settings_of({}, {}) is None
    assert settings_of({}, {"SPECPILOT_VLLM": '{"length": 4}'}) == Settings(4)
    assert settings_of({"specpilot": {"length": "none"}}, {"SPECPILOT_VLLM": "rubbish"}) == Settings("none")
    with pytest.raises(InputError, match=r"^specpilot: length=None: a whole number is expected; give an object"):
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


# The trained head's acceptance probabilities for vLLM's model runner V2: tensor operations alone, no vLLM needed


VOCABULARY, WIDTH = 12, 6  # fewer tokens than candidates: the expectation is over all of them


@pytest.fixture
def predictor() -> LagFreePredictor:
    torch.manual_seed(1)
    head = LagFreeHead(WIDTH, 5)
    return LagFreePredictor(head, torch.randn(VOCABULARY, WIDTH))


def by_hand(predictor: LagFreePredictor, logits: Tensor, state: Tensor, temperature: float) -> float:
    """Σ_y q(y)·a(y), with the predictions that the decoder makes of each token in turn."""
    q = (logits / (temperature or 1.0)).softmax(-1)
    entropy = float(torch.special.entr(q).sum())
    tokens = [int(q.argmax())] if temperature == 0 else list(range(VOCABULARY))
    signals = [(float(q[y]), float(q.max()), entropy) for y in tokens]
    states = state.expand(len(tokens), -1)
    accept = predictor.probabilities(signals, [NOTHING] * len(tokens), states, tokens)
    weights = torch.ones(1) if temperature == 0 else q
    return float((weights * accept).sum())


def test_expected_acceptance_is_that_of_the_decoder(predictor: LagFreePredictor) -> None:
    torch.manual_seed(2)
    logits, states = torch.randn(3, VOCABULARY), torch.randn(3, WIDTH)
    temperatures = [1.0, 0.5, 0.0]
    estimator = TrainedAcceptanceEstimator(predictor)
    with torch.inference_mode():
        found = estimator.expected_acceptance(logits, states, torch.tensor(temperatures))
    expected = [by_hand(predictor, *row) for row in zip(logits, states, temperatures, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == 3


def test_each_request_has_its_own_temperature_and_padding_is_left_alone(predictor: LagFreePredictor) -> None:
    torch.manual_seed(3)
    logits, temperature = torch.randn(3, VOCABULARY), torch.tensor([0.7, 1.0, 0.0, 1.3])
    estimator = TrainedAcceptanceEstimator(predictor)
    estimator.states = torch.randn(3, WIDTH)
    probabilities = torch.full((4, 5), math.pi)
    with torch.inference_mode():
        estimator.predict(logits, torch.tensor([3, -1, 2]), torch.tensor(1), probabilities, temperature)
    expected = [
        by_hand(predictor, logits[row], estimator.states[row], float(temperature[at])) for row, at in ((0, 3), (2, 2))
    ]
    assert probabilities[[0, 2], 1].tolist() == pytest.approx(expected, abs=1e-6)
    probabilities[[0, 2], 1] = math.pi
    assert bool((probabilities == torch.tensor(math.pi)).all())


def test_no_value_is_read_by_the_host(predictor: LagFreePredictor) -> None:
    """A graph without a break has no such read, and can be captured."""
    estimator = TrainedAcceptanceEstimator(predictor)
    logits, states, temperature = torch.randn(2, VOCABULARY), torch.randn(2, WIDTH), torch.tensor([1.0, 0.0])

    def predict(logits: Tensor, states: Tensor, rows: Tensor, step: Tensor, probabilities: Tensor) -> Tensor:
        estimator.states = states
        estimator.predict(logits, rows, step, probabilities, temperature)
        return probabilities

    arguments = logits, states, torch.tensor([1, 0]), torch.tensor(0)
    compiled = torch.compile(predict, backend="eager", fullgraph=True)
    with torch.no_grad():
        found = compiled(*arguments, torch.zeros(2, 3))
        assert torch.equal(found, predict(*arguments, torch.zeros(2, 3)))


def test_a_batch_drafts_what_gains_most_and_rates_are_those_of_its_texts() -> None:
    """Over steps with random outcomes; a request takes another's place, and one reads its prompt at first."""
    torch.manual_seed(5)
    head, cost, lengths = LengthHead(WIDTH, 4), CostModel(0.2, 1.0, 0.05), [0, 1, 3, 4]
    torch.nn.init.normal_(head.out.weight, std=2.0)
    planner = BatchPlanner(head, lambda rows: cost, lengths, 3)
    outcomes: dict[str, Outcomes] = {}
    drafted, chosen, names = {"a": 0, "b": 0, "c": 0}, set[int](), ["a", "b"]
    for step in range(24):
        if step == 9:
            names = ["a", "c"]
        accepted = [int(torch.randint(0, drafted[name] + 1, ())) for name in names]
        reading = step in (0, 9)  # the second request
        sampled = torch.tensor([accepted[0] + 1, 0 if reading else accepted[1] + 1])
        rejected = torch.tensor([drafted[name] - a for name, a in zip(names, accepted, strict=True)])
        ends = [0, drafted[names[0]] + 1, drafted[names[0]] + drafted[names[1]] + 2]
        states = torch.randn(ends[-1], WIDTH)
        batch = SimpleNamespace(
            num_reqs=2, req_ids=names, idx_mapping=torch.tensor([2, 0]), idx_mapping_np=np.array([2, 0]),
            query_start_loc=torch.tensor([*ends, ends[-1]]),
        )  # fmt: skip
        gains = torch.zeros(11)
        for row, (name, a) in enumerate(zip(names, accepted, strict=True)):
            own = outcomes.setdefault(name, Outcomes())
            for position in range(1, min(drafted[name], a + 1) + 1):
                own.add(position <= a)
            if sampled[row]:
                state = states[ends[row] + a]  # which the newest token was drawn from
                gains += torch.tensor([1.0, *Survivals(head)(own.rates, state)])
        found = planner.plan(batch, states, sampled, rejected, most=3)
        tokens = gains.cumsum(0)
        assert found == max((k for k in lengths if k <= 3), key=lambda k: float(tokens[k]) / cost.round(k))
        expected = [rate for name in names for rate in outcomes[name].rates]
        assert planner.rates[[2, 0]].flatten().tolist() == pytest.approx(expected, abs=1e-6)
        drafted |= dict.fromkeys(names, found)
        chosen.add(found)
    assert len(chosen) > 1
