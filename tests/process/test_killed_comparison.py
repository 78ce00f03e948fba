"""A killed comparison continues with the next result."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.compare.comparison import compare_decoders
from specpilot.compare.decoders import ComparedDecoder, Loader
from specpilot.compare.results import ComparisonReport, Task
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import PromptRow
from specpilot.infer.options import DecodingOptions

from ..helpers.processes import kill_and_resume
from ..helpers.tiny import save_pair

ROWS = [PromptRow(str(i), "x", f"prompt {i}") for i in range(6)]


def compare(pair: Sequence[str], folder: Path) -> ComparisonReport:
    target, draft = pair
    base = DecodingOptions(target=target, draft=draft)
    decoders = [ComparedDecoder.parse(word, base) for word in ("2", "online-confidence")]
    task = Task(SamplingParams(1.0, 8), 6, chat=False)
    return compare_decoders(
        decoders, ROWS, Loader(base), task, folder, cost=CostModel.load(0.1), console=Console(quiet=True)
    )


@pytest.mark.thorough
def test_a_killed_comparison_goes_on(tmp_path: Path) -> None:
    """Measured results stay as they are, and the replay equals that of a comparison that was not killed."""
    pair, folder, stored = save_pair(tmp_path), tmp_path / "killed", dict[str, bytes]()

    def check(folder: Path) -> None:
        files = {file.name: file.read_bytes() for file in (folder / "records").glob("*.json")}
        assert stored.items() <= files.items()
        stored.update(files)

    kill_and_resume(partial(compare, pair), folder, check)
    assert stored
    check(folder)
    resumed, whole = compare(pair, folder), compare(pair, folder.with_name("killed-whole"))
    replays = [{name: row.replay for name, row in report.decoders.items()} for report in (resumed, whole)]
    assert replays[0] == replays[1]
    assert resumed.informed == whole.informed
    tokens = [
        {name: [run.generated for run in runs] for name, runs in report.timed.items()} for report in (resumed, whole)
    ]
    assert tokens[0] == tokens[1]  # the same seeds
    assert whole.informed is None or whole.informed >= max(row.value for row in replays[1].values() if row)
