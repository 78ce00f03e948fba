"""The page of a comparison: it asks no host for anything, shows the numbers of report.json, and hides what means
nothing; what the figures are made from; and the comparison in Python."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specpilot
from datasets import Dataset
from rich.console import Console
from specpilot.cli.demo import COPIES, LAG_FREE, SPECDEC, TREES, UNTRAINED, run_demo
from specpilot.cli.real_model import Answer, compare_answers, summary
from specpilot.common.json_file import build
from specpilot.compare.decoders import NONE, ComparedDecoder, Loader
from specpilot.compare.document import page
from specpilot.compare.drafted import DRAFT_CONFIDENCE, Check, Observer, drafted_of, observing
from specpilot.compare.findings import concluded
from specpilot.compare.interval import Interval
from specpilot.compare.recorded import Counts, speed_of
from specpilot.compare.report import document_of
from specpilot.compare.results import (
    ComparisonReport,
    GroupAcceptance,
    LengthSpeed,
    Piece,
    Report,
    Sample,
)
from specpilot.compare.run import Comparison
from specpilot.compare.settings import CONFIDENCE, FIXED
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length import AcceptancePredictor, LengthController, Step
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.prompts import PromptRow, load_prompts
from specpilot.infer.authors import pieces_by_author
from specpilot.infer.options import DecodingOptions
from specpilot.infer.text_stream import TextStream
from specpilot.simulate.replay import replay

from ..helpers.page import ParsedPage
from ..helpers.reports import comparison_report, with_figures
from ..helpers.tiny import save_pair
from ..helpers.traces import traced_text


def report(prompts: int = 20, **figures: Any) -> ComparisonReport:
    """Return the report of a comparison by clock and replay."""
    timed = comparison_report({"mine": (1.5, True), "3": (1.4, False)}, prompts=prompts, informed=1.9, **figures)
    replayed = with_figures(timed, replay=Interval(1.3, 1.2, 1.4))
    return concluded(replayed, {"Decode with it": "specpilot generate 'a <b>'"})


CHECKS = [[Check(i, 1 + i % 9, (i % 10) / 10, ((i + 4 * j) % 7) / 7) for i in range(200)] for j in range(12)]
ROWS = [PromptRow(str(i), ("code", "chat")[i % 2], "") for i in range(12)]
DRAFTED = drafted_of({DRAFT_CONFIDENCE: CHECKS, "mine": [of[:-1] for of in CHECKS]}, ROWS)
FIGURES: dict[str, Any] = {
    "lengths": [LengthSpeed(k, 1.1 + k / 8, 1.0 + k / 8, 1.25 + k / 8) for k in (1, 2, 4)],
    "place_grouping": DRAFTED.place_grouping,
    "acceptance": DRAFTED.acceptance(),
    "lines": DRAFTED.lines(),
    "predictors": DRAFTED.quality(),
    "mosaic": Sample("Say <hi>.", {"mine": [Piece(by, f"{by}&\n") for by in ("target", "draft", "copy", "rejected")]}),
}


def whole(data: Report) -> str:
    return page([document_of(data)])


def test_no_host_is_asked_and_everything_is_escaped() -> None:
    document = whole(replace(report(**FIGURES), target="<script>alert(1)</script>"))
    parsed = ParsedPage(document)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(tag for tag, _ in parsed.elements)
    names = {name for _, attrs in parsed.elements for name in attrs}
    assert {"src", "srcset", "data"}.isdisjoint(names)
    links = [attrs["href"] for _, attrs in parsed.elements if "href" in attrs]
    ids = ["#" + str(attrs["id"]) for _, attrs in parsed.elements if "id" in attrs]
    assert links
    assert {*links} < {*ids}  # places of the page itself
    assert len({*ids}) == len(ids)
    assert not any(name.startswith("on") for name in names)
    assert not any(word in document for word in ("url(", "@import", "http:", "https:"))
    assert "default-src 'none'" in document
    assert "specpilot generate 'a <b>'" in parsed.of("pre")
    assert "Say <hi>." in parsed.of("pre")


def test_the_numbers_are_those_of_the_report() -> None:
    data = report(**FIGURES)
    parsed = ParsedPage(document_of(data).html())
    points, cells = parsed.of("title"), [*parsed.of("td"), *parsed.of("b")]
    assert data.sentences[0] in parsed.of("p")
    assert not [cell for cell in cells if "b>" in cell]
    for row in data.decoders.values():
        assert row.clock is not None
        assert row.title == "none" or f"{row.clock.value:.2f}" in " ".join(parsed.of("span"))
        assert {row.title, f"{row.tokens_per_second:.0f}", "1.30"} <= {*cells}
    expected = [f"fixed length: {x.length}, {x.value:.3f} ({x.low:.3f}–{x.high:.3f})" for x in data.lengths]
    for domain, places in data.lines.items():
        for place, group in places.items():
            bounds = f" ({group.low:.3f}–{group.high:.3f})" if domain == "all" else ""
            name = "all tokens" if domain == "all" else domain
            expected.append(f"{name}: {place[0]}, {group.acceptance:.3f}{bounds}")
    for groups in data.acceptance.values():
        assert {f"{x.acceptance:.2f} ({x.low:.2f}–{x.high:.2f})" for x in groups.values()} <= {*cells}
    for name in (DRAFT_CONFIDENCE, "mine"):
        reliability = data.predictors[name]["all"].reliability
        expected += [f"{name}: {group.predicted:.3g}, {group.observed:.3f}" for group in reliability]
        for quality in data.predictors[name].values():
            values = (quality.brier, quality.brier_constant, quality.ece, quality.auroc)
            assert {f"{value:.3f}" for value in values} <= {*cells}
    assert sorted(points) == sorted(expected)
    assert [text for text in parsed.of("span") if text.endswith(("&\n", "&⏎"))] == [
        "target&\n", "draft&\n", "copy&\n", "rejected&⏎"
    ]  # fmt: skip


def test_unmeasured_figures_are_left_out() -> None:
    headings = {
        "lengths": {"Speed by draft length"}, "lines": {"Acceptance by position"},
        "acceptance": {"Acceptance", "Acceptance at each position"},
        "predictors": {"Calibration of predictors", "Predictors of acceptance", "Predictors at each position"},
        "mosaic": {"Source of each token"},
    }  # fmt: skip
    all_headings = {*ParsedPage(whole(report(**FIGURES))).of("h2")}
    for figure, names in headings.items():
        without = ParsedPage(whole(report(**{name: value for name, value in FIGURES.items() if name != figure})))
        assert all_headings - {*without.of("h2")} == names


def test_decoders_without_figures_are_explained() -> None:
    full = comparison_report({"3": (1.2, False), "default": (1.1, False)})
    replayed = with_figures(full, clock=None, tokens_per_second=None, accepted=None, replay=Interval(1.1, 1.0, 1.2))
    rows = replayed.decoders | {"default": replace(replayed.decoders["default"], replay=None)}
    (note,) = (section.note for section in document_of(replace(replayed, decoders=rows)).sections[:1])
    assert "default" in note
    assert "--no-clock" in note
    for report_with_figures in (full, replayed):
        assert "--no-clock" not in document_of(report_with_figures).sections[0].note


def test_meaningless_figures_are_left_out() -> None:
    lines = {"all": {"1": GroupAcceptance(0.5, 100, 1), "2": GroupAcceptance(0.5, 9, 1)}}
    few = report(prompts=4, lengths=FIGURES["lengths"], lines=lines, place_grouping="depth")
    parsed = ParsedPage(document_of(few).html())
    body = " ".join(text for tag, text in parsed.texts if tag != "style")
    assert "–" not in body  # intervals
    assert "polygon" not in {tag for tag, _ in parsed.elements}
    assert "4 prompts: too few" in body
    assert "Acceptance by position" not in body  # of one point
    assert drafted_of({DRAFT_CONFIDENCE: [CHECKS[0][:9]]}, ROWS).quality() == {}
    assert drafted_of({DRAFT_CONFIDENCE: [[]]}, ROWS).acceptance() == {}
    data = report()
    assert "1.90" in whole(data)
    assert "1.90" not in whole(replace(data, informed=None, sentences=data.sentences[:1]))
    assert "Clock and replay differ" in whole(data)
    agreeing = {name: replace(row, replay=row.clock) for name, row in data.decoders.items()}
    assert "Clock and replay differ" not in whole(replace(data, decoders=agreeing))


# what the figures are made from


class Sometimes(LengthController):
    """Drafts in every third round, each time one token more."""

    def start_text(self) -> None:
        self.round, self.drafts = 0, list[int]()

    def start_round(self) -> bool:
        self.round += 1
        return self.round % 3 == 0

    def observe(self, step: Step) -> bool:
        return step.index < self.round

    def end_round(self, drafted: int, accepted: int) -> None:
        self.drafts.append(drafted)


def test_rounds_without_a_draft_are_not_charged_for_starting_one() -> None:
    """Otherwise a controller that rarely drafts, such as the informed bound, would seem too slow."""
    *_, trace = traced_text(budget=30)
    cost, rule = CostModel(0.1, 1.0, 0.02, 0.3), Sometimes()
    stats = replay(trace, rule, frozenset())
    seconds = (stats.n_target_forwards - 1) * cost.round(0) + sum(cost.round(n) - cost.round(0) for n in rule.drafts)
    assert speed_of([Counts.of(stats)], cost).value == pytest.approx((stats.n_generated - 1) * cost.round(0) / seconds)


class Twice(AcceptancePredictor):
    """Predicts half of each token's acceptance, so that a test can identify the token."""

    mean = 0.5

    def __init__(self, lag: int, accept: list[float]) -> None:
        self.lag, self.accept = lag, accept

    def predict(self, step: Step) -> float:
        return self.accept[step.node] / 2


