"""Configurations of compared decoders, as words or in YAML, and their loading.

A word is a draft length: ``"3"``, ``"cumulative-confidence:0.4"`` or a controller checkpoint. With ``+ngram`` at its
end, the draft may also copy from the text. ``"ngram"`` only copies, ``"none"`` drafts nothing, and ``"default"`` drafts
as ``specpilot generate`` does without a length. With ``"transformers"``, ``"transformers:assisted-3"`` (three drafted
tokens) or ``"transformers:lookup-10"`` (ten copied tokens), transformers decodes the same models. In a YAML file each
name has a word, or a mapping with fields of :class:`ComparedDecoder`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError
from ..common.json_file import build, naming_file, parse_yaml, read_object
from ..common.record import Identity, to_json
from ..controllers.checkpoints.checkpoint import controller_digest
from ..controllers.length import names_rule, takes_cost
from ..controllers.length.cost_model import CostModel
from ..controllers.length.cost_source import CostSource
from ..controllers.sampling import SamplingParams
from ..data_gen.prompts import prompts_of
from ..infer.build import Models
from ..infer.core import Generation
from ..infer.decoder import SpeculativeDecoder
from ..infer.drafters.ngram import split_drafts, split_ngram
from ..infer.loading.controllers import length_digests
from ..infer.loading.pair import load_draft_model, load_target
from ..infer.options import DecodingOptions
from ..infer.plan import LENGTH, draft_spec, target_spec, with_defaults
from ..models import GgufModel, LanguageModel, language_model
from ..models.loading.names import load_tokenizer
from .options import WorkloadOptions

NONE, NGRAM, DEFAULT = "none", "ngram", "default"
TRANSFORMERS = "transformers"
FIRST = ("target", "draft", "length")  # options that come first in a command

# (prompt, seed) → tokens and counters; other engines only report n_generated
Generate = Callable[[list[int], int], Generation]


def trained_among(words: Sequence[str]) -> list[str]:
    """Return the trained length controllers that ``words`` of decoders name, each once."""
    native = [word for word in words if word.partition(":")[0] not in (TRANSFORMERS, NGRAM, DEFAULT)]
    lengths = [word.partition(f"+{NGRAM}")[0] for word in native]
    return [*dict.fromkeys(length for length in lengths if not names_rule(length))]


@dataclass(frozen=True, kw_only=True)
class ComparedDecoder(DecodingOptions):
    """Decoder.

    A length or draft that uses costs uses the measured ones, unless the decoder has costs.

    Attributes:
        name: Name in tables.
        engine: null for specpilot; "transformers" with a generation method after a colon.
    """

    name: str
    engine: str | None = None

    @classmethod
    def of(cls, base: DecodingOptions, name: str, **changes: Any) -> ComparedDecoder:
        """Return the decoder ``name``: the options ``base`` with ``changes``.

        A decoder without a draft model has no ``draft_dtype`` and ``draft_exponent``, unless ``changes`` has them.
        """
        options = {entry.name: getattr(base, entry.name) for entry in fields(DecodingOptions)} | changes
        decoder = cls(**options, name=name)
        drafts = decoder.router is not None or split_drafts(decoder.draft)[0]
        if drafts:
            return decoder
        dtype = decoder.draft_dtype if "draft_dtype" in changes else None
        exponent = decoder.draft_exponent if "draft_exponent" in changes else None
        return replace(decoder, draft_dtype=dtype, draft_exponent=exponent)

    @classmethod
    def parse(cls, word: str | int, base: DecodingOptions) -> ComparedDecoder:
        """Return the decoder of a word of the option ``length`` of ``specpilot compare``; ``base`` has the models.

        Raises:
            InputError: the decoder needs a draft model, and ``base`` has none.
        """
        word = str(word)
        if word.partition(":")[0] == TRANSFORMERS:
            return cls.of(base, word, engine=word)
        if word == NONE:
            return cls.of(base, NONE, draft=None)
        if word.partition(":")[0] == NGRAM:
            return cls.of(base, word, draft=word)
        if base.draft is None:
            raise InputError(f"length={word!r}: needs a draft model; pass one with --draft")
        if word == DEFAULT:
            return cls.of(base, word).with_default_drafts()
        length, _, copying = word.partition(f"+{NGRAM}")
        draft = f"{base.draft}+{NGRAM}{copying}" if word != length else base.draft
        return cls.of(base, word, draft=draft, length=length)

    def with_default_drafts(self) -> ComparedDecoder:
        """Return the decoder with the drafts of ``specpilot generate`` if it has no length; costs do not change."""
        return self if self.engine is not None else replace(with_defaults(self), cost=self.cost)

    @property
    def uses_costs(self) -> bool:
        """Return true if the decoder uses costs and its options have none."""
        if self.engine is not None or self.cost is not None or self.router is not None:
            return False
        by_length = self.length is not None and self.threshold is None and takes_cost(str(self.length))
        return by_length or (isinstance(self.draft, str) and NGRAM in self.draft.rpartition("+")[2])

    @property
    def trained(self) -> bool:
        """Return true if the length is a trained controller."""
        return self.engine is None and self.length is not None and not names_rule(str(self.length))

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        return {entry.name: to_json(getattr(self, entry.name)) for entry in fields(self)}

    @cached_property
    def identity(self) -> Identity:
        """All settings on which the decoder's texts depend, except sampling parameters and measured costs."""
        digests = [] if self.engine is not None else length_digests(self.length)
        digests += [controller_digest(name) for name in (self.copies, self.router) if name is not None]
        return self.to_dict() | {"name": None, "controllers": digests}

    def words(self, cost: Path | None = None) -> list[str]:
        """Return the options of :meth:`arguments`, each quoted for a shell.

        Args:
            cost: a cost file, which becomes the option ``--cost`` if :attr:`uses_costs` is true.
        """
        decoder = self if cost is None or not self.uses_costs else replace(self, cost=str(cost))
        return [shlex.quote(word) for word in decoder.arguments()]

    def arguments(self) -> list[str]:
        """Return the options of ``specpilot generate`` and ``serve``."""
        defaults = {entry.name: entry.default for entry in fields(DecodingOptions)}
        words = []
        for name in dict.fromkeys((*FIRST, *defaults)):
            value, flag = getattr(self, name), "--" + name.replace("_", "-")
            if value != defaults[name] and isinstance(value, bool):
                words.append(flag if value else f"--no-{flag[2:]}")
            elif value != defaults[name]:
                text = "null" if value is None else f"[{','.join(value)}]" if isinstance(value, tuple) else str(value)
                words += [flag, text]
        return words


