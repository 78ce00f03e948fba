"""Several workers on a cluster of this machine: the same bytes as one process, and what happens when workers fail."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.data_gen import ray_workers
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.options import AcceptanceDataOptions, RouterDataOptions, WorkerOptions
from specpilot.data_gen.router import make_router_data
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions

from ..folders import assert_same_bytes
from ..tiny import pair_and_prompts
from .makers import Different, Maker, begun, killed, killed_once, refused, short_of_memory_once

pytest.importorskip("ray", reason="ray is not installed (extra ray): run make test-ray")

TWO = WorkerOptions(workers=2)
UNITS = {index: index for index in range(6)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[AcceptanceDataOptions, Path]:
    folder = tmp_path_factory.mktemp("data")
    given = pair_and_prompts(folder, (f"prompt number {i}" for i in range(24) for _ in range(i % 3 + 1)))
    options = AcceptanceDataOptions(**given, max_new_tokens=12, batch_size=3, shard_size=4)
    return options, make_acceptance_data(options, folder / "data")


@pytest.mark.parametrize("kind", ["acceptance", "features", "router"])
def test_several_workers_make_what_one_makes(
    kind: str, data: tuple[AcceptanceDataOptions, Path], tmp_path: Path
) -> None:
    options, folder = data
    features = FeatureDataOptions(data=str(folder), validation_fraction=0.3, traced=2, device="cpu")
    router = RouterDataOptions(
        target=options.target, arms=(options.draft, "ngram", "autoregressive"), prompts=options.prompts, chat=False,
        max_new_tokens=8, shard_size=6, device="cpu",
    )  # fmt: skip
    for name, workers in (("one", WorkerOptions()), ("two", TWO)):
        if kind == "acceptance":
            make_acceptance_data(options, tmp_path / name, workers=workers)
        elif kind == "features":
            make_features(features, tmp_path / name, workers=workers)
        else:
            (make_router_data(router, tmp_path / name, workers=workers) / "times.json").unlink()  # measured
    assert_same_bytes(tmp_path / "one", tmp_path / "two")


def make_all(new_maker: Callable[[], Maker], console: Console) -> dict[int, int]:
    with ray_workers.RayWorkers(new_maker, TWO, "cpu", console) as workers:
        assert workers.description["identity"]["kind"] == "square"
        assert workers.ask(lambda maker: maker.folder.is_dir())
        tokens: list[int] = []
        made = dict(workers.make_all({i: partial(int, unit) for i, unit in UNITS.items()}, tokens.append))
        assert sorted(tokens) == sorted(UNITS)
        return made


@pytest.mark.parametrize("accident", [killed_once, short_of_memory_once])
def test_the_shard_of_a_failed_worker_goes_to_another_one(
    accident: Callable[[Path, int], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_all(partial(Maker, tmp_path, accident), Console(stderr=True)) == {i: i * i for i in UNITS}
    assert sorted(begun(tmp_path)) == sorted([*UNITS, 2])  # no other shard is made twice
    assert "a worker died at shard 2; another one takes over" in capsys.readouterr().err


def test_a_shard_that_ends_every_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "MAX_DEATHS", 2)
    with pytest.raises(InputError, match=r"workers=2: 2 workers died one after the other at shard 2; .* fewer workers"):
        make_all(partial(Maker, tmp_path, killed), Console(quiet=True))


def test_errors_of_workers_are_those_of_one_process(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^unit=2: is refused; give another$"):
        make_all(partial(Maker, tmp_path, refused), Console(quiet=True))
    options = AcceptanceDataOptions(target=str(tmp_path / "nowhere"), device="cpu")
    with pytest.raises(InputError) as one:
        make_acceptance_data(options, tmp_path / "data")
    with pytest.raises(InputError) as several:
        make_acceptance_data(options, tmp_path / "data", workers=TWO)
    assert str(several.value) == str(one.value)
    assert not (tmp_path / "data").exists()


def test_workers_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weights: differs between the workers, \d+ and \d+"):
        make_all(partial(Different, tmp_path), Console(quiet=True))


def test_addresses_and_devices(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="device='cuda:1': Ray gives each worker a device"):
        make_acceptance_data(AcceptanceDataOptions(device="cuda:1"), tmp_path / "data", workers=TWO)
