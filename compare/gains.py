"""The share of the possible gain that a trained length controller reaches, by replay.

The possible gain is the difference between the speed-ups of the best rule without training and of the informed bound,
a controller that knows the acceptance probability of every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..controllers.length.cost_model import CostModel
from .drafted import ALL
from .interval import ENOUGH, interval
from .recorded import Array, Counts, decoded, speed_of
from .results import PossibleGain

LEAST = 0.01  # difference of the speed-ups of bound and rule, below which a share of it is noise


def possible_gains(
    domains: Sequence[str],
    rules: Mapping[str, Sequence[Counts]],
    trained: Mapping[str, Sequence[Counts]],
    informed: Sequence[Counts],
    costs: Mapping[str, CostModel],
    cost: CostModel,
) -> dict[str, PossibleGain]:
    """Return the gains by domain, and under ``ALL`` those of all prompts if there are several domains.

    Args:
        domains: the domain of each prompt.
        rules, trained: counters of each prompt, by title, of decoders without and with a trained controller.
        informed: counters of the informed bound.
        costs: costs by title, where they differ from ``cost``.
        cost: costs of the pair.
    """
    if not rules or not trained:
        return {}
    names = sorted(set(domains))
    groups = {ALL: names} if len(names) != 1 else {}
    groups |= {name: [name] for name in names}
    gains = {}
    for group, members in groups.items():
        places = [i for i, domain in enumerate(domains) if domain in members]
        gains[group] = _gain(places, rules, trained, informed, costs, cost)
    return gains


def _gain(
    places: Sequence[int],
    rules: Mapping[str, Sequence[Counts]],
    trained: Mapping[str, Sequence[Counts]],
    informed: Sequence[Counts],
    costs: Mapping[str, CostModel],
    cost: CostModel,
) -> PossibleGain:
    """Return the gain on the prompts at ``places``; the other arguments are those of :func:`possible_gains`."""

    def of(counts: Sequence[Counts]) -> list[Counts]:
        return [counts[place] for place in places]

    def best(decoders: Mapping[str, Sequence[Counts]]) -> tuple[str, float]:
        speeds = {name: speed_of(of(counts), costs.get(name, cost)).value for name, counts in decoders.items()}
        name = max(speeds, key=lambda name: speeds[name])
        return name, speeds[name]

    (rule, rule_speed), (best_trained, trained_speed) = best(rules), best(trained)
    gain = PossibleGain(
        prompts=len(places), rule=rule, rule_speed=rule_speed, trained=best_trained, trained_speed=trained_speed,
        informed=speed_of(of(informed), cost).value,
    )  # fmt: skip
    if gain.informed - rule_speed < LEAST:
        return gain
    seconds = [
        _seconds(of(counts), each)
        for counts, each in (
            (rules[rule], costs.get(rule, cost)), (trained[best_trained], costs.get(best_trained, cost)),
            (informed, cost),
        )
    ]  # fmt: skip

    def share(rule_seconds: Any, trained_seconds: Any, informed_seconds: Any) -> Any:
        """The share by the seconds of the same tokens."""
        speeds = 1 / rule_seconds, 1 / trained_seconds, 1 / informed_seconds
        return (speeds[1] - speeds[0]) / (speeds[2] - speeds[0])

    estimate = interval(share, *seconds)
    bounds = (estimate.low, estimate.high) if len(places) >= ENOUGH else (None, None)
    return PossibleGain(**vars(gain) | {"share": estimate.value, "low": bounds[0], "high": bounds[1]})


def _seconds(counts: Sequence[Counts], cost: CostModel) -> Array:
    """Return the time of decoding each text after the prefill, (prompts,)."""
    _, drafted, forwards, drafts = decoded(counts)
    return cost.seconds(drafted, forwards, drafts)  # type: ignore[no-any-return]