def read_decoders(file: str | Path, base: DecodingOptions) -> list[ComparedDecoder]:
    """Return the decoders of a YAML file; ``base`` has the models, and the draft of decoders that do not name one.

    Raises:
        InputError: the file is missing or malformed.
    """
    remedy = "write a name with a word or with options on each line, such as 'long: {length: 8}'"
    decoders = read_object(file, remedy, parse_yaml)
    with naming_file(file, remedy):
        if not decoders:
            raise InputError("contains no decoders")
        return decoders_of(decoders, base)


def decoders_of(decoders: Mapping[str, object], base: DecodingOptions) -> list[ComparedDecoder]:
    """Return the decoders of a mapping from names to words, or to mappings of options.

    Raises:
        InputError: an option is unknown or out of range.
    """
    return [
        _read_decoder(str(name), options, base)
        if isinstance(options, Mapping)
        else replace(ComparedDecoder.parse(str(options), base), name=str(name))
        for name, options in decoders.items()
    ]


def _read_decoder(name: str, options: Mapping[str, Any], base: DecodingOptions) -> ComparedDecoder:
    """Return the decoder of a mapping of options."""
    if "target" in options:
        raise InputError(f"{name}: all decoders of a comparison have one target; pass it with --target")
    read = build(ComparedDecoder, {"name": name, **options}, name)
    drafts = read.router is None and any(options.get(key) is not None for key in ("length", "tree", "engine"))
    changes = {"draft": base.draft if drafts else None} | {key: getattr(read, key) for key in options if key != "name"}
    return ComparedDecoder.of(base, name, **changes).with_default_drafts()


