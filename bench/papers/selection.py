"""Assistant selection (Huang et al. 2024): Tables 1, 3 and 4, 5, 6, Figures 2 and 3, and the tables of its appendix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..plots import canvases
from .report import Paper, Report, Row, Table
from .runner import Runner

POLICY = "policy, greedy"
DIFFERS = (
    "models and hardware (the paper: Flan-T5-XXL, Vicuna-33B or Llama-2-13B with drafts of 60M to 220M), "
    "prompts (built-in here)"
)
# What the paper's tables say, in brief, by the names of ours.
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


def run(lab: Runner) -> Report:
    return report(lab.studies.router())


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
            ("best single draft on the mixture, × autoregressive", _ratio(mixture["best_single"])),
            ("router, × autoregressive", _ratio(mixture["router"])),
            ("router and learned length, × autoregressive", _ratio(mixture["router_and_length"])),
            ("loss where no draft helps", _share(result["autoregressive_loss"])),
            ("router's share of the time", f"{result['overhead_share']:.2%}"),
        )
    ]
    return Table("Assistant selection: in brief", rows, f"{DIFFERS}. The paper gives no such table.")


def _share(value: float | None) -> str:
    return "none such" if value is None else f"{value:.1%}"


def _ratio(row: Mapping[str, float]) -> str:
    return f"{row['ratio']:.3f} ({row['low']:.3f}–{row['high']:.3f})"


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
                "× autoregressive": _speed(point),
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
        Row({"chooses": name, **{f"T = {t}": _speed(table[name]) for t, table in by.items() if name in table}})
        for name in names
    ]
    note = f"{DIFFERS}. × autoregressive. The paper: {LENGTHS.partition(' at ')[0]} {WARMTH.removeprefix('and ')}."
    return Table("Assistant selection, Tables 13 and 14: temperatures", rows, note)


def _speed(row: Mapping[str, float]) -> str:
    return f"{row['speedup']:.2f} ({row['low']:.2f}–{row['high']:.2f})"


def _draw(given: Mapping[str, Any], path: Path) -> None:
    figure, (left, right) = canvases(11, 4, 1, 2)
    alphas = [point["alpha"] for point in given["figure_2"]]
    for name in given["figure_2"][0]["shares"]:
        left.plot(alphas, [point["shares"][name] for point in given["figure_2"]], "o-", label=name)
    left.set_xlabel("α, weight of alignment")
    left.set_ylabel("share of the dynamic policy's choices")
    left.legend(fontsize=8)
    counts = [point["examples"] for point in given["figure_3"]]
    right.semilogx(counts, [point["speedup"] for point in given["figure_3"]], "o-", label="policy, mean over seeds")
    singles = given["table_5"]["with autoregressive"]["rows"]
    for place, (name, cells) in enumerate(singles.items()):
        if name not in (POLICY, "policy, dynamic", "autoregressive"):
            right.axhline(cells["average"], linestyle=":", color=f"C{place + 1}", label=name)
    right.set_xlabel("training prompts")
    right.set_ylabel("speed-up over autoregressive")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, format="png")


SELECTION = Paper("selection", "Context-Aware Assistant Selection (Huang et al. 2024)", run)
