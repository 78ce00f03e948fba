"""Audit of the dependencies against a list of advisories that is kept by hand, without a network.

Checked are what is installed, what ``constraints.txt`` pins, and the oldest version that ``pyproject.toml`` allows.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("advisories.json")


@dataclass(frozen=True)
class Advisory:
    """Versions of a package from ``since`` on and below ``fixed`` are affected."""

    package: str
    id: str
    fixed: str
    since: str = "0"

    def affects(self, version: str) -> bool:
        return Version(self.since) <= Version(version) < Version(self.fixed)


@dataclass(frozen=True)
class InstalledPackage:
    """A version of a package, and where it comes from."""

    package: str
    version: str
    place: str


def read_advisories() -> list[Advisory]:
    """Return the advisories in the file ``LIST``."""
    return [Advisory(**entry) for entry in json.loads(LIST.read_text(encoding="utf-8"))]


def audit(versions: Iterable[InstalledPackage], advisories: list[Advisory]) -> list[str]:
    """Return a line for each version that an advisory affects."""
    return [
        f"{package.place}: {package.package} {package.version} is affected by {advisory.id}; "
        f"use {advisory.fixed} or newer"
        for package in versions
        for advisory in advisories
        if canonicalize_name(package.package) == advisory.package and advisory.affects(package.version)
    ]


def all_versions(root: Path = ROOT) -> Iterator[InstalledPackage]:
    """Yield installed versions, pinned versions, and the lowest version of each range."""
    for package in distributions():
        yield InstalledPackage(package.name, package.version, "installed")
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if pinned := re.fullmatch(r"([\w.-]+)==([\w.+-]+)", line.strip()):
            yield InstalledPackage(pinned[1], pinned[2], "constraints.txt")
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = document["project"]["optional-dependencies"].values()
    ranges = [*document["build-system"]["requires"], *document["project"]["dependencies"], *chain(*extras)]
    for text in ranges:
        requirement = Requirement(text)
        for specifier in requirement.specifier:
            if specifier.operator in (">=", "=="):
                yield InstalledPackage(requirement.name, specifier.version, "pyproject.toml")


def main() -> int:
    """Print what is affected; the exit code is 1 if anything is."""
    advisories = read_advisories()
    lines = audit(all_versions(), advisories)
    print("\n".join(lines) or f"no version is affected by the {len(advisories)} advisories of {LIST.name}")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
