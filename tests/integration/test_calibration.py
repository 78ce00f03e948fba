"""Calibration: closed forms, fits that recover the true parameters, and equal numbers in training and serving."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from specpilot.checkpoints import FOLDER
from specpilot.cli import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.calibration import UNCALIBRATED, fit_logistic
from specpilot.controllers.acceptance.metrics import Metrics
from specpilot.controllers.checkpoints.checkpoint import load_controller, save_controller
from specpilot.controllers.length import AcceptanceLength, FeaturePredictor, HeadPredictor, RateOptimal, load_trained
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.feature_shards import TRAIN, FeatureDataset
from specpilot.data_gen.kinds import AcceptanceRow, read_dataset, text_of
from specpilot.train.calibration import EXPONENTS, calibrate, fit_all, fit_draft_exponent, split_rows
from specpilot.train.datasets import is_validation
from specpilot.train.options import CalibrateOptions

LOGITS = np.random.default_rng(0).normal(0.0, 2.0, 4000)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def test_each_method_finds_the_probabilities_it_can_express() -> None:
    """Labels are probabilities, so a fit to them is exact if the method has the right form."""
    weighted = fit_all(LOGITS, sigmoid(LOGITS + math.log(6)), w_acc=1, w_rej=6)
    for name in ("weights", "platt"):
        assert [weighted[name](logit) for logit in LOGITS] == pytest.approx(sigmoid(LOGITS + math.log(6)), abs=1e-4)
    shifted = fit_all(LOGITS, sigmoid(0.7 * LOGITS - 0.4), w_acc=1, w_rej=6)
    assert (shifted["platt"].scale, shifted["platt"].shift) == pytest.approx((0.7, -0.4), abs=1e-3)
    assert UNCALIBRATED(-1e5) >= 0


def test_nothing_that_was_trained_on_is_taken() -> None:
    rows = [text_of(AcceptanceRow(str(i), "", [1], [2], [3], [0.5])) for i in range(300)]
    fitted, tested = split_rows(rows, 0.1, 0.2)
    assert all(is_validation(row.prompt_id, 0.2) for row in fitted + tested)
    assert not {row.prompt_id for row in fitted} & {row.prompt_id for row in tested}
    assert len(split_rows(rows, 0.1)[0]) + len(split_rows(rows, 0.1)[1]) == 300
    with pytest.raises(InputError, match="0 rollouts to fit to and 0 held out"):
        split_rows(rows, 1e-9, 2e-9)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration") / "data"
    words = ["data", "acceptance", "--split", "test", "--limit", "60", "--max-new-tokens", "12"]
    assert cli.main([*words, "--output", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("method", ["platt", "weights"])
def test_the_shipped_head_is_calibrated(
    method: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    words = ["calibrate", "tiny-head", "--data", str(data), "--output", str(new), "--method", method]
    report = tmp_path / "reports" / "calibration.json"
    assert cli.main([*words, "--report", str(report)]) == 0
    *_, hint, last = capsys.readouterr().out.splitlines()
    command = f"specpilot generate --target tiny --draft tiny-draft --length {new} --cost auto 'Write a short story.'"
    assert hint.endswith(f" Decode with it: {command}")
    result = json.loads(last)
    assert json.loads(report.read_text()) == result
    assert {"machine", "versions"} <= result.keys()
    assert result["method"] == method
    assert result["fitted"] + result["judged"] == sum(len(row.x) for row in read_dataset(data, AcceptanceRow))
    metrics = result["metrics"]
    assert metrics[method]["ece"] < metrics["none"]["ece"] / 2
    assert metrics[method]["brier"] < metrics["none"]["brier"]
    assert method in (new / "README.md").read_text()

    old, calibrated = load_controller(FOLDER / "tiny-head"), load_controller(new)
    assert calibrated.config.calibration is not None
    assert calibrated.config.metrics["calibrated_ece"] == metrics[method]["ece"]
    curve = calibrated.config.calibration
    pair, hidden = old.config.provenance.fingerprint, torch.linspace(-2, 2, old.config.hidden_size)
    logit = float(old.head(hidden))
    for cost, expected in ((CostModel(0.1, 1.0, 0.0), curve(logit)), (None, sigmoid(logit))):
        rule = load_trained(str(new), pair, torch.device("cpu"), torch.empty(1, len(hidden)), cost=cost)
        assert isinstance(rule, AcceptanceLength | RateOptimal)
        assert isinstance(rule.predictor, HeadPredictor)
        assert rule.predictor.probability(hidden) == pytest.approx(expected, rel=1e-4)
        assert rule.predictor.mean == calibrated.config.metrics["mean_acceptance"]


def test_a_head_is_evaluated_on_what_its_training_held_out(data: Path, tmp_path: Path) -> None:
    """For data that a head was trained on, only the validation prompts are used."""
    old = load_controller(FOLDER / "tiny-head")
    same = replace(old.config, datasets=[read_manifest(data).dataset_fingerprint])
    trained = save_controller(tmp_path / "trained", old.head, same)
    options = CalibrateOptions(
        controller=str(trained), data=str(data), output=tmp_path / "new", validation_fraction=0.4
    )
    result = calibrate(options)
    held_out = [row for row in read_dataset(data, AcceptanceRow) if is_validation(row.prompt_id, 0.4)]
    assert 0 < result.fitted + result.judged == sum(len(row.x) for row in held_out)


def test_the_exponent_of_the_draft_is_fitted(tmp_path: Path) -> None:
    """Calibration on data of the rule invariant reads the texts with both models again."""
    data = tmp_path / "data"
    words = ["data", "acceptance", "--split", "test", "--limit", "12", "--max-new-tokens", "8"]
    assert cli.main([*words, "--verifier", "invariant", "--output", str(data)]) == 0
    old = load_controller(FOLDER / "tiny-head")
    config = replace(old.config, provenance=replace(old.config.provenance, verifier="invariant"))
    head = save_controller(tmp_path / "head", old.head, config)
    options = CalibrateOptions(controller=str(head), data=str(data), output=tmp_path / "new")
    result = calibrate(options)
    stored = load_controller(tmp_path / "new").config.calibration
    assert stored is not None
    assert stored.draft_exponent == result.draft_exponent
    assert 0 < result.acceptance["1"] <= max(result.acceptance.values()) < 1
    with pytest.raises(InputError, match="target='tiny-draft': is not the target"):
        calibrate(replace(options, target="tiny-draft", output=tmp_path / "x"))


def test_an_exponent_must_be_better_on_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {1: dict.fromkeys(EXPONENTS, 0.5) | {1.25: 0.6}, 2: {1.0: 0.5, 1.25: 0.55}, 3: {1.0: 0.5, 1.25: 0.45}}

    def acceptance(*args: Any) -> list[float]:
        prompts, exponents = args[2], args[5]
        return [tables[len(prompts)][exponent] for exponent in exponents]

    monkeypatch.setattr("specpilot.train.calibration.acceptance_by_exponent", acceptance)
    rows = [text_of(AcceptanceRow(str(i), "", [1], [2], [3], [0.5])) for i in range(3)]
    models: Any = None, None
    assert fit_draft_exponent(*models, rows[:1], rows[:2], SamplingParams()) == (1.25, {"1": 0.5, "1.25": 0.55})
    assert fit_draft_exponent(*models, rows[:1], rows, SamplingParams()) == (1.0, {"1": 0.5, "1.25": 0.45})


def test_features_are_trained(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The parameters are the optimum that scikit-learn finds. The last line printed is the next command."""
    run, new = str(tmp_path / "run"), str(tmp_path / "new")
    words = ["--data", str(data), "--validation-fraction", "0.3", "--traced", "0", "--batch-size", "64"]
    assert cli.main(["train", "acceptance", "--predictor", "features", *words, "--output", run]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Export it: specpilot export {run} FOLDER"
    assert cli.main(["export", run, new]) == 0
    command = f"specpilot generate --target tiny --draft tiny-draft --length {new} --cost auto 'Write a short story.'"
    assert capsys.readouterr().out.rstrip().endswith(f" Decode with it: {command}")
    dataset = FeatureDataset(Path(run, "features"))
    part = dataset.part(f"{TRAIN}0")
    examples = part.gather(torch.arange(sum(part.rows)))
    x, p = examples["evidence"][:, :3].double().numpy(), examples["accept"].double().numpy()
    model = load_controller(new).head
    fitted_kl, best = (
        Metrics(torch.from_numpy(x @ weight + bias), torch.from_numpy(p)).compute()["kl"]
        for weight, bias in ((model.weight.detach().double().numpy(), model.bias.item()), fit_logistic(x, p))
    )
    assert fitted_kl == pytest.approx(best, abs=1e-6)
    assert FeaturePredictor(model).doubt < 0  # the surer the draft, the likelier it is kept


def test_data_of_another_pair_or_sampling_is_refused(data: Path, tmp_path: Path) -> None:
    old = load_controller(FOLDER / "tiny-head")
    old_provenance = old.config.provenance
    sampled = replace(old_provenance, sampling=SamplingParams(2.0))
    strange = replace(old_provenance, fingerprint=replace(old_provenance.fingerprint, draft="0" * 64))
    for provenance, words in ((sampled, "the head was trained with"), (strange, "another draft is given")):
        config = replace(old.config, provenance=provenance)
        controller = save_controller(tmp_path / "head", old.head, config, overwrite=True)
        with pytest.raises(InputError, match=words):
            calibrate(CalibrateOptions(controller=str(controller), data=str(data), output=tmp_path / "x"))
    assert not (tmp_path / "x").exists()


# Metrics against closed forms


def measured(name: str, logits: torch.Tensor, p: torch.Tensor) -> float:
    return Metrics(logits, p).compute()[name]


def test_kl() -> None:
    """The KL divergence and that of the best constant prediction are computed by hand."""
    expected = (0.25 * math.log(0.5) + 0.75 * math.log(1.5) + 0.5 * math.log(0.625) + 0.5 * math.log(2.5)) / 2
    logits, p = torch.tensor([0.0, math.log(4)]), torch.tensor([0.25, 0.5])
    assert measured("kl", logits, p) == pytest.approx(expected)
    constant = torch.logit(p.mean()).expand(2)
    assert measured("kl_constant", logits, p) == pytest.approx(measured("kl", constant, p))
    assert measured("kl_constant", torch.zeros(3), torch.ones(3)) == pytest.approx(0)
    assert measured("kl", torch.zeros(1), torch.ones(1)) == pytest.approx(math.log(2))
    assert measured("kl", torch.tensor([-200.0]), torch.ones(1)) == pytest.approx(200)  # certain and wrong: finite


def test_auroc() -> None:
    """For soft labels, the AUROC is the expectation over outcomes drawn from the labels. It needs both outcomes."""
    # Two tokens, the first ranked higher. A pair (accepted, rejected) is (1st, 2nd), (2nd, 1st) or one token with
    # itself, a tie, which counts one half.
    p1, p2 = 0.8, 0.3
    right, wrong, tied = p1 * (1 - p2), p2 * (1 - p1), p1 * (1 - p1) + p2 * (1 - p2)
    expected = (right + tied / 2) / (right + wrong + tied)
    assert measured("auroc", torch.tensor([2.0, -1.0]), torch.tensor([p1, p2])) == pytest.approx(expected)
    assert math.isnan(measured("auroc", torch.randn(4), torch.ones(4)))
    assert math.isnan(measured("auroc", torch.randn(4), torch.zeros(4)))


def test_brier_score_reliability_and_calibration_error() -> None:
    assert measured("brier", torch.zeros(2), torch.tensor([1.0, 0.25])) == pytest.approx((0.25 + 0.0625) / 2)
    a = torch.tensor([0.10, 0.12, 0.70, 0.72])
    p = torch.tensor([0.20, 0.00, 1.00, 0.60])
    metrics = Metrics(torch.logit(a), p)
    table = metrics.reliability()
    assert [(row.low, row.high, row.count) for row in table] == [(1 / 15, 2 / 15, 2), (10 / 15, 11 / 15, 2)]
    assert (table[0].predicted, table[0].observed) == (pytest.approx(0.11), pytest.approx(0.10))
    assert metrics.ece() == pytest.approx((2 * 0.01 + 2 * 0.09) / 4, abs=1e-6)
    assert Metrics(torch.tensor([100.0]), torch.ones(1)).reliability()[0].high == 1  # certainty: the last bin
