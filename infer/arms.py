"""Loads a router's arms by name and checks them against the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ..controllers.arms import AUTOREGRESSIVE, DRAFT, EXIT, NGRAM, Arm, check_enough, parse_arm
from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..controllers.errors import InputError
from .loading import check_same_tokenizer, load_model, load_tokenizer
from .models import CausalLM, EarlyExit, language_model


@dataclass(frozen=True)
class LoadedArm:
    """An arm and its draft model, None if it has none."""

    arm: Arm
    model: CausalLM | None


def load_arms(
    specs: Sequence[str],
    target: CausalLM,
    tokenizer: PreTrainedTokenizerBase,
    *,
    dtype: str,
    device: str,
    trust_remote_code: bool = False,
    compile: bool = False,
) -> list[LoadedArm]:
    """Load the arms of a target.

    Args:
        specs: draft models, ``exit:LAYER``, ``ngram``, ``autoregressive``, in the router's order.
        tokenizer: the target's tokenizer.

    Raises:
        InputError: there are fewer than two arms, or one does not exist or has another vocabulary or architecture.
    """
    check_enough(specs)
    loaded = []
    for spec in specs:
        kind, layer = parse_arm(spec)
        if kind == DRAFT:
            try:
                check_same_tokenizer(tokenizer, load_tokenizer(spec, trust_remote_code=trust_remote_code))
                model = load_model(spec, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
                if model.config.is_encoder_decoder != target.model.config.is_encoder_decoder:
                    raise InputError(f"a {model.config.model_type} cannot draft for a {target.model.config.model_type}")
            except InputError as error:
                raise InputError(f"arm {spec!r}: {error}") from error
            parameters = sum(parameter.numel() for parameter in model.parameters())
            arm = Arm(DRAFT, spec, model_fingerprint(model), parameters=parameters)
            loaded.append(LoadedArm(arm, language_model(model, compile=compile)))
        elif kind == EXIT:
            exit = EarlyExit(target, layer)
            loaded.append(LoadedArm(Arm(EXIT, spec, layer=layer, parameters=exit.parameters), exit))
        elif kind == NGRAM:
            loaded.append(LoadedArm(Arm(NGRAM, spec), None))
        else:
            parameters = sum(parameter.numel() for parameter in target.model.parameters())
            loaded.append(LoadedArm(Arm(AUTOREGRESSIVE, spec, parameters=parameters), None))
    return loaded
