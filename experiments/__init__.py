"""Papers' tables, studies and recipes: ``python -m experiments NAME``."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Output.

    The option of experiments that write a folder.

    Attributes:
        output: Output folder; an interrupted run in it is continued.
    """

    output: Path
