"""`specpilot bench …`: measurements, one JSON document as the last line of standard output."""

from __future__ import annotations

from ..data_gen.settings import AcceptanceData


def rollouts(settings: AcceptanceData, *, repeats: int = 3) -> None:
    """Time batched data generation against a batch-1 loop of transformers' generate.

    Args:
        repeats: How often both are timed, in turn; medians are reported.
    """
    import json

    from rich.console import Console

    from ..bench.rollouts import bench_rollouts
    from ..controllers.errors import InputError
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    if repeats < 1:
        raise InputError(f"repeats={repeats}: must be at least 1")
    quiet()
    result = bench_rollouts(settings, repeats, Console(stderr=True))
    print(json.dumps(result | {"machine": machine(), "versions": versions()}))


def forward(*, target: str = "tiny", draft: str = "tiny-draft", repeats: int = 50) -> None:
    """Time one forward of target and draft by how many tokens it reads, on both paths.

    Args:
        target: Target model.
        draft: Draft model.
        repeats: Forwards timed for each figure; medians are reported.
    """
    import json

    from ..bench.forward import bench_forward
    from ..controllers.errors import InputError
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    if repeats < 1:
        raise InputError(f"repeats={repeats}: must be at least 1")
    quiet()
    print(json.dumps(bench_forward(target, draft, repeats) | {"machine": machine(), "versions": versions()}))
