"""The public names of specpilot, each imported on first use to keep `import specpilot` fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common.errors import InputError
    from .compare.run import compare
    from .controllers.checkpoints.checkpoint import load_controller
    from .controllers.sampling import SamplingParams
    from .infer.decoder import SpeculativeDecoder

    __version__: str

__all__ = ["InputError", "SamplingParams", "SpeculativeDecoder", "__version__", "compare", "load_controller"]

_HOMES = {
    "SpeculativeDecoder": ".infer.decoder",
    "SamplingParams": ".controllers.sampling",
    "InputError": ".common.errors",
    "load_controller": ".controllers.checkpoints.checkpoint",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("specpilot")
    if name == "compare":
        return import_module(".compare", __name__)  # can be called
    if name not in _HOMES:
        raise AttributeError(f"module 'specpilot' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
