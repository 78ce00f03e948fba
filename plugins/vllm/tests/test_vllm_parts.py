"""Parts of the vLLM plugin that run without vLLM: settings, a request's draft, the fit of costs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.length import Confidence, Fixed, LengthController
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.options import AcceptanceDataOptions, ResponseOptions
from specpilot_vllm import build
from specpilot_vllm.bench import DRAFTED, fitted
from specpilot_vllm.build import (
    INTERFACE,
    SCHEDULER_INTERFACE,
    check_interface,
    check_version,
    expand_batch_to_tokens,
)
from specpilot_vllm.drafted_request import DraftedRequest, Drawn
from specpilot_vllm.settings import Settings, apply, settings_of

from tests.helpers.refusals import refused


def request(length: LengthController) -> DraftedRequest:
    return DraftedRequest([5, 6, 7], length, SamplingParams(), budget=20, stop_tokens=frozenset({1}), read=3)


def drawn(token: int, probability: float = 0.5) -> Drawn:
    row = torch.full((1, 8), 0.5)
    return Drawn(token, probability, row, row, row, row)


def test_settings() -> None:
    assert settings_of({}, {}) is None
    assert settings_of({}, {"SPECPILOT_VLLM": '{"length": 4}'}) == Settings(4)
    assert settings_of({"specpilot": {"length": "none"}}, {"SPECPILOT_VLLM": "rubbish"}) == Settings("none")
    check_version("0.32.1+cpu")
    with pytest.raises(InputError, match=r"^vllm 0.3: specpilot-vllm supports 0\.32"):
        check_version("0.3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"^specpilot: key 'length' is missing"),
        ({"length": None}, r"^specpilot: length=None: .* is expected; give an object"),
        ({"length": 4, "lenght": 3}, r"^specpilot: unknown key 'lenght', did you mean 'length'\?; the keys are cost"),
        ({"length": "oracle"}, r"^length='oracle': reads the target before it drafts"),
        ({"length": "tiny-lag-free"}, r"tiny-lag-free.*has no threshold of its own; give a threshold or costs"),
        ({"length": "online-confidence"}, r"give either a cost model"),
        ({"length": "confidence:0.4", "cost": 0.2}, r"^cost: the rule 'confidence:0.4' does not use costs"),
        ({"length": "confidence:0.4", "threshold": 0.2}, r"^threshold=0.2: is only for trained controllers"),
        (
            {"length": "tiny-lag-free", "cost": "auto"},
            r"^cost='auto': measure the costs with 'specpilot-vllm bench --cost",
        ),
        ({"length": "tiny-lag-free", "cost": 0.2, "threshold": 0.3}, r"^threshold=0.3: .*give one of"),
        (
            {"length": 4, "drafts": "vllm", "log_rounds": "log"},
            r"^specpilot: log_rounds: needs drafts with the requests",
        ),
        (
            {"length": 4, "log_rounds": f"{__file__}/log"},
            r"^log_rounds='.*/log': cannot be created \(Not a directory\)",
        ),
        ({"length": 4, "pair_check": "none"}, r"pair_check='none': choose one of exact, tokenizer"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with refused(message):
        settings_of({"specpilot": settings}, {}).check()


def engine_config(*, v2: bool, adaptive: bool = False) -> Any:
    """The fields of a ``VllmConfig`` that the plugin reads."""
    speculative = SimpleNamespace(
        method="draft_model", enable_adaptive_verification=adaptive, parallel_drafting=False,
        use_heterogeneous_vocab=False, rejection_sample_method="standard",
    )  # fmt: skip
    sizes = {f"{name}_parallel_size": 1 for name in ("tensor", "pipeline", "data")}
    parallel = SimpleNamespace(worker_cls="vllm.v1.worker.gpu_worker.Worker", **sizes)
    return SimpleNamespace(speculative_config=speculative, parallel_config=parallel, use_v2_model_runner=v2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (engine_config(v2=True), r"^model runner: V2 drafts the same number"),
        (engine_config(v2=False, adaptive=True), r"^enable_adaptive_verification: needs model runner V2"),
    ],
)
def test_engines_without_lengths_of_each_request(config: Any, message: str) -> None:
    with refused(message):
        apply(Settings(4), config)
    apply(Settings(4), engine_config(v2=False))


def test_a_token_stays_in_the_draft_that_it_ends() -> None:
    drafted = request(Confidence(0.4))
    assert drafted.add(drawn(3, 0.9), longest=4)
    assert not drafted.add(drawn(4, 0.1), longest=4)
    assert drafted.tokens == [3, 4]
    assert len(drafted.rows) == 2


def test_a_draft_ends_at_its_longest_and_at_a_stop_token() -> None:
    drafted = request(Fixed(8))
    assert [drafted.add(drawn(3), 3), drafted.add(drawn(3), 3), drafted.add(drawn(3), 3)] == [True, True, False]
    assert not request(Fixed(8)).add(drawn(1), 3)


@pytest.mark.parametrize(("sampled", "read"), [([2], 3), ([3, 2], 4), ([3, 4, 2], 5), ([3, 4, 5, 2], 5)])
def test_what_the_draft_model_has_read_of_the_text(sampled: list[int], read: int) -> None:
    """The draft model has read all drafted tokens except the last. The accepted ones stay in its cache."""
    drafted = request(Fixed(3))
    for token in (3, 4, 5):
        drafted.add(drawn(token), 3)
    drafted.verified(3, sampled)
    assert drafted.text == [5, 6, 7, *sampled]
    assert (drafted.read, drafted.tokens, drafted.rows) == (read, [], [])
    drafted.restart()
    assert drafted.read == 0


def test_requests_have_controllers_of_their_own() -> None:
    shared = Fixed(2)
    assert len({id(drafted.length) for drafted in (request(shared), request(shared))} | {id(shared)}) == 3


def test_values_are_repeated_for_drafted_tokens() -> None:
    ends = torch.tensor([3, 3, 4], dtype=torch.int32)
    top_k = expand_batch_to_tokens(torch.tensor([5, 6, 7], dtype=torch.int32), ends, 4)
    assert top_k.tolist() == [5, 5, 5, 7]
    assert top_k.dtype == torch.int32
    assert expand_batch_to_tokens(torch.tensor([0.0, 0.5, 0.3]), ends, 4, 0, 1).tolist() == pytest.approx(
        [1.0, 1.0, 1.0, 0.3]
    )


@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: run make test-vllm or make test-vllm33")
@pytest.mark.parametrize("interface", [INTERFACE, SCHEDULER_INTERFACE], ids=["requests", "scheduler"])
def test_the_source_of_vllm_has_the_methods_that_the_plugin_uses(interface: dict[tuple[str, str, str], str]) -> None:
    check_interface(interface)
    with refused(r"^vllm 0\.3\d.* takes \(.*\); install a release of 0\.32 or 0\.33"):
        check_interface({method: f"{parameters} more" for method, parameters in interface.items()})


def test_vllm_is_missing_or_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    for version, problem in (
        (missing, r"^vllm is not installed: pip install 'specpilot-vllm\[vllm\]', on a CPU"),
        (lambda name: "0.31.0", r"^vllm 0\.31\.0: specpilot-vllm supports 0\.32, 0\.33; install a supported version"),
    ):
        monkeypatch.setattr(build, "version", version)
        with pytest.raises(InputError, match=problem):
            make_acceptance_data(
                AcceptanceDataOptions(limit=2), tmp_path / "data", responses=ResponseOptions(responses="vllm")
            )
    assert not any(tmp_path.iterdir())


# The measurement


@pytest.mark.parametrize(("times", "rows"), [([5.0, 7.0, 7.5, 8.5], 1), ([10.0, 14.0, 15.0, 17.0], 4)])
def test_costs_are_those_of_the_rounds_where_drafting_pays(times: list[float], rows: int) -> None:
    cost = fitted(times, 0.7, rows)
    assert [rows * cost.round(drafted) for drafted in DRAFTED] == pytest.approx(times, rel=0.05)


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        ([10.0, 19.0, 27.0, 43.0], 1),  # 1.7 tokens in 1.9 times the time
        ([10.0, 16.0, 27.0, 43.0], 1),  # in 1.6 times: a gain of 6 %
        ([10.0, 15.0, 20.0, 43.0], 4),  # 13 %, too little for requests that share rounds
    ],
)
def test_a_token_costs_a_round_where_drafting_does_not_pay(times: list[float], rows: int) -> None:
    row_time = times[0] / rows
    assert fitted(times, 0.7, rows) == CostModel(row_time, row_time, 0.0)
    assert fitted([10.0, 15.0, 20.0, 43.0], 0.7, 1).round(1) < 2 * 10.0
