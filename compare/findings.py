"""What a comparison found: a sentence to act on, commands, and everything as JSON. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..common.errors import listed
from ..common.files import replacing
from .comparison import Outcome, Result
from .decoders import NONE
from .drafted import judgements
from .interval import ENOUGH, Interval, show
from .settings import FAMILIES, ratio_of

DISTURBED = 1.5  # a speed-up by the clock over that by processor time, or the reverse, that other work explains
DEAR_READING, DEAR_DRAFT = 1.5, 0.5  # t_v(3) / t_v(1), and a draft step in target forwards, that are reasons not to
COST_FILE = "cost.json"
EXAMPLE = "Write a short story."


def sentences(comparison: Outcome) -> list[str]:
    """What was found, the first one to act on."""
    best = comparison.results[comparison.best]
    prompts = f"On your {comparison.prompts} prompts, at temperature {comparison.task.sampling.temperature:g},"
    if not pays(comparison):
        refused = [f"Do not draft here: {_why_not(comparison)}.", f"{prompts} {_all_levels(comparison)}"]
        return refused + _judgements(comparison)
    assert best.speed is not None
    line = f"{prompts} {title(best)} decodes {show(best.speed, prompts=comparison.prompts)} × as fast as no drafts"
    for other in _rivals(comparison, best)[:1]:
        kind = "the best rule" if best.trained else "the best trained decoder"
        line += f" and {_ratio(comparison, best, other)} × {kind} ({title(other)})"
    lines = [line + ("." if comparison.timed else f", by replay at {comparison.priced}.")]
    level = [
        title(result)
        for result in comparison.results.values()
        if result is not best and _level(comparison, best, result)
    ]
    if level:
        lines.append(f"Within the noise of it: {', '.join(level)}.")
    reached = max((r.replay.value for r in comparison.results.values() if r.replay is not None), default=None)
    if comparison.informed is not None and reached is not None and comparison.informed > reached:
        lines.append(
            f"A predictor that knew every acceptance probability would reach {comparison.informed:.2f} × in the "
            f"replay, where the best is at {reached:.2f} ×."
        )
    return lines + _judgements(comparison)


def _judgements(comparison: Outcome) -> list[str]:
    """Other work on the machine, decoders trained on the prompts, and predictors worse than a constant or the draft."""
    apart = [r.clock.value / r.processor for r in comparison.results.values() if r.clock and r.processor]
    most = max((max(ratio, 1 / ratio) for ratio in apart), default=1.0)
    said = [] if most < DISTURBED else [
        f"Speed-ups by the clock differ up to {most:.1f} times from those by processor time: other work changed the "
        "machine's speed meanwhile. Compare again when it is idle."
    ]  # fmt: skip
    trained = [
        f"{name} was trained on {len(ids)} of these prompts and looks better there than on others: {listed(ids)}."
        for name, ids in comparison.figures.get("trained_on", {}).items()
    ]
    return said + trained + judgements(comparison.figures.get("predictors", {}))


def title(result: Result) -> str:
    """The decoder's name, with the length of a tuned rule."""
    spec = result.spec
    return f"{spec.name} {str(spec.length).rpartition(':')[2]}" if spec.name in FAMILIES else spec.name


def pays(comparison: Outcome) -> bool:
    """Whether the fastest decoder is faster than no drafts beyond noise."""
    best = comparison.results[comparison.best]
    if best.spec.name == NONE or best.speed is None:
        return False
    return (best.speed.value if comparison.prompts < ENOUGH else best.speed.low) > 1


def _why_not(comparison: Outcome) -> str:
    cost = comparison.costs.get(NONE)
    if comparison.reading is not None and comparison.reading > DEAR_READING:
        return f"reading 3 tokens takes the target {comparison.reading:.1f} times one"
    if cost is not None and ratio_of(cost) > DEAR_DRAFT:
        return f"a draft step takes {ratio_of(cost):.2f} of a target forward"
    accepted = max((r.accepted for r in comparison.results.values() if r.accepted is not None), default=None)
    return "too few drafted tokens are accepted" + ("" if accepted is None else f" ({accepted:.0%} at most)")


