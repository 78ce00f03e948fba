"""Decoders that are compared: whole configurations, given in words or in YAML, and how they are loaded.

A word is the length of the drafts, ``"3"``, ``"cumulative-confidence:0.4"`` or a controller checkpoint; with ``+ngram``
behind it the draft may also copy from the text; ``"ngram"`` only copies, ``"none"`` drafts nothing. Other engines
decode the same models: ``"transformers"``, ``"transformers:assisted-3"``, ``"transformers:lookup-10"``, ``"llama.cpp"``
and ``"llama.cpp:4"``. In a YAML file each name has a word, or a mapping with fields of :class:`DecoderSpec`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from ..common.errors import InputError
from ..common.json_file import blaming, build, parse_yaml, read_object
from ..common.options import Options, Several, Share
from ..controllers.checkpoints.checkpoint import controller_digest
from ..controllers.checkpoints.provenance import EXACT
from ..controllers.length import names_rule, takes_cost
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from ..data_gen.prompts import load_prompts
from ..infer.decoder import SpeculativeDecoder
from ..infer.drafters.ngram import split_drafts, split_ngram
from ..infer.generation import Stats
from ..infer.loading.pair import Pair, draft_precision, load_draft, load_target, steered
from ..infer.models import GgufModel, LanguageModel, language_model
from ..infer.options import DecodingOptions, DraftDType, DraftPrecisionOptions, DType, PairCheckOptions
from ..infer.prompting import encode_prompt
from .options import WorkloadOptions

NONE, NGRAM = "none", "ngram"
TRANSFORMERS, LLAMA_CPP = "transformers", "llama.cpp"
ENGINES = (TRANSFORMERS, LLAMA_CPP)
COSTS = "cost"  # the option that names a file of costs
OWN = ("name", "engine")  # fields that are no options of `specpilot generate`

Generate = Callable[[list[int], int], Stats]  # (prompt, seed) → counters; other engines report n_generated only


@dataclass(frozen=True, kw_only=True)
class DecoderSpec(Options):
    """One configuration of decoding. Fields without a description here are those of ``SpeculativeDecoder``.

    Attributes:
        name: its name in tables.
        engine: None for specpilot's own; ``"transformers"`` or ``"llama.cpp"``, with what it does after a colon.
        draft: None decodes without drafts.
        dtype: None for that of the comparison; ``draft_dtype`` likewise.
        cost: None takes the measured costs where the length or the draft uses costs.
    """

    name: str
    engine: str | None = None
    draft: Annotated[str | tuple[str, ...], Several(distinct=False)] | None = None
    length: str | int | None = None
    threshold: Share | None = None
    cost: str | float | None = None
    adapt: bool = False
    copies: str | None = None
    tree: str | None = None
    verifier: str = "token-wise"
    router: str | None = None
    dtype: DType | None = None
    draft_dtype: DraftDType | None = None

    @classmethod
    def parse(cls, word: str | int, draft: str | None) -> DecoderSpec:
        """The decoder of a word; ``draft`` is the draft model.

        Raises:
            InputError: it needs a draft model, and there is none.
        """
        word = str(word)
        if word.partition(":")[0] in ENGINES:
            return cls(name=word, engine=word, draft=draft)
        if word == NONE:
            return cls(name=NONE)
        if word.partition(":")[0] == NGRAM:
            return cls(name=word, draft=word)
        length, _, copying = word.partition(f"+{NGRAM}")
        if draft is None:
            raise InputError(f"length={word!r}: drafts need a draft model; name one as draft")
        return cls(name=word, draft=f"{draft}+{NGRAM}{copying}" if word != length else draft, length=length)

    @property
    def uses_costs(self) -> bool:
        """Whether it decides by costs, and does not bring its own."""
        if self.engine is not None or self.cost is not None or self.router is not None:
            return False
        by_length = self.length is not None and self.threshold is None and takes_cost(str(self.length))
        return by_length or (isinstance(self.draft, str) and NGRAM in self.draft.rpartition("+")[2])

    @property
    def trained(self) -> bool:
        """Whether its length is a trained controller."""
        return self.engine is None and self.length is not None and not names_rule(str(self.length))

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that what it decodes depends on besides the target, sampling and costs."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "name"}
        trained = [str(self.length)] if self.trained else []
        trained += [name for name in (self.copies, self.router) if name is not None]
        return own | {"controllers": [controller_digest(name) for name in trained]}

    def words(self, cost: Path | None = None) -> list[str]:
        """Its options of ``specpilot generate``, with a file of costs for what uses them."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in OWN}
        if cost is not None and self.uses_costs:
            values[COSTS] = cost
        defaults = {entry.name: entry.default for entry in fields(self)} | {"draft": "auto"}
        words = []
        for name, value in values.items():
            if value == defaults[name]:
                continue
            flag = "--" + name.replace("_", "-")
            if value is True:
                words.append(flag)
            else:
                shown = "null" if value is None else f"[{','.join(value)}]" if isinstance(value, tuple) else str(value)
                words += [flag, shlex.quote(shown)]
        return words


