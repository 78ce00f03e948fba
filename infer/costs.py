"""Times of single steps, including sampling: t_draft of a draft, t_v(n) of the target, at batch size one.

They make up rounds, to which the cost model is fitted with which adaptation starts
(:mod:`~specpilot.controllers.length.running_cost`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from statistics import median
from typing import NamedTuple

import torch

from ..common.console import logger
from ..common.machine import BUSY, load_per_core
from ..controllers.length import MAX_DRAFT
from ..controllers.length.cost_model import ASSUMED, CostModel
from ..controllers.length.running_cost import fit_rounds
from ..controllers.sampling import SamplingParams
from ..models import LanguageModel, TextReader
from .core import TokenDistribution
from .random_source import RandomSource

DRAFTED = 8  # tokens of a timed draft; the result is per token
READ = (1, 2, 3, 5, 9)  # tokens of timed verifications
REPEATS = 30
WARM = 3
QUICK, QUICKLY_READ = 15, (1, 2, 5, 9)  # repetitions of a rough measurement, and tokens of its verifications
WITHIN = 0.8  # seconds after which a rough measurement begins no forward
SLOW = 0.1  # seconds of a forward above which a few are enough to be kept
FASTER = 1.1  # times as fast is a less exact draft that is taken
AGREEING = 0.75  # share of the turns in which it must be
TYPICAL = SamplingParams(1.0, 50)


class StepTimes(NamedTuple):
    """What steps take, in seconds.

    Attributes:
        verify: t_v(n) of the target by the number n of tokens it reads.
        models: for each model, per token; NaN for one that there was no time for.
        t_draft: that of the first draft; 0 without one.
        turns: how often everything was timed.
        drafted: for each draft, the seconds per token of every turn but the first ones.
    """

    verify: dict[int, float]
    models: list[float]
    t_draft: float
    turns: int
    drafted: list[list[float]]

    @property
    def steady(self) -> bool:
        """Whether they are of enough forwards to be kept: on a busy machine the first ones may be far off."""
        return self.turns >= 2 * WARM or (self.turns > 1 and self.verify[1] > SLOW)

    @property
    def rounds(self) -> list[tuple[int, int, float]]:
        """Rounds that these steps make up: tokens and forwards of the draft, and seconds.

        The target reads the tokens of a draft after a step of the draft model, which counts only in rounds whose draft
        took forwards. Without the time to measure a draft step, it has the share of ``ASSUMED``.
        """
        rounds = [(n - 1, 0, seconds) for n, seconds in self.verify.items()]
        t_draft = ASSUMED.t_draft * self.verify[1] if math.isnan(self.t_draft) else self.t_draft
        verified = rounds[1:] or [(1, 0, self.verify[1] * ASSUMED.verification(2))]
        return rounds + [(k, k, seconds + k * t_draft) for k, _, seconds in verified]

    @property
    def cost(self) -> CostModel:
        """The cost model of the target with the first draft.

        t_draft is the one measured. The fit would attribute to it what no line through the times of verifications
        explains, so that a busy second could make a draft step free.
        """
        cost = fit_rounds(self.rounds)
        return cost if math.isnan(self.t_draft) else replace(cost, t_draft=self.t_draft)


@torch.inference_mode()
def step_times(
    target: LanguageModel,
    models: Sequence[LanguageModel | None],
    prompt: list[int],
    sampling: SamplingParams,
    repeats: int = REPEATS,
    read: Sequence[int] = READ,
    within: float = math.inf,
) -> StepTimes:
    """The times of a target and of ``models``, where None stands for the target alone.

    All are timed in turn after the same prompt; results are medians. They read the prompt's tokens once more: after a
    text that makes no sense distributions are flat, and sampling from them with top-p takes longer than a forward. As
    in decoding, one token is read after a forward over one token, and several are read after a step of the first draft,
    whose t_draft the cost model has.

    Args:
        within: seconds after which no forward is begun, but for one of each model; what is missing then is supposed.
    """
    began = time.perf_counter()
    until = began + within
    others = [model for model in models if model is not None]
    verify: dict[int, list[float]] = {n: [] for n in read}
    draft: list[list[float]] = [[] for _ in others]
    again = [*islice(cycle(prompt), max(read))]
    readers = [_read(target, prompt)]
    _settle(target)
    prefill = time.perf_counter() - began
    readers += [_read(model, prompt) for model in others]
    if time.perf_counter() + prefill >= until:
        missing = [prefill if model is None else math.nan for model in models]
        return StepTimes({1: prefill}, missing, math.nan if others else 0.0, 0, [[] for _ in others])
    lengths = [reader.length for reader in readers]

    def turns() -> Iterator[None]:
        """Times everything in turn, and pauses after each."""
        for turn in range(WARM + repeats):
            for n in read:
                before = 1 if n > 1 and others else 0
                readers[before].read(again[:1])
                readers[before].crop(lengths[before])
                _settle(readers[before].model)
                started = time.perf_counter()
                logits, _ = readers[0].read(again[:n])
                _ = TokenDistribution.from_logits(sampling, logits).lists
                _settle(target)
                verify[n].append(time.perf_counter() - started)
                readers[0].crop(lengths[0])
                yield
            for i, (reader, seconds, length) in enumerate(zip(readers[1:], draft, lengths[1:], strict=True)):
                if i:  # a draft follows a forward of the target, as in decoding; after another it would be faster
                    readers[0].read(again[:1])
                    readers[0].crop(lengths[0])
                started = time.perf_counter()
                drafted = _draft(reader, again[0], sampling, RandomSource(turn), target.vocab_size, until)
                _settle(reader.model)
                seconds.append((time.perf_counter() - started) / drafted)
                reader.crop(length)
                yield

    for _ in turns():
        if time.perf_counter() >= until:
            break
    t = {n: _typical(seconds) for n, seconds in verify.items() if seconds}
    steps = iter([_typical(seconds) if seconds else math.nan for seconds in draft])
    times = [t[1] if model is None else next(steps) for model in models]
    first = next((s for s, model in zip(times, models, strict=True) if model is not None), 0.0)
    turns_done = min(map(len, (*verify.values(), *draft)))
    return StepTimes(t, times, first, turns_done, [_warm(seconds) for seconds in draft])


def _warm(seconds: list[float]) -> list[float]:
    """The times after the first ``WARM``; without any, those after the first; the first if it is the only one."""
    return seconds[WARM:] or seconds[1:] or seconds


def _typical(seconds: list[float]) -> float:
    """The median of times; of few the least one, since other processes only add to them."""
    return median(seconds[WARM:]) if len(seconds) >= 2 * WARM else min(_warm(seconds))


def pair_costs(target: LanguageModel, draft: LanguageModel | None) -> CostModel:
    """Costs of a pair, or of a target alone, on this machine, with which adaptation starts.

    They are measured in at most a second, or one forward of each model if that takes longer.
    """
    drafts = [] if draft is None else [draft]
    # Any text will do. The sampling parameters keep few tokens.
    cost = step_times(target, drafts, [0] * 32, TYPICAL, QUICK, QUICKLY_READ, WITHIN).cost
    if drafts:
        logger.info(
            "costs: a draft step takes %.2g of a verification, measured%s",
            cost.t_draft / cost.verification(1),
            "" if load_per_core() <= BUSY else f" while other processes ran (load {load_per_core():.1f} for each core)",
        )
    return cost


def fastest_step(target: LanguageModel, drafts: Mapping[str, LanguageModel]) -> str:
    """The name of the draft with the fastest step.

    The most exact is the first; one that is less exact is taken if it is ``FASTER`` in most turns. Without the time to
    measure that it is the first. The choice is not made again, so a busy moment must not decide it.
    """
    times = step_times(target, [*drafts.values()], [0] * 32, TYPICAL, QUICK, (1,), WITHIN / 2)
    names = [*drafts]
    best = 0
    for i in range(1, len(names)):
        if times.steady and is_faster(times.drafted[i], times.drafted[best]):
            best = i
    return names[best]


def is_faster(seconds: Sequence[float], other: Sequence[float]) -> bool:
    """Return true if the draft of ``seconds`` is ``FASTER`` than that of ``other`` in most turns that both ran in.

    The steps of one turn follow one another, so that other processes disturb both or few of them.
    """
    turns = [mine * FASTER < theirs for mine, theirs in zip(seconds, other, strict=False)]
    return bool(turns) and sum(turns) >= AGREEING * len(turns)


def _read(model: LanguageModel, prompt: list[int]) -> TextReader:
    """Read a prompt with ``model``, with room for the timed tokens."""
    reader, text = TextReader.begin(model, prompt, MAX_DRAFT)
    reader.read(text, keep=1)
    return reader


def _draft(
    reader: TextReader, token: int, sampling: SamplingParams, rng: RandomSource, vocab_size: int, until: float
) -> int:
    """Draft as the decoder does, after ``token``: a forward and a draw for each token; returns their number."""
    kept = reader.model.kept_tokens_below(vocab_size)
    for drafted in range(1, DRAFTED + 1):
        logits, _ = reader.read([token])
        token = TokenDistribution.from_logits(sampling, logits, vocab_size, kept).sample(0, rng)
        if time.perf_counter() >= until:
            return drafted
    return DRAFTED


def _settle(model: LanguageModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
