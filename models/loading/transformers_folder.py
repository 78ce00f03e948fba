"""Drafts of the whole vocabulary on disk: folders in transformers' own format, with all weights.

transformers loads such a folder as a language model or as ``assistant_model``, and vLLM loads it as a draft model.
``config.json`` has one additional key, ``specpilot_target``, which these libraries ignore. Only folders with this key
are replaced by later drafts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from ...common.files import replacing_folder, shorten_paths
from ...common.json_file import read_object
from .draft_folder import AGAIN, CONFIG, MARK, check_output_folder, weights_to_store
from .progress_bars import without_loading_bars

TARGET = "specpilot_target"
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def save_transformers_draft(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    target: PreTrainedModel,
    *,
    name: str,
    dtype: torch.dtype,
    overwrite: bool = False,
) -> Path:
    """Write ``model``, a draft with logits for all tokens, as a folder of transformers, atomically.

    An output projection that equals the embedding is stored once, as tied weights. The generation configuration has the
    target's special tokens alone, because the target's sampling parameters apply to drafts.

    Args:
        model: the draft.
        folder: the folder to create.
        tokenizer: the draft's tokenizer.
        target: the draft's target.
        name: name of the target, which the folder contains.
        dtype: precision of the stored weights.
        overwrite: whether an existing draft is replaced.

    Raises:
        InputError: ``folder`` is not free, or a weight is not finite.
    """
    check_output_folder(folder, overwrite, is_transformers_draft)
    weights = weights_to_store(model, (), dtype, folder)
    layers: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    values = model.config.to_dict() | {
        "tie_word_embeddings": torch.equal(*(layer.weight for layer in layers)),
        TARGET: shorten_paths(name),
    }
    for key in (MARK, "_name_or_path"):  # of an initial draft in specpilot's own format; a path on this machine
        values.pop(key, None)
    with no_init_weights():
        full_model: Any = type(model)(type(model.config)(**values))
    full_model.to(dtype).load_state_dict(weights)
    full_model.tie_weights()
    tokens = {key: getattr(target.generation_config, key, None) for key in TOKENS}
    full_model.generation_config = GenerationConfig(**tokens)
    with replacing_folder(folder) as new, without_loading_bars():
        tokenizer.save_pretrained(new)
        full_model.save_pretrained(new)
        for file in new.glob("*.safetensors"):  # safetensors lets the owner alone read its files
            file.chmod((new / CONFIG).stat().st_mode)
    return folder


def is_transformers_draft(folder: Path) -> bool:
    """Return true if :func:`save_transformers_draft` wrote ``folder``."""
    return (folder / CONFIG).is_file() and TARGET in read_object(folder / CONFIG, AGAIN)
