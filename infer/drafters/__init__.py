"""Drafters, which propose tokens. Their interface is :class:`Drafter`."""

from .base import Autoregressive, Drafter, ModelDrafter
from .beams import Beams
from .best_first_tree import BestFirstDrafter
from .chain import ChainDrafter
from .early_exit import EarlyExitDrafter
from .joint import BeamDrafter, JointDrafter
from .mixed import MixedDrafter
from .mixed_tree import MixedTreeDrafter
from .ngram import Ngram, NgramDrafter, split_ngram
from .oracle import OracleDrafter
from .several import SeveralDrafters
from .tree import AUTO_TREE, TreeDrafter, TreeShape, count_nodes, parse_expansions, parse_tree

__all__ = [
    "AUTO_TREE",
    "Autoregressive",
    "BeamDrafter",
    "Beams",
    "BestFirstDrafter",
    "ChainDrafter",
    "Drafter",
    "EarlyExitDrafter",
    "JointDrafter",
    "MixedDrafter",
    "MixedTreeDrafter",
    "ModelDrafter",
    "Ngram",
    "NgramDrafter",
    "OracleDrafter",
    "SeveralDrafters",
    "TreeDrafter",
    "TreeShape",
    "count_nodes",
    "parse_expansions",
    "parse_tree",
    "split_ngram",
]
