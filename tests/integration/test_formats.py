"""The page on formats names every field that the code writes, and no other field.

A table of docs/formats.md that lists fields stands after a comment ``<!-- fields: NAME -->``; the first cell of a row
holds the names. One run of the pipeline with a tiny pair writes every file of the page.
"""

import csv
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import specpilot
import yaml
from safetensors import safe_open
from specpilot.cli.main import main
from specpilot.common.files import RUN
from specpilot.compare.findings import words_of
from specpilot.compare.results import ComparisonReport
from specpilot.data_gen.dataset import ResponseSource
from specpilot.data_gen.options import ResponseOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.serve.round_log import RoundLog

from ..helpers import http
from ..helpers.serving import serving
from ..helpers.tiny import pair_and_prompts

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
TABLE = re.compile(r"<!-- fields: (?P<name>[^\n]+?) -->\n\n?(?P<table>(?:\|[^\n]*\n)+)")
NEEDS_VLLM = {"version", "tensor_parallel"}  # fields of the manifest's `responses` that only vLLM's texts have
# Fields that this machine may not write: verifications take times on a line, or not.
OPTIONAL = {"responses": NEEDS_VLLM, "cost": {"verify_shape"}, "forward": {"verify_shape"}}
TRAINING: dict[str, Any] = {"epochs": 1, "validation_fraction": 0.4, "device": "cpu"}


def documented() -> dict[str, set[str]]:
    """Return the names in the first column of each table of fields."""
    tables: dict[str, set[str]] = {}
    for match in TABLE.finditer(PAGE.read_text(encoding="utf-8")):
        cells = [line.split(" | ")[0] for line in match["table"].splitlines()[2:]]
        assert match["name"] not in tables, match["name"]
        tables[match["name"]] = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return tables


class Fields(dict[str, set[str]]):
    """The fields that were written, by format."""

    def add(self, name: str, values: Iterable[str]) -> None:
        self.setdefault(name, set()).update(values)

    def objects(self, name: str, values: Any) -> None:
        """The keys of an object, or of each object in a list; nothing for null."""
        for value in values if isinstance(values, list) else [values]:
            if value is not None:
                self.add(name, value)

    def manifest(self, name: str, file: Path) -> None:
        """``manifest.json`` of a dataset, or ``dataset.json`` of a run, which has the same form."""
        manifest = json.loads(file.read_text())
        self.add(name, manifest)
        self.objects("sampling", manifest["sampling"])
        for key in ("fingerprint", "prompts", "settings", "responses", "shards"):
            nested = "settings of features" if manifest["kind"] == "features" and key == "settings" else key
            self.objects(nested, manifest.get(key))
        self.objects("arms", manifest.get("arms"))

    def dataset(self, folder: Path) -> Path:
        """A dataset: its manifest and the columns or tensors of its shards."""
        self.manifest("manifest", folder / "manifest.json")
        manifest = json.loads((folder / "manifest.json").read_text())
        for shard in manifest["shards"]:
            file = folder / shard["file"]
            if file.suffix == ".parquet":
                self.add(f"columns of {manifest['kind']}", pq.read_schema(file).names)
            else:
                part = shard["part"] if shard["part"] in ("embedding", "traces") else "examples"
                self.add(f"tensors of {part}", tensors(file))
        return folder

    def run(self, folder: Path) -> Path:
        """A run folder with everything in it."""
        self.add("run folder", contents(folder))
        self.add("checkpoints", contents(folder / "checkpoints"))
        self.manifest("manifest", folder / "dataset.json")
        self.objects("env.json", json.loads((folder / "env.json").read_text()))
        result = json.loads((folder / "result.json").read_text())
        self.objects("result.json", result)
        self.objects("reliability", result.get("reliability", []))
        with (folder / "metrics.csv").open() as file:
            self.add("metrics.csv", (re.sub("val_.+", "val_…", name) for name in next(csv.reader(file))))
        assert yaml.safe_load((folder / RUN).read_text())["epochs"] == 1
        return folder

    def controller(self, folder: Path) -> Path:
        """A controller checkpoint; every kind has the fields of the first table and those of its own."""
        self.add("controller folder", contents(folder))
        config = json.loads((folder / "config.json").read_text())
        self.add(f"config.json of {config['kind']}", config)
        for key in ("provenance", "calibration"):
            self.objects(key, config[key])
        self.objects("fingerprint", config["provenance"]["fingerprint"])
        self.objects("sampling", [config["provenance"]["sampling"], *config["provenance"].get("other_sampling", [])])
        return folder

    def report(self, folder: Path) -> None:
        """The report of a comparison; tables and figures are objects of their own."""
        report = json.loads((folder / "report.json").read_text())
        name = "report of a dataset" if "data" in report else "report of a comparison"
        self.add("report folder", contents(folder))
        self.add(name, report)
        self.objects("decoders", [*report["decoders"].values()])
        self.objects("task", report.get("task"))
        for timed in report.get("timed", {}).values():
            self.objects("timed", timed)
        for group in [*report["acceptance"].values(), *report["lines"].values()]:
            self.objects("acceptance", [*group.values()])
        self.objects("lengths", report["lengths"])
        for group in report["predictors"].values():
            self.objects("predictors", [*group.values()])
        for group in report.get("drift", {}).values():
            self.objects("drift", [*group.values()])
        for decoder in report["decoders"].values():
            self.objects("intervals", [decoder["replay"], decoder["clock"]])
        self.objects("machine", report.get("machine"))


