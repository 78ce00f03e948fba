"""The studies behind two of the papers' tables, which train what they measure: a sweep of heads, and routers.

Imported by the commands that need them only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from ...controllers.router import RouterPolicy
from ...data_gen.router_dataset import RouterDataset
from ...infer.machine import machine, versions
from ...train.router import fit_policy
from ...train.router_data import table_of
from ...train.settings import RouterTrainingOptions
from ..router_work import RouterBenchOptions
from ..store import Store
from ..studies.sweep import run_sweep
from ..sweep_settings import SweepOptions
from ..workload import PapersOptions
from ..workloads.router import bench_router, datasets
from ..workloads.router_tables import Fit
from .runner import Studies

DOMAINS = 6  # of the built-in prompts


def papers_studies(
    work: PapersOptions, folder: Path, console: Console, progress: Callable[[str, int], AbstractContextManager[Any]]
) -> Studies:
    """The studies on ``work``'s models and built-in prompts; what they make is kept in ``folder``, and gone on with."""
    sweep = SweepOptions(
        target=work.target,
        draft=work.draft,
        prompts="builtin-large",  # domains to leave out must be known
        train_prompts=work.train_limit,
        per_domain=-(-2 * work.limit // DOMAINS),
        max_new_tokens=work.max_new_tokens,
        temperature=work.temperature,
        top_k=work.top_k,
        top_p=work.top_p,
        device=work.device,
    )
    router = RouterBenchOptions(
        target=work.target,
        drafts=(*work.drafts[2:], *work.drafts[:2]),
        pair=work.drafts[:2],
        pair_domains=work.pair_domains,
        limit=work.limit,
        train_limit=work.train_limit,
        repeats=1,
        work=str(folder / "router"),
        max_new_tokens=work.max_new_tokens,
        temperature=work.temperature,
        top_k=work.top_k,
        dtype=work.dtype,
        device=work.device,
    )
    return Studies(
        lambda: run_sweep(sweep, folder / "sweep", None, console) | {"settings": asdict(sweep)},
        lambda: _kept_router(router, folder, console, progress),
    )


def _kept_router(
    work: RouterBenchOptions,
    folder: Path,
    console: Console,
    progress: Callable[[str, int], AbstractContextManager[Any]],
) -> dict[str, Any]:
    """Its measurements are one piece: done, they are kept; interrupted, only its datasets are."""
    store = Store(folder / "router" / "results")
    data = [dataset.manifest["dataset_fingerprint"] for dataset in datasets(work, console)]
    identity = {"work": asdict(work), "data": data, "machine": machine(), "versions": versions()}
    found: dict[str, Any] | None = store.get(identity)
    if found is None:
        found = bench_router(work, policy_fit(work), console, progress) | {"settings": asdict(work)}
        store.put(identity, found)
    return found


def policy_fit(work: RouterBenchOptions) -> Fit:
    """Trains a policy on a dataset, for the router's benchmark."""

    def fit(data: RouterDataset, **options: Any) -> RouterPolicy:
        training = RouterTrainingOptions(data=work.work, device="cpu", **options)
        return fit_policy(table_of(data, training), training)

    return fit
