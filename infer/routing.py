"""A router at work in the decoder: its arms, each with a draft model (or none) and a length controller of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..controllers.arms import Arm
from ..controllers.cost_model import CostModel
from ..controllers.errors import InputError
from ..controllers.fingerprint import model_fingerprint, tokenizer_fingerprint
from ..controllers.length import Fixed, LengthController, Oracle
from ..controllers.router import PolicyRouter, Router, load_router
from .arms import LoadedArm, load_arms
from .cached_model import CachedModel
from .early_exit import EarlyExit
from .encoder_decoder import cached
from .lengths import load_length
from .loading import load_model, load_tokenizer
from .random_source import RandomSource

LENGTH = 4  # tokens a draft, where nothing else is said


@dataclass(frozen=True)
class Way:
    """One way to decode: the draft models that propose, none for autoregressive, and when they stop."""

    drafts: Sequence[CachedModel]
    length: LengthController


@dataclass
class Routing:
    """A router and the arms it chooses between, in its order.

    Raises:
        InputError: the router has another number of arms.
    """

    target: CachedModel
    router: Router
    arms: list[Arm]
    ways: list[Way]

    def __post_init__(self) -> None:
        if not self.router.arms == len(self.arms) == len(self.ways):
            raise InputError(
                f"router: chooses between {self.router.arms} arms, but {len(self.arms)} are given "
                f"({', '.join(arm.name for arm in self.arms)})"
            )

    def choose(self, embedding: Tensor, chance: RandomSource) -> int:
        """An arm for a prompt with this embedding (d,); a toss only where the router leaves one."""
        weights = self.router.weigh(embedding)
        best = weights.index(max(weights))
        return best if weights[best] == 1.0 else chance.pick(weights)


def load_routing(
    router: str | Router,
    target: str,
    arms: str | Sequence[str] | None,
    *,
    length: str | int | LengthController | Sequence[str | int | LengthController] | None,
    threshold: float | None,
    cost: str | CostModel | None,
    sample: bool,
    loading: dict[str, Any],
) -> tuple[Routing, PreTrainedTokenizerBase]:
    """Load a target with a router's arms.

    Args:
        router: a trained one by name, or a router object.
        arms: names, in the router's order; None: those that the trained router names.
        length: one for all arms, or one for each; ``autoregressive`` takes none.
        sample: draw the arm from a trained policy.
        loading: dtype, device, trust_remote_code and compile.

    Raises:
        InputError: something is missing, or the router was trained for another target or other arms; names it.
    """
    trained = None if isinstance(router, Router) else load_router(router)
    if arms is None:
        if trained is None:
            raise InputError("draft: a router object names no arms; give them in its order")
        arms = [arm.name for arm in trained.config.arms]
    names = [arms] if isinstance(arms, str) else list(arms)
    trust = loading["trust_remote_code"]
    tokenizer = load_tokenizer(target, trust_remote_code=trust)
    model = load_model(target, dtype=loading["dtype"], device=loading["device"], trust_remote_code=trust)
    reader = cached(model, compile=loading["compile"])
    loaded = load_arms(names, reader, tokenizer, exits=EarlyExit, **loading)
    if trained is not None:
        found = [arm.arm for arm in loaded]
        trained.config.check(model_fingerprint(model), tokenizer_fingerprint(tokenizer), found)
        router = PolicyRouter(trained.policy.to(model.device), sample=sample, warp=trained.config.warp)
    elif sample:
        raise InputError("sample_arm: a router object decides for itself whether it draws; leave it out")
    assert isinstance(router, Router)
    lengths = _lengths(length, loaded)
    costs = CostModel.load(cost) if isinstance(cost, str) else cost
    ways = [
        Way([], Fixed(0)) if arm.model is None else Way(
            [arm.model], _length(wanted, arm, reader, tokenizer, threshold, costs)
        )
        for arm, wanted in zip(loaded, lengths, strict=True)
    ]  # fmt: skip
    return Routing(reader, router, [arm.arm for arm in loaded], ways), tokenizer


def _lengths(
    length: str | int | LengthController | Sequence[str | int | LengthController] | None, arms: list[LoadedArm]
) -> list[str | int | LengthController]:
    """One for each arm."""
    if length is None:
        return [LENGTH] * len(arms)
    if isinstance(length, str | int | LengthController):
        return [length] * len(arms)
    if len(length) != len(arms):
        raise InputError(f"length: {len(length)} for {len(arms)} arms; give one for all, or one for each")
    return list(length)


def _length(
    wanted: str | int | LengthController,
    arm: LoadedArm,
    target: CachedModel,
    tokenizer: PreTrainedTokenizerBase,
    threshold: float | None,
    cost: CostModel | None,
) -> LengthController:
    """The length controller of a draft.

    Raises:
        InputError: naming the arm.
    """
    assert arm.model is not None
    try:
        found = (
            wanted
            if isinstance(wanted, LengthController)
            else load_length(str(wanted), target.model, arm.model.model, tokenizer, threshold, cost)
        )
        if isinstance(found, Oracle):
            raise InputError("length='oracle': has to know the draft beforehand; take another rule with a router")
    except InputError as error:
        raise InputError(f"arm {arm.arm.name!r}: {error}") from error
    return found