def read_decoders(file: str | Path, draft: str | None) -> list[DecoderSpec]:
    """The decoders of a YAML file; where none is named their draft is ``draft``.

    Raises:
        InputError: the file is missing or malformed.
    """
    remedy = "give names with a word or options each, such as 'long: {length: 8}'"
    found = read_object(file, remedy, parse_yaml)
    with blaming(file, remedy):
        if not found:
            raise InputError("holds no decoders")
        specs = []
        for name, given in found.items():
            if isinstance(given, Mapping):
                default = {} if given.get("engine") is None and not _drafts(given) else {"draft": draft}
                specs.append(build(DecoderSpec, {"name": str(name), **default, **given}, str(name)))
            else:
                specs.append(replace(DecoderSpec.parse(given, draft), name=str(name)))
    return specs


def _drafts(given: Mapping[str, Any]) -> bool:
    """Whether options of a decoder without a named draft mean the draft model."""
    return given.get("router") is None and any(given.get(name) is not None for name in ("length", "tree", "engine"))


class Loader:
    """Loads decoders of one target. Models that several of them use are loaded once.

    Args:
        target: name of the target model.
        dtype, draft_dtype: of decoders that name none.
        more: other keywords of ``SpeculativeDecoder.from_pretrained`` for all of them: ``device``, ``pair_check``,
            ``tokenizer``, ``trust_remote_code``.
    """

    def __init__(self, target: str, *, dtype: str = "float32", draft_dtype: str | None = None, **more: Any) -> None:
        self.target_name, self.dtype, self.draft_dtype, self.more = target, dtype, draft_dtype, more
        self._targets: dict[str, Pair] = {}
        self._drafts: dict[tuple[str, str, str | None], LanguageModel] = {}

    def options(self, spec: DecoderSpec, cost: CostModel | None = None) -> DecodingOptions:
        """The options of a spec; ``cost`` is for one that uses measured costs."""
        given: dict[str, Any] = {entry.name: getattr(spec, entry.name) for entry in fields(spec)}
        given = self.more | {name: value for name, value in given.items() if name not in OWN}
        given |= {"dtype": spec.dtype or self.dtype, "draft_dtype": spec.draft_dtype or self.draft_dtype}
        given["cost"] = cost if spec.uses_costs else spec.cost
        return DecodingOptions(target=self.target_name, **given)

    def target(self, dtype: str | None = None) -> Pair:
        """The target without drafts."""
        options = self.options(DecoderSpec(name=NONE, dtype=dtype))  # type: ignore[arg-type]
        if options.dtype not in self._targets:
            model, text = load_target(options)
            self._targets[options.dtype] = Pair(language_model(model), [], text, None, None)
        return self._targets[options.dtype]

    def draft(self, name: str, spec: DecoderSpec) -> LanguageModel:
        """A draft model in the precision of ``spec``."""
        options = self.options(spec)
        key = name, options.dtype, options.draft_dtype
        if key not in self._drafts:
            loading, quantization = draft_precision(options)
            pair = self.target(spec.dtype)
            loaded = load_draft(name, pair.target.model, pair.tokenizer, loading)
            self._drafts[key] = language_model(loaded, quantization=quantization)
        return self._drafts[key]

    def decoder(self, spec: DecoderSpec, cost: CostModel | None = None) -> SpeculativeDecoder:
        """The decoder of a spec of this engine; ``cost`` is for one that uses measured costs.

        Raises:
            InputError: a model or controller is missing or does not fit, or options do not go together.
        """
        assert spec.engine is None
        options = self.options(spec, cost)
        if spec.router is not None:
            return SpeculativeDecoder.from_options(options)
        names, ngram = split_drafts(spec.draft)
        drafts = [self.draft(str(name), spec) for name in names]
        pair = steered(self.target(spec.dtype)._replace(drafts=drafts, ngram=ngram), options)
        return SpeculativeDecoder(
            pair.target, pair.drafts, pair.tokenizer, length=pair.length, ngram=pair.ngram, tree=spec.tree,
            verifier=spec.verifier, pair_check=options.pair_check,
        )  # fmt: skip

    def generate(
        self, spec: DecoderSpec, sampling: SamplingParams, max_new_tokens: int, cost: CostModel | None = None
    ) -> Generate:
        """A function that decodes one prompt as ``spec`` says; arguments and errors as for :meth:`decoder`."""
        options: dict[str, Any] = {**sampling.as_dict(), "max_new_tokens": max_new_tokens}
        if spec.engine is None:
            decoder = self.decoder(spec, cost)
            return lambda prompt, seed: decoder.generate(prompt, seed=seed, **options).stats
        engine, _, how = spec.engine.partition(":")
        target = self.target(spec.dtype)
        draft = None if spec.draft is None else self.draft(str(spec.draft), spec)
        if engine == TRANSFORMERS:
            if isinstance(target.target.model, GgufModel):
                raise InputError(f"{spec.name}: a GGUF file is decoded by llama.cpp; give 'llama.cpp'")
            from .engines.assisted import TransformersLoop

            return TransformersLoop(target.target, draft, how, sampling, max_new_tokens)
        model, drafting = target.target.model, None if draft is None else draft.model
        if not isinstance(model, GgufModel) or not isinstance(drafting, GgufModel | None):
            raise InputError(f"{spec.name}: llama.cpp decodes GGUF files; give one as target, and one as draft or none")
        from .engines.llama_loops import LlamaLoop

        stops = self.decoder(DecoderSpec(name=NONE)).stop_tokens
        return LlamaLoop(model, drafting, how, sampling, max_new_tokens, stops)


