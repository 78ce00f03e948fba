"""A draft for SmolLM2-135M-Instruct, which has none: prompts → the target's answers → training → draft folder.

Every stage is a command of specpilot that continues what it finds, so that an interrupted run continues.
"""

from __future__ import annotations

from pathlib import Path

from specpilot.main import run

from .fetch import fetch
from .prompts import write_prompts
from .settings import RealDraftOptions

PER_KIND = 800  # prompts of each of five kinds
PART = 300  # prompts answered for one dataset
TEMPERATURES = (1.0, 0.5)  # in turn: T = 1 is what the draft is trained for, at 0.5 the answers make more sense


def train_draft(settings: RealDraftOptions, output: Path) -> Path:
    """Make the draft ``output/draft``.

    Raises:
        InputError: a source of prompts is missing, or the target cannot be fetched.
    """
    _, target = fetch(output)
    write_prompts(settings.data, output / "prompts.jsonl", PER_KIND)
    parts = [str(output / f"answers-{number}") for number in range(settings.parts)]
    for number, part in enumerate(parts):
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        run(
            [
                *("data", "answers", "--target", str(target), "--prompts", str(output / "prompts.jsonl")),
                *("--skip", str(number * PART), "--limit", str(PART), "--max-new-tokens", "160", "--top-k", "null"),
                *("--temperature", str(temperature), "--seed", str(number), "--batch-size", "24"),
                *("--dtype", "bfloat16", "--output", part),
            ]
        )
    run(
        [
            *("train", "draft", "--target", str(target), "--layers", "3", "--vocabulary", "8192"),
            *("--data", f"[{','.join(parts)}]", "--epochs", "5", "--lr", "1.5e-3", "--validation-fraction", "0.04"),
            *("--dtype", "bfloat16", "--precision", "bf16-mixed", "--cache-states"),
            *("--output", str(output / "draft-run"), "--resume"),
        ]
    )
    run(["export", str(output / "draft-run"), str(output / "draft"), "--overwrite"])
    return output / "draft"
