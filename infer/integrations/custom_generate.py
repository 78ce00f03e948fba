"""The decoder in transformers: ``model.generate(**inputs, custom_generate=decoder)``.

``generate`` prepares inputs and settings and calls the decoder. Every setting or argument that changes the text is
either supported or refused by name.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from ...common.errors import InputError
from ...controllers.sampling import SamplingParams
from ...models import LanguageModel
from ...models.loading.generation_defaults import neutral, unsupported_settings
from ..core import Request, warn_of_context
from ..random_source import text_seeds
from ..scheduler import Scheduler
from ..text_stream import TextStyle

# Arguments of ``generate``, besides its settings, that are not supported.
ARGUMENTS = ("assistant_model", "logits_processor", "prefix_allowed_tokens_fn", "stopping_criteria", "synced_gpus")
# Processors and criteria that ``generate`` creates from supported settings.
PREPARED = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MaxLengthCriteria, EosTokenCriteria)


def custom_generate(
    target: LanguageModel,
    scheduler: Scheduler,
    new_request: Callable[..., Request],
    style: TextStyle,
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    attention_mask: Tensor | None = None,
    **_: Any,  # positions, an empty cache and other inputs of the model's forward
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decode the prompts that ``generate`` prepared; each row equals the output of ``decoder.generate``.

    Args:
        target, scheduler, new_request: the decoder's target, scheduler, and function that creates a request.
        style: the style of texts, with the stop strings.
        model: the model that ``generate`` was called on; it must be the decoder's target.
        input_ids: (B, n) prompts, padded on the left.
        logits_processor, stopping_criteria: those that ``generate`` created; none of the user's is supported.
        generation_config: the settings of the call.
        attention_mask: (B, n), 0 at padding; None without padding.

    Returns:
        The prompts and their continuations, padded on the right, (B, n + m), as a tensor or in transformers' output
        class.

    Raises:
        InputError: a setting or an argument is not supported, the model is not the target, or padding is not on the
            left.
    """
    _check_model(model, target)
    call = _running_call()
    _check_settings(generation_config)
    _check_arguments(call)
    for prepared in (*logits_processor, *stopping_criteria):
        if not isinstance(prepared, PREPARED):
            raise InputError(
                f"{type(prepared).__name__}: set by the model's generate, but not supported by the decoder"
            )
    prompts = _unpadded(input_ids, attention_mask)

    ends = generation_config._eos_token_tensor  # (number of end tokens,)
    stop_tokens = frozenset() if ends is None else frozenset(ends.tolist())
    sampling, seed = _sampling(generation_config)
    budget = generation_config.max_length - input_ids.shape[1]
    requests = [
        new_request(prompt, sampling, budget, text_seed, stop_tokens=stop_tokens, style=style)
        for prompt, text_seed in zip(prompts, text_seeds(seed, len(prompts)), strict=True)
    ]
    _run(scheduler, requests, call["streamer"])
    warn_of_context([request.output for request in requests], target.context)
    outputs = [request.output.tokens for request in requests]
    sequences = torch.cat([input_ids, _padded(outputs, generation_config._pad_token_tensor).to(input_ids)], 1)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, sequences))
    return sequences


def _sampling(config: GenerationConfig) -> tuple[SamplingParams, int]:
    """Return the decoder's sampling parameters for ``config``, and a seed."""
    if not config.do_sample:
        return SamplingParams(0.0), 0
    temperature = 1.0 if config.temperature is None else config.temperature
    top_p = 1.0 if config.top_p is None else config.top_p
    # The seed comes from the global generator, because users of transformers call torch.manual_seed or set_seed.
    return SamplingParams(temperature, config.top_k or None, top_p), int(torch.randint(2**32, ()))


def _run(scheduler: Scheduler, requests: Sequence[Request], streamer: BaseStreamer | None) -> None:
    """Decode ``requests``; ``streamer`` receives token after token, as in transformers."""
    if streamer is None:
        scheduler.run(requests)
        return
    if len(requests) > 1:
        raise InputError(f"streamer: supports a single prompt, got {len(requests)}; give one prompt")
    for tokens in scheduler.tokens(requests[0]):
        for token in tokens:
            streamer.put(torch.tensor([token]))
    streamer.end()


def _check_model(model: PreTrainedModel, target: LanguageModel) -> None:
    """Check that ``model`` is the decoder's target and not an encoder-decoder.

    Raises:
        InputError: ``model`` is another model, or an encoder-decoder.
    """
    if model is not target.model:
        raise InputError(
            f"model: a {type(model).__name__} that is not the decoder's target; call generate on the model the decoder "
            "was made with"
        )
    if model.config.is_encoder_decoder:
        raise InputError(
            f"model: {model.config.model_type} is an encoder-decoder; call decoder.generate with the prompt"
        )


def _running_call() -> Mapping[str, Any]:
    """Return the arguments of the running ``generate`` call, by name, read from its stack frame.

    ``generate`` does not pass all arguments to ``custom_generate``: a streamer would receive only the prompt, so that
    its reader would wait forever, and an assistant would be ignored without a warning.

    Raises:
        InputError: no ``generate`` call is running.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    if frame is None:
        raise InputError(
            "decoder: is called by transformers; call decoder.generate, or model.generate(…, custom_generate=decoder)"
        )
    return frame.f_locals


def _check_settings(config: GenerationConfig) -> None:
    """Check that all settings of the installed transformers are supported or have no effect.

    Raises:
        InputError: a setting is not supported.
    """
    for name, value in unsupported_settings(config).items():
        value_text = " ".join(reprlib.repr(value).split())
        raise InputError(f"{name}={value_text}: not supported by the decoder; take {name}={neutral(name)}")


def _check_arguments(call: Mapping[str, Any]) -> None:
    """Check the arguments of ``generate``.

    Raises:
        InputError: an argument is not supported.
    """
    names = vars(GenerationConfig()).keys() | {"input_ids", "attention_mask"}
    refused = [name for name in ARGUMENTS if call[name]]
    refused += [name for name, value in call["kwargs"].items() if value is not None and name not in names]
    if refused:
        raise InputError(
            f"{refused[0]}: not supported by the decoder; leave it out, and give input_ids, attention_mask and settings"
        )


def _unpadded(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """Return the prompts without their padding on the left.

    Raises:
        InputError: padding is not on the left.
    """
    if attention_mask is None:
        return input_ids.tolist()
    real = attention_mask.bool()
    for i, row in enumerate(real):
        if not row[-1] or bool((row[:-1] & ~row[1:]).any()):
            raise InputError(f"attention_mask: row {i} is padded elsewhere than on the left; set padding_side='left'")
    return [row[mask].tolist() for row, mask in zip(input_ids, real, strict=True)]


def _padded(rows: list[list[int]], pad: Tensor | None) -> Tensor:
    """Return the rows as a tensor (B, longest row), padded on the right.

    Raises:
        InputError: there is no token for padding, and the rows have different lengths.
    """
    if pad is None and len({len(row) for row in rows}) > 1:  # rows ended by the context, without end tokens
        raise InputError("pad_token_id=None: the rows end at different lengths; name a token to pad them with")
    return pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=0 if pad is None else int(pad)
    )
