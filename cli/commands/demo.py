"""`specpilot demo`: the whole pipeline in a few minutes."""

from __future__ import annotations

from ..options import DemoOptions


def demo(options: DemoOptions) -> None:
    """Run data generation, training, export and decoding on the shipped tiny models and built-in prompts."""
    from ..demo import run_demo
    from ..infer.quiet import quiet
    from ..train.fitting import threads

    quiet()
    with threads(1):  # tiny models gain little from more, and lose much where other processes are at work
        run_demo(
            options.output, prompts=options.prompts, held_out=options.held_out, max_new_tokens=options.max_new_tokens,
            seed=options.seed,
        )  # fmt: skip
