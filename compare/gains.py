"""The share of the possible gain that a trained length controller reaches, by replay.

The possible gain is the difference between the speed-ups of the best rule without training and of the informed bound,
a controller that knows the acceptance probability of every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..controllers.length.cost_model import CostModel
from .drafted import ALL
from .interval import ENOUGH, interval
from .recorded import Counts, decoded, speed_of, speedup
from .results import PossibleGain

LEAST = 0.01  # difference of the speed-ups of bound and rule, below which a share of it is noise


PricedCounts = tuple[Sequence[Counts], CostModel]  # counters of each prompt, and the costs at which they are timed


def possible_gains(
    domains: Sequence[str],
    rules: Mapping[str, PricedCounts],
    trained: Mapping[str, PricedCounts],
    informed: PricedCounts,
) -> dict[str, PossibleGain]:
    """Return the gains by domain, and under ``ALL`` those of all prompts if there are several domains.

    Args:
        domains: the domain of each prompt.
        rules, trained: decoders without and with a trained controller, by title.
        informed: the informed bound.
    """
    if not rules or not trained:
        return {}
    names = sorted(set(domains))
    groups = {ALL: names} if len(names) != 1 else {}
    groups |= {name: [name] for name in names}
    gains = {}
    for group, members in groups.items():
        indices = [i for i, domain in enumerate(domains) if domain in members]
        selected_rules, selected_trained = (
            {name: _selected(decoder, indices) for name, decoder in decoders.items()} for decoders in (rules, trained)
        )
        gains[group] = _gain(selected_rules, selected_trained, _selected(informed, indices))
    return gains


def _selected(decoder: PricedCounts, indices: Sequence[int]) -> PricedCounts:
    """Return the counters of the prompts with ``indices``."""
    counts, cost = decoder
    return [counts[index] for index in indices], cost


def _gain(
    rules: Mapping[str, PricedCounts], trained: Mapping[str, PricedCounts], informed: PricedCounts
) -> PossibleGain:
    """Return the gain on the prompts of the counters."""

    def best(decoders: Mapping[str, PricedCounts]) -> tuple[str, float]:
        speeds = {name: speed_of(*decoder).value for name, decoder in decoders.items()}
        name = max(speeds, key=lambda name: speeds[name])
        return name, speeds[name]

    (rule, rule_speed), (best_trained, trained_speed) = best(rules), best(trained)
    gain = PossibleGain(
        prompts=len(informed[0]), rule=rule, rule_speed=rule_speed, trained=best_trained, trained_speed=trained_speed,
        informed=speed_of(*informed).value,
    )  # fmt: skip
    if gain.informed - rule_speed < LEAST:
        return gain
    compared = (rules[rule], trained[best_trained], informed)

    def share(*sums: Any) -> Any:
        """Return the share of the possible gain from the sums of the counters of rule, trained decoder and bound."""
        each = len(sums) // len(compared)
        slow, faster, fastest = (
            speedup(*sums[each * i : each * (i + 1)], cost=cost) for i, (_, cost) in enumerate(compared)
        )
        return (faster - slow) / (fastest - slow)

    estimate = interval(share, *(column for decoder in compared for column in decoded(*decoder)))
    bounds = (estimate.low, estimate.high) if gain.prompts >= ENOUGH else (None, None)
    return replace(gain, share=estimate.value, low=bounds[0], high=bounds[1])
