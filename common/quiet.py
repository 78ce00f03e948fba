"""Silences the progress bars and messages of transformers and Lightning for the command line."""

from __future__ import annotations

import logging
import sys
import warnings


def quiet() -> None:
    """Show only errors of these libraries, and warnings in one line. For programs, not for libraries."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.showwarning = _one_line


def _one_line(message: Warning | str, *_: object, **__: object) -> None:
    print("specpilot: warning:", " ".join(str(message).split()), file=sys.stderr)
