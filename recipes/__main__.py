"""``python -m recipes <command>``: train the shipped models again, or write the built-in prompts again."""

from __future__ import annotations

import sys
from pathlib import Path

from specpilot.main import main

from .tiny.settings import TinyModelsOptions
from .tiny_t5.settings import TinyT5Options


def tiny(settings: TinyModelsOptions, *, output: Path) -> None:
    """Train the tiny models that ship with specpilot: a target, its drafts and their tokenizer.

    Args:
        output: Folder the models are written to; an interrupted run is continued there.
    """
    from specpilot.infer.quiet import quiet

    from .tiny.recipe import train_tiny

    quiet()
    train_tiny(settings, output)


def tiny_t5(settings: TinyT5Options, *, output: Path) -> None:
    """Train the encoder-decoders that ship with specpilot: a T5 of two tasks, and a draft for each of them.

    Args:
        output: Folder the models and results.json are written to; an interrupted run is continued there.
    """
    from specpilot.infer.quiet import quiet

    from .tiny_t5.recipe import train_tiny_t5

    quiet()
    train_tiny_t5(settings, output)


def prompts(*, output: Path) -> None:
    """Write the built-in prompts, as data_gen/builtin holds them.

    Args:
        output: Folder the two files are written to.
    """
    from .prompts.write import write

    output.mkdir(parents=True, exist_ok=True)
    for line in write(output):
        print(line)


COMMANDS = {"tiny": tiny, "tiny-t5": tiny_t5, "prompts": prompts}

if __name__ == "__main__":
    sys.exit(main(commands=COMMANDS, prog="python -m recipes"))
