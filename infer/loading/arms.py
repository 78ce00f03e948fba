"""Loads a router's arms by name and checks them against the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ...common.errors import InputError
from ...controllers.arms import AUTOREGRESSIVE, DRAFT, EXIT, NGRAM, Arm, check_enough, parse_arm
from ...controllers.checkpoints.fingerprint import model_fingerprint
from ..models import CausalLM, EarlyExit, LanguageModel, count_parameters, language_model
from ..models.quantized_linear import Quantization
from .pair import check_pair, load_draft


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