def contents(folder: Path) -> list[str]:
    """Return the names of the files and folders in a folder, with a slash after folders and without the lock."""
    return [f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir() if path.name != ".lock"]


def tensors(file: Path) -> list[str]:
    """The names of the tensors in a safetensors file."""
    with safe_open(file, framework="pt") as opened:
        return [*opened.keys()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Fields:
    """Return the fields of all files that one run of the pipeline writes."""
    folder = tmp_path_factory.mktemp("formats")
    pair = pair_and_prompts(folder, [f"the number {i}" for i in range(12)], draft_vocab=300)
    written = Fields()
    datasets = make_datasets(written, folder, pair)
    controllers = train_all(written, folder, pair["target"], datasets)
    train_eagle3(written, folder / "eagle3")
    decode(written, folder, pair, controllers)
    measure(written, folder, pair, controllers)
    write_reports(written, folder, pair, controllers, datasets)
    return written


def make_datasets(written: Fields, folder: Path, pair: dict[str, Any]) -> dict[str, Path]:
    """Make a dataset of each kind that needs no controller."""
    texts: dict[str, Any] = {**pair, "max_new_tokens": 8, "shard_size": 8}
    of_target = {name: value for name, value in texts.items() if name != "draft"}
    arms = (pair["draft"], "autoregressive")
    options = {
        "answers": specpilot.AnswersDataOptions(**of_target),
        "acceptance": specpilot.AcceptanceDataOptions(**texts),
        "other": specpilot.AcceptanceDataOptions(**texts, temperature=0.5),
        "router": specpilot.RouterDataOptions(**of_target, arms=arms, verifier="invariant"),
    }
    datasets = {
        name: written.dataset(specpilot.make_dataset(data_options, folder / name))
        for name, data_options in options.items()
    }
    written.objects("times.json", json.loads((datasets["router"] / "times.json").read_text()))

    template = Path(pair["target"]) / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}" + template.read_text())
    dated = specpilot.AnswersDataOptions(**{**of_target, "chat": True, "limit": 2})
    written.dataset(specpilot.make_dataset(dated, folder / "dated"))

    decoder = SpeculativeDecoder.from_pretrained(
        pair["target"], pair["draft"], device="cpu", length=3, verifier="token-wise"
    )
    log = RoundLog(folder / "log", decoder, pair["target"], pair["draft"])
    with serving(decoder, log=log) as (_, address):
        http.post(f"{address}/v1/completions", json={"prompt": "the number", "max_tokens": 8})
        responses = ResponseOptions(responses="openai", base_url=f"{address}/v1", model="tiny", retries=0)
        written.dataset(specpilot.make_dataset(options["acceptance"], folder / "served", responses=responses))
    written.dataset(folder / "served-responses")
    written.dataset(folder / "log")
    return datasets