def walked(trace: Any) -> Iterator[tuple[int, float]]:
    """Return positions and acceptances of the checked tokens by the trace, without the budget's last token."""
    index = 1
    for position in range(1, trace.budget - 2):
        yield index, trace.accept[position]
        index = index + 1 if trace.kept[position] else 1


@pytest.mark.parametrize("lag", [0, 1])
def test_every_checked_token_is_observed_once(lag: int) -> None:
    *_, trace = traced_text(budget=30)
    observer = Observer(trace, Twice(lag, trace.accept))
    replay(trace, observer, frozenset())
    observed = [(check.position, check.accept) for check in observer.checks]
    expected = [(position, round(accept, 5)) for position, accept in walked(trace)]
    if lag == 0:
        assert observed == expected
        assert all(check.predicted == pytest.approx(check.accept / 2, abs=1e-5) for check in observer.checks)
    else:  # the last one has no token after it
        assert observed == expected[: len(observed)]
        assert len(observed) >= len(expected) - 1
    (checks,) = observing(Twice(lag, trace.accept), {}, frozenset()).of([trace])
    assert checks == observer.checks
    confidence_checks = observing(None, {}, frozenset()).of([trace])
    both = drafted_of({DRAFT_CONFIDENCE: confidence_checks, "lags": [checks]}, ROWS)
    has_prediction = ~np.isnan(both.predictions["lags"])
    assert both.predictions["lags"][has_prediction].tolist() == [check.predicted for check in checks]
    assert both.accept[has_prediction].tolist() == [check.accept for check in checks]


