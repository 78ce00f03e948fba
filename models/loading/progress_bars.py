"""Progress bars of transformers while it loads weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from transformers.utils import logging as transformers_logging

BAR_OF_WEIGHTS = "Loading weights"  # its description in transformers


class HiddenBars:
    """Hides the bar that transformers shows for the weights of each model, while models load in any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loading = 0  # models that load at this moment
        self._previous_hook: Any = None

    def start(self) -> None:
        """Hide bars from now on; called when a model begins to load."""
        with self._lock:
            self._loading += 1
            if self._loading == 1:
                self._previous_hook = transformers_logging.set_tqdm_hook(self._create)

    def end(self) -> None:
        """Show bars again, unless another model is loading; called when a model has loaded."""
        with self._lock:
            self._loading -= 1
            if self._loading == 0:
                transformers_logging.set_tqdm_hook(self._previous_hook)

    def _create(self, factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return a bar of ``factory``, which is hidden if it is the bar of weights."""
        if options.get("desc") == BAR_OF_WEIGHTS:
            options = options | {"disable": True}
        if self._previous_hook is not None:
            return self._previous_hook(factory, args, options)
        return factory(*args, **options)


_hidden_bars = HiddenBars()


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Load models without a progress bar for each.

    Bars of downloads stay. All bars stay if transformers logs at level INFO or lower, as after
    ``transformers.logging.set_verbosity_info()``.
    """
    if transformers_logging.get_verbosity() <= logging.INFO:
        yield
        return
    _hidden_bars.start()
    try:
        yield
    finally:
        _hidden_bars.end()
