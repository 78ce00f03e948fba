"""The number of faults that are tried, and disks that only these tests see."""

import pytest

from ..helpers.folders import shared_folder
from ..helpers.stages import Stages, own_mounts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=3, help="times that each fault befalls each stage (default: 3)")


def pytest_sessionstart() -> None:
    own_mounts()  # before the process is started that all stages are forked from


@pytest.fixture(scope="session")
def kills(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--kills"))


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(shared_folder(tmp_path_factory, "stages"))
