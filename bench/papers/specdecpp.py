"""SpecDec++ (Huang et al. 2024): Table 1 and Figure 4 (throughput), Table 2 (forward times), Table 3 (heads)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...options import SweepOptions
from ..interval import show
from ..plots import plot_sweep
from ..studies.sweep import run_sweep
from ..studies.sweep_tables import best_cell
from .report import Paper, Report, Row, Table
from .specs import Runner

MEASURED = "measured"
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
    sweep = SweepOptions(
        target=work.target,
        draft=work.draft,
        **work.source | ({"prompts": "builtin-large"} if work.prompts == "builtin" else {}),
        train_prompts=work.train_limit,
        per_domain=-(-2 * work.limit // DOMAINS),
        max_new_tokens=work.max_new_tokens,
        temperature=work.temperature,
        top_k=work.top_k,
        top_p=work.top_p,
        device=work.device,
    )
    result = run_sweep(sweep, runner.folder / "sweep", None, runner.console)
    return report(result | {"settings": asdict(sweep)})


def report(result: Mapping[str, Any]) -> Report:
    """Of the result of ``specpilot bench sweep``."""
    tables = [_table_1(name, rows) for name, rows in result["table_1"].items()]
    tables += [_table_2(result["table_2"]), _table_3(result["table_3"])]
    figures = {name: result[name] for name in ("table_1", "table_2", "table_3", "judged_prompts", "settings")}

    def draw(path: Path) -> None:
        plot_sweep(result["figure_4"], path, f"SpecDec++, Figure 4; {result['judged_prompts']} prompts")

    return Report({"specdecpp": figures}, tables, draw)


def _table_1(ratio: str, groups: Mapping[str, Any]) -> Table:
    rows = []
    for group, label in GROUPS.items():
        if group not in groups:
            continue
        found, gain = groups[group], groups[group]["best_head_over_best_fixed"]
        rows.append(
            Row(
                {
                    "prompts": label,
                    "autoregressive": f"{found['autoregressive']['throughput']:.1f}",
                    "best fixed K": best_cell(found["best_fixed"]),
                    "best confidence": best_cell(found["best_confidence"]),
                    "paper's head (w_rej 6, D 3, h 0.7)": best_cell(found["paper_setting"])
                    if "paper_setting" in found
                    else "",
                    "best head": best_cell(found["best_head"]),
                    "best head over best fixed K": show(gain, "ratio", 3),
                    "the paper's": PAPER_GAINS[group],
                }
            )
        )
    costs = "times measured here" if ratio == MEASURED else f"t_draft / t_target = {ratio}"
    note = f"{DIFFERS}. Tokens/s by eq. 2.3; all parameters, the fixed lengths' too, are the best on these prompts."
    return Table(f"SpecDec++, Table 1: {costs}", rows, note)


def _table_2(settings: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [
        Row(
            {
                "setting": name.replace("_", " "),
                "t_draft, ms": f"{1e3 * row['t_draft']:.3f}",
                "t_target, ms": f"{1e3 * row['t_target']:.3f}",
                "R²": f"{row.get('r_squared', row.get('r_squared_of_t_verify')):.4f}",
                "the paper's": PAPER_TIMES[name],
            }
        )
        for name, row in settings.items()
    ]
    return Table("SpecDec++, Table 2: forward times", rows, f"{DIFFERS}. Here R² stand-alone is of t_v(n) by n.")


def _table_3(heads: list[dict[str, Any]]) -> Table:
    rows = []
    for head in heads:
        cells = {"w_rej": f"{head['w_rej']:g}", "D": str(head["depth"]), "eval KL": f"{head['eval']['kl']:.3f}"}
        for group, label in GROUPS.items():
            if group in head["best"]:
                best = head["best"][group]
                cells[f"tokens/s {label}"] = f"{best['throughput']:.1f} (h = {best['threshold']:g})"
        kl, rate, threshold = PAPER_GRID[int(head["w_rej"])][head["depth"]]
        rows.append(Row(cells | {"paper's KL": f"{kl:.3f}", "paper's tokens/s": f"{rate:.2f} (h = {threshold:g})"}))
    return Table("SpecDec++, Table 3: loss weight and depth", rows, f"{DIFFERS}; the paper's columns are Alpaca's.")


SPECDECPP = Paper(
    "specdecpp", "SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths (Huang et al. 2024)", run
)
