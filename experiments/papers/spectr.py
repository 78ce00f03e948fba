"""SpecTr (Sun et al. 2023), Table 2: tokens per target forward by number K and length L of i.i.d. drafts, K-SEQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specpilot.compare.interval import show
from specpilot.compare.table import Row, Table
from specpilot.train.figure import canvas, label, save

from .report import Paper, Report
from .specs import AUTOREGRESSIVE, DecoderSpec, Runner, Runs

# L → K → tokens per serial call (Table 2, LM1B, PALM-2 Gecko and Bison)
PAPER = {4: {1: 2.2, 2: 2.4, 4: 2.7, 8: 3.0}, 8: {1: 2.3, 2: 2.6, 4: 3.0, 8: 3.3}}
SAMPLING: dict[str, Any] = {"top_k": 50, "top_p": 1.0}


def run(runner: Runner) -> Report:
    grid = {
        (length, drafts): DecoderSpec("k-seq", tree="x".join(map(str, (drafts, *[1] * (length - 1)))))
        for length, row in PAPER.items()
        for drafts in row
    }
    runs = runner.measure([AUTOREGRESSIVE, *grid.values()], **SAMPLING)
    found = {key: runs[spec].tokens_per_forward for key, spec in grid.items()}
    rows = [_row("autoregressive", "", "", runs[AUTOREGRESSIVE], "1.0")]
    rows += [
        _row("speculative" if k == 1 else "SpecTr", str(k), str(length), runs[spec], str(PAPER[length][k]))
        for (length, k), spec in grid.items()
    ]
    efficiency = {str(length): {str(k): found[length, k] for k in row} for length, row in PAPER.items()}

    def draw(path: Path) -> None:
        figure, axes = canvas(6, 4)
        for length, row in PAPER.items():
            values = [found[length, k] for k in row]
            middle = [value["value"] for value in values]
            errors = [
                [value["value"] - value["low"] for value in values],
                [value["high"] - value["value"] for value in values],
            ]
            line = axes.errorbar(list(row), middle, yerr=errors, fmt="o-", capsize=3, label=f"here, L = {length}")
            axes.plot(list(row), list(row.values()), "x--", color=line[0].get_color(), label=f"paper, L = {length}")
        label(axes, "drafts K", "tokens per target forward")
        save(figure, path)

    differs = "models (the paper: PALM-2 Gecko and Bison), prompts (LM1B), here temperature 1 and top-k 50."
    return Report({"spectr": {"block_efficiency": efficiency}}, [Table("SpecTr, Table 2", rows, differs)], draw)


def _row(name: str, drafts: str, length: str, runs: Runs, paper: str) -> Row:
    return {
        "algorithm": name,
        "K": drafts,
        "L": length,
        "tokens per target forward": show(runs.tokens_per_forward),
        "the paper's": paper,
        "perplexity": show(runs.perplexity),
    }


SPECTR = Paper("spectr", "SpecTr: Fast Speculative Decoding via Optimal Transport (Sun et al. 2023)", run)
