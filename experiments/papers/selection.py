"""Assistant selection (Huang et al. 2024): Tables 1, 3 and 4, 5, 6, Figures 2 and 3, and the tables of its appendix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specpilot.common.machine import machine, versions
from specpilot.compare.interval import Interval, show
from specpilot.compare.table import Table

from ..figure import canvases, label, save
from ..router.benchmark import bench_router, datasets
from ..router.headline import brief
from ..router.study import RouterBenchOptions
from .runner import Paper, PapersOptions, Report, Runner

POLICY = "policy, greedy"
DIFFERS = (
    "models and hardware (the paper: Flan-T5-XXL and Vicuna-33B with drafts of 60M to 220M, Llama-2-13B with early "
    "exits), prompts (built-in here)"
)
# Our table → the paper's title and a summary of its figures.
PAPER = {
    "table_1": ("Table 1: two drafts of two domains", "single drafts 1.04×, 1.01×; greedy policy 1.13×, dynamic 1.11×"),
    "table_3_4": (
        "Tables 3 and 4: with an autoregressive arm",
        "GSM8K, where no draft helps: drafts 0.78×, 0.74×; policies 0.95×; EN-DE: greedy policy 1.09×",
    ),
    "table_6": (
        "Table 6: early exits and an autoregressive arm",
        "TriviaQA: exits 0.60× to 0.77×, policy with an autoregressive arm 0.96×; Alpaca: policy 0.99×",
    ),
}
SETS = "three drafts of 1.60×, 1.40×, 1.41×; policies over two of them 1.59×, 1.60×, 1.41×"
LENGTHS = "the policy follows the better draft at every length"


def run(runner: Runner) -> Report:
    return report(router_result(runner))


def router_result(runner: Runner) -> dict[str, Any]:
    """Return the result of the router benchmark, stored only when it is complete."""
    options = router_options(runner.work, runner.folder / "router")
    data = [dataset.manifest.dataset_fingerprint for dataset in datasets(options, runner.console)]
    identity = {"work": asdict(options), "data": data, "machine": machine().to_dict(), "versions": versions()}
    tables: dict[str, Any] = runner.store.compute(
        identity, lambda: bench_router(options, runner.console) | {"settings": asdict(options)}
    )
    return tables


def router_options(work: PapersOptions, folder: Path) -> RouterBenchOptions:
    """Return the options of the router benchmark for the drafts of ``papers``, with datasets in ``folder``."""
    return RouterBenchOptions(
        target=work.target,
        drafts=(*work.drafts[2:], *work.drafts[:2]),
        pair=work.drafts[:2],
        pair_domains=work.pair_domains,
        **work.source,
        limit=work.limit,
        train_limit=work.train_limit,
        repeats=1,
        work=str(folder),
        max_new_tokens=work.max_new_tokens,
        temperature=work.temperature,
        top_k=work.top_k,
        top_p=work.top_p,
        dtype=work.dtype,
        device=work.device,
    )


def report(result: dict[str, Any]) -> Report:
    """Return the report of a result of ``python -m experiments router``."""
    table_data = result["tables"]
    tables = [replace(brief(result), note=f"{DIFFERS}. The paper gives no such table.")]
    tables += [_arms(table_data[name], title, paper) for name, (title, paper) in PAPER.items() if name in table_data]
    tables += [_arms(table, f"Table 5: {name}", SETS) for name, table in table_data["table_5"].items()]
    tables += [_alphas(table_data["figure_2"]), _examples(table_data["figure_3"])]
    tables += [
        _arms(table, f"Tables 11 and 12: drafts of {k}", LENGTHS) for k, table in table_data["tables_11_12"].items()
    ]
    tables.append(_temperatures(table_data["tables_13_14"]))
    return Report({"selection": result}, tables, lambda path: _draw(table_data, path))


def _arms(table: Mapping[str, Any], title: str, paper: str) -> Table:
    rows = [
        {
            "chooses": name,
            **{domain: show(Interval.of(cell, "speedup")) for domain, cell in cells.items() if domain != "average"},
        }
        | {"average": f"{cells['average']:.2f}"}
        for name, cells in table["rows"].items()
    ]
    return Table(f"Assistant selection, {title}", rows, f"{DIFFERS}. × autoregressive. The paper: {paper}.")


def _alphas(points: list[dict[str, Any]]) -> Table:
    rows = [
        {"α": f"{point['alpha']:g}", "× autoregressive": show(Interval.of(point, "speedup"))}
        | {name: f"{share:.0%}" for name, share in point["shares"].items()}
        for point in points
    ]
    note = f"{DIFFERS}. Shares are the dynamic policy's. The paper: the weight moves choices between cheap and aligned."
    return Table("Assistant selection, Figure 2: weight of alignment against cost", rows, note)


def _examples(points: list[dict[str, Any]]) -> Table:
    rows = [
        {
            "training prompts": str(point["examples"]),
            "× autoregressive": f"{point['speedup']:.2f}",
            "selection accuracy": f"{point['selection_accuracy']:.1%}",
        }
        for point in points
    ]
    note = f"{DIFFERS}. The paper: fewer than 10,000 of 400,000 suffice."
    return Table("Assistant selection, Figure 3: number of training prompts", rows, note)


def _temperatures(by: Mapping[str, Mapping[str, Any]]) -> Table:
    names = dict.fromkeys(name for table in by.values() for name in table)
    rows = [
        {
            "chooses": name,
            **{f"T = {t}": show(Interval.of(table[name], "speedup")) for t, table in by.items() if name in table},
        }
        for name in names
    ]
    return Table(
        "Assistant selection, Tables 13 and 14: temperatures", rows,
        f"{DIFFERS}. × autoregressive. The paper: the policy follows the better draft at every temperature.",
    )  # fmt: skip


def _draw(tables: Mapping[str, Any], path: Path) -> None:
    figure, (share_axes, speed_axes) = canvases(11, 4, 1, 2)
    alphas = [point["alpha"] for point in tables["figure_2"]]
    for name in tables["figure_2"][0]["shares"]:
        share_axes.plot(alphas, [point["shares"][name] for point in tables["figure_2"]], "o-", label=name)
    label(share_axes, "α, weight of alignment", "share of the dynamic policy's choices", legend=8)
    counts = [point["examples"] for point in tables["figure_3"]]
    speed_axes.semilogx(
        counts, [point["speedup"] for point in tables["figure_3"]], "o-", label="policy, mean over seeds"
    )
    singles = tables["table_5"]["with autoregressive"]["rows"]
    for place, (name, cells) in enumerate(singles.items()):
        if name not in (POLICY, "policy, dynamic", "autoregressive"):
            speed_axes.axhline(cells["average"], linestyle=":", color=f"C{place + 1}", label=name)
    label(speed_axes, "training prompts", "speed-up over autoregressive", legend=8)
    save(figure, path)


SELECTION = Paper("selection", "Context-Aware Assistant Selection (Huang et al. 2024)", run)