def test_acceptance_and_quality_are_by_position() -> None:
    places = ["1", "2", "3", "4", "5", "6", "7", "8 and more"]
    quality, accepted = DRAFTED.quality()[DRAFT_CONFIDENCE], DRAFTED.acceptance()
    assert list(quality) == ["all", *places]
    assert list(accepted["depth"]) == list(DRAFTED.lines()["code"]) == places
    assert sum(quality[place].tokens for place in places) == quality["all"].tokens == 2400
    later = [check for of in CHECKS for check in of if check.position >= 8]
    brier = sum((check.predicted - check.accept) ** 2 for check in later) / len(later)
    assert quality["8 and more"].brier == pytest.approx(brier)
    assert accepted["depth"]["8 and more"].acceptance == pytest.approx(np.mean([c.accept for c in later]))
    assert accepted["domain"]["code"].prompts == 6


def test_a_mosaic_says_who_wrote_each_token() -> None:
    base = DecodingOptions(draft="tiny-draft")
    loader, prompt = Loader(base), load_prompts("builtin-copy", split="test", limit=1)[0].prompt
    for word, writers in (("2", {"target", "draft"}), ("2+ngram", {"target", "draft", "copy"}), (NONE, {"target"})):
        decoder = loader.decoder(ComparedDecoder.parse(word, base), CostModel(0.1, 1.0, 0.0))
        generation = decoder.generate(prompt, chat=True, max_new_tokens=40, seed=1)
        pieces = [piece for piece in pieces_by_author(generation.rounds, TextStream(decoder.tokenizer)) if piece[1]]
        assert "".join(text for by, text in pieces if by != "rejected") == generation.text
        assert {by for by, _ in pieces} - {"rejected"} == writers


# in Python


def test_the_package_can_be_called_and_imported_from() -> None:
    module = import_module("specpilot.compare.run")  # which sets the attribute `compare` of `specpilot`
    from specpilot import compare

    assert compare is specpilot.compare
    assert [*signature(compare).parameters] == [*signature(module.compare).parameters]
    for decoders, words in (
        (["nonsense"], "^decoders='nonsense': no such controller"),
        ("no.yaml", "^decoders='no.yaml': "),
    ):
        with pytest.raises(specpilot.InputError, match=words):
            compare(decoders)
    with pytest.raises(specpilot.InputError, match="minutes"):
        compare(minutes=-1)


