"""Drafters: everything that may propose tokens. :class:`Drafter` is what they have in common."""

from .base import Autoregressive, Drafter, ModelDrafter
from .beams import Beams
from .chain import ChainDrafter
from .early_exit import EarlyExitDrafter
from .joint import BeamDrafter, JointDrafter
from .mixed import MixedDrafter
from .ngram import Ngram, NgramDrafter, split_ngram
from .oracle import OracleDrafter
from .several import SeveralDrafters
from .tree import TreeDrafter, count_nodes, parse_expansions

__all__ = [
    "Autoregressive",
    "BeamDrafter",
    "Beams",
    "ChainDrafter",
    "Drafter",
    "EarlyExitDrafter",
    "JointDrafter",
    "MixedDrafter",
    "ModelDrafter",
    "Ngram",
    "NgramDrafter",
    "OracleDrafter",
    "SeveralDrafters",
    "TreeDrafter",
    "count_nodes",
    "parse_expansions",
    "split_ngram",
]
