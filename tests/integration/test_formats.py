"""The page on formats names every field that the code writes, and no other field.

A table of docs/formats.md that lists fields stands after a comment ``<!-- fields: NAME -->``; the first cell of a row
holds the names. One run of the pipeline with a tiny pair writes every file of the page.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import specpilot
import yaml
from safetensors import safe_open
from specpilot.cli.main import main
from specpilot.common.files import RUN
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.dataset import ResponseSource
from specpilot.data_gen.options import ResponseOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.serve.round_log import RoundLog

from ..helpers.serving import serving
from ..helpers.tiny import pair_and_prompts

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
TABLE = re.compile(r"<!-- fields: (?P<name>[^\n]+?) -->\n\n?(?P<table>(?:\|[^\n]*\n)+)")
NEEDS_VLLM = {"version", "tensor_parallel"}  # fields of the manifest's `responses` that only vLLM's texts have
TRAINING = {"epochs": 1, "validation_fraction": 0.4, "device": "cpu"}


def documented() -> dict[str, set[str]]:
    """The names in the first column of each table of fields."""
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
                self.add(f"tensors of {re.sub(r'[0-9]+', 'N', shard['part'])}", tensors(file))
        return folder

    def run(self, folder: Path) -> Path:
        """A run folder with everything in it."""
        self.add("run folder", (file.name for file in folder.iterdir() if file.name != ".lock"))
        self.add("checkpoints", (file.name for file in (folder / "checkpoints").iterdir()))
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
        self.add("controller folder", (file.name for file in folder.iterdir()))
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
        self.add("report folder", (file.name for file in folder.iterdir() if file.name != ".lock"))
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


def tensors(file: Path) -> list[str]:
    """The names of the tensors in a safetensors file."""
    with safe_open(file, framework="pt") as opened:
        return [*opened.keys()]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Fields:
    """The fields of all files that one run of the pipeline leaves."""
    folder = tmp_path_factory.mktemp("formats")
    pair = pair_and_prompts(folder, [f"the number {i}" for i in range(12)], draft_vocab=300)
    names = {key: pair[key] for key in ("target", "draft", "device")}
    texts: dict[str, Any] = {**pair, "max_new_tokens": 8, "shard_size": 8}
    found = Fields()

    # Datasets.
    answers = specpilot.AnswersDataOptions(**{key: value for key, value in texts.items() if key != "draft"})
    own = found.dataset(specpilot.make_dataset(answers, folder / "answers"))
    labelled = found.dataset(
        specpilot.make_dataset(specpilot.AcceptanceDataOptions(**texts), folder / "acceptance")
    )
    other = specpilot.AcceptanceDataOptions(**texts, temperature=0.5)
    warm = found.dataset(specpilot.make_dataset(other, folder / "other"))
    arms = (pair["draft"], "autoregressive")
    queries = specpilot.RouterDataOptions(**{**vars(answers), "arms": arms, "verifier": "invariant"})
    routes = found.dataset(specpilot.make_dataset(queries, folder / "router"))
    found.objects("times.json", json.loads((routes / "times.json").read_text()))
    features = specpilot.FeatureDataOptions(data=str(labelled), traced=2, validation_fraction=0.4, device="cpu")
    stored = found.dataset(specpilot.make_dataset(features, folder / "stored"))

    # Training and checkpoints.
    both = (str(labelled), str(warm))
    trainings = {
        "lag-free": specpilot.LagFreeTrainingOptions(data=both, traced=2, width=4, **TRAINING),
        "specdec": specpilot.SpecDecTrainingOptions(data=str(labelled), traced=2, mixings=1, **TRAINING),
        "features": specpilot.FeatureModelTrainingOptions(data=str(stored), traced=2, **TRAINING),
        "copies": specpilot.CopyTrainingOptions(data=str(own), width=4, **TRAINING),
        "routing": specpilot.RouterTrainingOptions(data=str(routes), width=4, standardize=True, **TRAINING),
        "drafting": specpilot.DraftTrainingOptions(
            data=str(own), target=pair["target"], layers=1, vocabulary=200, window=16, chat=False, **TRAINING
        ),
    }
    controllers: dict[str, Path] = {}
    for name, options in trainings.items():
        result = specpilot.train(options, folder / name)
        found.run(result.run)
        controllers[name] = specpilot.export(result.run, folder / f"{name}-exported")
        if name == "drafting":
            description = json.loads((controllers[name] / "draft.json").read_text())
            found.add("draft folder", (file.name for file in controllers[name].iterdir()))
            found.objects("draft.json", description)
            found.objects("target of draft.json", description["target"])
        else:
            found.controller(controllers[name])
    found.dataset(folder / "lag-free" / "features")
    found.dataset(folder / "specdec" / "features")

    # Rounds, and texts of a server.
    rounds = specpilot.OnPolicyDataOptions(**texts, length=str(controllers["lag-free"]), cost=0.2)
    drafted = found.dataset(specpilot.make_dataset(rounds, folder / "rounds"))
    decoder = SpeculativeDecoder.from_pretrained(**names, length=3)
    with serving(decoder) as (_, address):
        responses = ResponseOptions(responses="openai", base_url=f"{address}/v1", model="tiny", retries=0)
        elsewhere = specpilot.AcceptanceDataOptions(**texts)
        found.dataset(specpilot.make_dataset(elsewhere, folder / "served", responses=responses))
    found.dataset(folder / "served-responses")

    # Costs, texts and reports.
    words = [part for key, value in names.items() for part in (f"--{key}", value)]
    words += ["--prompts", pair["prompts"], "--no-chat"]
    cost = folder / "cost.json"
    measured = ["--max-new-tokens", "6", "--limit", "2", "--repeats", "1", "--output", str(cost)]
    assert main(["bench", "cost", *words, *measured, "--judge", str(controllers["lag-free"])]) == 0
    document = json.loads(cost.read_text())
    found.objects("cost file", document)
    for key in ("cost", "forward", "loop", "prediction", "machine"):
        found.objects(key, document[key])
    lines = folder / "texts.jsonl"
    assert main(["generate", *words, "--output", str(lines), "--max-new-tokens", "6", "--limit", "2", "--n", "2", "--trace"]) == 0
    for line in lines.read_text().splitlines():
        found.objects("texts", json.loads(line))
        found.objects("rounds of texts", json.loads(line)["rounds"])
    specpilot.compare(
        [controllers["lag-free"], 2], ["one", "two"], **names, chat=False, max_new_tokens=6, minutes=0.01,
        output=folder / "comparison",
    )  # fmt: skip
    found.report(folder / "comparison")
    found.objects("record", json.loads(next((folder / "comparison" / "records").glob("*.json")).read_text()))
    specpilot.compare(
        [controllers["lag-free"]], data=str(drafted), against=str(labelled), cost=0.2, output=folder / "data-report"
    )
    found.report(folder / "data-report")
    return found


def test_scratch(written: Fields) -> None:
    for name, keys in written.items():
        print(name, "::", ", ".join(sorted(keys)))
    assert 0  # scratch
