"""MTAD (Qin et al. 2025): Figure 1, the rules of Table 5, thresholds (Table 10, Figure 3), beams (Table 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specpilot.compare.interval import Interval, show
from specpilot.compare.runner import NOT_AVAILABLE
from specpilot.compare.table import Row, Table

from ..figure import canvases, label, save
from .runner import AUTOREGRESSIVE, QUALITY, DecoderSpec, Paper, Report, Runner, Runs, choose, percent, row_of

MTAD_GRID = [
    DecoderSpec(f"mtad:{tau}", str(length), beams=width, argmax=argmax)
    for argmax in (False, True)
    for width in (4, 8)
    for length in (3, 4)
    for tau in (0.1, 0.3, 0.5, 0.7, 0.9)
]
TYPICAL_GRID = [DecoderSpec(f"typical:{epsilon}", "4") for epsilon in (0.05, 0.09, 0.2, 0.4)]
BILD_GRID = [DecoderSpec(f"bild:{nats}", "fallback:0.6") for nats in (2, 3, 4, 5)]
STEPS = (1, 2, 3, 4, 5)  # K of MTJD
STEP_BEAMS = 8  # with fewer beams, steps of four or five tokens gain little over steps of three
TAUS = (0.1, 0.3, 0.5, 0.7, 0.9)
WIDTHS = (2, 4, 6, 8)
PAPER_TOKENS = {0.1: 4.72, 0.3: 4.43, 0.5: 4.12, 0.7: 3.93, 0.9: 3.64}  # Table 10, Llama-3: tokens per iteration
PAPER_BEAMS = {2: (55.9, 2.44), 4: (59.9, 2.12), 6: (60.2, 2.14), 8: (61.3, 2.10)}  # Table 11, Llama-2: tokens/s, PPL
# Table 5, HumanEval, Llama-3-Instruct: tokens/s and J/token
PAPER_RULES = {
    "SpD": (22.2, 7.8), "SpecTr": (23.8, 7.8), "SpecInfer": (22.8, 7.9), "MCSS": (23.7, 7.8), "BiLD": (17.4, 10.0),
    "typical": (21.7, 8.1), "MTAD": (24.8, 7.6),
}  # fmt: skip
PAPER_CHANGE, PAPER_SPEED = -0.21, 1.42  # perplexity against single-token sampling, and speed against SpD
DIFFERS = "models (the paper: Llama-3 8B and 1B, or Llama-2 13B and 68M, on an L40), prompts, length of the outputs"


@dataclass(frozen=True)
class Specs:
    """The configurations of each table, by the parameter that varies."""

    rules: dict[str, DecoderSpec]
    taus: dict[float, DecoderSpec]
    widths: dict[int, DecoderSpec]
    joint: dict[int, DecoderSpec]  # by K, tokens per step

    @classmethod
    def around(cls, mtad: DecoderSpec, typical: DecoderSpec, bild: DecoderSpec) -> Specs:
        """Return all configurations, given the chosen settings of the lossy rules."""
        length = mtad.length or ""
        nodes = "x".join(["4", *["1"] * (int(length) - 1)])  # four drafts
        rules = {
            "SpD": DecoderSpec(length=length),
            "SpecTr": DecoderSpec("k-seq", tree=nodes),
            "SpecInfer": DecoderSpec("spec-infer", tree=nodes),
            "MCSS": DecoderSpec("mcss", tree=nodes),
            "BiLD": bild,
            "typical": typical,
            "MTAD": mtad,
        }
        return cls(
            rules,
            {tau: replace(mtad, verifier=f"mtad:{tau}") for tau in TAUS},
            {width: replace(mtad, beams=width) for width in WIDTHS},
            {k: DecoderSpec("mtjd", str(k), beams=STEP_BEAMS, argmax=True, drafts=False) for k in STEPS},
        )


def run(runner: Runner) -> Report:
    chosen, grid = choose(runner, MTAD_GRID)
    typical, typical_grid = choose(runner, TYPICAL_GRID)
    bild, bild_grid = choose(runner, BILD_GRID)
    specs = Specs.around(chosen, typical, bild)
    families = (specs.rules, specs.taus, specs.widths, specs.joint)
    runs = runner.measure([AUTOREGRESSIVE, *(spec for family in families for spec in family.values())])
    search = {"mtad": grid, "typical": typical_grid, "bild": bild_grid}
    baseline, plain = runs[specs.rules["SpD"]], runs[AUTOREGRESSIVE]
    tables = [
        _joint_table(runs, specs.joint),
        _headline(runs[chosen], baseline, plain),
        _rules_table(runs, specs.rules),
        _tau_table(runs, specs.taus, baseline),
        _beams_table(runs, specs.widths),
    ]
    figures = {"mtjd": _joint_figures(runs, specs.joint), "mtad": _figures(runs, specs, search)}
    return Report(figures, tables, lambda path: _draw(runs, specs, path))


def _joint_figures(runs: Mapping[DecoderSpec, Runs], joint: dict[int, DecoderSpec]) -> dict[str, Any]:
    return {
        "perplexity": {str(k): runs[spec].perplexity for k, spec in joint.items()},
        "change": {str(k): runs[joint[k]].perplexity_change(runs[joint[k - 1]]) for k in STEPS[1:]},
        "score": {str(k): runs[spec].score for k, spec in joint.items()},
        "beams": STEP_BEAMS,
    }


def _figures(runs: Mapping[DecoderSpec, Runs], specs: Specs, search: Mapping[str, Any]) -> dict[str, Any]:
    chosen = specs.rules["MTAD"]
    against = _against(runs[chosen], runs[specs.rules["SpD"]])
    return {
        "chosen": chosen.to_dict(),
        **{name: ratio["value"] for name, ratio in against.items()},
        "intervals": against,
        "against_autoregressive": runs[chosen].perplexity_change(runs[AUTOREGRESSIVE]),
        "tau": {str(tau): _summary(runs[spec]) for tau, spec in specs.taus.items()},
        "beams": {str(width): _summary(runs[spec]) for width, spec in specs.widths.items()},
        "rules": {name: spec.to_dict() | _summary(runs[spec]) for name, spec in specs.rules.items()},
        "search": search,
    }


def _against(runs: Runs, baseline: Runs) -> dict[str, dict[str, float]]:
    return {
        "perplexity_change": runs.perplexity_change(baseline),
        "tokens_per_forward_ratio": runs.ratio(baseline, "target_forwards"),
        "speed_ratio": runs.ratio(baseline, "seconds"),
    }


def _summary(runs: Runs) -> dict[str, Any]:
    return {
        "perplexity": runs.perplexity,
        "tokens_per_forward": runs.tokens_per_forward,
        "tokens_per_round": runs.tokens_per_round,
        "tokens_per_second": runs.tokens_per_second,
        "score": runs.score,
        "joules_per_token": NOT_AVAILABLE if runs.joules_per_token is None else runs.joules_per_token,
    }


def _score(runs: Runs) -> str:
    return "" if runs.score is None else show(Interval.of(runs.score))


def _row(first: dict[str, str], runs: Runs, paper: Mapping[str, str] | None = None) -> Row:
    """Return a row of the ``first`` cells, a configuration's speed and quality, and the paper's cells."""
    energy = runs.joules_per_token
    cells = {
        **first,
        "tokens/s": f"{runs.tokens_per_second['value']:.0f}",
        "tokens per target forward": show(Interval.of(runs.tokens_per_forward)),
        QUALITY: show(Interval.of(runs.perplexity)),
        "score": _score(runs),
        "J/token": NOT_AVAILABLE if energy is None else f"{energy:.3f}",
        **(paper or {}),
    }
    return row_of(runs.spec, cells)


def _joint_table(runs: Mapping[DecoderSpec, Runs], joint: dict[int, DecoderSpec]) -> Table:
    rows = [
        row_of(
            spec,
            {
                "K": str(k),
                QUALITY: show(Interval.of(runs[spec].perplexity)),
                "against K - 1": "" if k == 1 else percent(runs[spec].perplexity_change(runs[joint[k - 1]])),
                "score": _score(runs[spec]),
                "the paper's": "highest" if k == 1 else "falls",
            },
        )
        for k, spec in joint.items()
    ]
    note = f"{DIFFERS}. K = 1 is multinomial sampling; from K = 2 on the most probable of {STEP_BEAMS} beams."
    return Table("MTAD, Figure 1: MTJD's perplexity by tokens per step", rows, note)


def _headline(runs: Runs, baseline: Runs, plain: Runs) -> Table:
    against = _against(runs, baseline)
    cells = {
        "perplexity against token-wise": (percent(against["perplexity_change"]), ""),
        "perplexity against autoregressive": (percent(runs.perplexity_change(plain)), f"{PAPER_CHANGE:+.0%}"),
        "tokens per target forward against token-wise": (
            show(Interval.of(against["tokens_per_forward_ratio"])),
            "",
        ),
        "tokens/s against token-wise": (show(Interval.of(against["speed_ratio"])), f"{PAPER_SPEED}"),
    }
    rows = [{"MTAD": name, "here": here, "the paper's": paper} for name, (here, paper) in cells.items()]
    return Table(f"MTAD against token-wise verification ({_named(runs.spec)})", rows, f"{DIFFERS}.")


def _named(spec: DecoderSpec) -> str:
    how = "the most probable kept" if spec.argmax else "drawn"
    tau = spec.verifier.partition(":")[2]
    return f"W = {spec.beams}, {how}; γ = {spec.length}, τ = {tau}"


def _rules_table(runs: Mapping[DecoderSpec, Runs], rules: dict[str, DecoderSpec]) -> Table:
    rows = []
    for name, spec in rules.items():
        speed, energy = PAPER_RULES[name]
        paper = {"paper's tokens/s": f"{speed}", "paper's J/token": f"{energy}"}
        rows.append(_row({"rule": name, "lossless": "no" if spec.lossy else "yes"}, runs[spec], paper))
    settings = "; ".join(f"{name}: {c.verifier}, {c.tree or c.length}" for name, c in rules.items())
    note = f"{DIFFERS}; the paper's columns are HumanEval with Llama-3-Instruct. Settings: {settings}."
    return Table("MTAD, Table 5: the rules side by side", rows, note)


def _tau_table(runs: Mapping[DecoderSpec, Runs], taus: dict[float, DecoderSpec], baseline: Runs) -> Table:
    by = {str(tau): (runs[c], f"{PAPER_TOKENS[tau]}") for tau, c in taus.items()} | {"token-wise": (baseline, "")}
    rows = [
        _row({"τ": tau, "tokens per round": f"{measured.tokens_per_round:.2f}", "the paper's": paper}, measured)
        for tau, (measured, paper) in by.items()
    ]
    return Table("MTAD, Table 10 and Figure 3: the threshold", rows, f"{DIFFERS}. The paper's column: Llama-3.")


def _beams_table(runs: Mapping[DecoderSpec, Runs], widths: dict[int, DecoderSpec]) -> Table:
    rows = []
    for width, spec in widths.items():
        speed, perplexity = PAPER_BEAMS[width]
        paper = {"paper's tokens/s": f"{speed}", "paper's perplexity": f"{perplexity:.2f}"}
        rows.append(_row({"beams": str(width)}, runs[spec], paper))
    return Table("MTAD, Table 11: the number of beams", rows, f"{DIFFERS}. The paper's: Llama-2, ChatGPT-Prompts.")


def _draw(runs: Mapping[DecoderSpec, Runs], specs: Specs, path: Path) -> None:
    figure, (length_axes, threshold_axes, width_axes, speed_axes) = canvases(11, 8, 2, 2)
    panels = (
        (length_axes, specs.joint, "K, tokens per step (MTJD)"),
        (threshold_axes, specs.taus, "τ"),
        (width_axes, specs.widths, "beams W"),
    )
    for axes, family, name in panels:
        perplexities = [runs[spec].perplexity for spec in family.values()]
        errors = [[x["value"] - x["low"] for x in perplexities], [x["high"] - x["value"] for x in perplexities]]
        axes.errorbar(list(family), [x["value"] for x in perplexities], yerr=errors, fmt="o-", capsize=3)
        label(axes, name, "perplexity, 95 % interval", legend=None)
        if family is not specs.joint:
            other = axes.twinx()
            efficiency = [runs[spec].tokens_per_forward["value"] for spec in family.values()]
            other.plot(list(family), efficiency, "s--", color="tab:orange")
            other.set_ylabel("tokens per target forward", color="tab:orange")
    for name, spec in specs.rules.items():
        x, y = runs[spec].tokens_per_forward["value"], runs[spec].perplexity["value"]
        speed_axes.plot(x, y, "^" if spec.lossy else "o", color="tab:red" if spec.lossy else "tab:blue")
        speed_axes.annotate(name, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
    label(speed_axes, "tokens per target forward (triangles: lossy)", "perplexity", legend=None)
    save(figure, path)


MTAD = Paper("mtad", "Optimized Multi-Token Joint Decoding with Auxiliary Model (Qin et al. 2025)", run)
