"""The tables and the plot of ``python -m experiments sweep`` (SpecDec++, Huang et al. 2024, §4.3 and Appendix C.3).

Table 1 compares the best setting of each family by eq. 2.3; as in the paper, it is the best on the table's own prompts.
Table 3 varies D, w_rej and h. Figure 4 shows the discard and verification rates of each setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specpilot.compare.interval import Interval, interval, show
from specpilot.compare.recorded import Setting
from specpilot.compare.table import Table
from specpilot.controllers.length.cost_model import CostModel

from ..figure import canvases, label, save
from .heads import Head
from .held_out import Counted, DomainCounts, columns, groups_of, rates_of

PAPER = {"depth": 3, "w_rej": 6.0, "parameter": 0.7}
PAPER_RATIO = 0.21  # t_draft / t_target of the paper's 7B and 70B models
DISCARD = "discard rate: discarded draft tokens per generated token"
VERIFICATION = "verification rate: target forwards per generated token"
STYLES = {
    "fixed": ("o-", "fixed K"),
    "confidence": ("^--", "cumulative confidence"),
    "head": ("s-", "acceptance head"),
}


def summarise(
    counted: Counted, heads: Sequence[Head], in_domain: Sequence[str], costs: Mapping[str, CostModel]
) -> dict[str, Any]:
    """Return Tables 1 and 3 and the points of Figure 4 as JSON values.

    Args:
        counted: counters by rule and parameter, and by domain.
        heads: the trained heads.
        in_domain: the domains that the heads were trained on.
        costs: cost models by name; Table 3 uses the first.
    """
    groups = groups_of(list(next(iter(counted.values()))), in_domain)
    first = next(iter(costs.values()))
    return {
        "groups": groups,
        "table_1": {
            name: {group: _table_1(counted, heads, domains, cost) for group, domains in groups.items()}
            for name, cost in costs.items()
        },
        "table_3": [_table_3(counted, head, groups, first) for head in heads],
        "figure_4": {
            group: [
                {"rule": rule, "parameter": x, **rates_of(*columns(counts, groups[group]))}
                for (rule, x), counts in counted.items()
            ]
            for group in ("in_domain", "left_out")
            if group in groups
        },
    }


def _table_1(counted: Counted, heads: Sequence[Head], domains: list[str], cost: CostModel) -> dict[str, Any]:
    """Return the best setting of each family, ratios of the best head to the others, and the paper's own setting."""
    families = {"best_fixed": ["fixed"], "best_confidence": ["confidence"], "best_head": [head.name for head in heads]}
    best = {family: _best(counted, names, domains, cost) for family, names in families.items()}
    row: dict[str, Any] = {"autoregressive": {"throughput": 1 / cost.round(0)}}
    row |= {family: _row(counted, setting, domains, cost) for family, setting in best.items()}

    def ratio(*sums: Any) -> Any:
        return cost.throughput(*sums[:3]) / cost.throughput(*sums[3:])

    head = _counters(counted[best["best_head"]], domains)
    for against in ("best_fixed", "best_confidence"):
        other = _counters(counted[best[against]], domains)
        row[f"best_head_over_{against}"] = interval(ratio, *head, *other).named("ratio")
    papers = f"head D={PAPER['depth']} w={PAPER['w_rej']:g}", PAPER["parameter"]
    if papers in counted:
        row["paper_setting"] = _row(counted, papers, domains, cost)
    return row


def _table_3(counted: Counted, head: Head, groups: Mapping[str, list[str]], cost: CostModel) -> dict[str, Any]:
    metrics = {name: head.metrics[name] for name in ("kl", "kl_unweighted", "auroc", "brier_unweighted")}
    best = {}
    for group, domains in groups.items():
        setting = _best(counted, [head.name], domains, cost)
        best[group] = {"threshold": setting[1], "throughput": _throughput(counted[setting], domains, cost)}
    return {"depth": head.depth, "w_rej": head.w_rej, "eval": metrics, "best": best}


def _best(counted: Counted, names: Sequence[str], domains: list[str], cost: CostModel) -> Setting:
    return max(
        (setting for setting in counted if setting[0] in names),
        key=lambda setting: _throughput(counted[setting], domains, cost),
    )


def _row(counted: Counted, setting: Setting, domains: list[str], cost: CostModel) -> dict[str, Any]:
    throughput = _throughput(counted[setting], domains, cost)
    return {
        "rule": setting[0],
        "parameter": setting[1],
        "throughput": throughput,
        "over_autoregressive": throughput * cost.round(0),
        **rates_of(*columns(counted[setting], domains)),
    }


def _counters(counts: DomainCounts, domains: list[str]) -> tuple[Any, Any, Any]:
    """Return the arguments of eq. 2.3: generated tokens, drafted tokens and target forwards, (prompts,) each."""
    generated, drafted, _, target_forwards = columns(counts, domains)
    return generated, drafted, target_forwards


def _throughput(counts: DomainCounts, domains: list[str], cost: CostModel) -> float:
    return float(cost.throughput(*(x.sum() for x in _counters(counts, domains))))


