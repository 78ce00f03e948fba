"""The adaptive scheduler: vLLM's scheduler with simulated acceptance, whole engines on a CPU, and refused settings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from specpilot.checkpoints import shipped
from specpilot_vllm import build
from specpilot_vllm.options import TimesOptions
from specpilot_vllm.round_times import graph_table, load_seconds, measure_times

from experiments.studies.adaptive_length import (
    LONGEST,
    MAX_ROWS,
    Phase,
    Simulation,
    make_scheduler,
    survivals,
    times_file,
)
from tests.helpers.refusals import refused

from engines import engine, generate, greedy, prompts  # skips without vLLM  # isort: skip
from specpilot_vllm import adaptive
from vllm.triton_utils import dispatcher

NAME = "specpilot_vllm.adaptive.AdaptiveScheduler"
SETTINGS = {"specpilot_adaptive": {"cost": 0.1}}
DRAFT_MODEL = {"method": "draft_model", "model": str(shipped("tiny-draft")), "num_speculative_tokens": 4}
NGRAM = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, "num_speculative_tokens": 4}


def scheduler(folder: Path, table: list[list[int]] | None = None) -> Any:
    settings = {"specpilot_adaptive": {"cost": str(times_file(folder))}}
    return make_scheduler(settings, table, NAME)


def test_the_scheduler_learns_acceptance_and_drafts_accordingly(tmp_path: Path) -> None:
    simulation = Simulation(scheduler(tmp_path, graph_table(LONGEST, MAX_ROWS)), seed=1)
    lengths = {}
    for number, phase in enumerate((Phase(1, 0.9), Phase(8, 0.3), Phase(1, 0.9))):
        simulation.phase(number, phase, 12 * phase.requests)
        estimate = simulation.scheduler.draft_lengths.acceptance.survivals
        assert estimate[1] == pytest.approx(phase.acceptance, abs=0.08)
        lengths[number] = float(np.mean(simulation.drafted[len(simulation.drafted) // 2 :]))
    assert lengths[0] > 4
    assert lengths[1] < 2
    assert lengths[2] > 4
    last = simulation.scheduler
    assert not last.verified
    assert len(last.planned) <= 1  # the last request, whose end no step has announced


def test_planned_lengths_are_those_that_are_verified(tmp_path: Path) -> None:
    """Every scheduled draft has the planned length, and no others are counted."""
    simulation = Simulation(scheduler(tmp_path), seed=2)
    run = simulation.run

    def checked(output: Any) -> Any:
        drafts = {name: len(tokens) for name, tokens in output.scheduled_spec_decode_tokens.items()}
        planned = simulation.scheduler.verified.get(id(output), {})
        assert {name: length for name, length in planned.items() if length} == drafts
        return run(output)

    simulation.run = checked  # type: ignore[method-assign]
    simulation.phase(0, Phase(8, 0.8), 24)
    assert set(simulation.drafted) - {0}


def test_only_lengths_with_graphs_are_drafted(tmp_path: Path) -> None:
    simulation = Simulation(scheduler(tmp_path, [[1, 1, 2], [2, MAX_ROWS, 5]]), seed=3)
    simulation.phase(0, Phase(4, 0.9), 12)
    assert {*simulation.drafted} == {2, 5}


@pytest.mark.parametrize("speculative", [DRAFT_MODEL, NGRAM], ids=["draft_model", "ngram"])
def test_greedy_texts_of_engines_are_those_of_plain_vllm(
    speculative: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner drafts as many tokens as the scheduler chooses."""
    plain = engine(drafted=0)
    # The kernels of the process are registered now. A second time fails if numba, which finds n-grams, is imported.
    monkeypatch.setattr(dispatcher, "register_kernels", lambda overrides: None)
    llm = engine(drafted=4, speculative_config=speculative, scheduler_cls=NAME, additional_config=SETTINGS)
    core = llm.llm_engine.engine_core.engine_core
    steps: list[tuple[int, int]] = []
    schedule = core.scheduler.schedule

    def recorded(*args: Any) -> Any:
        output = schedule(*args)
        drafts = output.scheduled_spec_decode_tokens.values()
        steps.append((output.num_spec_tokens_to_schedule, max(map(len, drafts), default=0)))
        return output

    core.scheduler.schedule = recorded
    texts = prompts(4)
    expected = generate(plain, texts, greedy())
    assert generate(llm, texts, greedy()) == expected
    assert [text for prompt in texts for text in generate(llm, [prompt], greedy())] == expected
    planned = [length for length, _ in steps]
    assert len({*planned}) > 1
    assert any(drafted for _, drafted in steps)
    for before, (_, drafted) in zip(planned, steps[1:], strict=False):
        assert drafted <= before
    acceptance = core.scheduler.draft_lengths.acceptance
    assert 0 < acceptance.accepted[0] <= acceptance.trials[0]


