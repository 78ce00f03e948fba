"""Progress bars of transformers while it loads or stores weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

BARS_OF_WEIGHTS = ("Loading weights", "Writing model shards")  # their descriptions in transformers


@contextmanager
def without_loading_bars() -> Iterator[None]:
    """Load or store a model without the progress bar of its weights; for one thread at a time.

    Bars of downloads stay. All bars stay if transformers logs at level INFO or lower, as after
    ``transformers.logging.set_verbosity_info()``.
    """
    if transformers_logging.get_verbosity() <= logging.INFO:
        yield
        return

    def create(factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return a bar of ``factory``, which is hidden if it is a bar of weights."""
        if options.get("desc") in BARS_OF_WEIGHTS:
            options = options | {"disable": True}
        return factory(*args, **options) if previous_hook is None else previous_hook(factory, args, options)

    previous_hook = transformers_logging.set_tqdm_hook(create)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous_hook)
