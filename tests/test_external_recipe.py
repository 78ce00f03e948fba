"""What is taken from reports of guidellm, and where it goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specpilot.common.errors import InputError

from experiments.external.measure import add_to, measure, summary
from experiments.external.settings import ExternalOptions


def test_reports() -> None:
    metrics = {
        "request_totals": {"successful": 4, "total": 4},
        "output_tokens_per_second": {"successful": {"mean": 250.0}},
        "time_to_first_token_ms": {"successful": {"median": 30.0}},
        "inter_token_latency_ms": {"successful": {"median": 5.0}},
    }
    assert summary(metrics) == {
        "tokens_per_second": 250.0,
        "time_to_first_token": pytest.approx(0.03),
        "inter_token_latency": pytest.approx(0.005),
    }
    with pytest.raises(InputError, match=r"^guidellm: 1 of 4 requests failed"):
        summary(metrics | {"request_totals": {"successful": 3, "total": 4}})


def test_the_result_keeps_the_rest(tmp_path: Path) -> None:
    result = tmp_path / "serve.json"
    result.write_text('{"load": 1, "external": 2}')
    add_to(result, {"tool": "guidellm"})
    assert json.loads(result.read_text()) == {"load": 1, "external": {"tool": "guidellm"}}


def test_guidellm_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"guidellm: No such file or directory; install it"):
        measure(ExternalOptions(guidellm=tmp_path / "guidellm"))
