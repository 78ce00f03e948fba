"""`specpilot demo`: the whole pipeline in a few minutes."""

from __future__ import annotations

from pathlib import Path


def demo(
    *,
    output: Path = Path("runs/demo"),
    prompts: int = 800,
    held_out: int = 60,
    max_new_tokens: int = 128,
    seed: int = 0,
) -> None:
    """Data, training, export and decoding on the shipped tiny models and the built-in prompts.

    Args:
        output: Folder for the dataset, run, controller and report. A finished demo there is replaced.
        prompts: Prompts the head is trained on.
        held_out: Prompts the decoders are compared on.
        max_new_tokens: Longest answer, in training and comparison.
        seed: Seed of everything random.
    """
    from ..controllers.errors import InputError
    from ..demo import run_demo
    from ..infer.quiet import quiet

    for name, value in (("prompts", prompts), ("held_out", held_out), ("max_new_tokens", max_new_tokens)):
        if value < 2:
            raise InputError(f"{name}={value}: must be at least 2")
    quiet()
    run_demo(output, prompts=prompts, held_out=held_out, max_new_tokens=max_new_tokens, seed=seed)