def named(specs: Sequence[DecoderSpec]) -> list[DecoderSpec]:
    """``specs``, refused if a name is given twice.

    Raises:
        InputError: it is.
    """
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"decoders: the name {name!r} is given twice; give each another")
    return [*specs]


def load(
    work: WorkloadOptions, decoder: SpeculativeDecoder | None = None
) -> tuple[SpeculativeDecoder, list[list[int]]]:
    """A decoder for a workload's pair, or the given ``decoder``, and the token ids of its prompts.

    Raises:
        InputError: a model is missing or does not fit, or no prompts are left.
    """
    rows = load_prompts(
        work.prompts, column=work.column, split=work.split, limit=work.limit, skip=work.skip, domains=work.domains
    )
    if decoder is None and split_ngram(work.draft)[1] is not None:
        raise InputError(f"draft={work.draft!r}: name a draft model alone; 'specpilot compare' times n-gram drafts")
    decoder = decoder or SpeculativeDecoder.from_pretrained(
        work.target, work.draft, dtype=work.dtype, device=work.device,
        trust_remote_code=work.trust_remote_code,
        draft_dtype=work.draft_dtype if isinstance(work, DraftPrecisionOptions) else None,
        pair_check=work.pair_check if isinstance(work, PairCheckOptions) else EXACT,
    )  # fmt: skip
    return decoder, [encode_prompt(decoder.tokenizer, row.prompt, chat=work.chat, system=work.system) for row in rows]
