"""The side-by-side measurement on a random pair: what it counts, what it compares, what it reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specpilot.compare.engines.assisted import ASSISTED, Transformers
from specpilot.compare.interval import ratio_interval
from specpilot.compare.plots import plot_rates
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.names import load_model
from specpilot.infer.verify import VERIFIERS

from experiments.workloads.decode import AUTOREGRESSIVE, PLAIN, Times, as_table, bench_decode, summary

from .clock import time_forwards, time_transformers
from .eagle3 import write_draft
from .tiny import make

PROMPTS = [[1, 2, 3], [9, 8]]


def test_every_form_of_assistance_is_really_asked_for() -> None:
    """Greedy assisted generation is the target's own; and each form remembers its own schedule."""
    target, draft = make(), make(layers=1)
    theirs = Transformers(target, draft, SamplingParams(0.0), max_new_tokens=20)
    plain = theirs.generate(PROMPTS[0], None)
    assert len(plain) == 20
    for name in ASSISTED:
        assert theirs.generate(PROMPTS[0], name) == plain
    for name in ASSISTED:
        constant = name.rpartition("-")[2].isdigit()
        assert not constant or theirs.states[name]["tokens"] == ASSISTED[name].tokens
    assert theirs.states["transformers-assisted-heuristic"]["tokens"] != 5
    theirs.generate(PROMPTS[0], "transformers-assisted-3")
    assert draft.generation_config.num_assistant_tokens == 3
    assert draft.generation_config.assistant_confidence_threshold == 0


def test_a_draft_that_reads_states_is_not_given_to_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second for a forward of the target, and nothing for drafts."""
    draft = write_draft(tmp_path / "eagle", vocab=64, kept=[*range(0, 64, 2)], target=32, layers=[1])
    decoder = SpeculativeDecoder(make(), load_model(draft, device="cpu"))
    clock = time_forwards(monkeypatch, lambda model, n: float(model is decoder.target))
    time_transformers(monkeypatch, clock, 1.0, decoder.target.model)
    sampling, console = SamplingParams(1.0, 20), Console(quiet=True)
    result = bench_decode(decoder, PROMPTS[:1], sampling, console, max_new_tokens=8, repeats=1, controller=None)
    assert result["best"].keys() == {"specpilot-best"}
    assert result["speedup_of_specpilot_best"].keys() == {PLAIN, AUTOREGRESSIVE}
    assert result["tokens_per_second"][AUTOREGRESSIVE] == pytest.approx(1.0)
    assert result["overhead_share"] == pytest.approx(0.0)


def test_bench_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for a forward of the target, half of one for a verification, and nothing for drafts."""
    decoder = SpeculativeDecoder(make(), make(layers=1))
    clock = time_forwards(monkeypatch, lambda model, n: float(model is decoder.target))
    time_transformers(monkeypatch, clock, 1.0, decoder.target.model)
    plain = VERIFIERS["token-wise"]

    def verify(*arguments: Any) -> Any:
        clock.now += 0.5
        return plain(*arguments)

    monkeypatch.setitem(VERIFIERS, "token-wise", verify)
    result = bench_decode(
        decoder,
        PROMPTS,
        SamplingParams(1.0, 20),
        Console(quiet=True),
        max_new_tokens=8,
        repeats=2,
        controller=None,
    )
    rates = result["tokens_per_second"]
    best = {"transformers-assisted-best", "specpilot-best"}
    assert {PLAIN, AUTOREGRESSIVE, "transformers-assisted-8", "specpilot-fixed-4", *best} <= rates.keys()
    assert rates[PLAIN] == pytest.approx(1.0)
    ours = [name for name in rates.keys() - best if name.startswith("specpilot-")]
    for kind in best:
        assert rates[kind] == rates[result["best"][kind]]
        prefix = kind.removesuffix("best")
        assert rates[kind] == max(rate for name, rate in rates.items() if name.startswith(prefix))
    assert result["intervals"].keys() == rates.keys() - best
    for name in ours:  # each target forward is followed by a verification
        low, high = result["intervals"][name]
        assert low <= result["block_efficiency"][name] / 1.5 <= high
    assert rates[AUTOREGRESSIVE] == pytest.approx(1 / 1.5)
    plot_rates(result, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert result["block_efficiency"][AUTOREGRESSIVE] == 1
    assert result["block_efficiency"]["specpilot-fixed-4"] >= 1
    assert result["overhead_share"] == pytest.approx(0.5 / 1.5)
    assert result["bound_share"] == pytest.approx(1 / 1.5)
    assert "forward" not in vars(decoder.target)  # the profiler is taken off again
    assert len(as_table(result).rows) == len(rates) - len(best)


def test_rates_and_intervals() -> None:
    slow = Times([[10] * 3, [10] * 3], [[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]])
    fast = Times([[10] * 3, [30] * 3], [[0.5, 0.5, 4.0], [0.5, 0.5, 4.0]])
    assert slow.rate == 10
    assert fast.rate == 40
    ratio, low, high = ratio_interval(*fast.totals, *slow.totals)
    assert ratio == pytest.approx((120 / 10) / (60 / 8))
    assert low < ratio < high
    assert low == pytest.approx((30 / 5) / (30 / 4))  # the first prompt drawn twice
    assert high == pytest.approx((90 / 5) / (30 / 4))
    result = summary({PLAIN: slow, AUTOREGRESSIVE: slow, "transformers-assisted-1": slow, "specpilot-fixed-1": fast})
    assert result["best"] == {
        "transformers-assisted-best": "transformers-assisted-1",
        "specpilot-best": "specpilot-fixed-1",
    }
    assert result["speedup_of_specpilot_best"]["transformers-generate"]["ratio"] == pytest.approx(ratio)
