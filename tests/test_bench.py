"""The cost model, the counters' rates, and measuring several decoders over the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specpilot.bench.micro.forward import bench_forward
from specpilot.bench.micro.rollouts import bench_rollouts
from specpilot.bench.micro.spectr import RULES, bench_spectr, efficiency
from specpilot.bench.plots import plot_pareto
from specpilot.bench.runner import measure
from specpilot.bench.throughput import Cost, fit_cost
from specpilot.controllers.length import Fixed
from specpilot.data_gen.settings import AcceptanceDataOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation, Stats

from .tiny import make, save_pair


def test_the_fit_finds_the_costs_it_was_made_from() -> None:
    runs = []
    for n_draft, n_target in ((0, 50), (40, 20), (90, 12), (10, 33)):
        seconds = 0.002 * n_draft + 0.011 * (n_target - 1)
        runs.append(Stats(n_generated=50, n_draft_forwards=n_draft, n_target_forwards=n_target, seconds=seconds))
    cost = fit_cost(runs)
    assert cost.t_draft == pytest.approx(0.002)
    assert cost.t_target == pytest.approx(0.011)
    assert cost.r_squared == pytest.approx(1.0)


def test_throughput_is_equation_2_3() -> None:
    cost = Cost(t_draft=0.0234, t_target=0.112, r_squared=1.0)  # the paper's machine, §4.2
    plain = Stats(n_generated=100, n_target_forwards=100)
    assert cost.throughput(plain) == pytest.approx(1 / 0.112)
    stats = Stats(
        n_generated=100, n_target_forwards=30, n_draft_forwards=90, n_drafted=90, n_accepted=70, n_discarded=20
    )
    total = 0.0234 * 90 + 0.112 * 30  # eq. 2.1; 2.3 is the same number since 90 + 30 = 100 + 20
    assert cost.throughput(stats) == pytest.approx(100 / total)


def test_every_decoder_meets_every_prompt_with_the_same_seed() -> None:
    target, draft = make(), make(layers=1)
    decoder, plain = SpeculativeDecoder(target, draft), SpeculativeDecoder(target, None)
    seen: list[tuple[str, int]] = []
    results = measure(
        {"autoregressive": (plain, None), "fixed-0": (decoder, Fixed(0)), "fixed-3": (decoder, Fixed(3))},
        [[1, 2, 3], [4], [5, 6]],
        {"max_new_tokens": 12, "temperature": 0.0},
        on_generation=lambda name, index, generation: seen.append((name, index)),
    )
    assert sorted(seen) == sorted((name, index) for name in results for index in range(3))
    plain_total, none, three = (results[n].total for n in ("autoregressive", "fixed-0", "fixed-3"))
    assert plain_total.n_generated == none.n_generated == three.n_generated == 36
    assert plain_total.verification_rate == none.verification_rate == 1
    row = results["fixed-3"].row(results["autoregressive"], Cost(0.001, 0.01, 1.0))
    assert row["block_efficiency"] == pytest.approx(1 / row["verification_rate"])
    assert row["speedup"] == pytest.approx(three.tokens_per_second / plain_total.tokens_per_second)


def test_rollouts_are_timed_both_ways(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    prompts = tmp_path / "p.txt"
    prompts.write_text("".join(f"prompt {i}\n" for i in range(14)))
    settings = AcceptanceDataOptions(target, draft, str(prompts), chat=False, max_new_tokens=6)
    result = bench_rollouts(settings, 2, Console(quiet=True))
    rates = result["tokens_per_second"]
    assert min(rates.values()) > 0
    assert result["ratio"] > 0


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    rows = {name: {"discard_rate": x, "verification_rate": 1 - x} for name, x in (("fixed-1", 0.1), ("head-0.5", 0.2))}
    plot_pareto(rows, tmp_path / "pareto.png", "title")
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_forwards_are_timed_on_both_paths(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    result = bench_forward(target, draft, 2)
    for paths in result["milliseconds"].values():
        assert set(paths) == {"transformers", "lean"}
        assert all(value > 0 for by_n in paths.values() for value in by_n.values())
    assert result["ratio"] > 0


def test_drafts_of_the_target_itself_are_accepted_whole() -> None:
    """The whole grid on a pair that is one model: every draft is accepted to its end, whatever the rule."""
    model = make()
    decoder = SpeculativeDecoder(model, model)
    done: list[None] = []
    result = bench_spectr(
        decoder, [[1, 2, 3], [4]], {"max_new_tokens": 19, "temperature": 0.0}, lambda: done.append(None)
    )["block_efficiency"]
    assert len(done) == 2 * len(RULES) * 2 * 4
    for rule in RULES:
        for drafts in ("1", "2", "4", "8"):
            assert result[rule]["4"][drafts]["value"] == pytest.approx(
                19 / 5
            )  # one from the prefill, then 5 + 5 + 5 + 3
            assert result[rule]["8"][drafts]["value"] == pytest.approx(19 / 3)


def test_efficiency_and_its_interval() -> None:
    runs = [Stats(n_generated=30, n_target_forwards=10), Stats(n_generated=10, n_target_forwards=10)]
    found = efficiency(runs)
    assert (found["value"], found["low"], found["high"]) == (2.0, 1.0, 3.0)


class Timed:
    """Stands for a decoder whose runs of a prompt differ in nothing but their time."""

    def __init__(self, log: list[str], name: str, seconds: list[float]) -> None:
        self.log, self.name, self.seconds = log, name, [0.0, *seconds]  # the first is the warm-up's

    def generate(self, prompt: Any, **settings: Any) -> Generation:
        self.log.append(self.name)
        return Generation([], stats=Stats(n_generated=1, seconds=self.seconds.pop(0)))


def test_of_repeated_runs_the_one_of_median_time_is_kept() -> None:
    log: list[str] = []
    decoders: Any = {"a": (Timed(log, "a", [3, 1, 2, 5, 9, 7]), None), "b": (Timed(log, "b", [4, 6]), None)}
    found = measure(decoders, [[1], [2]], {}, repeats={"a": 3})
    assert [run.seconds for run in found["a"].runs] == [2, 7]
    assert [run.seconds for run in found["b"].runs] == [4, 6]
    assert log == ["a", "b", *"abaa", *"baaa"]  # in turn, and the turn moves on