def train_all(written: Fields, folder: Path, target: str, datasets: Mapping[str, Path]) -> dict[str, Path]:
    """Train a controller of each kind and a draft; return their folders by the name of the training."""
    acceptance = str(datasets["acceptance"])
    features = {
        predictor: specpilot.FeatureDataOptions(
            data=acceptance, predictor=predictor, traced=2, validation_fraction=0.4, device="cpu"
        )
        for predictor in ("features", "experiments.rivals.block_pilot:Config")
    }
    stored = [
        written.dataset(specpilot.make_dataset(options, folder / f"stored-{number}"))
        for number, options in enumerate(features.values())
    ]
    both = (acceptance, str(datasets["other"]))
    drafting = specpilot.DraftTrainingOptions(
        data=str(datasets["answers"]), target=target, layers=1, vocabulary=200, window=16, chat=False, **TRAINING
    )  # fmt: skip
    trainings = {
        "lag-free": specpilot.LagFreeTrainingOptions(data=both, traced=2, width=4, tensorboard=True, **TRAINING),
        "specdec": specpilot.SpecDecTrainingOptions(data=acceptance, traced=2, mixings=1, **TRAINING),
        "feature-model": specpilot.FeatureModelTrainingOptions(data=str(stored[0]), traced=2, **TRAINING),
        "copies": specpilot.CopyTrainingOptions(data=str(datasets["answers"]), width=4, **TRAINING),
        "routing": specpilot.RouterTrainingOptions(data=str(datasets["router"]), width=4, **TRAINING),
        "drafting": drafting,
        "drafting-all": replace(drafting, vocabulary=None),
    }
    controllers: dict[str, Path] = {}
    for name, options in trainings.items():
        run = written.run(specpilot.train(options, folder / name).run)
        controllers[name] = specpilot.export(run, folder / f"{name}-exported")
        if name == "drafting":
            description = json.loads((controllers[name] / "draft.json").read_text())
            written.add("draft folder", contents(controllers[name]))
            written.objects("draft.json", description)
            written.objects("target of draft.json", description["target"])
        elif name == "drafting-all":
            written.add("folder of transformers", contents(controllers[name]))
        else:
            written.controller(controllers[name])
    for name in ("lag-free", "specdec"):
        written.dataset(folder / name / "features")
    calibrated = folder / "calibrated"
    command = ["calibrate", str(controllers["specdec"]), "--data", acceptance, "--output", str(calibrated)]
    assert main([*command, "--validation-fraction", "0.9", "--device", "cpu"]) == 0
    written.controller(calibrated)
    return controllers


def train_eagle3(written: Fields, folder: Path) -> None:
    """A draft that reads states of three of the target's layers. Its ``config.json`` repeats the keys of its layer."""
    folder.mkdir()
    texts = pair_and_prompts(folder, [f"the number {i}" for i in range(12)], layers=3)
    del texts["draft"]
    answers = specpilot.make_dataset(specpilot.AnswersDataOptions(**texts, max_new_tokens=8), folder / "answers")
    options = specpilot.DraftTrainingOptions(
        data=str(answers), target=texts["target"], features="target", vocabulary=200, window=16, chat=False, **TRAINING
    )
    run = written.run(specpilot.train(options, folder / "run").run)
    draft = specpilot.export(run, folder / "exported")
    written.add("EAGLE-3 folder", contents(draft))
    names = tensors(draft / "model.safetensors")
    written.add("EAGLE-3 tensors", (re.sub(r"^midlayer\..+", "midlayer.…", name) for name in names))
    config = json.loads((draft / "config.json").read_text())
    layer = config["transformer_layer_config"]
    assert layer.keys() <= config.keys()
    written.add("EAGLE-3 layer", layer)
    written.add("EAGLE-3 config.json", config.keys() - layer.keys())


