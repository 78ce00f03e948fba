"""Times of one step of a model, including sampling: t_draft of a draft, t_v(n) of the target, at batch size one.

Decisions go by them until better ones are known: ``specpilot bench cost`` times whole generations as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from statistics import linear_regression, mean, median
from typing import NamedTuple

import torch

from ..controllers.length import MAX_DRAFT
from ..controllers.length.cost_model import LEAST_SHARE, CostModel
from ..controllers.sampling import SamplingParams
from .distribution import TokenDistribution
from .models import LanguageModel, TextReader
from .random_source import RandomSource

DRAFTED = 8  # tokens of a timed draft; the result is per token
READ = (1, 2, 3, 5, 9)  # tokens of timed verifications
REPEATS = 30
WARM = 3
QUICK = 15  # repetitions of a rough measurement


class StepTimes(NamedTuple):
    """What steps take, in seconds.

    Attributes:
        verify: t_v(n) of the target by the number n of tokens it reads.
        models: for each model, per token.
        t_draft: that of the first draft; 0 without one.
    """

    verify: dict[int, float]
    models: list[float]
    t_draft: float

    @property
    def cost(self) -> CostModel:
        """The cost model of the target with the first draft."""
        return verification_costs(self.verify, self.t_draft)


@torch.inference_mode()
def step_times(
    target: LanguageModel,
    models: Sequence[LanguageModel | None],
    prompt: list[int],
    sampling: SamplingParams,
    repeats: int = REPEATS,
    read: Sequence[int] = READ,
) -> StepTimes:
    """The times of a target and of ``models``, where None stands for the target alone.

    All are timed in turn after the same prompt; results are medians. They read the prompt's tokens once more: after a
    text that makes no sense distributions are flat, and sampling from them with top-p takes longer than a forward. As
    in decoding, one token is read after a forward over one token, and several are read after a step of the first draft,
    whose t_draft the cost model has.
    """
    others = [model for model in models if model is not None]
    verify: dict[int, list[float]] = {n: [] for n in read}
    draft: list[list[float]] = [[] for _ in others]
    again = [*islice(cycle(prompt), max(read))]
    readers = [_read(model, prompt) for model in (target, *others)]
    lengths = [reader.length for reader in readers]
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
        for i, (reader, seconds, length) in enumerate(zip(readers[1:], draft, lengths[1:], strict=True)):
            if i:  # every draft follows a forward of the target, as in decoding; after another draft it would be faster
                readers[0].read(again[:1])
                readers[0].crop(lengths[0])
            started = time.perf_counter()
            _draft(reader, again[0], sampling, RandomSource(turn), target.vocab_size)
            _settle(reader.model)
            seconds.append((time.perf_counter() - started) / DRAFTED)
            reader.crop(length)
    t = {n: median(seconds[WARM:]) for n, seconds in verify.items()}
    steps = iter([median(seconds[WARM:]) for seconds in draft])
    times = [t[1] if model is None else next(steps) for model in models]
    first = next((s for s, model in zip(times, models, strict=True) if model is not None), 0.0)
    return StepTimes(t, times, first)


def quick_costs(target: LanguageModel, draft: LanguageModel | None) -> CostModel:
    """Rough costs of a pair, or of a target alone, measured in about a second: initial costs for adaptation."""
    # Any text will do. The sampling parameters are typical ones that keep few tokens.
    return step_times(target, [] if draft is None else [draft], [0] * 32, SamplingParams(1.0, 50), QUICK).cost


def verification_costs(t: Mapping[int, float], t_draft: float) -> CostModel:
    """The cost model of a target that reads n tokens in ``t[n]`` seconds, for n = 1 and larger numbers.

    Where several tokens take other kernels than one, ``t[1]`` lies below the line through the others. What that line
    has for one token beyond ``t[1]`` is ``t_draft_start``. A token more costs at least
    ``LEAST_SHARE``·``t[1]``: less is not told apart from nothing by so few measurements, and tokens without a price
    would be copied without end.
    """
    further = [n - 1 for n in t if n > 1]
    longer = [t[1 + n] - t[1] for n in further]
    slope, start = linear_regression(further, longer)
    if start < 0:
        slope, start = linear_regression(further, longer, proportional=True)
    least = LEAST_SHARE * t[1]
    if slope < least:
        slope, start = least, max(0.0, mean(longer) - least * mean(further))
    per_token = min(slope, t[1])
    return CostModel(t_draft, t[1] - per_token, per_token, start)


def _read(model: LanguageModel, prompt: list[int]) -> TextReader:
    """Read a prompt with ``model``, with room for the timed tokens."""
    reader, text = TextReader.begin(model, prompt, MAX_DRAFT)
    reader.read(text, keep=1)
    return reader


def _draft(reader: TextReader, token: int, sampling: SamplingParams, rng: RandomSource, vocab_size: int) -> None:
    """Draft as the decoder does, after ``token``: a forward and a draw for each token."""
    kept = reader.model.kept_below(vocab_size)
    for _ in range(DRAFTED):
        logits, _ = reader.read([token])
        token = TokenDistribution.from_logits(sampling, logits, vocab_size, kept).sample(0, rng)


def _settle(model: LanguageModel) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
