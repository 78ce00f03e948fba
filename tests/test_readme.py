"""The README's commands and code run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, section: str) -> list[str]:
    text = README.partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    assert found, f"the README's section {section!r} shows no {language}"
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """An empty folder with the configurations where the README expects them."""
    (tmp_path / "train").symlink_to(ROOT / "train")
    return tmp_path


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "section", ["Decode", "Train a controller for your own models", "Choose the draft by the prompt"]
)
def test_commands(section: str, elsewhere: Path) -> None:
    for script in blocks("bash", section):
        result = shell(script, elsewhere)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip()


def test_python(elsewhere: Path) -> None:
    for code in blocks("python", "Decode"):
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert len(result.stdout.split()) > 3


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
