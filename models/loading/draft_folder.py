"""Drafts on disk that transformers has no format for: with a trimmed vocabulary, or with the target's embedding.

The folder holds ``config.json`` with the key ``specpilot_draft``, ``draft.json`` (:class:`DraftFile`), the weights in
``draft.safetensors``, and the tokenizer. transformers alone refuses such a folder, since it has no file of weights that
it knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.initialization import no_init_weights

from ...common.errors import InputError
from ...common.files import check_free, replacing_folder, without_places
from ...common.json_file import build, naming_file, read_object
from ...controllers.checkpoints.fingerprint import model_fingerprint
from .. import LoadedModel
from ..eagle import add_state_input, state_input_of
from ..trimmed_head import TrimmedHead, kept_tokens, spread_logits
from .model_files import HubKeywords

MARK, VERSION = "specpilot_draft", 1
FILE, WEIGHTS, CONFIG = "draft.json", "draft.safetensors", "config.json"
AGAIN = "fetch the draft again, or make it again"
Shared = Literal["input", "output"]
Part = Literal["embedding", "output projection"]


@dataclass(frozen=True)
class SharedWith:
    """The target whose weights a draft uses.

    Attributes:
        name: its name when the draft was made.
        fingerprint: its fingerprint.
        weights: input: the embedding of the tokens; output: the rows of the output projection.
    """

    name: str
    fingerprint: str
    weights: list[Shared]


@dataclass(frozen=True)
class DraftFile:
    """The content of ``draft.json``.

    Attributes:
        kept_tokens: the tokens that the draft can propose, ascending; None for all.
        target: None if all weights are the draft's own.
        reads_states: whether it reads the target's hidden states, by a :class:`.StateInput`.
    """

    schema_version: int
    kept_tokens: list[int] | None
    target: SharedWith | None
    reads_states: bool = False

    @classmethod
    def read(cls, file: Path, vocab_size: int) -> DraftFile:
        """Read ``draft.json`` of a model with ``vocab_size`` tokens.

        Raises:
            InputError: the file is missing, damaged or of a later version.
        """
        found = read_object(file, AGAIN)
        with naming_file(file, AGAIN):
            if found.get("schema_version") != VERSION:
                raise InputError(f"schema_version={found.get('schema_version')!r}: this version reads {VERSION}")
            draft = build(cls, found)
            kept = draft.kept_tokens
            if kept is not None and (not kept or kept != sorted({*kept}) or not 0 <= kept[0] <= kept[-1] < vocab_size):
                raise InputError(f"kept_tokens: must be different token ids below {vocab_size}, in ascending order")
        return draft


def save_draft(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    target: SharedWith | None,
    dtype: torch.dtype,
    overwrite: bool = False,
) -> Path:
    """Write ``model``, whose head may be a :class:`.TrimmedHead`, as a draft folder, atomically.

    Args:
        target: whose weights are left out; None if all are the draft's own.
        dtype: precision of the stored weights.
        overwrite: replace an existing draft.

    Raises:
        InputError: ``folder`` is not free, or a weight is not finite.
    """
    check_place(folder, overwrite)
    kept = kept_tokens(model)
    left_out = shared_names(model, target)
    weights = {
        name: value.detach().to(dtype).cpu().contiguous().clone()
        for name, value in model.state_dict().items()
        if name not in left_out
    }
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{folder}: the draft's {name} holds NaN or infinite weights; train again")
    config = model.config.to_dict() | {
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        MARK: VERSION,
    }
    config.pop("_name_or_path", None)  # where the target was, which concerns nobody else
    with replacing_folder(folder) as new:
        tokenizer.save_pretrained(new)
        (new / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
        description = DraftFile(VERSION, kept, target, state_input_of(model) is not None)
        (new / FILE).write_text(json.dumps(asdict(without_places(description))) + "\n", encoding="utf-8")
        (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def is_draft(folder: Path) -> bool:
    """Whether ``folder`` is one that :func:`save_draft` wrote."""
    return (folder / FILE).is_file()


def shared_of(model: PreTrainedModel) -> SharedWith | None:
    """The target whose weights the loaded draft ``model`` uses; None if all are its own."""
    if vars(model.config).get(MARK) is None:
        return None
    file = stored_file(model.config._name_or_path, FILE, AGAIN)
    return DraftFile.read(file, model.config.vocab_size).target


def check_place(folder: Path, overwrite: bool) -> None:
    """Raise InputError if no draft may be written to ``folder``; called before the work and before writing."""
    check_free(folder, overwrite)
    if folder.is_dir() and any(folder.iterdir()) and not is_draft(folder):
        raise InputError(f"{folder}: holds other files than a draft; choose another folder")


def shared_names(model: PreTrainedModel, target: SharedWith | None) -> set[str]:
    """Names of the weights of ``model`` that are the target's."""
    modules: dict[Shared, Any] = {"input": model.get_input_embeddings(), "output": model.get_output_embeddings()}
    shared = [modules[which] for which in target.weights] if target is not None else []
    return {
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if any(module is one for one in shared)
        for parameter, _ in module.named_parameters()
    }


