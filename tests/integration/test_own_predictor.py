"""A predictor in one file, outside of the package and in its registry: options, training, export, decoding."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from specpilot.cli import main as cli
from specpilot.controllers import registry
from specpilot.controllers.checkpoints.checkpoint import load_controller

PREDICTOR = '''
"""Acceptance by the draft's confidence alone: sigmoid(scale·log q(y) + shift)."""

from dataclasses import dataclass

import torch
from specpilot.common.options import Count
from specpilot.controllers.acceptance.predictor import TrainedPredictor
from specpilot.controllers.acceptance.training import cross_entropy, network_logits
from specpilot.controllers.checkpoints.config import ControllerConfig
from specpilot.controllers.training_options import Predictor, PredictorTrainingOptions
from torch import nn


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PredictorTrainingOptions):
    """Confidence.

    Attributes:
        begin: Tenths of the scale before training.
    """

    predictor: Predictor = {name!r}
    begin: Count = 10
    lr: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Config(ControllerConfig):
    """A confidence model."""

    kind = "confidence-model"
    title = "Confidence model"
    summary = "Predicts acceptance by the draft's confidence."
    begin: int

    def module(self):
        return Network(self.begin)

    def predictor(self, head, embedding, device, *, calibrated):
        return ConfidencePredictor(head)

    def rows(self):
        return {{"begin": str(self.begin)}}


class Network(nn.Module):
    def __init__(self, begin):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(begin / 10)), nn.Parameter(torch.tensor(0.0))

    def forward(self, log_q):
        return self.scale * log_q + self.shift


def new_network(options, data, parts):
    return Network(options.begin)


def inputs(examples, options):
    return (examples.evidence[:, 0],)


def loss(network, batch, options):
    return cross_entropy(network_logits(network, batch), batch.labels)


def predictions(network, batch, options):
    return batch.labels, {{"head": network_logits(network, batch)}}


def metrics(judged, options):
    return judged["head"].compute()


def to_checkpoint(options, data, origin):
    return Config(**vars(origin), begin=options.begin)


class ConfidencePredictor(TrainedPredictor):
    lag, mean = 0, 0.5

    def __init__(self, network):
        self.network = network

    def predict(self, step):
        return float(torch.sigmoid(self.network(torch.tensor(step.confidence()).log())))

    def predict_all(self, signals, ngram_match, hidden, tokens):
        log_q = torch.tensor([confidence for confidence, *_ in signals]).clamp(min=1e-30).log()
        return torch.sigmoid(self.network(log_q)).tolist()
'''


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "data"
    assert cli.main(["data", "acceptance", "--limit", "12", "--max-new-tokens", "8", "--output", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("registered", [False, True])
def test_a_predictor_is_one_file(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], registered: bool
) -> None:
    """With a line in the registry, a predictor has a short name. Without the line, its module is its name."""
    module = f"own_confidence_{registered}".lower()
    name = "confidence" if registered else f"{module}:Config"
    (tmp_path / f"{module}.py").write_text(PREDICTOR.format(name=name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registry, "USER_MODULES", {})
    if registered:
        sys.path.append(str(tmp_path))
        place = importlib.import_module(module).__name__
        for names in (registry.PREDICTORS, registry.CONTROLLERS):
            monkeypatch.setitem(names, name, place)
    words = ["--data", str(data), "--epochs", "2", "--traced", "2", "--validation-fraction", "0.3", "--begin", "5"]
    assert cli.main(["train", "acceptance", "--predictor", name, *words, "--output", "run"]) == 0
    assert cli.main(["export", "run", "controller", *([] if registered else ["--predictor", name])]) == 0
    controller = load_controller("controller")
    assert (controller.config.kind, vars(controller.config)["begin"]) == ("confidence-model", 5)
    assert float(controller.head.state_dict()["scale"]) != 0.5  # it was trained
    length = "controller" if registered else f"{name}:controller"
    capsys.readouterr()
    decode = ["generate", "What is 2 plus 3?", "--max-new-tokens", "12", "--seed", "1", "--cost", "0.05", "--json"]
    assert cli.main([*decode, "--length", length]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["n_drafted"] > 0


def test_a_module_that_is_no_predictor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_nothing.py").write_text("class Config: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["train", "acceptance", "--data", "d", "--output", "o", "--predictor"]
    for name, problem in (
        ("own_nothing:Config", "TrainingOptions"),
        ("own_missing:Config", "no module"),
        ("lagfree", "lag-free"),
    ):
        assert cli.main([*words, name]) == 2
        assert problem in capsys.readouterr().err
