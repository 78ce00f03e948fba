"""What a model is before it is behind the protocol: one of transformers', or a GGUF model."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor
from transformers import PreTrainedModel

from .gguf_model import GgufModel
from .trimmed_head import TrimmedHead

LoadedModel: TypeAlias = PreTrainedModel | GgufModel


def output_embedding(model: LoadedModel) -> Tensor:
    """(V, d) what a model computes logits with; zeros for tokens that a trimmed vocabulary leaves out."""
    if isinstance(model, GgufModel):
        return model.output_embedding
    head = model.get_output_embeddings()
    weight: Tensor = head.embedding() if isinstance(head, TrimmedHead) else head.weight
    return weight.detach()


def count_parameters(model: LoadedModel) -> int:
    """How many parameters a model has."""
    if isinstance(model, GgufModel):
        return model.parameters
    return sum(parameter.numel() for parameter in model.parameters())
