"""A thread-safe forward that returns logits and the hidden states they were computed from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def forward_with_hidden(
    model: PreTrainedModel,
    select: Callable[[Tensor], Tensor] | None = None,
    layers: Sequence[nn.Module] = (),
    **inputs: Any,
) -> tuple[Tensor, Tensor]:
    """Logits (B, n, V) and last hidden states (B, n, d) of one call ``model(**inputs)``.

    The outputs of ``layers`` follow the last states: (B, n, d + L·d).

    Of the states only ``select(states)`` go through the output embedding, so that there are fewer logits than states.

    The hidden state is the input of the output embedding, after the final norm and any output projection, at the
    positions of ``logits_to_keep``. (``output_hidden_states=True`` would collect every layer at every position.)
    """
    captured: list[Tensor] = []
    thread = threading.get_ident()

    def capture(module: nn.Module, arguments: tuple[Tensor, ...]) -> Tensor | None:
        if threading.get_ident() != thread:
            return None  # another thread's forward
        captured.append(arguments[0])
        return None if select is None else select(arguments[0])

    outputs: dict[nn.Module, Tensor] = {}

    def capture_output(module: nn.Module, arguments: tuple[Tensor, ...], output: Any) -> None:
        if threading.get_ident() == thread:
            outputs[module] = output[0] if isinstance(output, tuple) else output

    handles = [model.get_output_embeddings().register_forward_pre_hook(capture)]
    handles += [layer.register_forward_hook(capture_output) for layer in layers]
    try:
        logits = model(**inputs).logits
    finally:
        for handle in handles:
            handle.remove()
    last = captured[-1]
    if layers:
        inner = [outputs[layer][:, -last.shape[1] :].to(last.device) for layer in layers]
        return logits, torch.cat([last, *inner], -1)
    return logits, last
