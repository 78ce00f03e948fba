"""Routing in the decoder: a router and its arms, each with a draft model (or none) and a length controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError
from ...controllers.arms import AUTOREGRESSIVE, DRAFT, EXIT, NGRAM, Arm, check_enough, parse_arm
from ...controllers.checkpoints.fingerprint import model_fingerprint, tokenizer_fingerprint
from ...controllers.length import Fixed, LengthController
from ...controllers.router import PolicyRouter, Router
from ...models import CausalLM, EarlyExit, LanguageModel, count_parameters, language_model
from ...models.forwards import Graphs
from ...models.linear import Quantization
from ..drafters.ngram import Ngram
from ..model_spec import ModelSpec, Name
from ..options import LoadingKeywords
from .controllers import load_policy
from .pair import check_pair, draft_quantization, load_draft


@dataclass(frozen=True)
class LoadedArm:
    """An arm of a router.

    Attributes:
        arm: the arm's description.
        model: the draft model; None without one.
        length: the length controller of an arm that a caller created. For an arm loaded by name, the plan has it.
        ngram: the settings of n-gram drafts of an arm ``ngram`` that a caller created.
    """

    arm: Arm
    model: LanguageModel | None
    length: LengthController = field(default_factory=lambda: Fixed(0))
    ngram: Ngram | None = None

    @property
    def name(self) -> str:
        """The arm's name."""
        return self.arm.name


@dataclass
class Routing:
    """A router and its arms in order.

    Attributes:
        target: the target, whose embedding of a prompt the router reads.
        router: the router.
        arms: the arms, in the order of the router's outputs.

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


def load_routing(
    router: Name | Router,
    names: Sequence[str],
    specs: Mapping[str, ModelSpec],
    target: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    pair_check: str,
    *,
    sample: bool,
) -> Routing:
    """Load a router and its arms.

    Args:
        router: a trained router by its name, or an object.
        names: the arms in the router's order.
        specs: how the draft models among them are loaded, by arm.
        pair_check: see :meth:`~specpilot.controllers.checkpoints.provenance.Provenance.check_pair`.
        sample: whether a trained router samples the arm.

    Raises:
        InputError: a model is missing, or the router was trained for another target or other arms.
    """
    trained = None if isinstance(router, Router) else load_policy(router)
    first = next(iter(specs.values()), ModelSpec(name="", precision="float32"))  # all arms are loaded alike
    loaded = load_arms(
        names, target, tokenizer, **first.loading, quantization=draft_quantization(first), graphs=first.graphs
    )
    if trained is None:
        assert isinstance(router, Router)
        return Routing(target, router, loaded)
    policy, config = trained
    arms = [arm.arm for arm in loaded]
    config.check(model_fingerprint(target.model), tokenizer_fingerprint(tokenizer), arms, pair_check)
    if config.hidden_size != target.hidden_size:
        raise InputError(
            f"router: reads hidden states of size {config.hidden_size}, but this target's hidden states have size "
            f"{target.hidden_size}; train a router for this target"
        )
    chooser = PolicyRouter(
        policy.to(target.device), sample=sample, sampling=config.provenance.sampling, verifier=config.verifier
    )
    return Routing(target, chooser, loaded)


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
        target: the target.
        tokenizer: the target's tokenizer.
        dtype, device, trust_remote_code: options for loading the draft models.
        quantization: the number format that the draft models' weights are rounded to.
        graphs: whether CUDA graphs replay the draft models' forwards.

    Raises:
        InputError: there are fewer than two arms, or one does not exist or has another vocabulary or architecture.
    """
    check_enough(specs)
    loading: LoadingKeywords = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
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