def load_saved_draft(
    name: str | Path,
    path: str,
    config: PreTrainedConfig,
    *,
    lender: Callable[[], LoadedModel | None],
    dtype: torch.dtype | Literal["auto"],
    place: torch.device,
    revision: str | None,
    local_files_only: bool,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """The draft in the folder or hub repository ``path``, on ``place``.

    Args:
        config: its ``config.json``.
        lender: gives the target it drafts for; called if the draft uses its weights.
        revision, local_files_only, trust_remote_code: as for transformers.

    Raises:
        InputError: a file is missing or damaged, or it uses the weights of another target.
    """
    hub: HubKeywords = {"revision": revision, "local_files_only": local_files_only}
    file, stored = (
        stored_file(path, needed, f"{path}: a draft without {needed}; {AGAIN}", hub) for needed in (FILE, WEIGHTS)
    )
    draft = DraftFile.read(file, config.vocab_size)
    weights = load_file(stored)
    own = next(iter(weights.values())).dtype if dtype == "auto" else dtype
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=own, trust_remote_code=trust_remote_code).to(place)
    head: Any = model.get_output_embeddings()
    if draft.kept_tokens is not None:
        weight = head.weight.new_empty(len(draft.kept_tokens), head.weight.shape[1])
        bias = None if head.bias is None else weight.new_empty(len(weight))
        head = TrimmedHead(weight, bias, draft.kept_tokens, config.vocab_size)
        model.set_output_embeddings(head)
        model.register_forward_hook(spread_logits)
    if draft.reads_states:
        add_state_input(model)
    left_out = shared_names(model, draft.target)
    check_weights(stored, weights, {k: v for k, v in model.state_dict().items() if k not in left_out})
    model.load_state_dict(weights, strict=False)
    if draft.target is not None:
        _share(model, _checked(name, draft.target, lender()), draft)
    model.config._name_or_path = str(path)
    return model  # type: ignore[no-any-return]


def _share(model: PreTrainedModel, target: PreTrainedModel, draft: DraftFile) -> None:
    """Give ``model`` the weights of ``target`` that its file leaves out; the embedding is not copied."""
    assert draft.target is not None
    reference = model.get_output_embeddings().weight
    if "input" in draft.target.weights:
        weight: Any = target.get_input_embeddings().weight
        if weight.device != reference.device or weight.dtype != reference.dtype:
            weight = nn.Parameter(weight.to(reference.device, reference.dtype), requires_grad=False)
        model.get_input_embeddings().weight = weight
    if "output" in draft.target.weights:
        lent, own = target.get_output_embeddings(), model.get_output_embeddings()
        rows = slice(None) if draft.kept_tokens is None else draft.kept_tokens
        for parameter, mine in own.named_parameters():
            mine.data = lent.get_parameter(parameter).detach()[rows].to(mine.device, mine.dtype)


def _checked(name: str | Path, shared: SharedWith, target: LoadedModel | None) -> PreTrainedModel:
    """The target, if it is the one whose weights the draft ``name`` uses."""
    target, problem = lending(name, shared.name, target)
    if model_fingerprint(target) != shared.fingerprint:
        raise InputError(f"{problem} is another model")
    if any(head.weight.is_meta for head in (target.get_input_embeddings(), target.get_output_embeddings())):
        raise InputError(f"{problem} has its embedding offloaded; choose another device_map")
    return target


def lending(
    name: str | Path, owner: str, target: LoadedModel | None, part: Part = "embedding"
) -> tuple[PreTrainedModel, str]:
    """The target, if it can lend weights to the draft ``name``, and the beginning of messages about it.

    Args:
        owner: the model whose ``part`` the draft has, for messages.

    Raises:
        InputError: there is no target, or it is a GGUF model.
    """
    use = f"{name}: a draft with the {part} of {owner}"
    if target is None:
        raise InputError(f"{use}; load it as the draft of that model")
    problem = f"{use}; the target {target.name_or_path}"
    if not isinstance(target, PreTrainedModel):
        raise InputError(f"{problem} is a GGUF model, whose weights a draft cannot use; give another draft")
    return target, problem


def check_weights(file: Path, found: dict[str, Tensor], needed: dict[str, Tensor]) -> None:
    """Raise InputError unless the weights ``found`` in ``file`` have the names and shapes of those ``needed``."""
    if differing := sorted(found.keys() ^ needed.keys()):
        problem = "missing" if differing[0] in needed else "not one of this model's"
        raise InputError(f"{file}: {differing[0]} is {problem}; {AGAIN}")
    for name, value in needed.items():
        if found[name].shape != value.shape:
            raise InputError(
                f"{file}: {name} has shape {tuple(found[name].shape)} instead of {tuple(value.shape)}; {AGAIN}"
            )


def stored_file(path: str, name: str, missing: str, hub: HubKeywords | None = None) -> Path:
    """The file ``name`` of a folder or a hub repository; ``missing`` is the error where the folder lacks it."""
    if not Path(path).is_dir():
        return Path(hf_hub_download(path, name, **(hub or {})))
    if not Path(path, name).is_file():
        raise InputError(missing)
    return Path(path, name)