def test_times_are_measured_for_the_scheduler(tmp_path: Path) -> None:
    result = measure_times(TimesOptions(requests=(1, 3), longest=3, engine='{"max_model_len": 512}'))
    assert {rows: [*times] for rows, times in result["seconds"].items()} == {
        "1": ["0", "1", "2", "3"],
        "3": ["0", "1", "2", "3"],
    }
    file = tmp_path / "times.json"
    file.write_text(json.dumps(result))
    table = load_seconds(str(file), 3, 4, reads_text=True)
    assert table.shape == (5, 4)
    assert (table > 0).all()


def config(**changes: Any) -> Any:
    """The fields of a ``VllmConfig`` that the scheduler reads."""
    fields: dict[str, Any] = {
        "method": "eagle3", "v2": True, "graphs": False, "ranks": 1, "additional": SETTINGS, "verification": False,
    } | changes  # fmt: skip
    speculative = SimpleNamespace(
        method=fields["method"], num_speculative_tokens=3, enable_adaptive_verification=fields["verification"]
    )
    mode = SimpleNamespace(has_full_cudagraphs=lambda: fields["graphs"])
    return SimpleNamespace(
        additional_config=fields["additional"],
        speculative_config=speculative if fields["method"] else None,
        parallel_config=SimpleNamespace(data_parallel_size=fields["ranks"]),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        compilation_config=SimpleNamespace(cudagraph_mode=mode),
        use_v2_model_runner=fields["v2"],
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"additional": {}}, r"^specpilot_adaptive: is missing in --additional-config.*specpilot-vllm times"),
        ({"additional": {"specpilot_adaptive": {"costs": 1}}}, r"^specpilot_adaptive: "),
        ({"additional": {"specpilot_adaptive": {"cost": 0.1, "probe_share": 0.5}}}, r"probe_share=0.5: must be from 0"),
        ({"additional": {"specpilot_adaptive": {"cost": "none.json"}}}, r"^cost='none.json': no such file; measure"),
        ({"additional": SETTINGS | {"specpilot": {"length": 3}}}, r"^specpilot: per-request lengths and"),
        ({"method": None}, r"^speculative_config: is missing"),
        ({"verification": True}, r"^enable_adaptive_verification: cuts the drafts"),
        ({"graphs": True}, r"^num_speculative_tokens_per_batch_size: is missing.*\[\[1, 1, 0\], \[2, 2, 1\]"),
    ],
)
def test_unsupported_configurations(changes: dict[str, Any], message: str) -> None:
    with refused(message):
        adaptive.adaptive_lengths(config(**changes), None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"ranks": 2}, "under data parallelism"), ({"v2": False, "method": "medusa"}, "the method 'medusa' ignores")],
)
def test_lengths_that_vllm_keeps_fixed(
    changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adaptive.adaptive_lengths(config(**changes), None) is None
    assert message in capsys.readouterr().out


def test_lengths_are_those_of_the_table_or_all() -> None:
    every = adaptive.adaptive_lengths(config(), None)
    some = adaptive.adaptive_lengths(config(graphs=True), [0, 1, 1, 3, 3])
    assert every is not None
    assert some is not None
    assert every.lengths.tolist() == [0, 1, 2, 3]
    assert some.lengths.tolist() == [1, 3]


def test_other_builds_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(r"^vllm 0\.3\d.*: its scheduler has no dynamic_sd_lookup, requests; leave --scheduler-cls out"):
        adaptive.check_attributes(object())
    monkeypatch.setattr(build, "version", lambda name: "0.34.0")
    monkeypatch.setattr(adaptive, "installed_version", build.installed_version)
    with refused(r"^vllm 0\.34\.0: specpilot-vllm supports"):
        adaptive.AdaptiveScheduler()


def test_survivals_of_the_simulation() -> None:
    assert survivals(0.5)[:3] == pytest.approx([1.0, 0.5, 0.5 * 0.5 * 0.97])
