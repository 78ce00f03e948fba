"""Routing in the decoder: a router and its arms, each with a draft model (or none) and a length controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError
from ...controllers.arms import AUTOREGRESSIVE, DRAFT, EXIT, NGRAM, Arm, check_enough, parse_arm
from ...controllers.checkpoints.checkpoint import load_controller
from ...controllers.checkpoints.fingerprint import model_fingerprint, tokenizer_fingerprint
from ...controllers.checkpoints.provenance import EXACT
from ...controllers.checkpoints.router import RouterConfig
from ...controllers.length import MAX_DRAFT, Fixed, LengthController, Oracle
from ...controllers.length.cost_model import CostModel
from ...controllers.router import PolicyRouter, Router, RouterPolicy
from ..config import LENGTH
from ..drafters.ngram import Ngram
from ..models import CausalLM, EarlyExit, LanguageModel, count_parameters, language_model
from ..models.quantized_linear import Quantization
from .controllers import load_length
from .pair import check_pair, draft_precision, load_draft, load_target


@dataclass(frozen=True)
class ArmRuntime:
    """The models and settings of an arm.

    Attributes:
        model: the draft model, or None.
        length: the length controller.
        ngram: settings of n-gram drafts, for the arm ``ngram``.
    """

    model: LanguageModel | None
    length: LengthController
    ngram: Ngram | None = None


@dataclass
class Routing:
    """A router and its arms in order.

    Raises:
        InputError: the router has another number of arms.
    """

    target: LanguageModel
    router: Router
    arms: list[Arm]
    runtimes: list[ArmRuntime]

    def __post_init__(self) -> None:
        if not self.router.arms == len(self.arms) == len(self.runtimes):
            raise InputError(
                f"router: chooses between {self.router.arms} arms, but {len(self.arms)} are given "
                f"({', '.join(arm.name for arm in self.arms)})"
            )


def load_routing(
    router: str | Path | Router,
    target: str | Path,
    arms: str | Path | Sequence[str | Path] | None,
    *,
    length: str | Path | int | LengthController | Sequence[str | int | LengthController] | None,
    threshold: float | None,
    cost: str | Path | float | CostModel | None,
    sample: bool,
    loading: dict[str, Any],
    spread: dict[str, Any],
    draft_dtype: str | None = None,
    tokenizer: str | Path | None = None,
    pair_check: str = EXACT,
) -> tuple[Routing, PreTrainedTokenizerBase]:
    """Load a target with a router's arms.

    Args:
        router: name of a trained router, or a router object.
        arms: names in the router's order. Default: those of the trained router.
        length: one for all arms, or one for each; ``autoregressive`` and ``ngram`` take none.
        sample: draw the arm from a trained policy.
        loading: dtype, device and trust_remote_code.
        spread: device_map, offload_folder and revision of the target.
        draft_dtype: dtype of the draft models, if it is another one, or ``int8`` or ``int4``.
        tokenizer: name of a tokenizer to use instead of the target's.
        pair_check: see :meth:`~..controllers.checkpoints.provenance.Provenance.check_pair`.

    Raises:
        InputError: a model is missing, or the router was trained for another target or other arms.
    """
    trained = None if isinstance(router, Router) else load_policy(router)
    if arms is None:
        if trained is None:
            raise InputError("draft: a router object has no names of arms; give them in its order")
        arms = [arm.name for arm in trained[1].arms]
    names = [str(arms)] if isinstance(arms, str | Path) else [str(name) for name in arms]
    of_drafts, quantization = draft_precision(draft_dtype, loading)
    model, text = load_target(target, tokenizer, loading | spread)
    reader = language_model(model)
    loaded = load_arms(names, reader, text, **of_drafts, quantization=quantization)
    if draft_dtype is not None and all(arm.arm.kind != DRAFT for arm in loaded):
        raise InputError(f"draft_dtype={draft_dtype!r}: no arm has a draft model; leave it out")
    if trained is not None:
        policy, config = trained
        arms_given = [arm.arm for arm in loaded]
        config.check(model_fingerprint(model), tokenizer_fingerprint(text), arms_given, pair_check)
        if config.hidden_size != reader.hidden_size:
            raise InputError(
                f"router: reads a target's states of size {config.hidden_size}, where this one's are of "
                f"{reader.hidden_size}; train a router for this target"
            )
        router = PolicyRouter(policy.to(reader.device), sample=sample, sampling=config.provenance.sampling)
    elif sample:
        raise InputError("sample_arm: has no effect on a router object; leave it out")
    assert isinstance(router, Router)
    lengths = _lengths(length, loaded)
    costs = cost if cost is None or isinstance(cost, CostModel) else CostModel.load(cost)
    runtimes = [
        _runtime(arm, wanted, reader, text, threshold, costs, pair_check)
        for arm, wanted in zip(loaded, lengths, strict=True)
    ]
    return Routing(reader, router, [arm.arm for arm in loaded], runtimes), text


def _runtime(
    arm: LoadedArm,
    length: str | Path | int | LengthController,
    target: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    threshold: float | None,
    cost: CostModel | None,
    pair_check: str,
) -> ArmRuntime:
    """An arm with its length controller; one without a draft model has none of its own."""
    if arm.model is not None:
        return ArmRuntime(arm.model, _length(length, arm, target, tokenizer, threshold, cost, pair_check))
    if arm.arm.kind == NGRAM:
        return ArmRuntime(None, Fixed(MAX_DRAFT), Ngram() if cost is None else Ngram(cost=cost))
    return ArmRuntime(None, Fixed(0))


def load_policy(name: str | Path) -> tuple[RouterPolicy, RouterConfig]:
    """The trained router ``name``.

    Raises:
        InputError: it cannot be loaded, or is a controller of another kind.
    """
    controller = load_controller(name)
    policy, config = controller.head, controller.config
    if not isinstance(policy, RouterPolicy) or not isinstance(config, RouterConfig):
        kind, given_as = config.kind, config.given_as
        raise InputError(f"router={str(name)!r}: is of kind {kind!r}, which chooses no arm; give it as {given_as}")
    return policy, config


def _lengths(
    length: str | Path | int | LengthController | Sequence[str | int | LengthController] | None, arms: list[LoadedArm]
) -> list[str | Path | int | LengthController]:
    """A length for each arm."""
    if length is None:
        return [LENGTH] * len(arms)
    if isinstance(length, str | Path | int | LengthController):
        return [length] * len(arms)
    if len(length) != len(arms):
        raise InputError(f"length: {len(length)} for {len(arms)} arms; give one for all, or one for each")
    return list(length)


def _length(
    wanted: str | Path | int | LengthController,
    arm: LoadedArm,
    target: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    threshold: float | None,
    cost: CostModel | None,
    pair_check: str,
) -> LengthController:
    """The length controller of an arm.

    Raises:
        InputError: the controller cannot be loaded or does not fit the arm.
    """
    assert arm.model is not None
    try:
        found = (
            wanted
            if isinstance(wanted, LengthController)
            else load_length(str(wanted), target.model, arm.model.model, tokenizer, threshold, cost, pair_check)
        )
        if isinstance(found, Oracle):
            raise InputError("length='oracle': not supported with a router; take another rule")
    except InputError as error:
        raise InputError(f"arm {arm.arm.name!r}: {error}") from error
    return found


@dataclass(frozen=True)
class LoadedArm:
    """An arm and its draft model, None if it has none."""

    arm: Arm
    model: LanguageModel | None


def load_arms(
    specs: Sequence[str],
    target: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
    quantization: Quantization | None = None,
) -> list[LoadedArm]:
    """Load the arms of a target.

    Args:
        specs: draft models, ``exit:LAYER``, ``ngram``, ``autoregressive``, in the router's order.
        tokenizer: the target's tokenizer.
        quantization: what the draft models' weights are rounded to.

    Raises:
        InputError: there are fewer than two arms, or one does not exist or has another vocabulary or architecture.
    """
    check_enough(specs)
    loaded = []
    for spec in specs:
        kind, layer = parse_arm(spec)
        if kind == DRAFT:
            try:
                options = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
                model = load_draft(spec, target.model, tokenizer, options)
                if model.config.is_encoder_decoder != target.model.config.is_encoder_decoder:
                    raise InputError(f"a {model.config.model_type} cannot draft for a {target.model.config.model_type}")
            except InputError as error:
                raise InputError(f"arm {spec!r}: {error}") from error
            arm = Arm(DRAFT, spec, model_fingerprint(model), parameters=count_parameters(model))
            wrapped = language_model(model, quantization=quantization)
            check_pair(target, wrapped)
            loaded.append(LoadedArm(arm, wrapped))
        elif kind == EXIT:
            if not isinstance(target, CausalLM):
                raise InputError(
                    f"arm {spec!r}: {target.name} is run by llama.cpp, which has no early exits; leave it out"
                )
            exit = EarlyExit(target, layer)
            loaded.append(LoadedArm(Arm(EXIT, spec, layer=layer, parameters=exit.parameters), exit))
        elif kind == NGRAM:
            loaded.append(LoadedArm(Arm(NGRAM, spec), None))
        else:
            loaded.append(LoadedArm(Arm(AUTOREGRESSIVE, spec, parameters=count_parameters(target.model)), None))
    return loaded
