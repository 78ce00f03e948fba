"""Reads sample values of float16 and offloaded parameters from a model's safetensors files, for its fingerprint.

Fingerprints hash weights that are rounded to bfloat16. Loading a model in float16 rounds its weights first, which can
change the value that bfloat16 has. The values in the files are therefore read for parameters in float16. Weights that
accelerate offloads are read from the files because they are not in memory. The files are read from disk, never
downloaded.
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

SAMPLES = 64  # maximum number of values of a parameter


def sample(parameter: Tensor) -> Tensor:
    """Return up to 64 evenly spaced elements (n,) of ``parameter`` (any shape)."""
    size = parameter.numel()
    count = min(size, SAMPLES)
    indices = torch.arange(count, device=parameter.device) * size // max(count, 1)
    return parameter.take(indices)


def stored_samples(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return samples of a model's float16 and offloaded parameters from its files, by name, in float32 on the CPU.

    The result is empty in three cases: there is no such parameter; the files are neither at
    ``model.config._name_or_path`` nor in the hub's cache; or a stored value rounded to float16 differs from the
    model's, which was then changed after loading.
    """
    parameters = {
        name: value for name, value in model.named_parameters() if value.dtype == torch.float16 or value.is_meta
    }
    if not parameters:
        return {}
    for folder in _folders(str(model.config._name_or_path)):
        samples = _read(folder, {name: value.shape for name, value in parameters.items()}, model.base_model_prefix)
        in_memory = [name for name in samples if not parameters[name].is_meta]  # offloaded ones are on the disk only
        if samples and all(
            torch.equal(samples[name].to(torch.float16), sample(parameters[name]).cpu()) for name in in_memory
        ):
            return {name: value.float() for name, value in samples.items()}
    return {}


def _folders(name: str) -> Iterator[Path]:
    """Yield folders that may have the files of the model ``name``: its own, or its snapshots in the hub's cache."""
    if not name:
        return
    if Path(name).is_dir():
        yield Path(name)
        return
    from huggingface_hub.constants import HF_HUB_CACHE

    # The hub's function for the folder name raises an error for names that are not ids, such as a deleted folder.
    yield from sorted(Path(HF_HUB_CACHE, f"models--{name.replace('/', '--')}", "snapshots").glob("*"))


def _read(folder: Path, shapes: Mapping[str, Sequence[int]], prefix: str) -> dict[str, Tensor]:
    """Return samples of the tensors in ``folder`` that match ``shapes``, in their stored precision.

    Parameter names are tried with and without ``prefix``, because files may have been saved with or without a head.
    """
    names = {name: name for name in shapes}
    for name in shapes:
        short = name.removeprefix(f"{prefix}.")
        names.setdefault(f"{prefix}.{name}" if short == name else short, name)
    samples: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                for key in names.keys() & set(opened.keys()):
                    name = names[key]
                    if opened.get_slice(key).get_shape() == list(shapes[name]):
                        samples[name] = sample(opened.get_tensor(key))  # memory-mapped: reads only the sample
        except (SafetensorError, OSError):  # not what the model was loaded from
            continue
    return samples
