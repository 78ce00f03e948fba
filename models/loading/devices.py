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
    """Return the device named ``device``; ``"auto"`` is CUDA if available, else the CPU.

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
    """Check that ``device_map`` can place a model on this machine.

    Raises:
        InputError: there is a ``device`` as well, accelerate is not installed, or a device does not exist.
    """
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
                "module 'cpu', 'disk' or an available device"
            ) from error


def single_device_map(device_map: DeviceMap) -> DeviceMap:
    """Return ``device_map``, with the name of a single device replaced by a dictionary.

    For the name "cuda", transformers uses the device with the number ``LOCAL_RANK``, which launchers such as torchrun
    set. The dictionary names the current device instead, so that models are placed as in any other process.
    """
    if not isinstance(device_map, str) or device_map in DEVICE_MAPS:
        return device_map
    return {"": f"cuda:{torch.cuda.current_device()}" if device_map == "cuda" else device_map}


def _existing(device: str | int) -> torch.device:
    """Return the device named ``device``, after a check that it can hold tensors.

    Raises:
        RuntimeError, AssertionError, NotImplementedError: the device does not exist, or cannot hold tensors.
    """
    chosen = torch.device(device)
    torch.empty(0, device=chosen)
    if chosen.type == "meta":
        raise NotImplementedError("tensors on the meta device have no values")
    return chosen


def require_accelerate(option: str) -> None:
    """Check that the package accelerate is installed.

    Raises:
        InputError: accelerate is not installed; the message names ``option`` as the option or model that needs it.
    """
    if find_spec("accelerate") is None:
        raise InputError(f"{option}: needs the package accelerate; pip install accelerate")
