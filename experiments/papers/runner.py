"""Parts of the papers' tables: decoder configurations, the runner that measures and stores them, and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from specpilot.common.machine import processor, versions
from specpilot.common.options import Count, Range, Several
from specpilot.compare.interval import interval, ratio_interval
from specpilot.compare.options import WorkloadOptions
from specpilot.compare.runner import Meter, Run, Timed, interleave_stored
from specpilot.compare.store import Store
from specpilot.compare.table import Row, Table
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint
from specpilot.controllers.length import parse_rule
from specpilot.data_gen.options import BUILTIN
from specpilot.infer.core import Generation
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams
from specpilot.infer.drafters.tree import parse_expansions
from specpilot.infer.verify import RULES

from .quality import Likelihood, likelihood, perplexity, perplexity_change


@dataclass(frozen=True, kw_only=True)
class PapersOptions(WorkloadOptions):
    """Benchmark. Sampling is that of the papers.

    Options of the measurements of ``python -m experiments papers``.

    Attributes:
        validation_limit: Number of other prompts for choosing settings: from the validation split of the built-in
            prompts, or the following prompts of a file.
        train_limit: Number of training prompts of heads (specdecpp) and routers (selection).
        drafts: Drafts to choose between (selection); the first two are each specialised on one of pair_domains.
        pair_domains: Domains of the first two drafts. Default: math and sql of the built-in prompts, or else all.
    """

    limit: Count = 60
    validation_limit: Count = 16
    train_limit: Count = 400
    drafts: Annotated[tuple[str, ...], Several(2)] = (
        "tiny-draft-math", "tiny-draft-sql-shell", "tiny-draft", "tiny-draft-code-prose",
    )  # fmt: skip
    pair_domains: tuple[str, ...] = ()
    max_new_tokens: Count = 96
    top_k: Count | None = 10
    top_p: Annotated[float, Range(0, 1, "(]")] = 0.9

    def validation(self) -> WorkloadOptions:
        """Return the same options for the validation prompts."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(WorkloadOptions)}
        values |= {"split": "validation"} if self.prompts in BUILTIN else {"skip": self.skip + self.limit}
        return WorkloadOptions(**(values | {"limit": self.validation_limit}))


Scorer = Callable[[int, list[int]], float]  # (prompt's index, generated tokens) → score


