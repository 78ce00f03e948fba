"""The papers' tables and figures, reproduced: ``PAPERS`` holds one entry a paper, each a file of its own here."""

from __future__ import annotations

from .mtad import MTAD
from .report import Paper
from .selection import SELECTION
from .specdecpp import SPECDECPP
from .spectr import SPECTR

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (SPECDECPP, SELECTION, SPECTR, MTAD)}
