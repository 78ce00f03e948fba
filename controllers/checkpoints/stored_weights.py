"""Weights as their files hold them, for models that hold them in float16, or have them offloaded by accelerate.

float16 keeps three bits more of a number than bfloat16, and far fewer exponents: rounding a weight to float16 and then
to bfloat16 does not always give what rounding it to bfloat16 alone gives. The float16 weights cannot tell which it was;
the safetensors files that the model was loaded from can. They are read from the disk, never fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLES = 64  # weights read per parameter


def sample(parameter: Tensor) -> Tensor:
    """Up to 64 evenly spaced elements of ``parameter`` (any shape), (n,); copies no more."""
    size = parameter.numel()
    count = min(size, SAMPLES)
    where = torch.arange(count, device=parameter.device) * size // max(count, 1)
    return parameter.take(where)


def stored_samples(model: PreTrainedModel) -> dict[str, Tensor]:
    """Samples of the stored form of a model's float16 and offloaded parameters, by name, float32 on the CPU.

    Empty where there is no such parameter, where the files are not at ``model.config._name_or_path`` or in the hub's
    cache, and where one of them, rounded to float16, is not what the model holds: it then was trained or changed since.
    """
    parameters = {
        name: value for name, value in model.named_parameters() if value.dtype == torch.float16 or value.is_meta
    }
    if not parameters:
        return {}
    for folder in _folders(str(model.config._name_or_path)):
        found = _read(folder, {name: value.shape for name, value in parameters.items()}, model.base_model_prefix)
        held = [name for name in found if not parameters[name].is_meta]  # offloaded ones are on the disk only
        if found and all(torch.equal(found[name].to(torch.float16), sample(parameters[name]).cpu()) for name in held):
            return {name: value.float() for name, value in found.items()}
    return {}


def _folders(name: str) -> Iterator[Path]:
    """Where the files of the model ``name`` may be: its folder, or each snapshot of it in the hub's cache."""
    if not name:
        return
    if Path(name).is_dir():
        yield Path(name)
        return
    from huggingface_hub.constants import HF_HUB_CACHE

    # The hub's own function for the folder's name refuses what is no id, such as a folder that is gone.
    yield from sorted(Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots").glob("*"))


def _read(folder: Path, shapes: Mapping[str, Sequence[int]], prefix: str) -> dict[str, Tensor]:
    """Samples of the tensors in ``folder`` that are parameters of these ``shapes``, in their stored precision.

    Files of a bare model name its parameters without the ``prefix`` that they have below a head, and vice versa.
    """
    wanted = {name: name for name in shapes}
    for name in shapes:
        short = name.removeprefix(f"{prefix}.")
        wanted.setdefault(f"{prefix}.{name}" if short == name else short, name)
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                for key in wanted.keys() & set(opened.keys()):
                    name = wanted[key]
                    if opened.get_slice(key).get_shape() == list(shapes[name]):
                        found[name] = sample(opened.get_tensor(key))  # a memory map: only what is sampled is read
        except (SafetensorError, OSError):  # not what the model was loaded from
            continue
    return found
