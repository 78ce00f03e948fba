"""The report of ``specpilot demo``: what a user gains, the table of all decoders, and the page. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .common.machine import commit, machine, versions
from .compare.cost import fit_loop
from .compare.interval import ratio_interval, show
from .compare.runner import rates
from .compare.table import Table
from .infer.generation import Stats

AUTOREGRESSIVE, OURS = "autoregressive", "ours"
FAMILIES = {
    "confidence": "the best confidence rule",
    "fixed": "the best fixed length",
    "head": "SpecDec++'s head at its best threshold",
}  # what ours is compared with
COLUMNS = {
    "tokens_per_second": ("tokens/s", ".0f"),
    "speedup": ("speed-up", ".2f"),
    "discard_rate": ("discard", ".3f"),
    "verification_rate": ("verification", ".3f"),
    "acceptance_rate": ("acceptance", ".3f"),
    "block_efficiency": ("block eff.", ".2f"),
    "throughput_eq23": ("eq. 2.3 tok/s", ".0f"),
}

Measured = Mapping[str, Sequence[Stats]]  # by decoder, one for each prompt


def make_report(
    measured: Measured,
    final: Measured,
    replayed: Mapping[str, float],
    greedy: Mapping[str, int],
    settings: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """The JSON report.

    Args:
        measured: all decoders.
        final: the fastest of each family, measured again: what ours is compared by.
        replayed: speed-ups by replay.
        greedy: how many outputs were checked, and how many identical.
        settings: of the demo.
        seconds: by stage.
    """
    cost, r_squared = fit_loop([run for runs in measured.values() for run in runs])
    decoders = {name: rates(runs, measured[AUTOREGRESSIVE], cost) for name, runs in measured.items()}
    best = best_by_family({name: sum(runs, Stats()).tokens_per_second for name, runs in final.items()})
    speed = {family: sum(final[name], Stats()).tokens_per_second for family, name in best.items()}
    return {
        "ours": speed[OURS],
        "best_confidence": speed["confidence"],
        "best_fixed": speed["fixed"],
        "specdec_head": speed["head"],
        "autoregressive": speed[AUTOREGRESSIVE],
        "ours_over": {
            family: ratio_interval(*_amounts(final[OURS]), *_amounts(final[name])).as_dict("ratio")
            for family, name in best.items()
            if family != OURS
        },
        "replay": dict(replayed),
        "decoders": decoders,
        "best": best,
        "cost": {"t_draft": cost.per_token, "t_target": cost.verification(1), "r_squared": r_squared},
        "greedy": dict(greedy),
        "settings": dict(settings),
        "machine": machine(),
        "commit": commit(),
        "versions": versions(),
        "seconds": dict(seconds) | {"total": round(sum(seconds.values()), 2)},
    }


def _amounts(runs: Sequence[Stats]) -> tuple[Any, Any]:
    """(prompts,) tokens and seconds as in :attr:`Stats.tokens_per_second`."""
    return np.array([run.n_generated for run in runs]), np.array([run.seconds + run.prefill_seconds for run in runs])


def best_by_family(speed: Mapping[str, float]) -> dict[str, str]:
    """The fastest configuration of each family; a name's family is what is before its first hyphen."""
    best: dict[str, str] = {}
    for name, value in speed.items():
        family = name.partition("-")[0]
        if family not in best or value > speed[best[family]]:
            best[family] = name
    return best


def gains(report: Mapping[str, Any]) -> list[str]:
    """What a user gains, whichever way it comes out: the first lines of the report."""
    over, best = report["ours_over"], report["best"]
    lines = [
        f"Ours (lag-free head, rate-optimal stopping, no threshold): {report['ours']:.0f} tokens/s by the clock, "
        f"{show(over[AUTOREGRESSIVE], 'ratio')}× autoregressive decoding.",
        "By the clock it is "
        + "; ".join(f"{_verdict(over[family])} {what} ({best[family]})" for family, what in FAMILIES.items())
        + ". The parameters of the others were chosen on these prompts.",
    ]
    replayed = report["replay"]
    gap = replayed["informed_bound"] - replayed["best_fixed"]
    way = f": {(replayed['ours'] - replayed['best_fixed']) / gap:.0%} of the way" if gap > 0 else ""
    lines.append(
        f"By replay at the costs of this machine: best fixed length {replayed['best_fixed']:.2f}×, best confidence "
        f"rule {replayed['best_confidence']:.2f}×, ours {replayed['ours']:.2f}×, informed bound "
        f"{replayed['informed_bound']:.2f}× (it knows the true acceptance probabilities){way}."
    )
    return lines


def _verdict(row: Mapping[str, float]) -> str:
    """``3.0 % faster (+1.0 to +5.0) than``: the ratio of two rates in words."""
    change, low, high = (100 * (row[name] - 1) for name in ("ratio", "low", "high"))
    word = "faster" if change >= 0 else "slower"
    noise = "" if low > 0 or high < 0 else ", within the noise,"
    return f"{abs(change):.1f} % {word} ({low:+.1f} to {high:+.1f}){noise} than"


def decoder_table(decoders: Mapping[str, Mapping[str, float]], best: Mapping[str, str]) -> Table:
    """All decoders; the fastest of each family is bold."""
    rows = [
        {"decoder": f"[bold]{name}[/bold]" if name in best.values() else name}
        | {title: format(row[key], form) for key, (title, form) in COLUMNS.items()}
        for name, row in decoders.items()
    ]
    return Table("", rows)


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    settings, cost, greedy = report["settings"], report["cost"], report["greedy"]
    lines = [
        f"# {settings['target']} + {settings['draft']}",
        "",
        *(f"* {line}" for line in gains(report)),
        "",
        f"{settings['held_out']} held-out prompts, up to {settings['max_new_tokens']} tokens, temperature 1, top-k 50, "
        f"on {report['machine']['cores']} cores of {report['machine']['processor']}. The fastest of each family (bold) "
        "was measured again with other random draws, in turn with the others; the tokens/s above are of that.",
        "",
        decoder_table(report["decoders"], report["best"]).markdown_rows(),
    ]
    return "\n".join(
        [
            *lines,
            "",
            f"* One draft step takes {cost['t_draft'] * 1e3:.2f} ms, one target forward "
            f"{cost['t_target'] * 1e3:.2f} ms (fit over all generations, R² = {cost['r_squared']:.3f}).",
            f"* Greedy output is identical to transformers' on {greedy['identical']} of {greedy['checked']} prompts.",
            "",
            "![discard rate against verification rate](pareto.png)",
            "",
        ]
    )
