"""The cost model, the counters' rates, and measuring several decoders over the same prompts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from specpilot.compare.plots import plot_pareto
from specpilot.compare.runner import decode_all, interleave, interleave_stored, rates
from specpilot.compare.store import Store
from specpilot.controllers.length import Fixed
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation, Stats

from .tiny import make

QUIET = Console(quiet=True)


def test_throughput_is_equation_2_3() -> None:
    cost = CostModel(t_draft=0.0234, t_verify=0.112, t_verify_token=0.0)  # the paper's machine, §4.2
    assert cost.throughput(100, 0, 100) == pytest.approx(1 / 0.112)
    stats = Stats(n_generated=100, n_target_forwards=30, n_drafted=90, n_accepted=70, n_discarded=20)
    by_rates = 1 / (0.0234 + 0.0234 * stats.discard_rate + (0.112 - 0.0234) * stats.verification_rate)
    assert cost.throughput(100, 90, 30) == pytest.approx(by_rates)
    split = CostModel(t_draft=0.0134, t_verify=0.102, t_verify_token=0.01)  # another split of the same sums
    assert split.throughput(100, 90, 30) == pytest.approx(by_rates)


def test_every_decoder_decodes_every_prompt_with_the_same_seed() -> None:
    target, draft = make(), make(layers=1)
    decoder, plain = SpeculativeDecoder(target, draft), SpeculativeDecoder(target, None)
    seen: list[tuple[str, int]] = []
    found = decode_all(
        {
            "autoregressive": plain.generate,
            "fixed-0": partial(decoder.generate, length=Fixed(0)),
            "fixed-3": partial(decoder.generate, length=Fixed(3)),
        },
        [[1, 2, 3], [4], [5, 6]],
        {"max_new_tokens": 12, "temperature": 0.0},
        QUIET,
        on_generation=lambda name, index, generation: seen.append((name, index)),
    )
    assert sorted(seen) == sorted((name, index) for name in found for index in range(3))
    plain_total, none, three = (sum(found[n], Stats()) for n in ("autoregressive", "fixed-0", "fixed-3"))
    assert plain_total.n_generated == none.n_generated == three.n_generated == 36
    assert plain_total.verification_rate == none.verification_rate == 1
    row = rates(found["fixed-3"], found["autoregressive"], CostModel(0.001, 0.01, 0.0))
    assert row["block_efficiency"] == pytest.approx(1 / row["verification_rate"])
    assert row["speedup"] == pytest.approx(three.tokens_per_second / plain_total.tokens_per_second)
    assert row["throughput_eq23"] == pytest.approx(36 / (0.001 * three.n_drafted + 0.01 * three.n_target_forwards))


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    rows = {name: {"discard_rate": x, "verification_rate": 1 - x} for name, x in (("fixed-1", 0.1), ("head-0.5", 0.2))}
    plot_pareto(rows, tmp_path / "pareto.png", "title")
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_configurations_take_turns_and_warm_up_is_not_counted() -> None:
    log: list[str] = []
    reported: list[tuple[str, int, str]] = []

    def run(name: str) -> Any:
        def call(item: int, repeat: int) -> str:
            log.append(name)
            return f"{name}{item}{repeat}"

        return call

    found = interleave(
        {name: run(name) for name in "abc"}, 2, QUIET,
        repeats={"a": 2}, warm_up=2, pending={"a": [0, 1], "b": [1], "c": []},
        on_result=lambda name, item, timed: reported.append((name, item, timed.value)),
    )  # fmt: skip
    assert "".join(log) == "abababaaa"
    values = {name: [[timed.value for timed in of_item] for of_item in by_item] for name, by_item in found.items()}
    assert values == {"a": [["a00", "a01"], ["a10", "a11"]], "b": [[], ["b10"]], "c": [[], []]}
    assert reported == [("a", 0, "a00"), ("b", 1, "b10"), ("a", 1, "a10"), ("a", 0, "a01"), ("a", 1, "a11")]
    assert interleave({"c": run("c")}, 2, QUIET, pending={"c": []}) == {"c": [[], []]}
    assert log.count("c") == 0


def test_what_is_stored_is_not_measured_again(tmp_path: Path) -> None:
    measured: list[int] = []

    def square(item: int, repeat: int) -> int:
        measured.append(item)
        if item == stop:
            raise KeyboardInterrupt
        return item * item

    def run() -> dict[str, list[Any]]:
        with Store(tmp_path) as store:
            return interleave_stored(
                {"square": square}, 4, QUIET, store=store, identity=lambda name, item: {"name": name, "item": item},
                record=lambda name, item, timed: [timed.value],
            )  # fmt: skip

    stop = 2
    with pytest.raises(KeyboardInterrupt):
        run()
    assert measured == [0, 0, 1, 2]  # the first is the warm-up
    stop = -1
    assert run() == run() == {"square": [[0], [1], [4], [9]]}
    assert measured == [0, 0, 1, 2, 0, 2, 3]


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put({"a": 1}, 0)
        (file,) = (tmp_path / "records").iterdir()
        file.with_name(f"{file.name}.tmp").symlink_to("/dev/full")
        with pytest.raises(OSError, match=rf"No space left on device: '{file}'"):
            store.put({"a": 1}, 1)
        assert store.get({"a": 1}) == 0


def test_of_repeated_runs_the_one_of_median_time_is_kept() -> None:
    log: list[str] = []

    def decoder(name: str, seconds: list[float]) -> Any:
        waiting = [0.0, *seconds]  # the first is the warm-up's

        def generate(prompt: Any, **settings: Any) -> Generation:
            log.append(name)
            return Generation([], stats=Stats(n_generated=1, seconds=waiting.pop(0)))

        return generate

    decoders = {"a": decoder("a", [3, 5, 1, 9, 2, 7]), "b": decoder("b", [4, 6])}
    found = decode_all(decoders, [[1], [2]], {}, QUIET, repeats={"a": 3})
    assert [run.seconds for run in found["a"]] == [2, 7]
    assert [run.seconds for run in found["b"]] == [4, 6]
    assert "".join(log) == "ababbaaaaa"  # in turn, and the turn moves on