def _all_levels(comparison: Outcome) -> str:
    fastest = comparison.fastest(lambda result: result.spec.name != NONE)
    if not fastest:
        return "nothing else was compared."
    speed = show(fastest[0].speed, prompts=comparison.prompts)
    return f"the fastest with drafts, {title(fastest[0])}, is at {speed} × no drafts."


def _rivals(comparison: Outcome, best: Result) -> list[Result]:
    """What the winner is measured by: the best rule without training, or for a rule the best trained decoder."""
    return comparison.fastest(
        lambda result: result.trained != best.trained and result.spec.name != NONE and result.spec.engine is None
    )


def _ratio(comparison: Outcome, best: Result, other: Result) -> str:
    ratio = comparison.over(best.spec.name, other.spec.name)
    if ratio is not None:
        return show(ratio, prompts=comparison.prompts)
    assert best.replay is not None
    assert other.replay is not None
    return f"{best.replay.value / other.replay.value:.2f}"


def _level(comparison: Outcome, best: Result, other: Result) -> bool:
    ratio = comparison.over(best.spec.name, other.spec.name)
    return ratio is not None and comparison.prompts >= ENOUGH and ratio.low < 1 < ratio.high


def commands(comparison: Outcome, folder: Path) -> dict[str, str]:
    """The commands that decode and serve with the winner, or without drafts.

    Args:
        folder: where the costs of a winner that uses costs are written.
    """
    best = comparison.results[comparison.best] if pays(comparison) else comparison.results[NONE]
    if best.spec.engine is not None:
        return {}
    words = best.spec.words(write_cost(comparison, best.spec.name, folder))
    sampling = comparison.task.sampling
    drawn = ["--temperature", f"{sampling.temperature:g}", "--top-p", f"{sampling.top_p:g}"]
    drawn += ["--top-k", "null" if sampling.top_k is None else str(sampling.top_k)]
    drawn += [] if comparison.task.chat else ["--no-chat"]
    return {
        "Decode with it": " ".join(["specpilot generate", *words, *drawn, f"'{EXAMPLE}'"]),
        "Serve it with": " ".join(["specpilot serve", *words]),
    }


def write_cost(comparison: Outcome, name: str, folder: Path) -> Path | None:
    """Write the costs of a decoder for ``--cost``; None if it does not go by measured costs."""
    if not comparison.results[name].spec.uses_costs or name not in comparison.costs:
        return None
    file = folder / COST_FILE
    with replacing(file) as temporary:
        document = {"cost": comparison.costs[name].as_dict(), "decoder": name}
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return file


def as_dict(comparison: Outcome, commands: Mapping[str, str]) -> dict[str, Any]:
    """Everything, as JSON values."""
    return {
        "sentences": sentences(comparison),
        "commands": dict(commands),
        "best": comparison.best,
        "target": comparison.base.target,
        "draft": comparison.base.draft,
        "task": comparison.task.as_dict(),
        "prompts": comparison.prompts,
        "passes": comparison.passes,
        "decoders": {
            name: {
                **{key: value._asdict() if isinstance(value, Interval) else value
                   for key, value in vars(result).items() if key != "spec"},
                "title": title(result),
                "family": name if name in FAMILIES else None,
                "spec": result.spec.as_dict(),
            }
            for name, result in comparison.results.items()
        },
        "informed": comparison.informed,
        "reading": comparison.reading,
        "priced": comparison.priced,
        "ratio": ratio_of(comparison.costs[NONE]) if NONE in comparison.costs else None,
        "costs": {name: cost.as_dict() for name, cost in comparison.costs.items()},
        "timed": {name: [dict(run) for run in runs] for name, runs in comparison.timed.items()},
        **comparison.figures,
        "machine": dict(comparison.machine),
        "versions": dict(comparison.versions),
    }  # fmt: skip
