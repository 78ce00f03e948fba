"""Reproduction of papers' tables and figures; ``PAPERS`` holds one entry per paper, each defined in its own file."""

from __future__ import annotations

from .mtad import MTAD
from .report import Paper
from .selection import SELECTION
from .specdecpp import SPECDECPP
from .spectr import SPECTR

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (SPECDECPP, SELECTION, SPECTR, MTAD)}