def decode(written: Fields, folder: Path, pair: dict[str, Any], controllers: Mapping[str, Path]) -> None:
    """Write rounds with a trained controller, and files of texts."""
    length = str(controllers["lag-free"])
    rounds = specpilot.OnPolicyDataOptions(**pair, max_new_tokens=8, length=length, cost=0.2)
    written.dataset(specpilot.make_dataset(rounds, folder / "rounds"))
    common = ["generate", "--target", pair["target"], "--device", "cpu", "--prompts", pair["prompts"], "--no-chat"]
    common += ["--limit", "2", "--max-new-tokens", "6", "--n", "2", "--trace"]
    routed = ["--router", str(controllers["routing"]), "--draft", f"[{pair['draft']},autoregressive]"]
    for name, words in (("drafted", ["--draft", pair["draft"]]), ("routed", routed)):
        lines = folder / f"{name}.jsonl"
        assert main([*common, *words, "--output", str(lines)]) == 0
        for line in lines.read_text().splitlines():
            written.objects("texts", json.loads(line))
            written.objects("rounds of texts", json.loads(line)["rounds"])


def measure(written: Fields, folder: Path, pair: dict[str, Any], controllers: Mapping[str, Path]) -> None:
    """Write a cost file."""
    cost = folder / "cost.json"
    command = ["bench", "cost", "--target", pair["target"], "--draft", pair["draft"], "--prompts", pair["prompts"]]
    command += ["--no-chat", "--device", "cpu", "--max-new-tokens", "6", "--limit", "2", "--repeats", "1"]
    assert main([*command, "--judge", str(controllers["lag-free"]), "--output", str(cost)]) == 0
    document = json.loads(cost.read_text())
    written.objects("cost file", document)
    for key in ("cost", "forward", "loop", "prediction", "machine"):
        written.objects(key, document[key])


def write_reports(
    written: Fields, folder: Path, pair: dict[str, Any], controllers: Mapping[str, Path], datasets: Mapping[str, Path]
) -> None:
    """Write the reports of a comparison and of the drift between two datasets."""
    names = {name: pair[name] for name in ("target", "draft", "device")}
    controller = str(controllers["lag-free"])
    comparison = specpilot.compare(
        [controller, 2], ["one", "two"], **names, chat=False, max_new_tokens=6, minutes=0.01,
        output=folder / "comparison",
    )  # fmt: skip
    assert isinstance(comparison.report, ComparisonReport)
    words_of(comparison.report, controller, folder / "comparison")  # as if it had won
    written.objects("cost file of a comparison", json.loads((folder / "comparison" / "cost.json").read_text()))
    written.report(folder / "comparison")
    records = (folder / "comparison" / "records").glob("*.json")
    written.objects("record", json.loads(next(records).read_text()))
    specpilot.compare(
        [controller], data=str(datasets["acceptance"]), against=str(datasets["other"]), cost=0.2,
        output=folder / "data-report",
    )  # fmt: skip
    written.report(folder / "data-report")


def tables() -> dict[str, set[str]]:
    """Return the fields that the page documents, by format. A kind of controller also has the fields of all kinds."""
    tables = documented()
    common = tables.pop("config.json")
    return {name: names | common if name.startswith("config.json of ") else names for name, names in tables.items()}


@pytest.mark.parametrize("name", tables())
def test_documented_fields_are_those_that_are_written(name: str, written: Fields) -> None:
    assert written[name] | OPTIONAL.get(name, set()) == tables()[name]


def test_every_format_is_documented(written: Fields) -> None:
    assert written.keys() == tables().keys()
    assert {entry.name for entry in fields(ResponseSource)} >= NEEDS_VLLM
