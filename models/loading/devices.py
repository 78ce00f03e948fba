"""Placement of models: devices, dtypes and device maps."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal

import torch

from ...common.errors import InputError

DTYPES: dict[str, torch.dtype | Literal["auto"]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "auto": "auto",
}
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # computed by accelerate

DeviceMap = str | Mapping[str, str | int]


def pick_device(device: str) -> torch.device:
    """The device named ``device``; ``"auto"`` is CUDA if available, else the CPU.

    Raises:
        InputError: the device does not exist on this machine.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return _existing(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device={device!r}: not available on this machine; use 'auto' or 'cpu'") from error


def check_dtype(dtype: torch.dtype | Literal["auto"], device: torch.device) -> None:
    """Check that ``device`` supports ``dtype``.

    Raises:
        InputError: float64 on an Apple GPU.
    """
    if dtype == torch.float64 and device.type == "mps":
        raise InputError(f"dtype='float64': not available on device='{device}'; use dtype='float32' or device='cpu'")


def check_device_map(device_map: DeviceMap, device: str) -> None:
    """Raise InputError for a device map together with a device, without accelerate, or with missing devices."""
    if device != "auto":
        raise InputError(f"device={device!r} and device_map={device_map!r}: both place the model; give one of them")
    require_accelerate(f"device_map={device_map!r}")
    if not device_map:
        raise InputError(f"device_map={device_map!r}: empty; give 'auto', or a device for each module")
    if isinstance(device_map, str):
        places: list[str | int] = [] if device_map in DEVICE_MAPS else [device_map]
    else:
        places = [place for place in device_map.values() if place != "disk"]
    for place in places:
        try:
            _existing(place)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise InputError(
                f"device_map={device_map!r}: {place!r} is not available on this machine; use 'auto', or give each "
                "module 'cpu', 'disk' or a device that is"
            ) from error


def on_one_device(device_map: DeviceMap) -> DeviceMap:
    """A device map that is the name of one device as a dictionary.

    transformers takes ``LOCAL_RANK``, which a launcher such as torchrun sets, for the number of the device "cuda". Here
    a process that a launcher started places models as any other.
    """
    if not isinstance(device_map, str) or device_map in DEVICE_MAPS:
        return device_map
    return {"": f"cuda:{torch.cuda.current_device()}" if device_map == "cuda" else device_map}


def _existing(device: str | int) -> torch.device:
    """The device; raises torch's error if it does not exist or cannot hold tensors."""
    chosen = torch.device(device)
    torch.empty(0, device=chosen)
    if chosen.type == "meta":
        raise NotImplementedError("tensors on the meta device have no values")
    return chosen


def require_accelerate(what: str) -> None:
    if find_spec("accelerate") is None:
        raise InputError(f"{what}: needs the package accelerate; pip install accelerate")
