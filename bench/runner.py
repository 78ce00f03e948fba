"""Several decoder configurations over the same prompts in one process, interleaved: all meet the same machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..controllers.length import LengthController
from ..infer.decoder import SpeculativeDecoder
from ..infer.generation import Generation, Stats
from ..infer.prompting import Prompt
from .throughput import Cost


@dataclass
class Measured:
    """One configuration's runs, a :class:`Stats` a prompt, in the order of the prompts."""

    name: str
    runs: list[Stats] = field(default_factory=list)

    @property
    def total(self) -> Stats:
        return sum(self.runs, Stats())

    def row(self, baseline: Measured, cost: Cost) -> dict[str, float]:
        """The numbers of one table row; ``baseline`` is the autoregressive configuration of the same run."""
        total = self.total
        pairs = zip(self.runs, baseline.runs, strict=True)
        return {
            "tokens_per_second": total.tokens_per_second,
            "speedup": total.tokens_per_second / baseline.total.tokens_per_second,
            "speedup_median": median(a.tokens_per_second / b.tokens_per_second for a, b in pairs),
            "discard_rate": total.discard_rate,
            "verification_rate": total.verification_rate,
            "acceptance_rate": total.acceptance_rate,
            "block_efficiency": total.block_efficiency,
            "throughput_eq23": cost.throughput(total),
        }


def measure(
    decoders: dict[str, tuple[SpeculativeDecoder, LengthController | None]],
    prompts: Sequence[Prompt],
    settings: dict[str, Any],
    *,
    repeats: Mapping[str, int] | None = None,
    on_progress: Callable[[], None] = lambda: None,
    on_generation: Callable[[str, int, Generation], None] = lambda name, index, generation: None,
) -> dict[str, Measured]:
    """Decode every prompt with every configuration.

    Args:
        decoders: name → (decoder, length controller to decode with, or None for the decoder's own).
        settings: keywords of ``SpeculativeDecoder.generate``; the seed is the prompt's index.
        repeats: name → how often it decodes each prompt, the others in between; of these runs, which differ in nothing
            but their time, the one of median time is kept. One where a name is missing.
        on_progress: called after every generation.
        on_generation: called with (name, prompt's index, generation).
    """
    results = {name: Measured(name) for name in decoders}
    names = list(decoders)

    def run(name: str, index: int) -> Generation:
        decoder, length = decoders[name]
        generation: Generation = decoder.generate(prompts[index], seed=index, length=length, **settings)
        return generation

    for name in names:  # warm-up, not counted
        run(name, 0)
    times = {name: (repeats or {}).get(name, 1) for name in names}
    for index in range(len(prompts)):
        turn = index % len(names)  # nobody is always first after the pause
        runs: dict[str, list[Stats]] = {name: [] for name in names}
        for repeat in range(max(times.values(), default=0)):
            for name in names[turn:] + names[:turn]:
                if repeat < times[name]:
                    generation = run(name, index)
                    runs[name].append(generation.stats)
                    on_generation(name, index, generation)
                    on_progress()
        for name, found in runs.items():
            found.sort(key=lambda stats: stats.seconds + stats.prefill_seconds)
            results[name].runs.append(found[len(found) // 2])
    return results
