"""`specpilot compare`: decoders in words, tuning by halves, the clock and its intervals, the report."""

import io
import json
import re
import shlex
import time
from copy import copy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import specpilot
from rich.console import Console
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.compare import comparison
from specpilot.compare import run as compare_run
from specpilot.compare.assisted import can_assist
from specpilot.compare.comparison import compare_decoders, keeps_texts, same_texts
from specpilot.compare.decoders import NONE, ComparedDecoder, Loader, read_decoders
from specpilot.compare.engine_settings import TRANSFORMERS_COSTS, EngineCosts
from specpilot.compare.findings import concluded, sentences
from specpilot.compare.interval import Interval, ratio_interval
from specpilot.compare.recorded import Counts, Informed, Tracer, decoded, speedup
from specpilot.compare.report import document_of
from specpilot.compare.results import ComparisonReport, Task
from specpilot.compare.runner import Meter, decode_all, interleave
from specpilot.compare.settings import CONFIDENCE, FIXED, crossed, tuned
from specpilot.compare.store import Store
from specpilot.controllers.length import MAX_DRAFT
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.verification_shape import Shape
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import PromptRow
from specpilot.infer.core import Generation, Stats
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.options import DecodingOptions, GenerateOptions
from specpilot.models.loading.names import load_tokenizer
from specpilot.serve.options import ServeOptions

from ..helpers.clock import Clock, one_day_later
from ..helpers.reports import BASE, comparison_report, of, with_figures
from ..helpers.tiny import save_pair
from ..helpers.traces import traced_text

QUIET = Console(quiet=True)
ROWS = [PromptRow(str(i), "x", f"prompt {i}") for i in range(6)]


# decoders


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("3", {"length": "3"}),
        ("cumulative-confidence:0.4+ngram", {"draft": "d+ngram", "length": "cumulative-confidence:0.4"}),
        ("3+ngram:6", {"draft": "d+ngram:6", "length": "3"}),
        ("ngram", {"draft": "ngram"}),
        ("none", {"draft": None}),
        ("transformers:assisted-3", {"engine": "transformers:assisted-3"}),
    ],
)
def test_decoder_names(word: str, expected: dict[str, Any]) -> None:
    assert ComparedDecoder.parse(word, BASE) == of(word, **expected)


def test_decoders_have_what_the_comparison_has_in_common() -> None:
    base = DecodingOptions(target="t", draft="d", dtype="bfloat16", draft_dtype="int8", trust_remote_code=True)
    common = ["--target", "t", "--draft", "d", "--draft-dtype", "int8", "--dtype", "bfloat16", "--trust-remote-code"]
    assert ComparedDecoder.of(base, "a").words() == common
    assert ComparedDecoder.parse("ngram", base).draft_dtype is None  # there is no draft model that could have it


@pytest.mark.parametrize("kind", [GenerateOptions, ServeOptions, ComparedDecoder])
def test_decoding_options_are_the_same_everywhere(kind: type[DecodingOptions]) -> None:
    own_fields = {entry.name: (entry.type, entry.default) for entry in fields(kind)}
    common = {entry.name: (entry.type, entry.default) for entry in fields(DecodingOptions)}
    assert own_fields | common == own_fields


