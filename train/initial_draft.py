"""What the training of a draft begins with: layers of the target, or a draft that exists."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..common.errors import InputError
from ..infer.loading.draft_folder import Shared, SharedWith
from ..infer.loading.pair import load_draft
from ..infer.models import GgufModel
from ..infer.models.eagle import StateInput, state_input_of
from ..infer.models.trimmed_head import keep_trimmed, kept_tokens
from .draft_model import choose_layers, new_draft
from .options import DraftTrainingOptions


def of_layers(target: PreTrainedModel, settings: DraftTrainingOptions, kept: list[int] | None) -> PreTrainedModel:
    """A draft of the target's layers.

    Args:
        kept: the tokens that it can propose; None for all.

    Raises:
        InputError: the target's architecture has no such shorter model.
    """
    reads_states = settings.features is not None
    layers = settings.layers
    if layers is None:
        layers = 1 if reads_states else 3
    chosen = choose_layers(layers, target.config.num_hidden_layers)
    return new_draft(target, chosen, kept, reads_states=reads_states)


def load_initial(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: DraftTrainingOptions
) -> PreTrainedModel:
    """The draft ``settings.initial`` in float32, whose logits are those of the tokens that it can propose.

    Raises:
        InputError: it cannot be loaded or trained, or its tokens are not the target's.
    """
    name = settings.initial
    assert name is not None
    options = {
        "dtype": "float32", "device": settings.device, "trust_remote_code": settings.trust_remote_code,
        "decoder_only": True,
    }  # fmt: skip
    draft = load_draft(name, target, tokenizer, options)
    if isinstance(draft, GgufModel) or not isinstance(state_input_of(draft), StateInput | None):
        kind = "a GGUF file" if isinstance(draft, GgufModel) else "an EAGLE-3 draft"
        raise InputError(f"initial={name!r}: {kind} cannot be trained here; give a draft in transformers' format")
    if vars(draft.config).get("quantization_config") is not None:
        raise InputError(f"initial={name!r}: its weights are quantised; give it in full precision")
    embeddings: list[Any] = [draft.get_input_embeddings(), target.get_input_embeddings()]
    own, theirs = (len(embedding.weight) for embedding in embeddings)
    if own != theirs:
        raise InputError(f"initial={name!r}: has {own} tokens, the target {theirs}; give a draft with as many")
    if state_input_of(draft) is None:
        settings.refuse_ignored(("positions",), "the initial draft reads tokens alone")
    keep_trimmed(draft)
    return draft


def shared_with(
    target: PreTrainedModel, draft: PreTrainedModel, settings: DraftTrainingOptions, fingerprint: str
) -> SharedWith | None:
    """Which weights of ``draft`` are the target's and are not trained; None if none are.

    Those of an existing draft are found by their values.

    Args:
        fingerprint: of the target.
    """
    if settings.initial is None:
        return SharedWith(settings.target, fingerprint, ["input"] if settings.own_output else ["input", "output"])
    kept = kept_tokens(draft)
    pairs: dict[Shared, tuple[Any, Any]] = {
        "input": (draft.get_input_embeddings().weight, target.get_input_embeddings().weight),
        "output": (draft.get_output_embeddings().weight, target.get_output_embeddings().weight),
    }
    if kept is not None:
        own, all_rows = pairs["output"]
        pairs["output"] = own, all_rows[kept]
    shared: list[Shared] = [
        which
        for which, (own, theirs) in pairs.items()
        if own.shape == theirs.shape and torch.equal(own.detach(), theirs.detach().to(own.device, own.dtype))
    ]
    return SharedWith(settings.target, fingerprint, shared) if shared else None
