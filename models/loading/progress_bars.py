"""Progress bars of transformers while it loads weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from transformers.utils import logging as transformers_logging

DESCRIPTION = "Loading weights"  # transformers' name for its bar

_lock = Lock()
_active = 0  # loads in progress, in all threads
_previous_hook: Any = None


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Hide the bar that transformers shows for the weights of each model.

    Bars of downloads stay. All bars stay if transformers logs at level INFO or lower, as after
    ``transformers.logging.set_verbosity_info()``. Several threads may load models at the same time.
    """
    global _active, _previous_hook
    if transformers_logging.get_verbosity() <= transformers_logging.INFO:
        yield
        return
    with _lock:
        _active += 1
        if _active == 1:
            _previous_hook = transformers_logging.set_tqdm_hook(_hide)
    try:
        yield
    finally:
        with _lock:
            _active -= 1
            if _active == 0:
                transformers_logging.set_tqdm_hook(_previous_hook)


def _hide(factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """A bar of ``factory``, without output if it is the bar of weights."""
    if options.get("desc") == DESCRIPTION:
        options = options | {"disable": True}
    return factory(*args, **options) if _previous_hook is None else _previous_hook(factory, args, options)
