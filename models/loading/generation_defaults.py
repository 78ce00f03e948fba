"""Settings of a checkpoint's ``generation_config.json``.

Supported settings are used. Unsupported settings that change the text are refused. transformers applies a checkpoint's
generation settings to every ``generate`` call, so that ignoring a setting that changes the distribution, such as
Qwen2.5's repetition penalty, would give text from another distribution without a warning.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from ...common.errors import InputError, check_count
from ...common.options import AUTO
from ...controllers.sampling import SamplingParams
from .. import LoadedModel

MAX_NEW_TOKENS = 128  # if neither the call nor the checkpoint sets it

# Supported settings, and those without effect on decoding without beams.
SUPPORTED = {
    "do_sample", "temperature", "top_k", "top_p", "eos_token_id", "pad_token_id", "max_length", "max_new_tokens",
    "num_return_sequences", "return_dict_in_generate",
}  # fmt: skip
IDLE = {
    "bos_token_id", "decoder_start_token_id", "early_stopping", "length_penalty", "compile_config", "disable_compile",
    "transformers_version", "_from_model_config", "_commit_hash",
}  # fmt: skip
# Settings of the execution of transformers' `generate`: cache, lossless drafting, further outputs. They do not change
# the text. They are ignored in a checkpoint and refused in a call.
RUNTIME = {
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "low_memory",
    "continuous_batching_config", "output_attentions", "output_hidden_states", "output_scores", "output_logits",
    "renormalize_logits", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "target_lookbehind",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type", "use_mtp",
}  # fmt: skip
# Values without effect for settings whose default is None.
NEUTRAL: dict[str, Any] = {"guidance_scale": 1.0, "min_new_tokens": 0, "min_p": 0.0, "penalty_alpha": 0.0}


@dataclass(frozen=True)
class GenerationDefaults:
    """Settings of a checkpoint; None for a setting that the checkpoint does not have.

    Attributes:
        temperature: divisor of the logits; 0 (greedy) if the checkpoint has ``do_sample: false``.
        top_k: number of most probable tokens that are kept; 0 keeps all, as in transformers.
        top_p: total probability of the most probable tokens that are kept.
        max_new_tokens: maximum number of new tokens.
        max_length: maximum number of tokens of prompt and continuation together; None if ``max_new_tokens`` is set,
            which takes precedence, or if it is transformers' default of 20.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None

    def sampling_params(self, **arguments: Any) -> SamplingParams:
        """Return the sampling parameters of a call.

        Args:
            arguments: the call's parameters; ``"auto"`` stands for the checkpoint's setting, else the default.
        """
        by_name = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        settings: dict[str, Any] = {name: value for name, value in by_name.items() if value is not None}
        if settings.get("top_k") == 0:
            settings["top_k"] = None
        return SamplingParams(**(settings | {name: value for name, value in arguments.items() if value != AUTO}))

    def budget(self, max_new_tokens: int | str, prompt_tokens: int) -> int:
        """Return the maximum number of new tokens.

        Args:
            max_new_tokens: the number, or ``"auto"`` for the checkpoint's setting, else 128.
            prompt_tokens: number of tokens of the prompt; 1 for an encoder-decoder, its start token.

        Raises:
            InputError: ``max_new_tokens`` is not a positive whole number, or the prompt is not shorter than the
                checkpoint's ``max_length``.
        """
        if not isinstance(max_new_tokens, str) or max_new_tokens != AUTO:
            return check_count("max_new_tokens", max_new_tokens)
        if self.max_length is None:
            return self.max_new_tokens or MAX_NEW_TOKENS
        if prompt_tokens >= self.max_length:
            raise InputError(
                f"prompt: {prompt_tokens} tokens, but the checkpoint's generation_config has max_length="
                f"{self.max_length}; shorten the prompt, or give max_new_tokens"
            )
        return self.max_length - prompt_tokens


def generation_defaults(model: LoadedModel) -> GenerationDefaults:
    """Return the settings of ``model.generation_config``.

    Raises:
        InputError: a setting that changes the text is not supported, or a setting is out of range.
    """
    config = model.generation_config
    refused = unsupported_settings(config, RUNTIME)
    if refused:
        raise InputError(_refusal_message(refused))
    bounded = config.max_new_tokens is None and config.max_length != neutral("max_length")
    defaults = GenerationDefaults(
        temperature=0.0 if config.do_sample is False else config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        max_new_tokens=config.max_new_tokens,
        max_length=config.max_length if bounded else None,
    )
    _check_types(defaults)
    try:
        defaults.sampling_params()
    except InputError as error:
        raise InputError(f"model.generation_config: {error}, or pass generation_config='ignore'") from None
    return defaults


def unsupported_settings(config: GenerationConfig, without_effect: Collection[str] = ()) -> dict[str, object]:
    """Return the settings of ``config`` that change the text and are not supported, with their values.

    All settings of the installed version of transformers are considered, in reverse order.

    Args:
        config: the settings.
        without_effect: names of settings to leave out.
    """
    ignored = SUPPORTED | IDLE | set(without_effect)
    # Reversed, so that min_new_tokens comes before min_length, which transformers derives from it.
    names = [name for name in reversed(vars(GenerationConfig())) if name not in ignored]
    return {name: vars(config)[name] for name in names if not _is_neutral(name, vars(config)[name])}


def neutral(name: str) -> Any:
    """Return the value of the setting ``name`` that has no effect, which is transformers' default."""
    return GenerationConfig._get_default_generation_params().get(name, NEUTRAL.get(name))


def _is_neutral(name: str, value: Any) -> bool:
    """Return true if ``value`` of the setting ``name`` has no effect."""
    default = neutral(name)
    return value is None or value == default or (value is False and default is not True)


def _refusal_message(refused: dict[str, object]) -> str:
    """Return the error message for unsupported settings."""
    settings = [f"{name}={' '.join(reprlib.repr(value).split())}" for name, value in refused.items()]
    remedies = [f"model.generation_config.{name}={neutral(name)}" for name in refused]
    return (
        f"generation_config: the checkpoint sets {', '.join(settings)}, which the decoder does not support; set "
        f"{', '.join(remedies)}, or pass generation_config='ignore' (--generation-config ignore)"
    )


def _check_types(defaults: GenerationDefaults) -> None:
    """Check that all values are numbers.

    Raises:
        InputError: a value is not a number.
    """
    for name, value in vars(defaults).items():
        number = int | float if name in ("temperature", "top_p") else int
        if value is not None and (isinstance(value, bool) or not isinstance(value, number)):
            raise InputError(
                f"generation_config: the checkpoint has {name}={reprlib.repr(value)}, of type {type(value).__name__}; "
                f"set model.generation_config.{name} to a number, or pass generation_config='ignore'"
            )


def model_stop_tokens(model: LoadedModel, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Return the ids that end a text: those of the model's generation_config, else the tokenizer's."""
    return stop_tokens(model.generation_config.eos_token_id, tokenizer)


def stop_tokens(ids: int | list[int] | None, tokenizer: PreTrainedTokenizerBase | None) -> frozenset[int]:
    """Return the ids that end a text.

    Args:
        ids: ``eos_token_id`` of a generation_config; None for the tokenizer's.
        tokenizer: the tokenizer, or None.
    """
    if ids is None and tokenizer is not None:
        ids = tokenizer.eos_token_id
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)