def test_decoders_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("long: 8\ntree: {tree: 3x1, verifier: mcss}\nalone: {draft: null}\nrouted: {router: r}\n")
    assert read_decoders(file, BASE) == [
        of("long", length="8"),
        of("tree", tree="3x1", verifier="mcss"),
        of("alone", draft=None),
        of("routed", draft=None, router="r"),
    ]
    for text, message in (
        ("a: {lenght: 3}", "unknown key 'lenght'"),
        ("[1]", "object of keys and values"),
        ("a: {length: 3, length: 4}", "the key 'length' is there twice"),
        ("a: {tree: 2}", "a.tree=2:"),
        ("a: {threshold: 2}", "threshold=2:"),
        ("a: {target: t}", "have one target"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=message):
            read_decoders(file, BASE)


def test_models_are_shared(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    base = DecodingOptions(target=target, draft=draft)
    loader = Loader(base)
    fixed, mixed = (loader.decoder(ComparedDecoder.parse(word, base)) for word in ("2", "3+ngram"))
    assert fixed.target is mixed.target
    assert fixed.drafts[0] is mixed.drafts[0]
    double = loader.decoder(ComparedDecoder.of(base, "a", dtype="float64"))
    assert double.target is not fixed.target


# replay


@pytest.mark.parametrize("shape", [(), ((1, 1.0), (3, 1.5), (4, 9.0), (7, 9.0), (12, 40.0))])
def test_the_informed_bound_is_the_best_length_of_every_round(shape: Shape) -> None:
    """The bound equals the best of all lengths, with 1 + Σ Π a tokens in the time of a round."""
    *_, trace = traced_text(budget=16)
    cost, rate = CostModel(0.15, 1.0, 0.05, 0.1, shape), 0.9
    lengths = Informed.of(trace, cost, rate).lengths
    for start in range(1, len(trace.text)):
        node, gain, survival, values = start, 1.0, 1.0, [1.0 - rate * cost.round(0)]
        while node >= 0 and len(values) < 21:
            survival *= trace.accept[node]
            gain += survival
            values.append(gain - rate * cost.round(len(values)))
            node = trace.after[node]
        assert lengths[start] == int(np.argmax(values))


def test_speedup_is_eq_2_3_against_no_drafts() -> None:
    cost = CostModel(0.2, 1.0, 0.05)
    seconds = 40 * 0.2 + 30 * 1.0 + (40 + 30) * 0.05
    assert speedup(60, 40, 30, 30, 0, cost=cost) == pytest.approx(60 / seconds * 1.05)
    assert speedup(60, 0, 60, 0, 0, cost=cost) == pytest.approx(1.0)
    counts = [Counts(61, 20, [5, 10, 15, *[0] * 18])]
    assert [values.tolist() for values in decoded(counts, cost)] == [[60], [40], [30], [25], [0]]


def test_rules_are_tuned_on_the_other_half() -> None:
    """Drafts of 8 tokens are accepted on even prompts and rejected on odd ones.

    Each half is evaluated with the value that is best on the other half.
    """

    def rounds(drafted: int, number: int) -> list[int]:
        return [number * (drafted == k) for k in range(MAX_DRAFT + 1)]

    good, bad = Counts(61, 53, rounds(8, 7)), Counts(61, 0, rounds(8, 60))
    short = Counts(61, 30, rounds(2, 30))
    replayed = {(FIXED, 1.0): [short] * 4, (FIXED, 8.0): [good, bad, good, bad]}
    chosen = tuned((1.0, 8.0), FIXED, replayed, CostModel(0.1, 1.0, 0.0))
    assert chosen == (1.0, 8.0, 1.0)
    assert crossed(FIXED, chosen, replayed) == [short, bad, short, bad]
    half = {setting: counts[:1] for setting, counts in replayed.items()}  # the other half is empty
    assert tuned((1.0, 8.0), FIXED, half, CostModel(0.1, 1.0, 0.0)) == (3, 3, 3)


def test_outputs_are_traced_by_the_rule(tmp_path: Path) -> None:
    """Traces of both rules have the same texts. Their results are stored separately."""
    target, draft = save_pair(tmp_path)
    decoder = SpeculativeDecoder.from_pretrained(target, draft, device="cpu")
    rows = [PromptRow("a", "all", "some prompt")]
    tracers = {
        rule: Tracer(decoder, SamplingParams(1.0, 50), 12, 0, chat=False, verifier=rule)
        for rule in ("token-wise", "invariant")
    }
    (token_wise,), (invariant,) = (tracer.traces(rows) for tracer in tracers.values())
    assert token_wise.text == invariant.text
    assert token_wise.accept != invariant.accept
    assert "verifier" not in tracers["token-wise"].identity
    assert tracers["invariant"].identity["verifier"] == "invariant"
    for accepted, token, x in zip(invariant.kept, invariant.tokens, invariant.text, strict=False):
        assert accepted == (token == x)


# the clock


def test_intervals_cover() -> None:
    """Intervals of the ratio of two rates cover the true ratio, over repeated draws of thirty prompts."""
    rng, covered, times = np.random.default_rng(0), 0, 400
    for _ in range(times):
        tokens = rng.integers(20, 120, 30)
        pace = rng.lognormal(0, 0.3, 30)
        seconds = [tokens * pace * rng.lognormal(0, 0.1, 30) / speed for speed in (1.3, 1.0)]
        estimate = ratio_interval(tokens, seconds[0], tokens, seconds[1])
        covered += estimate.low <= 1.3 <= estimate.high
    assert 0.90 <= covered / times <= 0.98


def test_configurations_take_turns_and_warm_up_is_not_counted() -> None:
    log: list[str] = []

    def run(name: str, item: int, repeat: int) -> str:
        log.append(name)
        return f"{name}{item}{repeat}"

    timings = interleave(
        {name: partial(run, name) for name in "abc"}, 2, QUIET,
        repeats={"a": 2}, pending={"a": [0, 1], "b": [1], "c": []},
    )  # fmt: skip
    reported = [(name, item, timed.value) for name, item, timed in timings]
    assert "".join(log) == "ababaaa"
    assert reported == [("a", 0, "a00"), ("b", 1, "b10"), ("a", 1, "a10"), ("a", 0, "a01"), ("a", 1, "a11")]


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put({"a": 1}, 0)
        (file,) = (tmp_path / "records").iterdir()
        file.with_name(f"{file.name}.tmp").symlink_to("/dev/full")
        with pytest.raises(OSError, match=rf"No space left on device: '{file}'"):
            store.put({"a": 1}, 1)
        assert store.get({"a": 1}) == 0


def test_of_repeated_runs_the_one_of_median_time_is_kept() -> None:
    def decoder(seconds: list[float]) -> Any:
        waiting = [0.0, *seconds]  # the first is the warm-up's

        def generate(prompt: Any, **settings: Any) -> Generation:
            return Generation([], stats=Stats(n_generated=1, seconds=waiting.pop(0)))

        return generate

    decoders = {"a": decoder([3, 5, 1, 9, 2, 7]), "b": decoder([4, 6])}
    counters = decode_all(decoders, [[1], [2]], {}, QUIET, repeats={"a": 3})
    assert [run.seconds for run in counters["a"]] == [2, 7]
    assert [run.seconds for run in counters["b"]] == [4, 6]


# energy, of a known power by a monitor with the interface of zeus


class Monitor:
    """A GPU at 60 W and a processor at 40 W, with a clock that the test moves."""

    def __init__(self, *, cpu: bool) -> None:
        self.now, self.cpu = 0.0, cpu

    def begin_window(self, key: str, restart: bool) -> None:
        assert restart
        self.started = self.now

    def end_window(self, key: str) -> SimpleNamespace:
        seconds = self.now - self.started
        return SimpleNamespace(gpu_energy={0: 60 * seconds}, cpu_energy={0: 40 * seconds} if self.cpu else None)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("cpu", "watts"), [(True, 100), (False, 60)])
def test_devices_add_up_and_pauses_do_not_count(cpu: bool, watts: float) -> None:
    monitor = Monitor(cpu=cpu)
    meter, energies = Meter(monitor), []
    for work, pause in [(7.5, 1.0), (2.25, 5.5), (12.0, 0.5)]:
        meter.begin()
        monitor.sleep(pause)
        meter.begin()  # an interval that failed is begun again
        monitor.sleep(work)
        energies.append(meter.end())
        monitor.sleep(pause)
    assert energies == [7.5 * watts, 2.25 * watts, 12 * watts]
    none = Meter()  # without counters nothing is made up
    none.begin()
    assert none.end() is None


# the report


def test_the_sentence_names_the_winner_and_what_it_is_measured_by() -> None:
    first, *further_sentences = sentences(
        comparison_report({"mine": (1.5, True), "3": (1.4, False), "other": (1.501, True)})
    )
    assert first.startswith("On your 20 prompts, at temperature 1, ")
    assert "other decodes 1.50 (1.49–1.51) × as fast as no drafts and 1.07 (1.07–1.07) × the best rule (3)." in first
    assert further_sentences == ["Within the noise of it: mine."]
    _, *further_sentences = sentences(comparison_report({"mine": (1.5, True), "3": (1.499, False)}))
    assert further_sentences == ["Within the noise of it: 3."]
    (first,) = sentences(comparison_report({"3": (1.5, False), "mine": (1.2, True)}))
    assert "× the best trained decoder (mine)" in first
    report = comparison_report({"3": (1.5, False)})
    assert sentences(report) == [
        "On your 20 prompts, at temperature 1, 3 decodes 1.50 (1.50–1.50) × as fast as no drafts."
    ]
    replayed = with_figures(report, replay=Interval(1.6, 1.5, 1.7))
    for informed, is_shown in ((1.7, True), (1.59, False)):  # a bound is shown only above what it bounds
        last = sentences(replace(replayed, informed=informed))[-1]
        assert (f"would reach {informed:.2f} × in the replay; the best decoder reaches 1.60 ×" in last) == is_shown
    # Decoding without drafts always has a replay; the bound is compared with decoders that draft.
    only_none = replace(replayed, decoders={**report.decoders, NONE: replayed.decoders[NONE]}, informed=1.7)
    assert sentences(only_none) == sentences(report)


def test_the_table_fits_eighty_columns() -> None:
    report = comparison_report(
        {"some-controller[/x]|+ngram": (1.5, True), "cumulative confidence": (1.2, False)}, informed=1.6
    )
    document, console = document_of(concluded(report, {"Decode": "specpilot generate"})), Console(record=True, width=80)
    console.print(document.sections[0].table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    for word in ("some-controller[/x]|+ngram", "speed-up", "accepted", "tokens/s"):
        assert word in text
    assert r"| **some-controller[/x]\|+ngram** |" in document.markdown()


def test_the_time_decides_how_many_prompts_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time also decides the number of passes. Without a limit, all prompts are decoded once."""
    clock, lines = Clock(), Console(record=True, width=200, file=io.StringIO())
    monkeypatch.setattr(time, "perf_counter", clock)
    plans = []
    comparing: Any = SimpleNamespace(
        rows=ROWS * 20, specs={NONE: None, "3": None}, families={}, task=Task(SamplingParams(1.0, 50), 64), identity={},
        store=SimpleNamespace(compute=lambda key, plan: plan()), console=lines,
        _seconds_per_token=lambda costs: 0.01, began=0.0, engines=True, _drafts_by_states=lambda: False,
    )  # fmt: skip
    for minutes in (None, 0.5, 5.0, 500.0):
        plans.append(comparison._Comparing._plan(comparing, {}, True, minutes))
    assert plans[0] == (120, 1)
    assert plans[1][0] < plans[2][0] <= plans[3][0] == 120
    assert plans[3][1] > 1
    assert "longer than" not in lines.export_text()
    printed_texts = []
    for spent in (30.0, 45.0, 3000.0):  # seconds of a minute and a half that loading and measuring took
        clock.now = spent
        plans.append(comparison._Comparing._plan(comparing, {}, True, 1.5))
        printed_texts.append(lines.export_text())
    assert plans[4][0] > plans[5][0] == plans[6][0] > 0  # half of the time is left
    assert ["longer than minutes=1.5" in text for text in printed_texts] == [False, False, True]
    assert "about 1 min at most after 50.0 min of loading and measuring" in printed_texts[2]


def test_the_minutes_count_from_the_start_of_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Loading the prompts and loading the target take a minute each, by a clock that only they move."""
    clock, spent = Clock(), []
    monkeypatch.setattr(time, "perf_counter", clock)
    read, load = compare_run.prompts_of, Loader.target

    def slow_prompts(options: Any) -> Any:
        clock.now += 60.0
        return read(options)

    def slow_target(loader: Loader, options: Any = None) -> Any:
        clock.now += 0.0 if loader._targets else 60.0
        return load(loader, options)

    class Planned(Exception):
        pass

    def planned(comparing: Any, *arguments: Any) -> Any:
        spent.append(clock.now - comparing.began)
        raise Planned

    monkeypatch.setattr(compare_run, "prompts_of", slow_prompts)
    monkeypatch.setattr(Loader, "target", slow_target)
    monkeypatch.setattr(comparison._Comparing, "_plan", planned)
    clock.now = 1000.0
    for start in (
        lambda: specpilot.compare(["3"], ["a"], rules=False, cost=0.2, output=tmp_path / "a"),
        lambda: cli.main(
            ["compare", "--limit", "1", "--length", "3", "--cost", "0.2", "--output", str(tmp_path / "b")]
        ),
    ):
        with pytest.raises(Planned):
            start()
    assert spent == [120.0, 120.0]


# from end to end


def test_compare_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All kinds of decoders run once on the included pair, and the printed command runs unchanged."""
    monkeypatch.setattr(comparison, "MOST_PASSES", 1)
    output = tmp_path / "out put"
    words = ["--limit", "5", "--max-new-tokens", "8", "--minutes", "60", "--output", str(output)]
    words += ["--length", "tiny-lag-free,3+ngram,ngram,tiny-copies,transformers:assisted-2"]
    assert cli.main(["compare", *words]) == 0
    shown_text = capsys.readouterr().out
    report = json.loads((output / "report.json").read_text())
    assert set(report["decoders"]) == {
        NONE, "tiny-lag-free", "3+ngram", "ngram", "transformers:assisted-2", FIXED, CONFIDENCE
    }  # fmt: skip
    for row in report["decoders"].values():
        assert row["clock"]["low"] <= row["clock"]["value"] <= row["clock"]["high"]
        assert row["tokens_per_second"] > 0
    assert report["decoders"]["tiny-lag-free"]["replay"]["value"] > 0
    assert report["decoders"]["3+ngram"]["replay"] is None
    assert report["decoders"]["ngram"]["tokens_per_forward"] >= 1
    page = (output / "report.md").read_text()
    assert report["verifier"] == "invariant"  # every text has a seed
    assert "use the verification rule invariant, unless" in page
    assert report["sentences"][0] in page
    assert [*report["refused"]] == ["tiny-copies"]
    assert all(f"{name} is left out: {reason}." in page for name, reason in report["refused"].items())
    assert report["sentences"][0].split(" × ")[0] in " ".join(shown_text.split())
    for line in report["commands"].values():
        assert line in shown_text
        assert line in page
    if "Decode with it" in report["commands"]:
        _, *printed_words = shlex.split(report["commands"]["Decode with it"])
        assert cli.main([*printed_words, "--max-new-tokens", "4"]) == 0
        assert capsys.readouterr().out
    settings = report["engine_settings"]
    assert [each["engine"] for each in settings["engines"]] == [
        "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "transformers"
    ]  # fmt: skip
    assert "token-wise verification" in settings["acceptance"]  # the comparison's own rule is invariant
    assert TRANSFORMERS_COSTS in settings["engines"][-1]["notes"]
    for engine in settings["engines"]:
        assert f"{engine['engine']}: {engine['options']}\n" in shown_text
        assert engine["options"] in page
    (output / "report.json").unlink()
    assert cli.main(["compare", *words]) == 0  # from what is stored
    assert json.loads((output / "report.json").read_text()) == report
    assert ComparisonReport.from_dict(report).to_dict() == report
    newer = report | {"later": 1, "decoders": {name: row | {"later": 1} for name, row in report["decoders"].items()}}
    assert ComparisonReport.from_dict(newer).to_dict() == report
    older = {key: value for key, value in report.items() if key not in ("mosaic", "refused")}
    read = ComparisonReport.from_dict(older)
    assert (read.mosaic, read.refused, read.best) == (None, {}, report["best"])
    with pytest.raises(InputError, match="prompts='5'"):
        ComparisonReport.from_dict(report | {"prompts": "5"})


def test_costs_of_transformers_rounds_are_measured_and_stored(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    base, task = DecodingOptions(target=target, draft=draft), Task(SamplingParams(1.0, 8), 6)

    def settings(**more: Any) -> Any:
        report = compare_decoders(
            [ComparedDecoder.parse("2", base)], ROWS, Loader(base), task, tmp_path / "report",
            clock=False, rules=False, console=QUIET, **more,
        )  # fmt: skip
        assert report.engine_settings is not None
        return report.engine_settings

    measured = settings()
    assert TRANSFORMERS_COSTS in measured["transformers"].notes
    assert settings() == measured
    costs = EngineCosts(CostModel.load(0.1), "synthetic costs")
    assert TRANSFORMERS_COSTS not in settings(engine_costs=costs)["transformers"].notes


def test_transformers_drafts_only_with_models_of_one_vocabulary(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    loader = Loader(DecodingOptions(target=target, draft=draft))
    models = loader.target().target, loader.draft(draft, loader.base)
    assert can_assist(*models)
    smaller = copy(models[1])
    smaller.vocab_size -= 1
    assert not can_assist(models[0], smaller)


def test_every_printed_command_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands of all decoders are checked, not only the winner's: with costs, copies and another precision."""
    base = DecodingOptions(draft="tiny-draft")
    loader, decoder_spec = Loader(base), partial(ComparedDecoder.of, base)
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"cost": CostModel(0.2, 1.0, 0.0).to_dict()}))
    for spec in (
        decoder_spec(NONE, draft=None),
        decoder_spec("a", draft="tiny-draft+ngram", length="tiny-lag-free", copies="tiny-copies", adapt=True),
        decoder_spec("b", tree="2x1", verifier="mcss", draft_dtype="bfloat16"),
        decoder_spec("d", draft="tiny-draft+ngram", adapt=False).with_default_drafts(),
        decoder_spec("c", length="tiny-head", threshold=0.7),
    ):
        words = shlex.split(" ".join(["generate", *spec.words(cost), "--max-new-tokens", "4", "Hi."]))
        assert cli.main([*words, "--seed", "3"]) == 0
        output = loader.decoder(spec, CostModel(0.2, 1.0, 0.0)).generate("Hi.", chat=True, max_new_tokens=4, seed=3)
        printed_text = capsys.readouterr().out.rstrip("\n")
        assert printed_text == output.text or spec.adapt is True
        assert [word for word in words if "adapt" in word] == {True: ["--adapt"], False: ["--no-adapt"]}.get(
            spec.adapt, []
        )


