"""SpecTr (Sun et al. 2023), Table 2: tokens per target forward by number K and length L of i.i.d. drafts.

Beside the paper's K-SEQ, SpecInfer's rule and MCSS verify drafts of the same nodes. K = 1 is standard speculative
decoding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specpilot.compare.interval import Interval, show
from specpilot.compare.table import Row, Table

from ..figure import canvases, label, save
from .runner import AUTOREGRESSIVE, DecoderSpec, Paper, Report, Runner, Runs

# L → K → tokens per serial call (Table 2, LM1B, a draft of 6M parameters and a target of 97M)
PAPER = {4: {1: 2.2, 2: 2.4, 4: 2.7, 8: 3.0}, 8: {1: 2.3, 2: 2.6, 4: 3.0, 8: 3.3}}
RULES = {"k-seq": "SpecTr", "spec-infer": "SpecInfer", "mcss": "MCSS"}
SAMPLING: dict[str, Any] = {"top_k": 50, "top_p": 1.0}


def grid() -> dict[tuple[str, int, int], DecoderSpec]:
    """Return the configurations by rule, L and K."""
    return {
        (rule, length, drafts): DecoderSpec(rule, tree="x".join(map(str, (drafts, *[1] * (length - 1)))))
        for rule in RULES
        for length, row in PAPER.items()
        for drafts in row
    }


def run(runner: Runner) -> Report:
    specs = grid()
    runs = runner.measure([AUTOREGRESSIVE, *specs.values()], **SAMPLING)
    block_efficiencies = {key: runs[spec].tokens_per_forward for key, spec in specs.items()}
    rows = [_row("autoregressive", "", "", runs[AUTOREGRESSIVE], "1.0")]
    for (rule, length, k), spec in specs.items():
        name = f"speculative ({rule})" if k == 1 else RULES[rule]
        rows.append(_row(name, str(k), str(length), runs[spec], str(PAPER[length][k]) if rule == "k-seq" else ""))
    efficiency: dict[str, dict[str, dict[str, Any]]] = {}
    for (rule, length, k), value in block_efficiencies.items():
        efficiency.setdefault(rule, {}).setdefault(str(length), {})[str(k)] = value

    def draw(path: Path) -> None:
        figure, (axes,) = canvases(6, 4)
        for length, row in PAPER.items():
            values = [block_efficiencies["k-seq", length, k] for k in row]
            errors = [[x["value"] - x["low"] for x in values], [x["high"] - x["value"] for x in values]]
            middle = [x["value"] for x in values]
            line = axes.errorbar(list(row), middle, yerr=errors, fmt="o-", capsize=3, label=f"here, L = {length}")
            axes.plot(list(row), list(row.values()), "x--", color=line[0].get_color(), label=f"paper, L = {length}")
        label(axes, "drafts K", "tokens per target forward")
        save(figure, path)

    differs = (
        "models (the paper: transformers of 97M and 6M parameters), prompts (LM1B), here temperature 1 and top-k 50."
    )
    return Report({"spectr": {"tokens_per_forward": efficiency}}, [Table("SpecTr, Table 2", rows, differs)], draw)


def _row(name: str, drafts: str, length: str, runs: Runs, paper: str) -> Row:
    return {
        "algorithm": name,
        "K": drafts,
        "L": length,
        "tokens per target forward": show(Interval.of(runs.tokens_per_forward)),
        "the paper's": paper,
        "perplexity": show(Interval.of(runs.perplexity)),
    }


SPECTR = Paper("spectr", "SpecTr: Fast Speculative Decoding via Optimal Transport (Sun et al. 2023)", run)
