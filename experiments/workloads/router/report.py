"""The tables that ``specpilot bench router`` prints."""

from __future__ import annotations

from typing import Any

from specpilot.compare.interval import show
from specpilot.compare.table import Table


def as_tables(result: dict[str, Any]) -> list[Table]:
    """The mixture, the domains, the selection methods, and a summary."""
    mixture = [
        {
            "mixture": f"{name.replace('_', ' ')}{' (' + row['arm'] + ')' if 'arm' in row else ''}",
            "tokens/s": f"{row['tokens_per_second']:.0f}",
            "× autoregressive (95 %)": show(row, "ratio", 3),
        }
        for name, row in result["mixture"].items()
    ]
    mixture += [
        {
            "mixture": f"router and length over {name.replace('_', ' ')}",
            "× autoregressive (95 %)": show(row, "ratio", 3),
        }
        for name, row in result["both_against"].items()
    ]
    domains = [
        {
            "domain": domain,
            "best draft": row["best_draft"],
            "prompts": str(row["prompts"]),
            "router / best draft (95 %)": show(row["router"], "ratio", 3),
            "by the cost model": f"{row['cost_model']:.3f}",
        }
        for domain, row in result["by_domain"].items()
    ]
    selection = [
        {
            "chooser": name,
            "accuracy": f"{row['accuracy']:.1%}",
            "where domains differ": share(row["accuracy_where_domains_differ"]),
            "regret": f"{row['regret']:.4f}",
            "× autoregressive (95 %)": show(row, "speedup", 3),
        }
        for name, row in result["selection"].items()
    ]
    return [Table("", rows) for rows in (mixture, domains, selection)] + [brief(result)]


def brief(result: dict[str, Any]) -> Table:
    """The main figures."""
    mixture = result["mixture"]
    figures = {
        "selection accuracy where domains differ": share(result["selection_accuracy"]),
        "throughput against the best draft of each domain": f"{result['throughput_vs_best_arm']:.3f}",
        "best single draft on the mixture, × autoregressive": show(mixture["best_single"], "ratio", 3),
        "router, × autoregressive": show(mixture["router"], "ratio", 3),
        "router and learned length, × autoregressive": show(mixture["router_and_length"], "ratio", 3),
        "loss where no draft helps": share(result["autoregressive_loss"]),
        "router's share of the time": f"{result['overhead_share']:.2%}",
    }
    return Table("Assistant selection: summary", [{"figure": name, "here": here} for name, here in figures.items()])


def share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"
