"""`specpilot compare --data` and `--against`: labels by group, confidences, predictors, drift, and computed costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import specpilot
import torch
from rich.console import Console
from scipy.stats import binom
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.compare import drift
from specpilot.compare.comparison import trained_for, trained_on
from specpilot.compare.decoders import NONE, ComparedDecoder
from specpilot.compare.drafted import ALL, DRAFT_CONFIDENCE, drift_of, judgements
from specpilot.compare.drift import Sums, drifts, mean_interval, sums_of
from specpilot.compare.labelled import predicted, read_drafted, read_labelled
from specpilot.compare.options import CompareOptions
from specpilot.compare.report import document_of
from specpilot.compare.responses import read_responses
from specpilot.compare.results import DataReport, PredictorQuality
from specpilot.compare.served import labelled_trace, report_of, tokens_per_draft_round
from specpilot.compare.settings import CONFIDENCE, FIXED
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead, HeadPredictor
from specpilot.controllers.checkpoints.card import judgement, model_card, strengths_and_weaknesses
from specpilot.controllers.checkpoints.checkpoint import load_controller, read_config, save_controller
from specpilot.controllers.checkpoints.provenance import prompt_digest
from specpilot.controllers.length.cost_model import CostModel
from specpilot.data_gen.dataset import Manifest, ShardWriter, read_manifest
from specpilot.data_gen.draft_states import at_drafted_tokens
from specpilot.data_gen.kinds import AcceptanceRow, RoundsRow, Row, Rows, read_dataset, text_of
from specpilot.data_gen.on_policy import make_on_policy_data
from specpilot.data_gen.options import OnPolicyDataOptions
from specpilot.data_gen.prompts import PromptRow, load_prompts
from specpilot.infer.options import DecodingOptions
from specpilot.models import CausalLM

from ..helpers.bad_files import FILES
from ..helpers.drafts import predictor
from ..helpers.page import ParsedPage
from ..helpers.tiny import save_pair
from ..helpers.training import HIDDEN, make_model, make_rows, write_dataset

QUIET = Console(quiet=True)
ROOT = Path(__file__).parents[2]


def options(**changes: Any) -> CompareOptions:
    return CompareOptions(**changes)


def write(folder: Path, rows: list[Any], manifest: Manifest) -> Path:
    """Write a dataset of ``rows`` with the settings of ``manifest``."""
    names = ("kind", "target", "draft", "fingerprint", "sampling", "prompts", "settings", "verifier")
    identity = manifest.to_dict()
    with ShardWriter(folder, {name: identity[name] for name in names if name in identity}) as writer:
        if rows:
            writer.write(Rows(rows))
        writer.complete()
    return folder


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return datasets of rounds of one tiny pair at two temperatures, and two halves of the first dataset."""
    place = tmp_path_factory.mktemp("rounds")
    target, draft = save_pair(place)
    prompts = place / "prompts.jsonl"
    lines = [{"id": str(i), "domain": "xy"[i % 3 == 0], "prompt": f"{i * 7919} is"} for i in range(60)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folders = {}
    for name, temperature in (("warm", 1.0), ("cold", 0.1)):
        settings = OnPolicyDataOptions(
            target=target, draft=draft, prompts=str(prompts), length="3", max_new_tokens=24, temperature=temperature,
            top_k=None, shard_size=60,
        )  # fmt: skip
        folders[name] = make_on_policy_data(settings, place / name, console=QUIET)
    rows, manifest = read_dataset(folders["warm"], RoundsRow), read_manifest(folders["warm"])
    for name, half in (("even", rows[::2]), ("odd", rows[1::2])):
        folders[name] = write(place / name, half, manifest)
    return folders


def test_a_planted_drift_is_found_and_halves_have_none(
    rounds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "drift"
    words = ["--data", str(rounds["warm"]), "--against", str(rounds["cold"]), "--output", str(output)]
    assert cli.main(["compare", *words]) == 0
    report = json.loads((output / "report.json").read_text())
    whole = report["drift"][ALL][ALL]
    assert whole["found"]
    assert report["differs"] == ["temperature 1.0 against 0.1"]
    for name, data in (("acceptance", "warm"), ("other", "cold")):  # as the manifests have it
        assert whole[name] == pytest.approx(read_manifest(rounds[data]).mean_acceptance)
    first = f"Acceptance {'rose' if whole['difference'] > 0 else 'fell'} from {rounds['warm']} to {rounds['cold']}"
    assert report["sentences"][0].startswith(first)
    assert first in (output / "report.md").read_text()
    assert "Drift" in capsys.readouterr().out
    page = ParsedPage((output / "report.html").read_text())
    assert page.of("h2")[:3] == ["Drift", "Acceptance by position", "Calibration of predictors"]
    points = [f"{word}: 1, {row['acceptance']:.3f}" for word, row in
              ((side["data"], side["acceptance"]["depth"]["1"]) for side in (report, report["against"]))]  # fmt: skip
    assert all(any(title.startswith(point) for title in page.of("title")) for point in points)
    comparison = specpilot.compare(data=str(rounds["warm"]), against=str(rounds["cold"]), output=tmp_path / "python")
    assert comparison.report.to_dict() == report
    assert DataReport.from_dict(report) == comparison.report
    with pytest.raises(InputError, match="nothing is decoded"):
        specpilot.compare({"a": 3}, data=str(rounds["warm"]))
    assert report["sentences"][0] in ParsedPage(comparison._repr_html_()).of("p")

    halves = [read_labelled([str(rounds[name])], options(), QUIET) for name in ("even", "odd")]
    same = drift_of(*(half.drafted for half in halves))
    assert [row for rows in same.values() for row in rows.values() if row.is_significant] == []
    assert {"depth", "position", "domain"} <= same.keys()


def test_settings_for_engines_from_rounds(rounds: dict[str, Path], tmp_path: Path) -> None:
    """The draft length is chosen for all prompts, by domain and by temperature, and compared with other traffic."""
    names = {name: str(rounds[name]) for name in ("warm", "cold")}
    comparison = specpilot.compare(
        data=names["warm"], against=names["cold"], engine_cost=0.05, output=tmp_path / "settings"
    )
    report, settings = comparison.report, comparison.engine_settings
    assert isinstance(report, DataReport)
    assert settings is not None
    assert set(settings.groups["domain"]) == {"x", "y"}
    depths = [report.acceptance["depth"][str(depth)].acceptance for depth in (1, 2, 3)]
    gains = [1 + sum(np.cumprod(depths)[:length]) for length in (1, 2, 3)]
    speeds = [gain / (1 + 0.05 * length) for length, gain in enumerate(gains, 1)]
    choice = settings["vLLM"].choice
    assert choice.speed.value == pytest.approx(max(speeds))
    assert choice.length == (speeds.index(max(speeds)) + 1 if max(speeds) > 1 else 0)
    assert len(settings.changes) == 1
    text = (tmp_path / "settings/report.json").read_text()
    assert DataReport.from_dict(json.loads(text)) == report
    assert report.against is not None
    for old, new in (("priced", "cost_description"), ("along", "place_grouping")):  # names of earlier versions
        assert text.count(f'"{new}":') >= 2  # in the report and in that of the second dataset
        text = text.replace(f'"{new}":', f'"{old}":')
    assert DataReport.from_dict(json.loads(text)) == report

    both = specpilot.compare(data=[*names.values()], engine_cost=0.05, output=tmp_path / "both").engine_settings
    assert both is not None
    assert set(both.groups["temperature"]) == {"1", "0.1"}
    assert report.lengths_by_cost == {}
    with pytest.raises(InputError, match=r"engine_cost=.*auto"):
        specpilot.compare(data=names["warm"], engine_cost="auto", output=tmp_path / "auto")


def test_rounds_without_costs_have_a_draft_length_for_each_cost(
    rounds: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report names the missing costs and the option that takes them."""
    data = str(rounds["warm"])
    assert cli.main(["compare", "--data", data, "--output", str(tmp_path / "without")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "no settings for other engines" in output
    assert "--engine-cost" in output
    assert "Draft length by the cost of a draft step" in output
    report = DataReport.from_dict(json.loads((tmp_path / "without/report.json").read_text()))
    assert report.engine_settings is None
    assert "Draft length by the cost of a draft step" in (tmp_path / "without/report.html").read_text()
    for step, choice in report.lengths_by_cost.items():
        with_cost = specpilot.compare(data=data, engine_cost=float(step), output=tmp_path / step)
        assert with_cost.engine_settings is not None
        assert with_cost.engine_settings["SGLang"].choice == choice
        assert not any("no settings" in note for note in with_cost.notes)
    lengths = [choice.length for choice in report.lengths_by_cost.values()]
    assert lengths == sorted(lengths, reverse=True)
    assert len({*lengths}) > 1


def test_few_rounds_have_no_settings(rounds: dict[str, Path], tmp_path: Path) -> None:
    """The report says how many tokens are missing, with and without costs."""
    rows, manifest = read_dataset(rounds["warm"], RoundsRow), read_manifest(rounds["warm"])
    data = write(tmp_path / "few", rows[:1], manifest)
    for cost in (None, 0.1):
        comparison = specpilot.compare(data=str(data), engine_cost=cost, output=tmp_path / f"report-{cost}")
        assert comparison.engine_settings is None
        assert "fewer than 30 drafted tokens" in comparison.notes[-1]


def clusters(random: np.random.Generator, prompts: int, shift: float = 0.0) -> Sums:
    """Return tokens of prompts in five groups. Prompts differ in acceptance and in their numbers of tokens."""
    count = random.poisson(6, (prompts, 5))
    mean = np.clip(random.normal(0.6, 0.2, (prompts, 1)) + shift, 0.02, 0.98)
    accepted = random.binomial(count, np.broadcast_to(mean, count.shape)).astype(float)
    drafted = count.astype(float)
    every = [np.concatenate([x.sum(1, keepdims=True), x], 1) for x in (accepted, drafted)]
    return Sums(*every)


def named(sums: Sums, prefix: str) -> tuple[list[str], Sums]:
    return [f"{prefix}{i}" for i in range(len(sums.drafted))], sums


@pytest.mark.parametrize(
    ("shared", "sizes"),
    [
        (False, (20, 20)),
        pytest.param(True, (20, 20), marks=pytest.mark.slow),
        pytest.param(False, (5, 100), marks=pytest.mark.slow),
    ],
)
def test_false_alarms_and_power(shared: bool, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a drift, at most 5 % of the pairs of datasets raise an alarm.

    Their prompts are equal or different, or one dataset has few prompts.
    """
    monkeypatch.setattr(drift, "ASSIGNMENTS", 400)  # the level is the same with fewer
    random, repeats = np.random.default_rng(0), 480
    alarms = detections = 0
    for repeat in range(repeats):
        prefixes = ("a", "a" if shared else "b")
        first, second = (named(clusters(random, size), prefix) for size, prefix in zip(sizes, prefixes, strict=True))
        alarms += any(group.is_significant for group in drifts(first, second, seed=repeat))
        if repeat < 20 and sizes == (20, 20):
            detections += drifts(first, named(clusters(random, 20, -0.3), prefixes[1]), seed=repeat)[0].is_significant
    assert alarms <= binom.ppf(0.95, repeats, 0.05)
    assert detections >= 18 or sizes != (20, 20)


def test_p_values_are_those_of_two_families_with_half_of_the_level_each() -> None:
    """The observed assignment, one of 40, has the largest statistic in two groups and the smallest in the third."""
    falling, rising = np.arange(40.0, 0.0, -1.0), np.arange(1.0, 41.0)
    p = drift.adjusted(np.stack([falling, falling, rising], 1))
    # The least p-value of the second and third group is as small in two assignments, the first and the last.
    assert p.tolist() == pytest.approx([2 / 40, 2 * 2 / 40, 1.0])


def test_intervals_cover() -> None:
    random = np.random.default_rng(1)
    count = random.poisson(6, (400, 60, 1)) + 1.0
    means = random.beta(3, 2, (400, 60, 1))
    accepted = random.binomial(count.astype(int), means).astype(float)
    inside = 0
    for s, n in zip(accepted, count, strict=True):
        _, low, high = mean_interval(Sums(s, n))
        inside += bool(low[0] <= 0.6 <= high[0])
    assert inside / 400 == pytest.approx(0.95, abs=3 * np.sqrt(0.05 * 0.95 / 400) + 0.01)


def test_sums_are_of_prompts_and_a_group_of_few_is_not_judged() -> None:
    groups = [True, np.array([False, False, False, True])]
    names, sums = sums_of(np.array(["p", "p", "q", "p"]), np.array([0.5, 1.0, 0.25, 1.0]), groups)
    assert names == ["p", "q"]
    assert sums.accepted.tolist() == [[2.5, 1.0], [0.25, 0.0]]
    assert sums.drafted.tolist() == [[3.0, 1.0], [1.0, 0.0]]
    first = Sums(np.array([[0.0, 0.0]] * 10), np.array([[5.0, 0.0]] * 6 + [[5.0, 5.0]] * 4))
    second = Sums(np.array([[5.0, 5.0]] * 10), np.array([[5.0, 5.0]] * 10))
    whole, few = drifts(named(first, "a"), named(second, "b"))
    assert (whole.is_significant, whole.acceptance, whole.other, whole.tokens, few.p) == (True, 0.0, 1.0, 50, 1.0)


# labels, confidences and predictors


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return acceptance data whose draft model can be loaded."""
    place = tmp_path_factory.mktemp("labelled")
    make_model(1).save_pretrained(place / "draft")
    return write_dataset(place / "data", make_rows(40), str(place / "draft"))


def test_groups_and_confidences_are_those_of_the_rows(labelled: Path) -> None:
    data = read_labelled([str(labelled)], options(length="3"), QUIET)
    rows, manifest = read_dataset(labelled, AcceptanceRow), read_manifest(labelled)
    report = report_of([data], CostModel(0.1, 1.0, 0.0), "costs")
    every = [p for row in rows for p in row.p]
    assert report.acceptance[ALL][ALL].acceptance == pytest.approx(np.mean(every))
    second = report.acceptance["position"]["2"]
    assert second.acceptance == pytest.approx(np.mean([row.p[1] for row in rows]))
    assert second.tokens == len(rows)

    model, sampling = make_model(1), manifest.sampling
    for row, reading in zip(rows, data.readings, strict=True):
        logits = model(torch.tensor([[*row.prompt_ids, *row.x]])).logits[0, len(row.prompt_ids) - 1 : -1]
        q = sampling(logits).gather(1, torch.tensor(row.y)[:, None])[:, 0]
        confidences = torch.tensor([signals[0] for signals in reading.signals])
        torch.testing.assert_close(confidences[q < 1], q[q < 1].to(confidences), rtol=1e-4, atol=1e-6)
    confidences = data.drafted.predictions[DRAFT_CONFIDENCE]
    assert report.predictors[DRAFT_CONFIDENCE][ALL].brier == pytest.approx(
        np.mean((confidences - every) ** 2), abs=1e-6
    )
    assert [*report.decoders] == [NONE, FIXED, CONFIDENCE]
    assert report.best is not None
    assert report.best == NONE or "replayed on the labels at costs" in " ".join(report.sentences)
    speed = report.decoders[report.best].replay
    assert speed is not None
    assert report.informed is None or report.informed >= speed.value
    without = report_of([data]).decoders
    assert {"1", "4", "cumulative-confidence:0.4"} <= without.keys()
    assert without["1"].replay is None
    assert without["1"].tokens_per_forward > 1


def test_predictors_are_given_the_states_that_they_read(labelled: Path) -> None:
    """A predictor with a lag reads the state at a token, as in its training.

    Other predictors read the state before it.
    """
    model, manifest = CausalLM(make_model(1)), read_manifest(labelled)
    text = text_of(read_dataset(labelled, AcceptanceRow)[0])
    reading = read_drafted(model, text, manifest)
    *_, states = at_drafted_tokens(model, text)
    torch.testing.assert_close(reading.after, states)
    head = AcceptanceHead(HIDDEN, depth=1)
    expected = head.probability(states).flatten().tolist()
    assert predicted(HeadPredictor(head), text, reading) == pytest.approx(expected, abs=1e-6)
    prompt = torch.tensor([[*text.prompt_ids, *text.x[:-1]]])
    hidden = make_model(1).model(prompt).last_hidden_state[0, len(text.prompt_ids) - 1 :]
    torch.testing.assert_close(reading.before, hidden, rtol=1e-4, atol=1e-5)
    assert len(predicted(predictor(), text, reading)) == len(text.tokens)


def test_labels_are_replayed_as_kept(labelled: Path) -> None:
    data = read_labelled([str(labelled)], options(length="3"), QUIET)
    accepted, accept = [], []
    for index, reading in enumerate(data.readings):
        trace = labelled_trace(data, index, reading)
        assert trace.after == [*range(1, len(trace.text)), -1]
        accepted += trace.kept
        accept += trace.accept
    spread = np.sqrt(np.sum(np.array(accept) * (1 - np.array(accept))))
    assert abs(sum(accepted) - sum(accept)) < 3 * spread


def test_worse_predictors_are_said_to_be() -> None:
    good = PredictorQuality(
        kl=0.1, kl_constant=0.2, auroc=0.9, brier=0.1, brier_constant=0.2, ece=0.02, mean_acceptance=0.5, tokens=100,
        reliability=[],
    )  # fmt: skip
    assert judgements({}) == []
    confidence = {ALL: replace(good, auroc=0.8, kl=0.3)}  # a confidence is no calibrated probability
    assert judgements({DRAFT_CONFIDENCE: confidence, "a": {ALL: good}}) == []
    (both,) = judgements({DRAFT_CONFIDENCE: confidence, "a": {ALL: replace(good, kl=0.2, auroc=0.7)}})
    assert both == (
        "a predicts probabilities that are worse than a constant (KL divergence 0.20; predicting the mean gives 0.20) "
        "and ranks tokens worse than the draft's own confidence (AUROC 0.70; the confidence has 0.80)."
    )
    (mixed,) = judgements({DRAFT_CONFIDENCE: confidence, "a": {ALL: replace(good, kl=0.6816, kl_constant=0.432)}})
    assert mixed == (
        "a ranks tokens better than the draft's own confidence (AUROC 0.90; the confidence has 0.80), but predicts "
        "probabilities that are worse than a constant (KL divergence 0.68; predicting the mean gives 0.43)."
    )


@pytest.mark.parametrize(
    ("metrics", "warnings"),
    [
        ({"kl": 0.2, "kl_constant": 0.2}, 1),
        ({"kl": 0.9, "kl_unweighted": 0.1, "kl_constant": 0.2}, 0),  # a weighted loss: judged with its weights undone
        ({"kl_unweighted": 0.3, "kl_constant": 0.2, "calibrated_kl": 0.1, "calibrated_kl_constant": 0.3}, 0),
        ({"brier": 0.2, "brier_constant": 0.1, "auroc": 0.6, "auroc_draft": 0.7}, 2),
        ({"auroc": None, "auroc_draft": 0.7}, 0),
        ({"greedy_reward": 0.2843, "best_single": 0.3}, 1),
        ({"greedy_reward": 0.3, "best_single": 0.3}, 0),
    ],
)
def test_cards_warn_of_worse_predictors(metrics: dict[str, float | None], warnings: int) -> None:
    _, weaknesses = strengths_and_weaknesses(metrics)
    assert len(weaknesses) == warnings
    assert all(phrase in judgement(metrics) for phrase in weaknesses)
    config = read_config(ROOT / "checkpoints/tiny-lag-free")
    defined_metrics = {name: value for name, value in metrics.items() if value is not None}
    assert model_card(replace(config, metrics=defined_metrics)).count("**Warning**") == min(warnings, 1)


def test_prompts_of_the_training_are_named(tmp_path: Path) -> None:
    trained = load_controller("tiny-lag-free")
    provenance = replace(trained.config.provenance, prompts=(prompt_digest("prompt 1"), prompt_digest("another")))
    folder = save_controller(tmp_path / "own", trained.head, replace(trained.config, provenance=provenance))
    base = DecodingOptions(target="tiny", draft="tiny-draft")
    words = ["2", str(folder), "tiny-lag-free", "online-confidence"]
    specs = {word: ComparedDecoder.parse(word, base) for word in words}
    rows = [PromptRow(f"id-{i}", "all", f"prompt {i}") for i in range(3)]
    assert trained_on(specs, rows) == {str(folder): ["id-1"]}
    (training_prompts,) = trained_on(
        specs, load_prompts("builtin-large", split="train", domains=("sql",), limit=9)
    ).items()
    assert (training_prompts[0], len(training_prompts[1]) > 5) == ("tiny-lag-free", True)


def test_controllers_for_another_rule_are_named(tmp_path: Path) -> None:
    trained = load_controller("tiny-lag-free")
    folders = {}
    for rule in ("token-wise", "invariant"):
        config = replace(trained.config, provenance=replace(trained.config.provenance, verifier=rule))
        folders[rule] = str(save_controller(tmp_path / rule, trained.head, config))
    base = DecodingOptions(target="tiny", draft="tiny-draft")
    specs = {word: ComparedDecoder.parse(word, base) for word in ("2", *folders.values())}
    assert trained_for(specs, "invariant") == trained_for(specs, "token-wise") == {}  # they stop by costs
    specs |= {folder: replace(specs[folder], threshold=0.5) for folder in folders.values()}
    for rule, other in (("invariant", "token-wise"), ("token-wise", "invariant")):
        assert trained_for(specs, rule) == {folders[other]: other}
    assert trained_for({word: replace(spec, verifier="block") for word, spec in specs.items()}, "invariant") == {}


@pytest.mark.parametrize(("reward", "named"), [("throughput", True), ("rouge", False)])
def test_routers_for_another_rule_are_named(reward: str, named: bool, tmp_path: Path) -> None:
    trained = load_controller(str(FILES / "router"))
    folder = str(save_controller(tmp_path / "router", trained.head, replace(trained.config, reward=reward)))
    spec = ComparedDecoder(name="routed", target="tiny", draft=None, router=folder)
    assert trained_for({"routed": spec}, "invariant") == ({"routed": "token-wise"} if named else {})
    assert trained_for({"routed": spec}, "token-wise") == trained_for({"routed": spec}, "block") == {}


def test_data_of_two_rules(labelled: Path, tmp_path: Path) -> None:
    """Data of two rules is refused as one dataset.

    A drift to another rule, and a controller for another rule, are reported.
    """
    seeded = write(tmp_path / "seeded", make_rows(30), replace(read_manifest(labelled), verifier="invariant"))
    with pytest.raises(InputError, match="verifier differs"):
        read_labelled([str(labelled), str(seeded)], options(), QUIET)
    report = report_of([read_labelled([str(folder)], options(length="3"), QUIET) for folder in (labelled, seeded)])
    assert (report.verifier, report.against.verifier) == ("token-wise", "invariant")  # type: ignore[union-attr]
    assert "verification rule token-wise against invariant" in report.differs
    assert f"{seeded}: acceptance by the verification rule invariant." in document_of(report).markdown()


@pytest.mark.parametrize("missing", ["rows", "labels"])
def test_datasets_without_drafted_tokens(missing: str, labelled: Path, tmp_path: Path) -> None:
    manifest = read_manifest(labelled)
    rows: list[Row] = [AcceptanceRow("p", "", [1], [], [], [])] if missing == "labels" else []
    folder = write(tmp_path / "data", rows, manifest)
    with pytest.raises(InputError, match="contains no drafted token"):
        read_labelled([str(folder)], options(), QUIET)


def test_other_pairs_and_drafts(labelled: Path, rounds: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="fingerprint differs"):
        read_labelled([str(labelled), str(rounds["warm"])], options(), QUIET)
    pair = [read_labelled([str(folder)], options(length="3"), QUIET) for folder in (labelled, rounds["warm"])]
    with pytest.raises(InputError, match="of another pair"):
        report_of(pair)
    with pytest.raises(InputError, match="is not the draft of the data"):
        read_labelled([str(rounds["warm"])], options(draft=read_manifest(labelled).draft), QUIET)
    moved = write(tmp_path / "gone", make_rows(6), replace(read_manifest(labelled), draft=str(tmp_path / "moved")))
    data = read_labelled([str(moved)], options(), QUIET)  # labels need no model
    assert "The draft cannot be loaded" in data.notes[0]
    assert data.drafted.predictions == {}
    assert report_of([data]).decoders == {}


# responses of vLLM


def outcomes(row: RoundsRow) -> list[int]:
    """Return the number of accepted tokens of each round."""
    drafts = zip(row.starts, row.drafted, strict=True)
    return [sum(a == b for a, b in zip(tokens, row.x[start:], strict=False)) for start, tokens in drafts]


def response_to(row: RoundsRow, detailed: bool) -> dict[str, Any]:
    """Return a response in the form of vLLM 0.33, for a text whose rounds drafted three tokens each."""
    accepted = outcomes(row)
    response: dict[str, Any] = {
        "acceptance_histogram": [accepted.count(j) for j in range(4)], "num_spec_steps": len(accepted),
        "num_draft_tokens": 3 * len(accepted), "num_spec_tokens": 3, "mean_acceptance_length": 0.0,
        "per_step_accepted": accepted if detailed else None,
        "per_step_drafted": [3] * len(accepted) if detailed else None,
    }  # fmt: skip
    return {
        "object": "text_completion", "model": "target", "metrics": {"speculative_decoding": response},
        "choices": [{"prompt_token_ids": row.prompt_ids}],
        "usage": {"completion_tokens": min(len(row.x), row.starts[-1] + accepted[-1] + 1)},
    }  # fmt: skip


def save(file: Path, lines: list[Any]) -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def test_responses_have_the_outcomes_of_the_rounds(rounds: dict[str, Path], tmp_path: Path) -> None:
    """Outcomes are those of the rounds by depth, and with the order of the rounds also by position. A drift to another
    temperature is reported.
    """
    rows = {  # without those that end in a draft of fewer tokens
        name: [row for row in read_dataset(rounds[name], RoundsRow) if row.starts
               and all(len(d) == 3 or a < len(d) for a, d in zip(outcomes(row), row.drafted, strict=True))]
        for name in ("warm", "cold")
    }  # fmt: skip
    count = len(rows["warm"])
    assert count > 30
    data = read_labelled([str(write(tmp_path / "data", rows["warm"], read_manifest(rounds["warm"])))], options(), QUIET)
    drafted = [(text, i, y) for text in data.texts for i, y in zip(text.places, text.tokens, strict=True)]
    within = np.array([i < len(text.x) for text, i, _ in drafted])
    agreement = np.array([text.x[i] == y for text, i, y in drafted if i < len(text.x)])
    lines = [{"custom_id": "a", "response": {"body": response_to(row, True)}} for row in rows["warm"]]
    responses = read_responses([save(tmp_path / "responses.jsonl", [*lines, {"response": {"body": None}}])])
    folder = Path(save(tmp_path / "all" / "1.json", [response_to(row, False) for row in rows["warm"]])).parent
    summary = read_responses([str(folder)])
    assert f"1 of the {count + 1} responses" in responses.notes[0]
    assert summary.notes[-1].endswith(f"known for 0 of its {count} texts.")
    assert (responses.prompts, responses.is_rounds) == (data.prompts, True)
    assert tokens_per_draft_round(responses) == pytest.approx(tokens_per_draft_round(data))
    for side, ways in ((responses, ["depth", "position"]), (summary, ["depth"])):
        assert [way for way in ("depth", "position") if any(side.drafted.groups[way])] == ways
        for way in ways:
            labels, response_labels = data.drafted.groups[way][within], side.drafted.groups[way]
            for name in {*labels.tolist(), *response_labels.tolist()}:
                assert side.drafted.accept[response_labels == name].tolist().count(1) == agreement[labels == name].sum()
                assert (response_labels == name).sum() == (labels == name).sum()

    cold = [{"request": {"temperature": 0.1}, "response": response_to(row, True)} for row in rows["cold"]]
    report = report_of([data, read_responses([save(tmp_path / "cold.jsonl", cold)])])
    assert report.drift[ALL][ALL].is_significant
    assert report.differs == ["temperature 1.0 against 0.1"]
    assert not report_of([data, responses]).drift[ALL][ALL].is_significant


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"per_step_accepted": [3], "per_step_drafted": [2]}, "response 1: a round accepted more tokens than it verif"),
        ({"per_step_accepted": [1, 1], "per_step_drafted": [2]}, "response 1: a round accepted more"),
        ({"per_step_accepted": "1"}, "response 1: per_step_accepted='1':"),
        ({"num_spec_tokens": 2}, "response 1: acceptance_histogram=None:"),
        (
            {"acceptance_histogram": [1, 2], "num_spec_tokens": 2, "num_draft_tokens": 5},
            "have only sums over drafts of",
        ),
        ({"acceptance_histogram": [0, 0], "num_spec_tokens": 1, "num_draft_tokens": 0}, "no token was drafted"),
    ],
)
def test_responses_that_do_not_tell(metrics: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = save(tmp_path / "responses.jsonl", [{"metrics": {"speculative_decoding": metrics}}])
    with pytest.raises(InputError, match=message) as raised:
        read_responses([file])
    assert "--per-request-spec-decode-metrics detailed" in str(raised.value)
