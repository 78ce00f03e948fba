"""``python -m experiments controllers``: speeds of trained controllers over others, by replay on the same prompts.

Each candidate is compared with the baseline at the same place in the list, under each verification rule. A ratio of two
speeds is over the same prompts, and so is its interval, which is narrower than the intervals of the speeds suggest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.errors import InputError
from specpilot.common.options import Count, DeviceOptions, Folder, Positive, SeedOptions, Several
from specpilot.compare.interval import Interval, show
from specpilot.compare.recorded import Counts, Rule, Tracer, speed_of, speed_ratio_of
from specpilot.compare.settings import at_ratio
from specpilot.compare.store import Store
from specpilot.compare.table import Row, Table
from specpilot.controllers.checkpoints.checkpoint import controller_digest
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.options import PairOptions, SamplingOptions

from .held_out import HeldOutOptions, StudyFolderOptions, groups_of, held_out, in_domain, replay_domains


@dataclass(frozen=True, kw_only=True)
class ControllerStudyOptions(
    PairOptions, SamplingOptions, HeldOutOptions, SeedOptions, DeviceOptions, StudyFolderOptions
):
    """Study.

    Options of ``python -m experiments controllers``.

    Attributes:
        baselines: Trained controllers to compare with.
        candidates: Trained controllers, one for each baseline.
        verifiers: Verification rules.
        cost: Time of a draft step in units of a verification.
    """

    baselines: Annotated[tuple[str, ...], Several(distinct=False)] = ("tiny-lag-free",)
    candidates: Annotated[tuple[str, ...], Several()] = ("tiny-head",)
    verifiers: Annotated[tuple[Literal["token-wise", "invariant"], ...], Several()] = ("invariant", "token-wise")
    cost: Positive = 0.21
    max_new_tokens: Count = 64
    folder: Folder = Path("runs/controllers")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.baselines) != len(self.candidates):
            raise InputError(
                f"candidates: {len(self.candidates)} for {len(self.baselines)} baselines; give one for each baseline"
            )


def run_controllers(options: ControllerStudyOptions, folder: Path, console: Console) -> dict[str, Any]:
    """Replay all controllers under each rule; results already in ``folder`` are reused.

    Returns:
        ``ratios``, by verification rule, group of domains and candidate: ``baseline``, ``ratio``, and the speed-ups of
        both over no drafts, ``speed`` and ``baseline_speed``; and ``prompts``, the number of prompts of each group.
    """
    rows, cost = held_out(options), at_ratio(options.cost)
    sampling = SamplingParams(options.temperature, options.top_k, options.top_p)
    groups = groups_of([*rows], in_domain(options, rows))
    decoder = SpeculativeDecoder.from_pretrained(options.target, options.draft, length=4, device=options.device)
    pairs = dict(zip(options.candidates, options.baselines, strict=True))
    rules = [_rule(decoder, name, cost) for name in dict.fromkeys([*pairs, *pairs.values()])]
    ratios: dict[str, Any] = {}
    with Store(folder) as store:
        for verifier in options.verifiers:
            tracer = Tracer(
                decoder, sampling, options.max_new_tokens, options.seed, options.chat, options.system,
                verifier=verifier,
            )  # fmt: skip
            counted = replay_domains(tracer, rows, rules, store, console)
            ratios[verifier] = {}
            for group, domains in groups.items():
                counts = {
                    rule.name: [each for domain in domains for each in counted[rule.name, options.cost][domain]]
                    for rule in rules
                }
                ratios[verifier][group] = {
                    candidate: {"baseline": baseline, **compared(counts[candidate], counts[baseline], cost)}
                    for candidate, baseline in pairs.items()
                }
    prompts = {group: sum(len(rows[domain]) for domain in domains) for group, domains in groups.items()}
    return {"ratios": ratios, "prompts": prompts}


def _rule(decoder: SpeculativeDecoder, name: str, cost: CostModel) -> Rule:
    """Return the trained controller ``name``, which stops by ``cost``, as a rule."""
    length = decoder.load_length(name, cost=cost)
    identity = {"controller": controller_digest(name), "cost": cost.to_dict()}
    return Rule(name, (cost.t_draft,), identity, lambda traces: lambda index, x: length)


def compared(candidate: Sequence[Counts], baseline: Sequence[Counts], cost: CostModel) -> dict[str, dict[str, float]]:
    """Return speed-ups of two controllers over no drafts, and their ratio over the same prompts, with intervals.

    Args:
        candidate, baseline: counters of each prompt, in the same order.
        cost: costs of a draft step and a verification.
    """
    values = {
        "ratio": speed_ratio_of(candidate, baseline, cost),
        "speed": speed_of(candidate, cost),
        "baseline_speed": speed_of(baseline, cost),
    }
    return {name: estimate.named("value") for name, estimate in values.items()}


def as_table(result: dict[str, Any]) -> Table:
    """Return the table of a result, with a row for each rule, group of domains and candidate."""
    rows: list[Row] = [
        {
            "rule": verifier,
            "domains": group.replace("_", " "),
            "controller": candidate,
            "baseline": entry["baseline"],
            "speed": show(Interval.of(entry["speed"])),
            "baseline's speed": show(Interval.of(entry["baseline_speed"])),
            "ratio": show(Interval.of(entry["ratio"]), digits=3),
        }
        for verifier, by_group in result["ratios"].items()
        for group, by_candidate in by_group.items()
        for candidate, entry in by_candidate.items()
    ]
    return Table("", rows)


def main(options: ControllerStudyOptions) -> None:
    """Replay trained controllers on the same prompts, and compare their speeds in pairs."""
    console = begin()
    result = run_controllers(options, options.folder, console)
    console.print(as_table(result))
    finish(result, options, options.output)
