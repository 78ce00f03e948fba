"""Sources of costs: the options that name a source, and its description."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from specpilot.common.errors import InputError
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.cost_source import MeasuredCosts, NoCosts, PresetCosts, cost_source

COST = CostModel(0.1, 1.0, 0.01, 0.2)


def test_a_number_is_the_share_of_a_verification() -> None:
    for number in (0.2, "0.2"):
        source = cost_source(number)
        assert source == PresetCosts(CostModel(0.2, 1.0, 0.0), "a cost of 0.2 verifications per draft step")
    with pytest.raises(InputError, match=r"cost=-1"):
        cost_source(-1)


def test_a_file_is_read_when_the_source_is_resolved(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text(json.dumps({"cost": COST.to_dict()}))
    source = cost_source(file)
    assert source == PresetCosts(COST, f"the costs of {file}")
    assert cost_source(file, adapt=True) == replace(source, adapt=True)
    assert cost_source(0.2, adapt=True) == replace(cost_source(0.2), adapt=True)
    with pytest.raises(InputError, match=r"^cost='\S*nowhere\.json'"):
        cost_source(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("document", "machine"),
    [
        ({"machine": {"processor": "a CPU", "devices": []}}, ", measured on a CPU"),
        ({"machine": {"processor": "a CPU", "devices": ["a GPU"]}}, ", measured on a GPU"),
        (
            {"machine": {"processor": "a CPU", "devices": ["a GPU"]}, "settings": {"device": "cpu"}},
            ", measured on a CPU",
        ),
        ({"machine": "somewhere", "settings": []}, ""),
        ({"machine": {"processor": 3}}, ""),
    ],
)
def test_the_source_names_the_machine_of_a_file(document: dict[str, object], machine: str, tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text(json.dumps({"cost": COST.to_dict(), **document}))
    assert cost_source(str(file)).describe() == f"the costs of {file}{machine}"


def test_a_source_keeps_its_origin() -> None:
    source = PresetCosts(COST, "costs of somewhere")
    assert cost_source(source) == source
    corrected = PresetCosts(COST, "costs of somewhere", adapt=True)
    assert cost_source(source, adapt=True) == cost_source(corrected) == corrected
    assert cost_source(corrected, adapt=False) == source
    for other in (NoCosts(), MeasuredCosts(), MeasuredCosts(adapt=False)):
        assert cost_source(other) == other
    assert cost_source(MeasuredCosts(), adapt=False) == MeasuredCosts(adapt=False)
    assert cost_source(NoCosts(), adapt=False) == NoCosts()


def test_other_sources() -> None:
    assert cost_source(None) == NoCosts()
    assert cost_source("auto") == cost_source("auto", adapt=True) == MeasuredCosts(adapt=True)
    assert cost_source("auto", adapt=False) == MeasuredCosts(adapt=False)
    assert cost_source(COST, adapt=True) == PresetCosts(COST, "a cost model passed in Python", adapt=True)
    with pytest.raises(InputError, match="adapt"):
        cost_source(None, adapt=True)


def test_descriptions_differ() -> None:
    sources = [None, "auto", 0.2, COST]
    described = {cost_source(cost).describe() for cost in sources} | {cost_source(0.2, adapt=True).describe()}
    described.add(cost_source("auto", adapt=False).describe())
    assert len(described) == 6
