"""Makes the drafters of configurations. Each is made once, since requests of one drafter share its forwards."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from ..common.errors import InputError
from ..models import EarlyExit, LanguageModel
from .config import DecoderConfig
from .core import Drafter, DraftingArm
from .drafters.base import Autoregressive
from .drafters.beams import BeamDrafter, JointDrafter
from .drafters.best_first_tree import BestFirstDrafter
from .drafters.chain import ChainDrafter, EarlyExitDrafter
from .drafters.mixed import MixedDrafter, MixedTreeDrafter
from .drafters.ngram import Ngram, NgramDrafter
from .drafters.oracle import OracleDrafter
from .drafters.tree import AUTO_TREE, TreeDrafter
from .engine import Engine
from .loading.routing import Routing


class Drafting:
    """The drafters of one engine.

    Args:
        drafts: the draft models; none with ``routing``, whose arms have their own.
    """

    def __init__(self, engine: Engine, drafts: Sequence[LanguageModel], routing: Routing | None) -> None:
        self.engine, self.drafts, self.routing = engine, drafts, routing
        self._made: dict[Hashable, Drafter] = {}

    def arms(self, config: DecoderConfig) -> list[DraftingArm]:
        """The arms of requests under ``config``; a single one without a router.

        Raises:
            InputError: a draft that reads the target's states is to draft what it cannot.
        """
        unsupported = config.search is not None or config.oracle
        if unsupported and any(model.reads_states for model in self.drafts):
            raise InputError(
                "draft: it reads the target's states, which is not supported for beams and the oracle; leave these "
                "out, or take a draft that reads tokens alone"
            )
        if self.routing is None:
            return [DraftingArm(self._drafter(config), config.stopping)]
        return [
            DraftingArm(
                self._of_model(arm.model) if arm.ngram is None else self._ngram(arm.ngram, planned=True), arm.length
            )
            for arm in self.routing.arms
        ]  # fmt: skip

    def _drafter(self, config: DecoderConfig) -> Drafter:
        if config.rule == "mtjd":
            engine, search, steps = self.engine, config.search, config.joint_length
            assert search is not None
            own: Callable[[], Drafter] = partial(JointDrafter, engine.target, engine.cache, search, steps)
            return self._once(("joint", search, steps), own)
        if config.autoregressive:
            return self._of_model(None)
        if config.ngram is not None:
            return self._ngram(config.ngram, planned=config.length is None, tree=config.tree == AUTO_TREE)
        return self._of_drafts(config) if self.drafts else self._of_model(None)

    def _of_drafts(self, config: DecoderConfig) -> Drafter:
        (first, *_), size = self.drafts, self.engine.target.vocab_size
        if config.search is not None:
            beams, length = config.search, config.joint_length
            return self._once(("beams", beams, length), lambda: BeamDrafter(first, size, beams, length))
        if config.tree == AUTO_TREE:
            return self._once("best-first", lambda: BestFirstDrafter(first, size))
        if isinstance(config.tree, tuple):
            tree, drawn_anew = config.tree, config.rule != "mcss"
            return self._once(
                ("tree", tree, drawn_anew), lambda: TreeDrafter(first, size, tree, replacement=drawn_anew)
            )
        if config.oracle:
            return self._once("oracle", lambda: OracleDrafter(first, size, self.engine.target))
        return self._of_model(first)

    def _ngram(self, ngram: Ngram, *, planned: bool, tree: bool = False) -> Drafter:
        size, device = self.engine.target.vocab_size, self.engine.target.device
        if self.drafts:
            kind = MixedTreeDrafter if tree else MixedDrafter
            return self._once((kind, ngram), lambda: kind(self.drafts[0], size, ngram))
        return self._once(("ngram", ngram, planned), lambda: NgramDrafter(size, device, ngram, planned=planned))

    def _of_model(self, model: LanguageModel | None) -> Drafter:
        size = self.engine.target.vocab_size
        if model is None:
            return self._once(None, Autoregressive)
        if isinstance(model, EarlyExit):
            return self._once(model, lambda: EarlyExitDrafter(model, size, self.engine.cache))
        return self._once(model, lambda: ChainDrafter(model, size))

    def _once(self, key: Hashable, make: Callable[[], Drafter]) -> Drafter:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
