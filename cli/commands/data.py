"""`specpilot data …`: prompts in, datasets out."""

from __future__ import annotations

from pathlib import Path

from ..data_gen.settings import AcceptanceDataOptions, OnPolicyDataOptions, RouterDataOptions


def acceptance(settings: AcceptanceDataOptions, *, output: Path, plan: bool = False) -> None:
    """Roll out the target over prompts and label what the draft would have proposed (SpecDec++ §3.3).

    Args:
        output: Folder of the dataset: Parquet shards and a manifest. An unfinished one is gone on with.
        plan: Print what would be done, its size on disk and the time it would take; write nothing.
    """
    from ..data_gen.acceptance import make_acceptance_data, plan_acceptance_data
    from ..infer.quiet import quiet

    quiet()
    if plan:
        print(plan_acceptance_data(settings))
        return
    make_acceptance_data(settings, output)


def on_policy(settings: OnPolicyDataOptions, *, output: Path) -> None:
    """Log the decoder's own rounds: what a controller drafted, and how far the target would keep it.

    Args:
        output: Folder of the dataset: Parquet shards and a manifest. An unfinished one is gone on with.
    """
    from ..data_gen.on_policy import make_on_policy_data
    from ..infer.quiet import quiet

    quiet()
    make_on_policy_data(settings, output)


def router(settings: RouterDataOptions, *, output: Path) -> None:
    """Let the target and every arm answer prompts, and score how alike they are (assistant selection, §2.3).

    Args:
        output: Folder of the dataset: Parquet shards, a manifest and measured times. An unfinished one is gone on with.
    """
    from ..data_gen.router import make_router_data
    from ..infer.quiet import quiet

    quiet()
    make_router_data(settings, output)