@dataclass(frozen=True)
class DecoderSpec:
    """The configuration of a compared decoder.

    Attributes:
        verifier: the verification rule, with its threshold after a colon.
        length: the rule that ends a draft, such as "4" or "fallback:0.6"; None for the decoder's default.
        tree: the number of children at each level, such as "4x1x1"; None for chains.
        beams: number of beams of joint decoding; None for the default, or other rules.
        argmax: whether the most probable beams are kept instead of sampled ones.
        drafts: whether there is a draft model.
    """

    verifier: str = "token-wise"
    length: str | None = None
    tree: str | None = None
    beams: int | None = None
    argmax: bool = False
    drafts: bool = True

    @property
    def lossy(self) -> bool:
        """Return true if the output distribution differs from the target's."""
        return not RULES[self.verifier.partition(":")[0]].lossless

    def decoder(self, pair: SpeculativeDecoder) -> SpeculativeDecoder:
        """Return a decoder that shares the models of ``pair`` and their packed weights."""
        return SpeculativeDecoder(
            pair.target,
            pair.drafts[0] if self.drafts else None,
            pair.tokenizer,
            length=None if self.length is None else parse_rule(self.length),
            verifier=self.verifier,
            beams=None if self.beams is None else Beams(self.beams, self.argmax),
            tree=None if self.tree is None else parse_expansions(self.tree),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


AUTOREGRESSIVE = DecoderSpec(drafts=False)
QUALITY = "perplexity"


def row_of(spec: DecoderSpec, cells: Row) -> Row:
    """Return ``cells`` as a row of a table; a row of a lossy rule must include the perplexity."""
    assert not spec.lossy or cells.get(QUALITY), f"{spec}: a lossy row without its {QUALITY}"
    return cells


@dataclass(frozen=True)
class Record:
    """One generation.

    Attributes:
        tokens: the generated tokens.
        rounds: number of drafts verified, or of MTJD's steps; the first token comes from the prefill and is in none.
        seconds: wall time of the whole call.
        log_p: Σ log p of the tokens under the target at temperature 1, in nats.
        joules: energy of all devices; None without a counter.
    """

    tokens: list[int]
    target_forwards: int
    rounds: int
    seconds: float
    log_p: float
    joules: float | None


@dataclass(frozen=True)
class Runs:
    """The generations of one decoder in the order of the prompts, and their scores if there are any."""

    spec: DecoderSpec
    records: list[Record]
    scores: list[float] = field(default_factory=list)

    def _values(self, name: str) -> Any:
        """Return the attribute ``name`` of each record (prompts,)."""
        return np.array([float(getattr(record, name)) for record in self.records])

    @property
    def tokens(self) -> Any:
        """The number of generated tokens of each record (prompts,)."""
        return np.array([float(len(record.tokens)) for record in self.records])

    @property
    def likelihoods(self) -> list[Likelihood]:
        return [Likelihood(record.log_p, len(record.tokens)) for record in self.records]

    @property
    def perplexity(self) -> dict[str, float]:
        return perplexity(self.likelihoods)

    @property
    def tokens_per_forward(self) -> dict[str, float]:
        """Generated tokens per target forward, with their interval."""
        return interval(np.divide, self.tokens, self._values("target_forwards")).to_dict()

    @property
    def tokens_per_second(self) -> dict[str, float]:
        return interval(np.divide, self.tokens, self._values("seconds")).to_dict()

    @property
    def tokens_per_round(self) -> float:
        """Mean number of tokens per round: accepted tokens and the target's own."""
        return float((self.tokens - 1).sum() / max(1, self._values("rounds").sum()))

    @property
    def score(self) -> dict[str, float] | None:
        """Mean score with its interval; None if nothing was scored."""
        return interval(np.divide, np.array(self.scores), np.ones(len(self.scores))).to_dict() if self.scores else None

    @property
    def joules_per_token(self) -> float | None:
        joules = [record.joules for record in self.records if record.joules is not None]
        return float(sum(joules) / self.tokens.sum()) if len(joules) == len(self.records) else None

    def perplexity_change(self, baseline: Runs) -> dict[str, float]:
        return perplexity_change(self.likelihoods, baseline.likelihoods)

    def ratio(self, baseline: Runs, over: str) -> dict[str, float]:
        """Return the ratio of tokens per ``over`` ("target_forwards", "seconds") to ``baseline``, with its interval."""
        return ratio_interval(self.tokens, self._values(over), baseline.tokens, baseline._values(over)).to_dict()


@dataclass
class Runner:
    """A runner that measures decoder configurations on one pair, and stores their generations.

    Attributes:
        pair: a decoder that holds the models.
        prompts: token ids of the test prompts.
        validation: token ids of the prompts for choosing settings.
        work: the command's options.
        store: stores generations.
        console: shows progress.
        meter: reads energy.
        score: scores an output for one of ``prompts``; None leaves outputs unscored.
    """

    pair: SpeculativeDecoder
    prompts: list[list[int]]
    validation: list[list[int]]
    work: PapersOptions
    store: Store
    console: Console
    meter: Meter = field(default_factory=Meter)
    score: Scorer | None = None

    def __post_init__(self) -> None:
        assert self.pair.tokenizer is not None
        models = PairFingerprint.of(self.pair.target.model, self.pair.drafts[0].model, self.pair.tokenizer)
        self.identity = {
            "models": models.to_dict(),
            "dtype": str(self.pair.target.model.dtype),
            "device": str(self.pair.target.device),
            "processor": processor(),
            "versions": {name: versions()[name] for name in ("specpilot", "torch", "transformers")},
        }

    @property
    def folder(self) -> Path:
        return self.store.folder

    def measure(
        self, specs: Iterable[DecoderSpec], *, validation: bool = False, **sampling: Any
    ) -> dict[DecoderSpec, Runs]:
        """Return the generations of every configuration for all prompts; the seed is the prompt's index."""
        by_key = {str(i): spec for i, spec in enumerate(dict.fromkeys(specs))}
        settings = self.work.sampling | sampling
        prompts = self.validation if validation else self.prompts

        def run(decoder: SpeculativeDecoder) -> Run[Generation]:
            return lambda index, repeat: decoder.generate(prompts[index], seed=index, **settings)

        def identity(key: str, index: int) -> dict[str, Any]:
            spec = by_key[key].to_dict()
            return self.identity | {"sampling": settings, "spec": spec, "prompt": prompts[index], "seed": index}

        stored_records = interleave_stored(
            {key: run(spec.decoder(self.pair)) for key, spec in by_key.items()}, len(prompts), self.console,
            store=self.store, identity=identity, record=lambda key, index, timed: asdict(self._record(timed)),
            meter=self.meter,
        )  # fmt: skip
        result = {}
        for key, spec in by_key.items():
            records = [Record(**record) for record in stored_records[key]]
            score = None if validation else self.score
            scores = [] if score is None else [score(i, record.tokens) for i, record in enumerate(records)]
            result[spec] = Runs(spec, records, scores)
        return result

    def _record(self, timed: Timed[Generation]) -> Record:
        generation = timed.value
        return Record(
            tokens=generation.tokens,
            target_forwards=generation.stats.n_target_forwards,
            rounds=len(generation.rounds) - 1,
            seconds=timed.seconds,
            log_p=likelihood(self.pair.target, generation.prompt_tokens, generation.tokens).log_p,
            joules=timed.joules,
        )

    def greedy_outputs(self) -> list[list[int]]:
        """Return the target's greedy continuation of each prompt."""
        return [record.tokens for record in self.measure([AUTOREGRESSIVE], temperature=0.0)[AUTOREGRESSIVE].records]


def choose(runner: Runner, grid: list[DecoderSpec]) -> tuple[DecoderSpec, list[dict[str, Any]]]:
    """Return the chosen setting of a lossy rule, and the results of every setting on the validation prompts.

    The paper takes the setting of lowest perplexity (Qin et al. 2025, Appendix F). Perplexities of two dozen outputs
    are noisy, so all settings whose perplexity is not significantly above the lowest (95 % interval of the change) are
    considered, and the one with the most tokens per target forward is taken.
    """
    runs = runner.measure(grid, validation=True)
    chosen = best(runs)
    return chosen, [
        spec.to_dict()
        | {
            "perplexity": measured.perplexity,
            "tokens_per_forward": measured.tokens_per_forward["value"],
            "chosen": spec == chosen,
        }
        for spec, measured in runs.items()
    ]


def best(runs: dict[DecoderSpec, Runs]) -> DecoderSpec:
    """Return the fastest setting whose perplexity is not significantly above the lowest.

    The fastest setting has the most tokens per target forward.
    """
    lowest = min(runs.values(), key=lambda measured: measured.perplexity["value"])
    near = [spec for spec, measured in runs.items() if measured.perplexity_change(lowest)["low"] <= 0]
    return max(near, key=lambda spec: runs[spec].tokens_per_forward["value"])


@dataclass(frozen=True)
class Report:
    """The reproduction of one paper.

    Attributes:
        figures: numbers by their names in ``papers.json``.
        draw: writes the plot to a path.
    """

    figures: dict[str, Any]
    tables: list[Table]
    draw: Callable[[Path], None]


@dataclass(frozen=True)
class Paper:
    """One paper: its name on the command line, its title, and the function that reproduces it."""

    name: str
    title: str
    run: Callable[[Runner], Report]


def percent(change: dict[str, float]) -> str:
    """Return a relative change and its 95 % interval as text, in percent."""
    return f"{change['value']:+.1%} ({change['low']:+.1%} to {change['high']:+.1%})"