def test_a_comparison_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    target, draft = save_pair(tmp_path)
    output = tmp_path / "out"
    options: dict[str, Any] = {"target": target, "draft": draft, "chat": False, "max_new_tokens": 8, "cost": 0.1}
    comparison = specpilot.compare(
        {"two": 2, "three": {"length": "3"}}, ["one", "two", "three"], output=output, wandb="p", **options
    )
    assert [name for name in comparison.report.decoders if name in ("none", "two", "three")] == ["none", "two", "three"]
    assert json.loads((output / "report.json").read_text()) == comparison.report.to_dict()
    assert (output / "report.html").read_text() == whole(comparison.report)
    assert comparison.sentences[0] in " ".join(ParsedPage(comparison._repr_html_()).of("p"))
    assert len([*(output / "wandb").glob("offline-run-*")]) == 1
    rows = [{"messages": [{"role": "user", "content": text}]} for text in ("one", "two")]
    other = options | {"chat": True, "output": str(tmp_path / "other"), "clock": False, "limit": 1}
    words = specpilot.compare([2, "3", "ngram"], Dataset.from_list(rows), **other)
    assert {"2", "3", "ngram"} <= words.report.decoders.keys()
    assert words.report.prompts == 1
    assert all(row.clock is None for row in words.report.decoders.values())
    assert words.report.decoders["2"].replay is not None
    with pytest.raises(specpilot.InputError, match="holds no rows"):
        specpilot.compare([2], [], **other)
    with pytest.raises(specpilot.InputError, match="nowhere"):
        specpilot.compare(["nowhere"], ["one"], output=output, **options)
    with pytest.raises(specpilot.InputError, match="unknown key 'lenght'"):
        specpilot.compare({"a": {"lenght": 3}}, ["one"], output=output, **options)


# the demo from end to end, small, on the models that ship


@pytest.mark.slow  # the README's commands go the same way in the others
def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    console = Console(record=True, width=80, force_terminal=False)
    run_demo(output, prompts=40, held_out=3, max_new_tokens=12, seed=0, console=console)
    report = json.loads((output / "report.json").read_text())
    page = (output / "report.md").read_text()
    assert [*report["temperatures"]] == ["1", "0"]
    for temperature_report in report["temperatures"].values():
        rows = temperature_report["decoders"]
        assert list(rows) == ["none", LAG_FREE, SPECDEC, COPIES, TREES, UNTRAINED, FIXED, CONFIDENCE]
        assert all(name in page for name in rows)
        assert {name for name, row in rows.items() if row["replay"] is None} == {COPIES, TREES, UNTRAINED}
        assert all(row["clock"] is not None for row in rows.values())
        assert temperature_report["sentences"][0] in page
        assert temperature_report["engine_settings"] is None
        costs = {name: build(CostModel, cost, "cost") for name, cost in temperature_report["costs"].items()}
        assert CostModel.load(output / "cost.json") in [costs[name] for name in (LAG_FREE, COPIES, TREES)]
        assert costs[UNTRAINED] == costs["none"]
    assert report["greedy"] == {"checked": 3, "identical": 3}
    assert load_controller(str(output / "controller")).config.kind == "lag-free-head"
    assert load_controller(str(output / "specdec")).config.provenance.target == "tiny"
    console_text = console.export_text()
    places = [console_text.index(words) for words in ("4  Comparison", "5  Check", "[token of the target]", "Results")]
    assert places == sorted(places)
    assert all(len(line) <= 80 or str(tmp_path) in line for line in console_text.splitlines())


def test_demo_of_a_loaded_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function of `specpilot demo --real` runs with the included pair."""
    base = DecodingOptions(target="tiny", draft="tiny-draft+ngram")
    trained = ComparedDecoder.of(base, "ours", length="tiny-lag-free", copies="tiny-copies", tree="auto", cost=0.2)
    console = Console(record=True, width=80, force_terminal=False)
    monkeypatch.setattr("os.getloadavg", lambda: (999.0, 0.0, 0.0))
    ratios = compare_answers(base, trained, 12, console)
    output = " ".join(console.export_text().split())
    for temperature, ratio in zip((0, 1), ratios, strict=True):  # sampled texts are the same as well: they have a seed
        line = output.partition(f"temperature {temperature}: ")[2]
        assert f" with drafts: {ratio:.2f} × (" in line
        assert "the same text for 3 of 3 prompts" in line
    assert "idle machine" in output


def test_speeds_of_a_real_model_have_digits_and_their_range() -> None:
    """Speeds of a slow model on a busy machine have two digits instead of 1 and 0."""
    answers = [Answer(10, 40.0, 40.0, same=True), Answer(30, 120.0, 60.0, same=False)]
    assert summary(answers) == (
        "0.25 tokens/s without drafts, 0.4 with drafts: 1.60 × (1.00–2.00 by prompt); the same text for 1 of 2 prompts"
    )


def test_a_report_is_saved_to_any_folder(tmp_path: Path) -> None:
    comparison = Comparison(comparison_report({"3": (1.5, False)}), tmp_path / "own")
    paths = comparison.save(str(tmp_path / "other"))
    assert [path.parent for path in paths] == [tmp_path / "other"] * 3
    assert [path.read_bytes() for path in comparison.save()] == [path.read_bytes() for path in paths]
    with pytest.raises(specpilot.InputError, match=f"folder='{paths[0]}'"):
        comparison.save(paths[0])
