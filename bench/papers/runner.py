"""Where specs are measured: one pair, one set of prompts, in turn prompt by prompt, each result kept on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...controllers.checkpoints.fingerprint import PairFingerprint
from ...infer.decoder import SpeculativeDecoder
from ...infer.machine import processor, versions
from ..energy import Meter
from ..interval import interval
from ..scoring.perplexity import Likelihood, likelihood, perplexity, perplexity_change
from .decoder_spec import AUTOREGRESSIVE, DecoderSpec
from .records import Record, Records, digest

# A text's score, by the place of its prompt in the list and its tokens.
Scorer = Callable[[int, list[int]], float]
Study = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Studies:
    """What two papers train before they measure; given from outside, for benchmarks do not import training.

    Attributes:
        sweep: gives the result of ``specpilot bench sweep``.
        router: gives the result of ``specpilot bench router``.
    """

    sweep: Study
    router: Study


@dataclass(frozen=True)
class Runs:
    """One spec's generations, in the order of the prompts."""

    spec: DecoderSpec
    records: list[Record]
    scores: list[float] = field(default_factory=list)

    def _sums(self, *names: str) -> list[Any]:
        return [np.array([self._value(record, name) for record in self.records]) for name in names]

    @staticmethod
    def _value(record: Record, name: str) -> float:
        return len(record.tokens) if name == "tokens" else float(getattr(record, name))

    @property
    def likelihoods(self) -> list[Likelihood]:
        return [Likelihood(record.log_p, len(record.tokens)) for record in self.records]

    @property
    def perplexity(self) -> dict[str, float]:
        return perplexity(self.likelihoods)

    @property
    def tokens_per_forward(self) -> dict[str, float]:
        """Generated tokens per target forward, with its interval."""
        return named(interval(np.divide, *self._sums("tokens", "target_forwards")))

    @property
    def tokens_per_second(self) -> dict[str, float]:
        return named(interval(np.divide, *self._sums("tokens", "seconds")))

    @property
    def tokens_per_round(self) -> float:
        """Accepted tokens and the target's own, of a round's mean."""
        tokens, rounds = self._sums("tokens", "rounds")
        return float((tokens.sum() - len(tokens)) / max(1, rounds.sum()))

    @property
    def score(self) -> dict[str, float] | None:
        """Mean of the texts' scores, with its interval; None where nothing was scored."""
        return named(interval(np.divide, np.array(self.scores), np.ones(len(self.scores)))) if self.scores else None

    @property
    def joules_per_token(self) -> float | None:
        joules = [record.joules for record in self.records if record.joules is not None]
        return sum(joules) / sum(len(r.tokens) for r in self.records) if len(joules) == len(self.records) else None

    def perplexity_change(self, baseline: Runs) -> dict[str, float]:
        return perplexity_change(self.likelihoods, baseline.likelihoods)

    def ratio(self, baseline: Runs, over: str) -> dict[str, float]:
        """Of tokens per ``over`` ("target_forwards", "seconds"), with its interval over resampled prompts."""
        values = (*self._sums("tokens", over), *baseline._sums("tokens", over))
        return named(interval(lambda a, b, c, d: (a / b) / (c / d), *values))


def named(found: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), found, strict=True))


class Runner:
    """Measures specs.

    Args:
        pair: the models, in a decoder.
        prompts: token ids, for results; ``validation`` for choices.
        sampling: keywords of ``generate``.
        folder: where records are kept.
        studies: what is trained.
        meter: reads energy.
        score: of a text after one of ``prompts``; None leaves texts unscored.
        expect: called with the number of generations that a measurement will add.
        advance: called after each of them.
    """

    def __init__(
        self,
        pair: SpeculativeDecoder,
        prompts: list[list[int]],
        validation: list[list[int]],
        sampling: dict[str, Any],
        folder: Path,
        studies: Studies,
        *,
        meter: Meter | None = None,
        score: Scorer | None = None,
        expect: Callable[[int], None] = lambda count: None,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        assert pair.tokenizer is not None
        self.pair, self.prompts, self.validation, self.sampling = pair, prompts, validation, sampling
        self.folder, self.studies, self.meter, self.score = folder, studies, meter or Meter([]), score
        self.expect, self.advance = expect, advance
        models = PairFingerprint.of(pair.target.model, pair.drafts[0].model, pair.tokenizer)
        self.identity = {
            "models": models.as_dict(),
            "dtype": str(pair.target.model.dtype),
            "device": str(pair.target.device),
            "processor": processor(),
            "versions": {name: versions()[name] for name in ("specpilot", "torch", "transformers")},
        }

    def measure(
        self, specs: Iterable[DecoderSpec], *, validation: bool = False, **sampling: Any
    ) -> dict[DecoderSpec, Runs]:
        """Runs of every spec on all prompts; the seed is the prompt's place."""
        settings = self.sampling | sampling
        prompts = self.validation if validation else self.prompts
        keys = [digest(prompt, seed) for seed, prompt in enumerate(prompts)]
        files = {
            spec: Records(self.folder, self.identity | {"sampling": settings, "spec": spec.as_dict()})
            for spec in dict.fromkeys(specs)
        }
        missing = {c: [i for i, key in enumerate(keys) if key not in file.known] for c, file in files.items()}
        self.expect(sum(map(len, missing.values())))
        decoders = {spec: spec.decoder(self.pair) for spec in files if missing[spec]}
        for decoder in decoders.values():  # warm-up, not counted
            decoder.generate(prompts[0], **(settings | {"max_new_tokens": 8}))
        names = list(decoders)
        for index in range(len(prompts)):
            turn = index % max(1, len(names))  # nobody is always first after the pause
            for spec in names[turn:] + names[:turn]:
                if index in missing[spec]:
                    files[spec].add(self._run(decoders[spec], prompts[index], index, keys[index], settings))
                    self.advance()
        result = {}
        for spec, file in files.items():
            records = [file.known[key] for key in keys]
            score = None if validation else self.score
            scores = [] if score is None else [score(i, record.tokens) for i, record in enumerate(records)]
            result[spec] = Runs(spec, records, scores)
        return result

    def _run(
        self, decoder: SpeculativeDecoder, prompt: list[int], seed: int, key: str, settings: dict[str, Any]
    ) -> Record:
        with self.meter.interval() as reading:
            started = time.perf_counter()
            generation = decoder.generate(prompt, seed=seed, **settings)
            seconds = time.perf_counter() - started
        stats = generation.stats
        return Record(
            prompt=key,
            tokens=generation.tokens,
            target_forwards=stats.n_target_forwards,
            draft_forwards=stats.n_draft_forwards,
            drafted=stats.n_drafted,
            accepted=stats.n_accepted,
            rounds=len(generation.rounds) - 1,
            seconds=seconds,
            log_p=likelihood(decoder.target, prompt, generation.tokens).log_p,  # the clock has stopped
            joules=reading.total,
        )

    def greedy_texts(self) -> list[list[int]]:
        """The target's own most probable tokens after each prompt."""
        score, self.score = self.score, None
        try:
            runs = self.measure([AUTOREGRESSIVE], temperature=0.0)
        finally:
            self.score = score
        return [record.tokens for record in runs[AUTOREGRESSIVE].records]