def table_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return Table 2 and its costs, from the result of ``bench cost``.

    The table has the regressions over the loop (eq. 2.1) and over single forwards.
    """
    loop, forward = document["loop"], document["forward"]
    measured = {name: loop[name] for name in ("t_draft", "t_target", "r_squared")}
    stand_alone = {
        "t_draft": forward["t_draft"],
        "t_target": forward["t_verify"] + forward["t_verify_token"],
        "r_squared_of_t_verify": forward["r_squared"],
    }
    papers = measured | {"t_draft": PAPER_RATIO * loop["t_target"]}
    return {
        "table_2": {"loop": measured, "stand_alone": stand_alone},
        "costs": {"measured": measured, str(PAPER_RATIO): papers},
    }


def costs_of(document: Mapping[str, Any]) -> dict[str, CostModel]:
    """Return cost models of the tables: as measured in the loop, and with the paper's ratio at the same target time.

    The paper's eq. 2.3 has one time for all verifications. The costs therefore have no shape of the verification.
    """
    t_draft, t_target = float(document["loop"]["t_draft"]), float(document["loop"]["t_target"])
    return {
        "measured": CostModel(t_draft, t_target, 0.0),
        str(PAPER_RATIO): CostModel(PAPER_RATIO * t_target, t_target, 0.0),
    }


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return Tables 1, 2 and 3 of a result."""
    groups = {group: group for group in result["groups"]}
    return [
        *(table_1_of(ratio, rows, groups) for ratio, rows in result["table_1"].items()),
        table_2_of(result["table_2"]),
        table_3_of(result["table_3"], groups),
    ]


def table_1_of(ratio: str, rows: Mapping[str, Any], groups: Mapping[str, str]) -> Table:
    """Return Table 1: settings with their tokens per second, with a row for each of ``groups`` (name → label)."""
    costs = "times measured here" if ratio == "measured" else f"t_draft / t_target = {ratio}"

    def best(row: Mapping[str, Any] | None) -> str:
        return (
            "" if row is None else f"{row['throughput']:.1f} ({row['rule'].removeprefix('head ')} {row['parameter']:g})"
        )

    return Table(
        f"SpecDec++, Table 1: tokens/s by eq. 2.3, {costs}",
        [
            {
                "prompts": label,
                "autoregressive": f"{rows[group]['autoregressive']['throughput']:.1f}",
                "best fixed K": best(rows[group]["best_fixed"]),
                "best confidence": best(rows[group]["best_confidence"]),
                "paper's head (w_rej 6, D 3, h 0.7)": best(rows[group].get("paper_setting")),
                "best head": best(rows[group]["best_head"]),
                "best head over best confidence": show(
                    Interval.of(rows[group]["best_head_over_best_confidence"], "ratio"), 3
                ),
                "best head over best fixed K": show(Interval.of(rows[group]["best_head_over_best_fixed"], "ratio"), 3),
            }
            for group, label in groups.items()
        ],
    )


def table_2_of(rows: Mapping[str, Any]) -> Table:
    """Return Table 2, with a row for each method of measuring."""
    return Table(
        "SpecDec++, Table 2: forward times",
        [
            {
                "setting": name.replace("_", " "),
                "t_draft, ms": f"{1e3 * row['t_draft']:.3f}",
                "t_target, ms": f"{1e3 * row['t_target']:.3f}",
                "R²": f"{row.get('r_squared', row.get('r_squared_of_t_verify')):.4f}",
            }
            for name, row in rows.items()
        ],
    )


def table_3_of(heads: Sequence[Mapping[str, Any]], groups: Mapping[str, str]) -> Table:
    """Return Table 3: each head's validation KL, and its tokens per second at the best h for each of ``groups``."""
    return Table(
        "SpecDec++, Table 3: loss weight and depth",
        [
            {
                "w_rej": f"{head['w_rej']:g}",
                "D": str(head["depth"]),
                "eval KL": f"{head['eval']['kl']:.3f}",
                "AUROC": f"{head['eval']['auroc']:.3f}",
                **{
                    f"tokens/s {label}": f"{head['best'][g]['throughput']:.1f} (h = {head['best'][g]['threshold']:g})"
                    for g, label in groups.items()
                },
            }
            for head in heads
        ],
    )


def plot_sweep(figure_4: Mapping[str, Any], path: Path, title: str) -> None:
    """Plot discard rate against verification rate of every setting (SpecDec++ Figure 4), one panel per set of domains.

    Lower and further left is better. Lines join the parameters of a rule, or for heads the Pareto front.
    """
    figure, axes = canvases(6 * len(figure_4), 5, 1, len(figure_4))
    for panel, (group, points) in zip(axes, figure_4.items(), strict=True):
        families: dict[str, list[tuple[float, float, float]]] = {}
        for point in points:
            family = point["rule"].partition(" ")[0]
            place = point["discard_rate"], point["verification_rate"], point["parameter"]
            families.setdefault(family, []).append(place)
        for family, (style, name) in STYLES.items():
            if family not in families:
                continue
            places = sorted(families[family])
            front = pareto_front(places) if family == "head" else places
            panel.plot([x for x, _, _ in front], [y for _, y, _ in front], style, label=name, markersize=4)
            if family == "head":
                panel.scatter([x for x, _, _ in places], [y for _, y, _ in places], 8, color="tab:green", alpha=0.4)
            if family == "fixed":
                for x, y, parameter in front:
                    panel.annotate(f"{parameter:g}", (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
        panel.set_title(group.replace("_", " "))
        label(panel, DISCARD, VERIFICATION)
    figure.suptitle(title)
    save(figure, path)


def pareto_front(points: Sequence[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """Return the points that no other point beats in both of the first two coordinates; smaller is better."""
    front: list[tuple[float, float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