class Loader:
    """Loads decoders of a target. Models that several decoders use are loaded once.

    Args:
        base: target and draft model of the comparison, with default options of loading.
    """

    def __init__(self, base: DecodingOptions) -> None:
        self.base = base
        self._targets: dict[str, Models] = {}
        self._drafts: dict[tuple[str, str], LanguageModel] = {}
        self._routed: dict[str, SpeculativeDecoder] = {}

    def target(self, options: DecodingOptions | None = None) -> Models:
        """Return the target without drafts, loaded with ``options``. Default: the options of the comparison."""
        options = options or self.base
        key = str((options.loading, options.placement, options.revision, options.tokenizer))
        if key not in self._targets:
            model, text = load_target(target_spec(options))
            self._targets[key] = Models(language_model(model), [], text)
        return self._targets[key]

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the target."""
        tokenizer = self.target().tokenizer
        assert tokenizer is not None, "a target that is loaded by name has a tokenizer"
        return tokenizer

    def draft(self, name: str, options: DecodingOptions) -> LanguageModel:
        """Return the draft model ``name``, loaded with ``options``.

        Raises:
            InputError: the model is missing or does not fit the target.
        """
        key = name, str((options.draft_dtype, options.loading))
        if key not in self._drafts:
            models = self.target(options)
            assert models.tokenizer is not None  # loaded by name
            self._drafts[key] = load_draft_model(draft_spec(name, options), models.target, models.tokenizer)
        return self._drafts[key]

    def decoder(self, options: ComparedDecoder, cost: CostSource | CostModel | None = None) -> SpeculativeDecoder:
        """Return a decoder of specpilot with ``options``.

        Args:
            options: the decoder; its ``engine`` is None.
            cost: costs of a decoder that uses costs and whose options have none; None to leave them open.

        Raises:
            InputError: a model or controller is missing or does not fit, or options cannot be combined.
        """
        assert options.engine is None
        if cost is not None and options.uses_costs:
            options = replace(options, cost=cost)  # type: ignore[arg-type]  # an object, as from Python
        if options.router is not None:
            if repr(options) not in self._routed:
                self._routed[repr(options)] = SpeculativeDecoder.from_options(options)
            return self._routed[repr(options)]
        drafts = [self.draft(str(name), options) for name in split_drafts(options.draft)[0]]
        return SpeculativeDecoder.from_options(options, self.target(options)._replace(drafts=drafts))

    def generate(
        self,
        options: ComparedDecoder,
        sampling: SamplingParams,
        max_new_tokens: int,
        cost: CostSource | CostModel | None = None,
    ) -> Generate:
        """Return a function that decodes a prompt, from its token ids and a seed.

        Args:
            options: the decoder.
            sampling: the sampling parameters.
            max_new_tokens: maximum number of new tokens of a text.
            cost: as for :meth:`decoder`.

        Raises:
            InputError: as for :meth:`decoder`; or ``options.engine`` does not exist or cannot decode these models; or
                the options do not allow these sampling parameters.
        """
        settings: dict[str, Any] = {**sampling.to_dict(), "max_new_tokens": max_new_tokens}
        if options.engine is None:
            decoder = self.decoder(options, cost)
            setup = decoder.setup_for(seed=0, temperature=sampling.temperature)  # prompts are decoded with seeds
            decoder.new_request([0], sampling, 1, 0, setup=setup)  # refuses options that the sampling does not allow
            return lambda prompt, seed: decoder.generate(prompt, seed=seed, **settings)
        engine, _, method = options.engine.partition(":")
        if engine != TRANSFORMERS:
            raise InputError(
                f"engine={options.engine!r}: no such engine; choose transformers, or leave engine out for specpilot's "
                "own"
            )
        target = self.target(options)
        draft = None if options.draft is None else self.draft(str(options.draft), options)
        if isinstance(target.target.model, GgufModel):
            raise InputError(f"{options.name}: transformers does not decode GGUF files; leave it out")
        from .assisted import TransformersLoop

        return TransformersLoop(target.target, draft, method, sampling, max_new_tokens)


def encoded_prompts(work: WorkloadOptions, tokenizer: Any = None, *, encoder: bool = False) -> list[list[int]]:
    """Return the token ids of the prompts, by default with the target's tokenizer.

    Args:
        work: the options of the workload.
        tokenizer: the tokenizer; None for the target's.
        encoder: whether an encoder reads the prompts.

    Raises:
        InputError: no prompts are left.
    """
    tokenizer = tokenizer or load_tokenizer(work.target)
    return [row.encode(tokenizer, chat=work.chat, system=work.system, encoder=encoder) for row in prompts_of(work)]


def load(
    work: WorkloadOptions, decoder: SpeculativeDecoder | None = None
) -> tuple[SpeculativeDecoder, list[list[int]]]:
    """Return a decoder for the pair of a workload, or ``decoder``, and the token ids of the prompts.

    Raises:
        InputError: a model is missing or does not fit, or no prompts are left.
    """
    if decoder is None and split_ngram(work.draft)[1] is not None:
        raise InputError(
            f"draft={work.draft!r}: needs a draft model without n-gram drafts; use specpilot compare to time n-gram "
            "drafts"
        )
    decoder = decoder or SpeculativeDecoder.from_options(replace(work.base, length=LENGTH))
    return decoder, encoded_prompts(work, decoder.tokenizer, encoder=decoder.target.encodes_prompts)
