"""The audit of dependencies, which `make check` runs."""

from pathlib import Path

import pytest

from experiments.audit import Advisory, Found, all_versions, audit, read_advisories


def test_nothing_that_is_allowed_or_installed_is_affected() -> None:
    assert audit(all_versions(), read_advisories()) == []


@pytest.mark.parametrize(
    ("version", "affected"), [("0.38", False), ("0.39.0", True), ("0.49.0", True), ("0.49.1", False), ("1.0", False)]
)
def test_affected_versions(version: str, affected: bool) -> None:
    advisory = Advisory("starlette", "CVE-2025-62727", since="0.39.0", fixed="0.49.1")
    assert bool(audit([Found("Starlette", version, "installed")], [advisory])) == affected


def test_pins_and_ranges_are_read(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# pins\njinja2==3.1.5\n")
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77,<90"]\n'
        '[project]\ndependencies = ["torch>=2.5,<3"]\n[project.optional-dependencies]\nserve = ["h11>=0.14"]\n'
    )
    lines = [line for line in audit(all_versions(tmp_path), read_advisories()) if not line.startswith("installed")]
    assert [line.partition(";")[0] for line in lines] == [
        "constraints.txt: jinja2 3.1.5 is affected by CVE-2025-27516",
        "pyproject.toml: setuptools 77 is affected by CVE-2025-47273",
        "pyproject.toml: torch 2.5 is affected by CVE-2025-32434",
        "pyproject.toml: torch 2.5 is affected by CVE-2025-3730",
        "pyproject.toml: h11 0.14 is affected by CVE-2025-43859",
    ]
