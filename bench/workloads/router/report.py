"""The tables that ``specpilot bench router`` prints."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ...interval import show


def as_tables(result: dict[str, Any]) -> list[Table]:
    """The mixture, the domains, and what chooses how well."""
    mixture = Table("mixture", "tokens/s", "× autoregressive (95 %)")
    for name, row in result["mixture"].items():
        title = f"{name.replace('_', ' ')}{' (' + row['arm'] + ')' if 'arm' in row else ''}"
        mixture.add_row(title, f"{row['tokens_per_second']:.0f}", show(row, "ratio", 3))
    for name, row in result["both_against"].items():
        mixture.add_row(f"router and length over {name.replace('_', ' ')}", "", show(row, "ratio", 3))
    domains = Table("domain", "best draft", "prompts", "router / best draft (95 %)", "by the cost model")
    for domain, row in result["by_domain"].items():
        domains.add_row(
            domain, row["best_draft"], str(row["prompts"]), show(row["router"], "ratio", 3), f"{row['cost_model']:.3f}"
        )
    selection = Table("chooser", "accuracy", "where domains differ", "regret", "× autoregressive (95 %)")
    for name, row in result["selection"].items():
        differ = row["accuracy_where_domains_differ"]
        selection.add_row(
            name,
            f"{row['accuracy']:.1%}",
            "" if differ is None else f"{differ:.1%}",
            f"{row['regret']:.4f}",
            show(row, "speedup", 3),
        )
    rest = Table("figure", "value")
    loss = result["autoregressive_loss"]
    for name, value in (
        ("selection accuracy where domains differ", _percent(result["selection_accuracy"])),
        ("throughput over the best draft of each domain", f"{result['throughput_vs_best_arm']:.3f}"),
        ("loss against autoregressive where no draft helps", _percent(loss)),
        ("share of embedding, policy and choice in the wall time", f"{result['overhead_share']:.2%}"),
    ):
        rest.add_row(name, value)
    return [mixture, domains, selection, rest]


def _percent(value: float | None) -> str:
    return "none such" if value is None else f"{value:.1%}"
