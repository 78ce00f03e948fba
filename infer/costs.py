"""Times of single steps with sampling, at batch size one: t_draft of a draft, t_v(n) of the target.

The times are combined to rounds. A cost model is fitted to the rounds, from which the adaptation of costs starts
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
from ..controllers.length.running_cost import fit_rounds, shaped
from ..controllers.sampling import SamplingParams
from ..models import LanguageModel, TextReader
from .core import TokenDistribution
from .random_source import RandomSource

DRAFTED = 8  # number of tokens of a timed draft; the result is per token
READ = (1, 2, 3, 5, 9)  # numbers of tokens of timed verifications
REPEATS = 30
WARM = 3
QUICK, QUICKLY_READ = 15, (1, 2, 4, 6, 9)  # repetitions of a rough measurement, and tokens of its verifications
WITHIN = 0.8  # seconds after which a rough measurement begins no further forward
SLOW = 0.1  # seconds of a forward above which few repetitions are enough
FASTER = 1.1  # speed-up that a less exact draft must have to be chosen
AGREEING = 0.75  # share of the turns in which it must have this speed-up
TYPICAL = SamplingParams(1.0, 50)


class StepTimes(NamedTuple):
    """Times of steps, in seconds.

    Attributes:
        verify: t_v(n) of the target by the number n of tokens that it reads.
        models: the time of each model per token; NaN for a model that was not measured for lack of time.
        t_draft: the time of the first draft per token; 0 without a draft.
        turns: number of complete repetitions.
        drafted: for each draft, the seconds per token of every turn after the first ones.
    """

    verify: dict[int, float]
    models: list[float]
    t_draft: float
    turns: int
    drafted: list[list[float]]

    @property
    def steady(self) -> bool:
        """Return true if there were enough forwards for reliable times. On a busy machine the first may be far off."""
        return self.turns >= 2 * WARM or (self.turns > 1 and self.verify[1] > SLOW)

    @property
    def rounds(self) -> list[tuple[int, int, float]]:
        """The rounds that these steps form: tokens and forwards of the draft, and seconds.

        Each timed verification of n tokens gives a round of n - 1 copied tokens without draft forwards, and for n > 1
        also a round of n - 1 drafted tokens, which takes (n - 1)·t_draft longer. If t_draft was not measured, it is
        taken as ``ASSUMED.t_draft`` times the time of a verification of one token.
        """
        rounds = [(n - 1, 0, seconds) for n, seconds in self.verify.items()]
        t_draft = ASSUMED.t_draft * self.verify[1] if math.isnan(self.t_draft) else self.t_draft
        verified = rounds[1:] or [(1, 0, self.verify[1] * ASSUMED.verification(2))]
        return rounds + [(k, k, seconds + k * t_draft) for k, _, seconds in verified]

    @property
    def cost(self) -> CostModel:
        """The cost model of the target with the first draft, with a shape if the verifications' times are not a line.

        t_draft is the measured time. The fit would attribute deviations of the verifications' times to t_draft, so that
        other processes could make a draft step appear free.
        """
        cost = fit_rounds(self.rounds)
        cost = shaped(cost, self.verify) if self.steady else cost
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
    """Measure the times of a target and of ``models``.

    All models are timed in turn after the same prompt; results are medians. The models read the prompt's tokens a
    second time: after meaningless text distributions are flat, and sampling from flat distributions with top-p takes
    longer than a forward. As in decoding, one token is read after a forward over one token, and several tokens are read
    after a step of the first draft, whose t_draft is part of the cost model.

    Args:
        target: the target.
        models: the draft models; None stands for decoding without a draft.
        prompt: tokens of the prompt.
        sampling: sampling parameters.
        repeats: number of repetitions.
        read: numbers of tokens of the verifications.
        within: seconds after which no further forward begins, except one of each model; missing times are estimated.
    """
    began = time.perf_counter()
    until = began + within
    drafts = [model for model in models if model is not None]
    verify: dict[int, list[float]] = {n: [] for n in read}
    draft: list[list[float]] = [[] for _ in drafts]
    repeated_prompt = [*islice(cycle(prompt), max(read))]
    readers = [_read(target, prompt)]
    _settle(target)
    prefill = time.perf_counter() - began
    readers += [_read(model, prompt) for model in drafts]
    if time.perf_counter() + prefill >= until:
        missing = [prefill if model is None else math.nan for model in models]
        return StepTimes({1: prefill}, missing, math.nan if drafts else 0.0, 0, [[] for _ in drafts])
    lengths = [reader.length for reader in readers]

    def turns() -> Iterator[None]:
        """Time all steps in turn, and yield after each step."""
        for turn in range(WARM + repeats):
            for n in read:
                before = 1 if n > 1 and drafts else 0
                readers[before].read(repeated_prompt[:1])
                readers[before].crop(lengths[before])
                _settle(readers[before].model)
                started = time.perf_counter()
                logits, _ = readers[0].read(repeated_prompt[:n])
                _ = TokenDistribution.from_logits(sampling, logits).lists
                _settle(target)
                verify[n].append(time.perf_counter() - started)
                readers[0].crop(lengths[0])
                yield
            for i, (reader, seconds, length) in enumerate(zip(readers[1:], draft, lengths[1:], strict=True)):
                if i:  # a draft follows a forward of the target, as in decoding; after another draft it would be faster
                    readers[0].read(repeated_prompt[:1])
                    readers[0].crop(lengths[0])
                started = time.perf_counter()
                drafted = _draft(reader, repeated_prompt[0], sampling, RandomSource(turn), target.vocab_size, until)
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
    """Return the times after the first ``WARM``; if there are none, those after the first; else the only time."""
    return seconds[WARM:] or seconds[1:] or seconds


def _typical(seconds: list[float]) -> float:
    """Return the median of many times, or the smallest of few, because other processes only increase times."""
    return median(seconds[WARM:]) if len(seconds) >= 2 * WARM else min(_warm(seconds))


def pair_costs(target: LanguageModel, draft: LanguageModel | None) -> CostModel:
    """Measure the costs of a pair, or of a target without a draft, on this machine; adaptation starts from them.

    The measurement takes at most a second, or one forward of each model if that takes longer.
    """
    drafts = [] if draft is None else [draft]
    # The text is arbitrary, because the sampling parameters keep few tokens.
    cost = step_times(target, drafts, [0] * 32, TYPICAL, QUICK, QUICKLY_READ, WITHIN).cost
    if drafts:
        logger.info(
            "costs: a draft step takes %.2g of a verification, measured%s",
            cost.t_draft / cost.verification(1),
            "" if load_per_core() <= BUSY else f" while other processes ran (load {load_per_core():.1f} for each core)",
        )
    return cost


def fastest_step(target: LanguageModel, drafts: Mapping[str, LanguageModel]) -> str:
    """Return the name of the draft with the fastest step.

    The first draft is the most exact. A less exact draft is chosen if it is ``FASTER`` in most turns. If there is not
    enough time to measure this, the first draft is chosen. The choice is final, so that a busy moment must not decide.

    Args:
        target: the target.
        drafts: the drafts by name, the most exact first.
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
    turns = [first * FASTER < second for first, second in zip(seconds, other, strict=False)]
    return bool(turns) and sum(turns) >= AGREEING * len(turns)


def _read(model: LanguageModel, prompt: list[int]) -> TextReader:
    """Read a prompt with ``model``, with room for the timed tokens."""
    reader, text = TextReader.begin(model, prompt, MAX_DRAFT)
    reader.read(text, keep=1)
    return reader


def _draft(
    reader: TextReader, token: int, sampling: SamplingParams, rng: RandomSource, vocab_size: int, until: float
) -> int:
    """Draft as the decoder does, after ``token``, with a forward and a draw for each token; return their number."""
    kept_tokens = reader.model.kept_tokens_below(vocab_size)
    for drafted in range(1, DRAFTED + 1):
        logits, _ = reader.read([token])
        token = TokenDistribution.from_logits(sampling, logits, vocab_size, kept_tokens).sample(0, rng)
        if time.perf_counter() >= until:
            return drafted
    return DRAFTED


def _settle(model: LanguageModel) -> None:
    """Wait until a GPU has completed the model's forwards."""
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
