"""``specpilot bench sweep``: SpecDec++'s grid (Huang et al. 2024, §4.3 and Appendix C.3) by replay on held-out texts.

A *rule* is a family of controllers with one parameter: fixed K, cumulative confidence, or an acceptance head with its
thresholds h. Table 1 compares the best of each family by eq. 2.3, as the paper does: the best on the prompts it is
judged on. Table 3 shows what D, w_rej and h do, Figure 4 what each setting discards and verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from ...controllers.acceptance.acceptance_head import AcceptanceHead
from ...controllers.length import AcceptanceLength, CumulativeConfidence, Fixed, LengthController
from ...infer.generation import Stats
from ...simulate.trace import Trace
from ..interval import interval
from ..store import Store
from ..throughput import Cost
from .held_out import Chunk, Counts, Texts, by_domain, chunk_identity, judge_at_once, pooled

PAPER = {"depth": 3, "w_rej": 6.0, "parameter": 0.7}
PAPER_RATIO = 0.21  # t_draft / t_target of the paper's 7B and 70B models

Setting = tuple[str, float]  # rule, parameter
Counted = dict[str, list[Counts]]  # by domain, one for each prompt


@dataclass(frozen=True)
class Head:
    """A trained head of the grid.

    Attributes:
        digest: SHA-256 of its weights.
        metrics: what validation says of it.
    """

    depth: int
    w_rej: float
    head: AcceptanceHead
    digest: str
    metrics: dict[str, float]

    @property
    def name(self) -> str:
        return f"head D={self.depth} w={self.w_rej:g}"


@dataclass(frozen=True)
class Rule:
    """A family of controllers, one for each of ``parameters``.

    Attributes:
        identity: what its decisions depend on besides the parameter.
        make: controllers by trace and parameter, for a chunk's traces.
    """

    name: str
    parameters: tuple[float, ...]
    identity: dict[str, Any]
    make: Callable[[Sequence[Trace]], Callable[[int, float], LengthController]]


def rules(
    heads: Sequence[Head], lengths: Sequence[int], confidences: Sequence[float], thresholds: Sequence[float]
) -> list[Rule]:
    """Everything that is replayed."""

    def of_head(head: Head) -> Rule:
        def make(traces: Sequence[Trace]) -> Callable[[int, float], LengthController]:
            sources = judge_at_once(head.head, traces)
            return lambda index, threshold: AcceptanceLength(sources[index], threshold)

        return Rule(head.name, tuple(thresholds), {"rule": "head", "weights": head.digest}, make)

    return [
        Rule("fixed", tuple(lengths), {"rule": "fixed"}, lambda traces: lambda index, k: Fixed(int(k))),
        Rule(
            "confidence",
            tuple(confidences),
            {"rule": "cumulative confidence"},
            lambda traces: lambda index, threshold: CumulativeConfidence(threshold),
        ),
        *map(of_head, heads),
    ]


def replay_all(
    texts: Texts,
    chunks: Sequence[Chunk],
    families: Sequence[Rule],
    store: Store,
    identity: Mapping[str, Any],
    on_progress: Callable[[], None] = lambda: None,
) -> dict[Setting, Counted]:
    """Counters of every setting on every prompt, those in ``store`` taken from there.

    Args:
        identity: what the texts depend on besides the prompts.
        on_progress: called after every chunk.
    """
    found: dict[Setting, list[list[Counts]]] = {(rule.name, x): [] for rule in families for x in rule.parameters}
    for chunk in chunks:
        traces: list[Trace] | None = None
        for rule in families:
            key = {**identity, **chunk_identity(chunk), **rule.identity, "parameters": list(rule.parameters)}
            counts = store.get(key)
            if counts is None:
                if traces is None:
                    traces = texts.traces(chunk)
                counts = replay_rule(texts, traces, rule)
                store.put(key, counts)
            for x, of_chunk in zip(rule.parameters, counts, strict=True):
                found[rule.name, x].append([Counts(*c) for c in of_chunk])
        on_progress()
    return {setting: by_domain(chunks, counts) for setting, counts in found.items()}


def replay_rule(texts: Texts, traces: Sequence[Trace], rule: Rule) -> list[list[Counts]]:
    """Counters by parameter and trace."""
    controller = rule.make(traces)
    return [texts.count(traces, lambda index, x=x: controller(index, x)) for x in rule.parameters]  # type: ignore[misc]


def groups_of(counted: Mapping[Setting, Counted], in_domain: Sequence[str]) -> dict[str, list[str]]:
    """Names of sets of domains: in-domain and left-out ones together, and each on its own."""
    domains = list(next(iter(counted.values())))
    groups = {
        "in_domain": [domain for domain in domains if domain in in_domain],
        "left_out": [domain for domain in domains if domain not in in_domain],
    }
    groups |= {domain: [domain] for domain in domains}
    return {name: members for name, members in groups.items() if members}


def summarise(
    counted: Mapping[Setting, Counted], heads: Sequence[Head], in_domain: Sequence[str], costs: Mapping[str, Cost]
) -> dict[str, Any]:
    """Tables 1 and 3 and the points of Figure 4.

    Args:
        costs: what forwards cost, by a name for it; the first is Table 3's.
    """
    groups = groups_of(counted, in_domain)
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
                {"rule": rule, "parameter": x, **_rates(_total(counts, groups[group]))}
                for (rule, x), counts in counted.items()
            ]
            for group in ("in_domain", "left_out")
            if group in groups
        },
    }


def _table_1(
    counted: Mapping[Setting, Counted], heads: Sequence[Head], domains: list[str], cost: Cost
) -> dict[str, Any]:
    """The best of each family, how much better the best head is, and the paper's own setting."""
    families = {"best_fixed": ["fixed"], "best_confidence": ["confidence"], "best_head": [head.name for head in heads]}
    best = {family: _best(counted, names, domains, cost) for family, names in families.items()}
    row: dict[str, Any] = {"autoregressive": {"throughput": 1 / cost.t_target}}
    row |= {family: _row(counted, setting, domains, cost) for family, setting in best.items()}
    head = _arrays(counted[best["best_head"]], domains)
    for against in ("best_fixed", "best_confidence"):
        other = _arrays(counted[best[against]], domains)

        def ratio(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
            return cost.throughput_of(a, b, c) / cost.throughput_of(d, e, f)

        row[f"best_head_over_{against}"] = dict(
            zip(("ratio", "low", "high"), interval(ratio, *head, *other), strict=True)
        )
    papers = f"head D={PAPER['depth']} w={PAPER['w_rej']:g}", PAPER["parameter"]
    if papers in counted:
        row["paper_setting"] = _row(counted, papers, domains, cost)
    return row


def _table_3(
    counted: Mapping[Setting, Counted], head: Head, groups: Mapping[str, list[str]], cost: Cost
) -> dict[str, Any]:
    shown = {name: head.metrics[name] for name in ("kl", "kl_undone", "auroc", "brier_undone")}
    best = {}
    for group, domains in groups.items():
        setting = _best(counted, [head.name], domains, cost)
        best[group] = {"threshold": setting[1], "throughput": _throughput(counted[setting], domains, cost)}
    return {"depth": head.depth, "w_rej": head.w_rej, "eval": shown, "best": best}


def _best(counted: Mapping[Setting, Counted], names: Sequence[str], domains: list[str], cost: Cost) -> Setting:
    return max(
        (setting for setting in counted if setting[0] in names),
        key=lambda setting: _throughput(counted[setting], domains, cost),
    )


def _row(counted: Mapping[Setting, Counted], setting: Setting, domains: list[str], cost: Cost) -> dict[str, Any]:
    total = _total(counted[setting], domains)
    throughput = cost.throughput(total)
    return {
        "rule": setting[0],
        "parameter": setting[1],
        "throughput": throughput,
        "over_autoregressive": throughput * cost.t_target,
        **_rates(total),
    }


def _rates(total: Stats) -> dict[str, float]:
    return {"discard_rate": total.discard_rate, "verification_rate": total.verification_rate}


def _throughput(counts: Counted, domains: list[str], cost: Cost) -> float:
    return cost.throughput(_total(counts, domains))


def _total(counts: Counted, domains: list[str]) -> Stats:
    return sum((c.stats for c in pooled(counts, domains)), Stats())


def _arrays(counts: Counted, domains: list[str]) -> tuple[Any, Any, Any]:
    """(prompts,) each: generated, discarded and target forwards."""
    table = np.array([*pooled(counts, domains)], dtype=float)
    return table[:, 0], table[:, 1] - table[:, 2], table[:, 3]


def table_2(document: Mapping[str, Any]) -> dict[str, Any]:
    """The forward-time regressions of ``bench cost``'s document: the loop's (eq. 2.1), and that of bare forwards."""
    loop, forward = document["loop"], document["forward"]
    return {
        "loop": {name: loop[name] for name in ("t_draft", "t_target", "r_squared")},
        "stand_alone": {
            "t_draft": forward["t_draft"],
            "t_target": forward["t_verify"] + forward["t_verify_token"],
            "r_squared_of_t_verify": forward["r_squared"],
        },
    }


def costs_of(document: Mapping[str, Any]) -> dict[str, Cost]:
    """The costs that the tables go by: those measured, and the paper's ratio of them at the same target."""
    loop = Cost(**{name: document["loop"][name] for name in ("t_draft", "t_target", "r_squared")})
    return {"measured": loop, str(PAPER_RATIO): Cost(PAPER_RATIO * loop.t_target, loop.t_target, loop.r_squared)}


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """Tables 1, 2 and 3 for the eye."""
    tables = []
    for ratio, rows in result["table_1"].items():
        table = Table(
            "prompts", "fixed K", "confidence", "head", "head over fixed", "head over confidence",
            title=f"Table 1: tokens/s by eq. 2.3, costs: {ratio}",
        )  # fmt: skip
        for group, row in rows.items():
            best = [row[name] for name in ("best_fixed", "best_confidence", "best_head")]
            over = [row[f"best_head_over_{name}"] for name in ("best_fixed", "best_confidence")]
            table.add_row(
                group,
                *(f"{b['throughput']:.1f} ({b['rule'].removeprefix('head ')} {b['parameter']:g})" for b in best),
                *(f"{o['ratio']:.3f} ({o['low']:.3f}-{o['high']:.3f})" for o in over),
            )
        tables.append(table)
    forwards = Table("costs", "t_draft ms", "t_target ms", "R²", title="Table 2: forward times")
    for name, row in result["table_2"].items():
        times = [f"{1e3 * row[key]:.3f}" for key in ("t_draft", "t_target")]
        forwards.add_row(name, *times, f"{row.get('r_squared', row.get('r_squared_of_t_verify')):.4f}")
    tables.append(forwards)
    groups = list(result["groups"])
    grid = Table("w_rej", "D", "eval KL", "AUROC", *groups, title="Table 3: best tokens/s by head (its h)")
    for row in result["table_3"]:
        cells = [f"{row['best'][g]['throughput']:.1f} ({row['best'][g]['threshold']:g})" for g in groups]
        grid.add_row(
            f"{row['w_rej']:g}", str(row["depth"]), f"{row['eval']['kl']:.3f}", f"{row['eval']['auroc']:.3f}", *cells
        )
    tables.append(grid)
    return tables


def cost_as_dict(costs: Mapping[str, Cost]) -> dict[str, Any]:
    return {name: asdict(cost) for name, cost in costs.items()}
