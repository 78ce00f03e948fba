"""Assistant selection (Huang et al. 2024): Tables 1, 3 and 4, 5, 6, Figures 2 and 3, and the tables of its appendix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...infer.machine import machine, versions
from ...options import PapersOptions, RouterBenchOptions
from ...train.figure import canvases, label, save
from ..interval import show
from ..workloads.router.benchmark import bench_router, datasets
from .report import Paper, Report, Row, Table
from .specs import Runner

POLICY = "policy, greedy"
DIFFERS = (
    "models and hardware (the paper: Flan-T5-XXL, Vicuna-33B or Llama-2-13B with drafts of 60M to 220M), "
    "prompts (built-in here)"
)
# The paper's tables in brief, by the names of ours.
PAPER = {
    "table_1": ("Table 1: two drafts of two domains", "single drafts 1.04×, 1.01×; greedy policy 1.13×, dynamic 1.11×"),
    "table_3_4": (
        "Tables 3 and 4: with an autoregressive arm",
        "where no draft helps: drafts 0.78×, 0.74×; policies 0.95×; elsewhere greedy 1.09×",
    ),
    "table_6": (
        "Table 6: early exits and an autoregressive arm",
        "exits 0.60× to 0.77×; policy with an autoregressive arm 0.99× and 0.96×",
    ),
}
SETS = "three drafts of 1.60×, 1.40×, 1.41×; policies over two of them 1.59×, 1.60×, 1.41×"
LENGTHS, WARMTH = "the policy follows the better draft at every length", "and at every temperature"


def run(runner: Runner) -> Report:
    return report(router_result(runner))


def router_result(runner: Runner) -> dict[str, Any]:
    """The result of the router's benchmark. Measured in one piece: only a finished one is stored."""
    options = router_options(runner.work, runner.folder / "router")
    data = [dataset.manifest["dataset_fingerprint"] for dataset in datasets(options, runner.console)]
    identity = {"work": asdict(options), "data": data, "machine": machine(), "versions": versions()}
    found: dict[str, Any] = runner.store.compute(
        identity, lambda: bench_router(options, runner.console) | {"settings": asdict(options)}
    )
    return found


def router_options(work: PapersOptions, folder: Path) -> RouterBenchOptions:
    """The router's benchmark on the drafts of ``bench papers``, its datasets in ``folder``."""
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


def report(result: Mapping[str, Any]) -> Report:
    """Of the result of ``specpilot bench router``."""
    tables, given = [_headline(result)], result["tables"]
    for name, (title, paper) in PAPER.items():
        if name in given:
            tables.append(_arms(given[name], title, paper))
    tables += [_arms(table, f"Table 5: {name}", SETS) for name, table in given["table_5"].items()]
    tables += [_alphas(given["figure_2"]), _examples(given["figure_3"])]
    tables += [_arms(table, f"Tables 11 and 12: drafts of {k}", LENGTHS) for k, table in given["tables_11_12"].items()]
    tables.append(_temperatures(given["tables_13_14"]))
    return Report({"selection": result}, tables, lambda path: _draw(given, path))


def _headline(result: Mapping[str, Any]) -> Table:
    mixture = result["mixture"]
    rows = [
        Row({"figure": name, "here": here})
        for name, here in (
            ("selection accuracy where domains differ", _share(result["selection_accuracy"])),
            ("throughput against the best draft of each domain", f"{result['throughput_vs_best_arm']:.3f}"),
            ("best single draft on the mixture, × autoregressive", show(mixture["best_single"], "ratio", 3)),
            ("router, × autoregressive", show(mixture["router"], "ratio", 3)),
            ("router and learned length, × autoregressive", show(mixture["router_and_length"], "ratio", 3)),
            ("loss where no draft helps", _share(result["autoregressive_loss"])),
            ("router's share of the time", f"{result['overhead_share']:.2%}"),
        )
    ]
    return Table("Assistant selection: in brief", rows, f"{DIFFERS}. The paper gives no such table.")


def _share(value: float | None) -> str:
    return "none such" if value is None else f"{value:.1%}"


def _arms(table: Mapping[str, Any], title: str, paper: str) -> Table:
    rows = [
        Row(
            {
                "chooses": name,
                **{
                    domain: f"{cell['speedup']:.2f}× ({cell['low']:.2f}–{cell['high']:.2f})"
                    for domain, cell in cells.items()
                    if domain != "average"
                },
                "average": f"{cells['average']:.2f}×",
            }
        )
        for name, cells in table["rows"].items()
    ]
    return Table(f"Assistant selection, {title}", rows, f"{DIFFERS}. × autoregressive. The paper: {paper}.")


def _alphas(points: list[dict[str, Any]]) -> Table:
    rows = [
        Row(
            {
                "α": f"{point['alpha']:g}",
                "× autoregressive": show(point, "speedup"),
                **{name: f"{share:.0%}" for name, share in point["shares"].items()},
            }
        )
        for point in points
    ]
    note = f"{DIFFERS}. Shares are the dynamic policy's. The paper: the weight moves choices between cheap and aligned."
    return Table("Assistant selection, Figure 2: weight of alignment against cost", rows, note)


def _examples(points: list[dict[str, Any]]) -> Table:
    rows = [
        Row(
            {
                "training prompts": str(point["examples"]),
                "× autoregressive": f"{point['speedup']:.2f}",
                "selection accuracy": f"{point['selection_accuracy']:.1%}",
            }
        )
        for point in points
    ]
    note = f"{DIFFERS}. The paper: fewer than 10,000 of 400,000 suffice."
    return Table("Assistant selection, Figure 3: how few examples suffice", rows, note)


def _temperatures(by: Mapping[str, Mapping[str, Any]]) -> Table:
    names = dict.fromkeys(name for table in by.values() for name in table)
    rows = [
        Row({"chooses": name, **{f"T = {t}": show(table[name], "speedup") for t, table in by.items() if name in table}})
        for name in names
    ]
    note = f"{DIFFERS}. × autoregressive. The paper: {LENGTHS.partition(' at ')[0]} {WARMTH.removeprefix('and ')}."
    return Table("Assistant selection, Tables 13 and 14: temperatures", rows, note)


def _draw(given: Mapping[str, Any], path: Path) -> None:
    figure, (left, right) = canvases(11, 4, 1, 2)
    alphas = [point["alpha"] for point in given["figure_2"]]
    for name in given["figure_2"][0]["shares"]:
        left.plot(alphas, [point["shares"][name] for point in given["figure_2"]], "o-", label=name)
    label(left, "α, weight of alignment", "share of the dynamic policy's choices", legend=8)
    counts = [point["examples"] for point in given["figure_3"]]
    right.semilogx(counts, [point["speedup"] for point in given["figure_3"]], "o-", label="policy, mean over seeds")
    singles = given["table_5"]["with autoregressive"]["rows"]
    for place, (name, cells) in enumerate(singles.items()):
        if name not in (POLICY, "policy, dynamic", "autoregressive"):
            right.axhline(cells["average"], linestyle=":", color=f"C{place + 1}", label=name)
    label(right, "training prompts", "speed-up over autoregressive", legend=8)
    save(figure, path)


SELECTION = Paper("selection", "Context-Aware Assistant Selection (Huang et al. 2024)", run)
