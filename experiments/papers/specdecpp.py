"""SpecDec++ (Huang et al. 2024): Table 1 and Figure 4 (throughput), Table 2 (forward times), Table 3 (heads)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..studies.heads import SweepOptions
from ..studies.sweep import run_sweep
from ..studies.sweep_tables import plot_sweep, table_1_of, table_2_of, table_3_of
from .runner import Paper, Report, Runner

DOMAINS = 6  # of the built-in prompts
GROUPS = {"in_domain": "in-domain", "left_out": "left out of the heads' training"}
# Table 1: tokens/s of SpecDec++ and of the best fixed K
PAPER_GAINS = {"in_domain": f"{18.88 / 17.62:.3f}", "left_out": f"{20.61 / 18.55:.3f}, {20.95 / 19.14:.3f}"}
# Table 2, averages: t_draft and t_target in seconds, and R²
PAPER_TIMES = {"loop": "23.1, 111, ≥ 0.988", "stand_alone": "20.7, 108, ≥ 0.999"}
# Table 3: w_rej → D → eval KL, and tokens/s on Alpaca with the best threshold
PAPER_GRID = {
    1: [(0.412, 18.48, 0.3), (0.390, 18.39, 0.3), (0.387, 18.87, 0.3), (0.384, 18.82, 0.3), (0.383, 18.57, 0.3)],
    3: [(0.491, 18.31, 0.5), (0.461, 18.88, 0.5), (0.458, 18.60, 0.5), (0.454, 18.76, 0.5), (0.451, 18.88, 0.5)],
    6: [(0.637, 18.67, 0.7), (0.596, 18.75, 0.7), (0.589, 18.65, 0.7), (0.582, 18.80, 0.7), (0.575, 18.87, 0.7)],
    12: [(0.871, 18.55, 0.9), (0.805, 18.71, 0.9), (0.794, 18.58, 0.9), (0.781, 18.76, 0.9), (0.773, 18.82, 0.9)],
}
DIFFERS = (
    "models (the paper: Llama-2-chat 70B and 7B, two A100), "
    "prompts (built-in here; there Alpaca, with HumanEval and GSM8K left out)"
)


def run(runner: Runner) -> Report:
    work = runner.work
    source = work.source
    if source["prompts"] == "builtin":
        source["prompts"] = "builtin-large"
    sweep = SweepOptions(
        target=work.target,
        draft=work.draft,
        **source,
        train_prompts=work.train_limit,
        per_domain=-(-2 * work.limit // DOMAINS),
        max_new_tokens=work.max_new_tokens,
        temperature=work.temperature,
        top_k=work.top_k,
        top_p=work.top_p,
        device=work.device,
        depths=tuple(range(len(next(iter(PAPER_GRID.values()))))),
        weights=tuple(map(float, PAPER_GRID)),
    )
    result = run_sweep(sweep, runner.folder / "sweep", None, runner.console)
    settings = {name: value for name, value in asdict(sweep).items() if name != "folder"}
    return report(result | {"settings": settings})


def report(result: Mapping[str, Any]) -> Report:
    """Return the report of a result of ``python -m experiments sweep``."""
    groups = {group: label for group, label in GROUPS.items() if group in result["groups"]}
    gains = [{"the paper's": PAPER_GAINS[group]} for group in groups]
    note = f"{DIFFERS}. All parameters, including fixed lengths, are the best on these prompts."
    tables = [table_1_of(ratio, rows, groups).beside(gains, note) for ratio, rows in result["table_1"].items()]
    times = [{"the paper's": PAPER_TIMES[name]} for name in result["table_2"]]
    tables.append(table_2_of(result["table_2"]).beside(times, f"{DIFFERS}. Here R² stand-alone is of t_v(n) by n."))
    grid = []
    for head in result["table_3"]:
        kl, rate, threshold = PAPER_GRID[int(head["w_rej"])][head["depth"]]
        grid.append({"paper's KL": f"{kl:.3f}", "paper's tokens/s": f"{rate:.2f} (h = {threshold:g})"})
    tables.append(table_3_of(result["table_3"], groups).beside(grid, f"{DIFFERS}; the paper's columns are Alpaca's."))
    figures = {name: result[name] for name in ("table_1", "table_2", "table_3", "judged_prompts", "settings")}
    title = f"SpecDec++, Figure 4; {result['judged_prompts']} prompts"
    return Report({"specdecpp": figures}, tables, lambda path: plot_sweep(result["figure_4"], path, title))


SPECDECPP = Paper(
    "specdecpp", "SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths (Huang et al. 2024)", run
)
