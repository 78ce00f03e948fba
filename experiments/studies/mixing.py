"""Heads trained at several shares of target tokens, on datasets of different acceptance.

A head is evaluated on tokens drafted after the target's own output (binary KL with the loss weight undone, AUROC), and
by throughput (eq. 2.3 of SpecDec++, Huang et al. 2024) at its best threshold on held-out prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.options import Count, Folder, Fraction, Names, NotNegative, Positive, Several, Share
from specpilot.compare.store import Store
from specpilot.compare.table import Table
from specpilot.controllers.acceptance.calibration import undo_weights
from specpilot.controllers.acceptance.metrics import Metrics
from specpilot.controllers.acceptance.training import Examples
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.training_options import Depth
from specpilot.data_gen.draft_states import read_positions
from specpilot.data_gen.kinds import AcceptanceRow
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.options import TargetOptions
from specpilot.train.calibration import load_rows
from specpilot.train.datasets import is_validation, joint_manifest

from .heads import Head, HeadStudyOptions, SweepOptions, train_heads, training_data
from .held_out import held_out, in_domain, replay_domains
from .sweep import rules, tracer_of
from .sweep_tables import PAPER_RATIO, summarise


@dataclass(frozen=True, kw_only=True)
class MixingOptions(TargetOptions, HeadStudyOptions):
    """Study.

    Options of ``python -m experiments mixing``.

    Attributes:
        drafts: Draft models; there is a dataset for each draft and temperature.
        temperatures: Temperatures of both models.
        mixings: Shares r of target tokens; 1 uses only the target's text as context.
        max_new_tokens: Maximum number of new tokens per text.
        depth: Residual blocks D of the heads.
        w_rej: Loss weight of rejection.
    """

    drafts: Names = ("tiny-draft", "tiny-draft-math")
    temperatures: Annotated[tuple[NotNegative, ...], Several()] = (0.5, 1.0, 1.5)
    mixings: Annotated[tuple[Share, ...], Several()] = (0.15, 0.5, 0.85, 0.95, 1.0)
    train_prompts: Count = 1200
    per_domain: Count = 20
    max_new_tokens: Count = 64
    depth: Depth = 3
    w_rej: Positive = 6.0
    validation_fraction: Fraction = 0.2
    folder: Folder = Path("runs/mixing")

    def sweep(self, draft: str, temperature: float, mixing: float, domains: tuple[str, ...]) -> SweepOptions:
        """Return the options of a sweep over a single head, trained on ``domains``."""
        shared = {entry.name for entry in fields(SweepOptions)} & {entry.name for entry in fields(self)}
        values = {name: getattr(self, name) for name in shared}
        return SweepOptions(
            **values | {"in_domain": domains}, draft=draft, temperature=temperature, mixing=mixing,
            depths=(self.depth,), weights=(self.w_rej,),
        )  # fmt: skip


COSTS = {str(PAPER_RATIO): CostModel(PAPER_RATIO, 1.0, 0.0)}  # in units of a target forward


def run_mixing(study: MixingOptions, folder: Path, console: Console) -> dict[str, Any]:
    """Train a head for each dataset and share of target tokens, and return a row of metrics for each head.

    Results already in ``folder`` are reused.
    """
    with Store(folder) as store:
        rows = [
            row
            for draft in study.drafts
            for temperature in study.temperatures
            for row in _dataset_rows(study, draft, temperature, store, console)
        ]
    return {"rows": rows, "ratio": PAPER_RATIO}


def _dataset_rows(
    study: MixingOptions, draft: str, temperature: float, store: Store, console: Console
) -> list[dict[str, Any]]:
    """Return rows for the dataset of one draft and temperature, one for each share."""
    console.rule(f"{draft}, temperature {temperature:g}", align="left")
    prompts = held_out(study)
    domains = in_domain(study, prompts)
    first = study.sweep(draft, temperature, study.mixings[0], domains)
    decoder = SpeculativeDecoder.from_pretrained(study.target, draft, length=4, device=study.device)
    tracer = tracer_of(first, decoder)
    data = training_data(first, prompts, store.folder, console)
    manifest = joint_manifest([data], AcceptanceRow.kind)
    validation = [row for row in load_rows(data) if is_validation(row.prompt_id, study.validation_fraction)]
    positions = read_positions(decoder.drafts[0], validation, tracer.sampling, manifest.vocab_size)
    rows = []
    for mixing in study.mixings:
        settings = replace(first, mixing=mixing)
        heads = train_heads(settings, data, manifest, store.folder, console)
        counted = replay_domains(tracer, prompts, rules(settings, heads), store, console)
        table = summarise(counted, heads, domains, COSTS)["table_1"][str(PAPER_RATIO)]["in_domain"]
        rows.append(
            {
                "draft": draft,
                "temperature": temperature,
                "mean_acceptance": manifest.mean_acceptance,
                "mixing": mixing,
                **evaluate(heads[0], positions),
                "threshold": table["best_head"]["parameter"],
                "over_autoregressive": table["best_head"]["over_autoregressive"],
                "best_fixed": table["best_fixed"]["over_autoregressive"],
                "best_confidence": table["best_confidence"]["over_autoregressive"],
            }
        )
    return rows


def evaluate(head: Head, positions: Examples) -> dict[str, float]:
    """Return the binary KL divergence and the AUROC of a head on tokens drafted after the target's own output."""
    logits = head.head(positions.states).detach() + undo_weights(1.0, head.w_rej).shift
    metrics = Metrics(logits, positions.accept).compute()
    return {"kl": metrics["kl"], "auroc": metrics["auroc"]}


def as_table(result: dict[str, Any]) -> Table:
    """Return the table of a result, with a row for each dataset and share."""
    rows = [
        {
            "draft": row["draft"],
            "T": f"{row['temperature']:g}",
            "mean acceptance": f"{row['mean_acceptance']:.3f}",
            "r": f"{row['mixing']:g}",
            "KL": f"{row['kl']:.4f}",
            "AUROC": f"{row['auroc']:.4f}",
            "× autoregressive (h)": f"{row['over_autoregressive']:.3f} ({row['threshold']:g})",
            "confidence": f"{row['best_confidence']:.3f}",
            "fixed": f"{row['best_fixed']:.3f}",
        }
        for row in result["rows"]
    ]
    return Table("", rows)


def main(options: MixingOptions) -> None:
    """Train heads with several shares of target tokens, on datasets of different acceptance (SpecDec++ §3.3)."""
    console = begin()
    result = run_mixing(options, options.folder, console)
    console.print(as_table(result))
    finish(result, options, options.output)
