"""Bad settings of the plugin: one line each, before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from specpilot.common.errors import InputError
from specpilot.serve.vllm.settings import VARIABLE

from .engines import configure, engine  # skips where the extra is missing


def test_settings_come_from_the_configuration_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    own = configure(None).parallel_config.worker_cls
    assert own == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert configure({"length": 4}).parallel_config.worker_cls != own
    monkeypatch.setenv(VARIABLE, json.dumps({"length": "confidence:0.4"}))
    assert configure(None).parallel_config.worker_cls != own
    monkeypatch.setenv(VARIABLE, '{"length": ')
    with pytest.raises(InputError, match=rf"^{VARIABLE}: not JSON .*; give an object such as"):
        configure(None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"^specpilot: key 'length' is missing"),
        (
            {"length": 4, "lenght": 3},
            r"^specpilot: unknown key 'lenght', did you mean 'length'\?; the keys are cost",
        ),
        ({"length": "confidence"}, r"^length='confidence': give the rule's number"),
        ({"length": "oracle"}, r"^length='oracle': asks the target before drafting; not in vLLM$"),
        ({"length": "tiny-lag-free"}, r"tiny-lag-free.*has no threshold of its own; give a threshold or costs"),
        ({"length": "online-confidence"}, r"give either a cost model"),
        ({"length": "confidence:0.4", "cost": 0.2}, r"^cost: the rule 'confidence:0.4' does not use costs"),
        ({"length": "confidence:0.4", "threshold": 0.2}, r"^threshold=0.2: only for trained controllers"),
        ({"length": "tiny-lag-free", "cost": "auto"}, r"^cost='auto': measure it with 'specpilot bench vllm --cost"),
        ({"length": "tiny-lag-free", "cost": 0.2, "threshold": 0.3}, r"^threshold=0.3: .*give one of"),
        ({"length": 4, "drafts": "both"}, r"^specpilot: drafts='both': one of request, vllm is expected"),
        (
            {"length": 4, "drafts": "vllm", "log_rounds": "log"},
            r"^specpilot: log_rounds: needs drafts by the requests",
        ),
        ({"length": 4, "log_rounds": f"{__file__}/log"}, r"^log_rounds='.*/log': no folder \(Not a directory\); give"),
        ({"length": 4, "pair_check": "none"}, r"pair_check='none': choose one of exact, tokenizer"),
    ],
)
def test_bad_settings(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as found:
        configure(settings)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafted": 0}, r"^speculative_config: method is none; specpilot steers draft models"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            r"^speculative_config: method is 'ngram'; specpilot steers draft models",
        ),
        ({"async_scheduling": True}, r"^async_scheduling: "),
        ({"worker_cls": "mine.Worker"}, r"^worker_cls='mine.Worker': specpilot knows "),
    ],
)
def test_engines_that_the_plugin_does_not_steer(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        configure({"length": 4}, **options)


def test_a_controller_of_another_pair(tmp_path: Path) -> None:
    from specpilot.checkpoints import shipped

    other = str(shipped("tiny-draft-math"))
    speculative = {"method": "draft_model", "model": other, "num_speculative_tokens": 4}
    with pytest.raises(InputError, match="trained for target tiny and draft tiny-draft, but another draft is given"):
        engine({"length": "tiny-lag-free", "cost": 0.2}, speculative_config=speculative)
