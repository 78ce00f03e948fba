"""Tree drafts: several children at each node, a level's nodes read in one forward (SpecTr, Appendix E; SpecInfer)."""

from __future__ import annotations

from ..controllers.errors import InputError
from ..controllers.sampling import SamplingParams
from .cache import as_row
from .cached_model import CachedModel
from .distribution import TokenDistribution
from .draft import NO_DRAFT, Draft
from .random_source import RandomSource
from .tree_mask import TreeMask, ancestors_of
from .verify.mcss import without

MOST_NODES = 256


def parse_expansions(spec: str) -> tuple[int, ...]:
    """``"3x2x1"`` → (3, 2, 1): children of the root, of each of those, and so on. ``"4x1x1"`` is four chains of three.

    Raises:
        InputError: not such a list of positive numbers, or a tree of more than 256 nodes.
    """
    parts = spec.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"tree={spec!r}: give the children at each level, as in '3x2x1'")
    expansions = tuple(int(part) for part in parts)
    if count_nodes(expansions) > MOST_NODES:
        raise InputError(f"tree={spec!r}: {count_nodes(expansions)} nodes; take at most {MOST_NODES}")
    return expansions


def count_nodes(expansions: tuple[int, ...]) -> int:
    """Nodes of a full tree."""
    total, level = 0, 1
    for factor in expansions:
        level *= factor
        total += level
    return total


def draft_tree(
    model: CachedModel,
    unread: list[int],
    expansions: tuple[int, ...],
    warp: SamplingParams,
    chance: RandomSource,
    *,
    vocab_size: int,
    deepest: int,
    stop_tokens: frozenset[int],
    replacement: bool,
) -> Draft:
    """Draft a tree of up to ``deepest`` levels, or until a level holds nothing but stop tokens.

    Args:
        model: the draft model; its cache holds all but the ``unread`` last tokens of the text so far. It will hold the
            nodes of all levels but the last after them, in the order of ``Draft.tokens``.
        expansions: children of every node, by level.
        replacement: whether siblings are drawn independently, or each from what its elder siblings have left.
    """
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[TokenDistribution] = []
    level: list[int] = [-1]
    n_forwards, trunk = 0, 0
    for factor in expansions[:deepest]:
        if n_forwards == 0:
            logits, _ = model.forward(as_row(unread, model.device), keep=1)
            trunk = model.length
        else:
            above = [[trunk + ancestor for ancestor in ancestors_of(parents, node)] for node in level]
            read = as_row([tokens[node] for node in level], model.device)
            logits, _ = model.forward(read, branches=TreeMask(trunk, above))
        n_forwards += 1
        law = TokenDistribution.under(warp, logits[0], vocab_size)  # of each node of this level
        coming: list[int] = []
        rows: list[int] = []
        for row, node in enumerate(level):
            left = law.probabilities[row]
            for _ in range(factor):
                choice = chance.sample(left)
                coming.append(len(tokens))
                tokens.append(law.token(row, choice))
                parents.append(node)
                rows.append(row)
                if not replacement:
                    left = without(left, choice)
                    if not bool(left.any()):
                        break
        laws.append(law.take(rows))
        level = coming
        if all(tokens[node] in stop_tokens for node in level):
            break
    return Draft(tokens, laws, parents, n_forwards) if tokens else NO_DRAFT