def test_a_comparison_has_the_date_of_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = save_pair(tmp_path)
    tokenizer = load_tokenizer(target)
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}" + str(tokenizer.chat_template)
    tokenizer.save_pretrained(target)
    base, task = DecodingOptions(target=target, draft=draft), Task(SamplingParams(1.0, 8), 6)

    def replayed(folder: str) -> Any:
        arguments = [ComparedDecoder.parse("2", base)], ROWS, Loader(base), task, tmp_path / folder
        report = compare_decoders(*arguments, clock=False, cost=CostModel.load(0.1), console=QUIET)
        return report.decoders["2"].replay

    expected = replayed("begun")
    for file in (tmp_path / "begun" / "records").glob("*.json"):
        if "day" not in json.loads(file.read_text())["identity"]:
            file.unlink()
    one_day_later(monkeypatch)
    assert replayed("begun") == expected
    assert replayed("other") != expected


def test_a_comparison_without_settings_of_engines_replays_no_drafts_of_engines(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    base, task = DecodingOptions(target=target, draft=draft), Task(SamplingParams(1.0, 8), 6)

    def compared(folder: str, *, engines: bool) -> tuple[ComparisonReport, str]:
        report = compare_decoders(
            [ComparedDecoder.parse("2", base)], ROWS, Loader(base), task, tmp_path / folder,
            clock=False, cost=CostModel.load(0.1), engines=engines, console=QUIET,
        )  # fmt: skip
        return report, "".join(file.read_text() for file in (tmp_path / folder / "records").glob("*.json"))

    (report, records), (without, fewer) = compared("with", engines=True), compared("without", engines=False)
    assert report.engine_settings is not None
    assert not report.engine_settings["transformers"].notes  # the passed costs hold for all engines
    assert without.engine_settings is None
    assert without.decoders == report.decoders
    assert ('"chains"' in records, '"chains"' in fewer) == (True, False)


def with_texts(report: ComparisonReport, **texts: list[str]) -> ComparisonReport:
    """Return the report with digests of the decoders' texts, and with the numbers of unchanged texts."""
    timed = {name: [replace(run, texts=[text]) for run, text in zip(report.timed[name], texts[name], strict=True)]
             for name in report.timed}  # fmt: skip
    decoders = {
        name: row if name == NONE else replace(row, same_texts=same_texts(timed[name], timed[NONE]))
        for name, row in report.decoders.items()
    }
    return replace(report, timed=timed, decoders=decoders)


def test_whether_drafts_change_texts() -> None:
    report = comparison_report({"one": (1.5, False), "two": (1.4, False)}, prompts=3)
    plain = ["a", "b", "c"]
    same = with_texts(report, none=plain, one=plain, two=plain)
    assert "Drafts change no text: 6 of 6 texts are the same as without drafts, token for token." in sentences(same)
    other = with_texts(report, none=plain, one=plain, two=["a", "x", "c"])
    (line,) = (line for line in sentences(other) if "texts are the same" in line)
    assert line.startswith("5 of 6 texts")
    assert "(two 2 of 3)" in line
    assert not any("texts are the same" in line for line in sentences(report))  # they are not known


def test_speeds_of_the_same_texts_are_paired() -> None:
    """Prompts that take longer with both decoders only widen an unpaired interval."""
    report = comparison_report({"one": (1.5, False)}, prompts=20)
    timed = {
        name: [replace(run, seconds=run.seconds * (1 + i % 5)) for i, run in enumerate(runs)]
        for name, runs in report.timed.items()
    }
    texts = [str(i) for i in range(20)]
    same = with_texts(replace(report, timed=timed), none=texts, one=texts)
    (line,) = (line for line in sentences(same) if "on the same tokens" in line)
    paired, unpaired = map(float, re.findall(r"\d\.\d\d", line))
    assert paired < 0.05
    assert unpaired > 0.5
    greedy = replace(same, task=replace(same.task, sampling=SamplingParams(0.0)))
    different = with_texts(replace(report, timed=timed), none=texts, one=[*texts[1:], "x"])
    for without in (greedy, different, report):
        assert not any("on the same tokens" in line for line in sentences(without))


@pytest.mark.parametrize(
    ("options", "temperature", "expected"),
    [
        ({"length": "3"}, 1.0, True),
        ({"length": "3"}, 0.0, True),
        ({"length": "3", "verifier": "token-wise"}, 1.0, False),
        ({"length": "3", "verifier": "token-wise"}, 0.0, True),
        ({"length": "3", "verifier": "typical"}, 0.0, False),
        ({"engine": "transformers:assisted-3"}, 0.0, False),
    ],
    ids=str,
)
def test_which_decoders_must_write_the_same_texts(options: dict[str, Any], temperature: float, expected: bool) -> None:
    spec = ComparedDecoder.of(DecodingOptions(target="tiny", draft="tiny-draft"), "one", **options)
    assert keeps_texts(spec, SamplingParams(temperature, 50)) == expected
