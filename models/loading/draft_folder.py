"""The format of drafts with a trimmed vocabulary or with the target's embedding.

The folder holds ``config.json`` with the key ``specpilot_draft``, ``draft.json`` (:class:`DraftFile`), the weights in
``draft.safetensors``, and the tokenizer. transformers cannot load such a folder, because the file of weights has
another name than in its own format.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
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
from ...common.files import check_free, replacing_folder, shorten_paths
from ...common.json_file import build, naming_file, read_object
from ...controllers.checkpoints.fingerprint import model_fingerprint
from .. import LoadedModel
from ..trimmed_head import TrimmedHead, kept_tokens, spread_logits
from .model_files import HubKeywords

MARK, VERSION = "specpilot_draft", 1
FILE, WEIGHTS, CONFIG = "draft.json", "draft.safetensors", "config.json"
AGAIN = "fetch the draft again, or make it again"
Shared = Literal["input", "output"]
Part = Literal["embedding", "output projection"]


@dataclass(frozen=True)
class SharedTarget:
    """The target whose weights a draft uses.

    Attributes:
        name: the target's name when the draft was made.
        fingerprint: the target's fingerprint.
        weights: the shared weights. ``"input"`` is the embedding of the tokens, ``"output"`` the rows of the output
            projection.
    """

    name: str
    fingerprint: str
    weights: list[Shared]


@dataclass(frozen=True)
class DraftFile:
    """The content of ``draft.json``.

    Attributes:
        schema_version: version of the format.
        kept_tokens: the tokens that the draft can propose, ascending; None for all.
        target: the target whose weights the draft uses; None if the draft has all weights.
    """

    schema_version: int
    kept_tokens: list[int] | None
    target: SharedTarget | None

    @classmethod
    def read(cls, file: Path, vocab_size: int) -> DraftFile:
        """Read ``draft.json`` of a model with ``vocab_size`` tokens.

        Raises:
            InputError: the file is missing, damaged or of a later version.
        """
        values = read_object(file, AGAIN)
        with naming_file(file, AGAIN):
            if values.get("schema_version") != VERSION:
                raise InputError(f"schema_version={values.get('schema_version')!r}: this version reads {VERSION}")
            if values.pop("reads_states", False):
                raise InputError(
                    "a draft that reads the target's last hidden state, which this release does not read; train it "
                    "again with `specpilot train draft --features target`"
                )
            draft = build(cls, values)
            draft_tokens = draft.kept_tokens
            if draft_tokens is not None and (
                not draft_tokens
                or draft_tokens != sorted({*draft_tokens})
                or not 0 <= draft_tokens[0] <= draft_tokens[-1] < vocab_size
            ):
                raise InputError(f"kept_tokens: must be different token ids below {vocab_size}, in ascending order")
        return draft


def save_draft(
    model: PreTrainedModel,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    target: SharedTarget | None,
    dtype: torch.dtype,
    overwrite: bool = False,
) -> Path:
    """Write ``model``, whose head may be a :class:`.TrimmedHead`, as a draft folder, atomically.

    Args:
        model: the draft.
        folder: the folder to create.
        tokenizer: the draft's tokenizer.
        target: the target whose weights are left out; None if the draft has all weights.
        dtype: precision of the stored weights.
        overwrite: whether an existing draft is replaced.

    Raises:
        InputError: ``folder`` is not free, or a weight is not finite.
    """
    check_output_folder(folder, overwrite)
    draft_tokens = kept_tokens(model)
    shared = shared_names(model, target)
    weights = weights_to_store(model, shared, dtype, folder)
    config = model.config.to_dict() | {
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
        MARK: VERSION,
    }
    config.pop("_name_or_path", None)  # a path on this machine
    with replacing_folder(folder) as new:
        tokenizer.save_pretrained(new)
        (new / WEIGHTS).write_bytes(save(weights, metadata={"format": "pt"}))
        description = DraftFile(VERSION, draft_tokens, target)
        (new / FILE).write_text(json.dumps(asdict(shorten_paths(description))) + "\n", encoding="utf-8")
        (new / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def is_draft(folder: Path) -> bool:
    """Return true if :func:`save_draft` wrote ``folder``."""
    return (folder / FILE).is_file()


def find_shared_target(model: PreTrainedModel) -> SharedTarget | None:
    """Return the target whose weights the loaded draft ``model`` uses; None if the draft has all weights."""
    if vars(model.config).get(MARK) is None:
        return None
    file = stored_file(model.config._name_or_path, FILE, AGAIN)
    return DraftFile.read(file, model.config.vocab_size).target


def weights_to_store(
    model: PreTrainedModel, left_out: Collection[str], dtype: torch.dtype, folder: Path
) -> dict[str, Tensor]:
    """Return the weights of ``model`` without those ``left_out``, as they are stored in ``folder``.

    Raises:
        InputError: a weight is not finite.
    """
    weights = {
        name: value.detach().to(dtype).cpu().contiguous().clone()
        for name, value in model.state_dict().items()
        if name not in left_out
    }
    for name, value in weights.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{folder}: the draft's {name} holds NaN or infinite weights; train again")
    return weights


def check_output_folder(folder: Path, overwrite: bool, may_replace: Callable[[Path], bool] = is_draft) -> None:
    """Check that a draft may be written to ``folder``; called before the training and before writing.

    Args:
        folder: the folder.
        overwrite: whether a draft in the folder may be replaced.
        may_replace: tells whether a folder holds a draft in the format that will be written. Only such a folder is
            overwritten.

    Raises:
        InputError: ``folder`` is a file; or it is not empty, and ``overwrite`` is false or its files are not such a
            draft.
    """
    check_free(folder, overwrite)
    if folder.is_dir() and any(folder.iterdir()) and not may_replace(folder):
        raise InputError(f"{folder}: holds other files than a draft; choose another folder")


def shared_names(model: PreTrainedModel, target: SharedTarget | None) -> set[str]:
    """Return the names of the weights of ``model`` that belong to ``target``."""
    modules: dict[Shared, Any] = {"input": model.get_input_embeddings(), "output": model.get_output_embeddings()}
    shared = [modules[part] for part in target.weights] if target is not None else []
    return {
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if any(module is shared_module for shared_module in shared)
        for parameter, _ in module.named_parameters()
    }


def load_saved_draft(
    name: str | Path,
    path: str,
    config: PreTrainedConfig,
    *,
    lender: Callable[[], LoadedModel | None],
    dtype: torch.dtype | Literal["auto"],
    device: torch.device,
    revision: str | None,
    local_files_only: bool,
    trust_remote_code: bool,
) -> PreTrainedModel:
    """Load the draft in the folder or hub repository ``path``.

    Args:
        name: the draft's name, for messages.
        config: the content of its ``config.json``.
        lender: returns the target of the draft, or None; called if the draft uses the target's weights.
        dtype: precision of the weights; ``"auto"`` is that of the file.
        device: the device of the draft.
        revision, local_files_only, trust_remote_code: as for transformers.

    Raises:
        InputError: a file is missing or damaged, or the draft uses the weights of another target.
    """
    hub: HubKeywords = {"revision": revision, "local_files_only": local_files_only}
    file, stored = (
        stored_file(path, name, f"{path}: a draft without {name}; {AGAIN}", hub) for name in (FILE, WEIGHTS)
    )
    draft = DraftFile.read(file, config.vocab_size)
    weights = load_file(stored)
    precision = next(iter(weights.values())).dtype if dtype == "auto" else dtype
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=precision, trust_remote_code=trust_remote_code)
        model = model.to(device)
    head: Any = model.get_output_embeddings()
    if draft.kept_tokens is not None:
        weight = head.weight.new_empty(len(draft.kept_tokens), head.weight.shape[1])
        bias = None if head.bias is None else weight.new_empty(len(weight))
        head = TrimmedHead(weight, bias, draft.kept_tokens, config.vocab_size)
        model.set_output_embeddings(head)
        model.register_forward_hook(spread_logits)
    shared = shared_names(model, draft.target)
    check_weights(stored, weights, {k: v for k, v in model.state_dict().items() if k not in shared})
    model.load_state_dict(weights, strict=False)
    if draft.target is not None:
        _share(model, _check_target(name, draft.target, lender()), draft)
    model.config._name_or_path = str(path)
    return model  # type: ignore[no-any-return]


def _share(model: PreTrainedModel, target: PreTrainedModel, draft: DraftFile) -> None:
    """Set the weights of ``model`` that its file leaves out to those of ``target``; the embedding is not copied."""
    assert draft.target is not None
    reference = model.get_output_embeddings().weight
    if "input" in draft.target.weights:
        weight: Any = target.get_input_embeddings().weight
        if weight.device != reference.device or weight.dtype != reference.dtype:
            weight = nn.Parameter(weight.to(reference.device, reference.dtype), requires_grad=False)
        model.get_input_embeddings().weight = weight
    if "output" in draft.target.weights:
        target_head, head = target.get_output_embeddings(), model.get_output_embeddings()
        rows = slice(None) if draft.kept_tokens is None else draft.kept_tokens
        for parameter, value in head.named_parameters():
            value.data = target_head.get_parameter(parameter).detach()[rows].to(value.device, value.dtype)


def _check_target(name: str | Path, shared: SharedTarget, target: LoadedModel | None) -> PreTrainedModel:
    """Return the target after checking that the draft ``name`` uses its weights.

    Raises:
        InputError: the draft uses the weights of another model, or the weights cannot be read.
    """
    target, problem = require_lender(name, shared.name, target)
    if model_fingerprint(target) != shared.fingerprint:
        raise InputError(f"{problem} is another model; give the target of the draft")
    if any(head.weight.is_meta for head in (target.get_input_embeddings(), target.get_output_embeddings())):
        raise InputError(f"{problem} has its embedding offloaded; choose another device_map")
    return target


def require_lender(
    name: str | Path, owner: str, target: LoadedModel | None, part: Part = "embedding"
) -> tuple[PreTrainedModel, str]:
    """Return the target after checking that the draft ``name`` can use its weights, and the beginning of messages.

    Args:
        name: the draft's name.
        owner: name of the model whose ``part`` the draft uses, for messages.
        target: the target, or None.
        part: the weights that the draft uses.

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


def check_weights(file: Path, weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check that the ``weights`` in ``file`` have the names and shapes of the weights ``expected``.

    Raises:
        InputError: names or shapes differ.
    """
    if differing := sorted(weights.keys() ^ expected.keys()):
        problem = "missing" if differing[0] in expected else "not one of this model's"
        raise InputError(f"{file}: {differing[0]} is {problem}; {AGAIN}")
    for name, value in expected.items():
        if weights[name].shape != value.shape:
            raise InputError(
                f"{file}: {name} has shape {tuple(weights[name].shape)} instead of {tuple(value.shape)}; {AGAIN}"
            )


def stored_file(path: str, name: str, missing: str, hub: HubKeywords | None = None) -> Path:
    """Return the path of the file ``name`` of a folder or a hub repository.

    Raises:
        InputError: the folder does not have the file; ``missing`` is the message.
    """
    if not Path(path).is_dir():
        return Path(hf_hub_download(path, name, **(hub or {})))
    if not Path(path, name).is_file():
        raise InputError(missing)
    return Path(path, name)
