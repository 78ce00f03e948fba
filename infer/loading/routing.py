"""Routing in the decoder: a router and its arms, each with a draft model (or none) and a length controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError
from ...controllers.arms import AUTOREGRESSIVE, DRAFT, EXIT, NGRAM, Arm, check_enough, parse_arm
from ...controllers.checkpoints.fingerprint import model_fingerprint, tokenizer_fingerprint
from ...controllers.length import MAX_DRAFT, Fixed, LengthController, Oracle
from ...controllers.length.cost_model import CostModel
from ...controllers.router import PolicyRouter, Router
from ...models import CausalLM, EarlyExit, LanguageModel, LoadedModel, count_parameters, language_model
from ...models.forwards import Graphs
from ...models.linear import Quantization
from ..config import LENGTH
from ..drafters.ngram import Ngram
from ..options import DecodingOptions
from .controllers import load_length, load_policy
from .pair import check_pair, draft_precision, load_draft, load_target


@dataclass(frozen=True)
class LoadedArm:
    """An arm of a router.

    Attributes:
        model: its draft model, None if it has none.
        length: the length controller.
        ngram: settings of n-gram drafts, for the arm ``ngram``.
    """

    arm: Arm
    model: LanguageModel | None
    length: LengthController = field(default_factory=lambda: Fixed(0))
    ngram: Ngram | None = None

    @property
    def name(self) -> str:
        return self.arm.name


@dataclass
class Routing:
    """A router and its arms in order.

    Raises:
        InputError: the router has another number of arms.
    """

    target: LanguageModel
    router: Router
    arms: list[LoadedArm]

    def __post_init__(self) -> None:
        if self.router.arms != len(self.arms):
            raise InputError(
                f"router: chooses between {self.router.arms} arms, but {len(self.arms)} are given "
                f"({', '.join(arm.name for arm in self.arms)})"
            )

    @property
    def models(self) -> list[LanguageModel]:
        """The arms' draft models."""
        return [arm.model for arm in self.arms if arm.model is not None]


def load_routing(options: DecodingOptions) -> tuple[Routing, PreTrainedTokenizerBase]:
    """Load a target with a router's arms; ``autoregressive`` and ``ngram`` take no length.

    Raises:
        InputError: a model is missing, or the router was trained for another target or other arms.
    """
    router: Any = options.router  # a name, or an object from Python
    trained = None if isinstance(router, Router) else load_policy(router)
    names = options.drafts
    if names is None:
        if trained is None:
            raise InputError("draft: a router object has no names of arms; give them in its order")
        # Of a local model the checkpoint holds the folder's name: it may be here, or beside the checkpoint.
        beside = {arm.name: Path(router).expanduser().parent / arm.name for arm in trained[1].arms}
        here = {name: Path(name).exists() or not place.is_dir() for name, place in beside.items()}
        names = tuple(name if here[name] else str(place) for name, place in beside.items())
    names = tuple(map(str, names)) if isinstance(names, tuple) else (str(names),)
    of_drafts, quantization = draft_precision(options)
    model, text = load_target(options)
    reader = language_model(model, graphs=options.graphs)
    loaded = load_arms(names, reader, text, **of_drafts, quantization=quantization, graphs=options.graphs)
    if options.draft_dtype is not None and all(arm.arm.kind != DRAFT for arm in loaded):
        raise InputError(f"draft_dtype={options.draft_dtype!r}: no arm has a draft model; leave it out")
    if trained is not None:
        policy, config = trained
        given = [arm.arm for arm in loaded]
        config.check(model_fingerprint(model), tokenizer_fingerprint(text), given, options.pair_check)
        if config.hidden_size != reader.hidden_size:
            raise InputError(
                f"router: reads a target's states of size {config.hidden_size}, where this one's are of "
                f"{reader.hidden_size}; train a router for this target"
            )
        sampling = config.provenance.sampling
        router = PolicyRouter(policy.to(reader.device), sample=options.sample_arm, sampling=sampling)
    elif options.sample_arm:
        raise InputError("sample_arm: has no effect on a router object; leave it out")
    return Routing(reader, router, _with_lengths(loaded, model, text, options)), text


def _with_lengths(
    arms: list[LoadedArm], target: LoadedModel, tokenizer: PreTrainedTokenizerBase, options: DecodingOptions
) -> list[LoadedArm]:
    """The arms with their length controllers."""
    given: Any = LENGTH if options.length is None else options.length
    lengths = given if isinstance(given, tuple) else (given,) * len(arms)
    if len(lengths) != len(arms):
        raise InputError(f"length: {len(lengths)} for {len(arms)} arms; give one for all, or one for each")
    wanted: Any = options.cost
    cost = wanted if wanted is None or isinstance(wanted, CostModel) else CostModel.load(wanted)
    found = []
    for arm, length in zip(arms, lengths, strict=True):
        if arm.model is not None:
            found.append(replace(arm, length=_length(length, arm, target, tokenizer, cost, options)))
        elif arm.arm.kind == NGRAM:
            ngram = Ngram() if cost is None else Ngram(cost=cost)
            found.append(replace(arm, length=Fixed(MAX_DRAFT), ngram=ngram))
        else:
            found.append(arm)
    return found


def _length(
    wanted: str | Path | int | LengthController,
    arm: LoadedArm,
    target: LoadedModel,
    tokenizer: PreTrainedTokenizerBase,
    cost: CostModel | None,
    options: DecodingOptions,
) -> LengthController:
    """The length controller of an arm with a draft model.

    Raises:
        InputError: the controller cannot be loaded or does not fit the arm.
    """
    assert arm.model is not None
    try:
        found = wanted
        if not isinstance(found, LengthController):
            draft, threshold = arm.model.model, options.threshold
            found = load_length(str(wanted), target, draft, tokenizer, threshold, cost, options.pair_check)
        if isinstance(found, Oracle):
            raise InputError("length='oracle': not supported with a router; take another rule")
    except InputError as error:
        raise InputError(f"arm {arm.name!r}: {error}") from error
    return found


def load_arms(
    specs: Sequence[str],
    target: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
    quantization: Quantization | None = None,
    graphs: Graphs = "on",
) -> list[LoadedArm]:
    """Load the arms of a target.

    Args:
        specs: draft models, ``exit:LAYER``, ``ngram``, ``autoregressive``, in the router's order.
        tokenizer: the target's tokenizer.
        quantization: what the draft models' weights are rounded to.
        graphs: their CUDA graphs.

    Raises:
        InputError: there are fewer than two arms, or one does not exist or has another vocabulary or architecture.
    """
    check_enough(specs)
    loading = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
    loaded = []
    for spec in specs:
        kind, layer = parse_arm(spec)
        if kind == DRAFT:
            try:
                model = load_draft(spec, target.model, tokenizer, loading)
                if model.config.is_encoder_decoder != target.model.config.is_encoder_decoder:
                    raise InputError(f"a {model.config.model_type} cannot draft for a {target.model.config.model_type}")
            except InputError as error:
                raise InputError(f"arm {spec!r}: {error}") from error
            arm = Arm(DRAFT, spec, model_fingerprint(model), parameters=count_parameters(model))
            wrapped = language_model(model, quantization=quantization, graphs=graphs)
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
