"""`specpilot demo`: the whole pipeline in some minutes, or a real model that answers three prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ...common.options import LARGEST, Folder, Range, SeedOptions


@dataclass(frozen=True, kw_only=True)
class DemoOptions(SeedOptions):
    """Demo.

    Options of ``specpilot demo``.

    Attributes:
        output: Folder for the dataset, runs, controllers and report. A finished demo in this folder is replaced.
        prompts: Number of training prompts.
        held_out: Number of prompts on which decoders are compared.
        max_new_tokens: Maximum number of new tokens per answer.
        real: Folder of SmolLM2-135M-Instruct, downloaded by `make real`. The model answers three prompts without and
            with drafts; the pipeline does not run.
    """

    output: Folder = Path("runs/demo")
    prompts: Annotated[int, Range(2, LARGEST)] = 240
    held_out: Annotated[int, Range(2, LARGEST)] = 12
    max_new_tokens: Annotated[int, Range(2, LARGEST)] = 128
    real: Folder | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.real is not None:
            self.refuse_ignored(
                ("output", "prompts", "held_out", "seed"), "--real only answers prompts, at the temperatures 0 and 1"
            )


def demo(options: DemoOptions) -> None:
    """Run the pipeline on included models, or a real model."""
    from ...common.console import quiet

    quiet()
    if options.real is not None:
        from ..real_model import run_real

        run_real(options.real, options.max_new_tokens)
        return
    from ...train.fitting import threads
    from ..demo import run_demo

    with threads(1):  # tiny models gain little from more, and lose much where other processes are at work
        run_demo(
            options.output, prompts=options.prompts, held_out=options.held_out, max_new_tokens=options.max_new_tokens,
            seed=options.seed,
        )  # fmt: skip
