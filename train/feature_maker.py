"""Makes the shards of a feature dataset from texts, with the draft and, for traces, the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError
from ..controllers.acceptance.training import ACCEPTED, NOT_DRAFTED, REJECTED, ROUND_TOKENS, Examples
from ..controllers.checkpoints.fingerprint import tokenizer_fingerprint
from ..controllers.length import MAX_DRAFT
from ..controllers.sampling import SamplingParams
from ..controllers.training_options import ROUNDS, TARGET
from ..data_gen.dataset import FeatureSettings, Manifest
from ..data_gen.draft_states import (
    after_mixed_text,
    after_rounds,
    after_target_text,
    at_all_drafted_tokens,
    from_draft,
    joined,
)
from ..data_gen.feature_shards import EMBEDDING, STORED, TRACES, TRAIN, VALIDATION, FeatureShard
from ..data_gen.kinds import Text
from ..data_gen.workers import Description, OnDone, ignore
from ..infer.loading.pair import with_states
from ..infer.options import PlacementKeywords
from ..infer.random_source import RandomSource, text_seed
from ..models import CausalLM, LoadedModel, language_model, output_embedding
from ..models.loading.generation_defaults import model_stop_tokens
from ..models.loading.names import load_tokenizer
from ..simulate.trace import END, STATES, Trace, to_tensors, trace
from .datasets import load_same


@dataclass(frozen=True)
class Unit:
    """The contents of a shard to make.

    Attributes:
        part: name of the dataset's part.
        sampling: sampling parameters of the texts.
        texts: the texts; empty for the embedding.
        numbers: index of each text in all data, on which its mixing depends.
    """

    part: str
    sampling: SamplingParams
    texts: list[Text] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class FeatureMaker:
    """Makes the shards of a feature dataset with its models.

    Args:
        manifest: manifest of the dataset, see :func:`~.datasets.feature_identity`.
        device: device of the models.
        vocab_size: vocabulary size to which the draft's distributions are cut; None without a cut.
        placement: keywords of :func:`~specpilot.models.loading.names.load_model` for the target, or None.

    Raises:
        InputError: a model is missing or not that of the data, or traces are requested that cannot be made.
    """

    def __init__(
        self, manifest: Manifest, device: str, vocab_size: int | None, placement: PlacementKeywords | None = None
    ) -> None:
        self.manifest, self.options, self.vocab_size = manifest, manifest.features, vocab_size
        self.tokenizer: PreTrainedTokenizerBase | None = None
        options: dict[str, Any] = {**(placement or {})}
        self.traces = self.options.traced > 0 or self.options.context == ROUNDS
        target = self._load("target", device, **options) if self.traces else None
        draft = self._load("draft", device, target=manifest.target if target is None else target)
        self.draft, self.target = language_model(draft), None if target is None else language_model(target)
        if self.draft.reads_states:
            if self.traces:
                raise InputError(
                    f"traced={self.options.traced}: the draft reads the target's states and has no traces; set it to "
                    "0, and choose a predictor that needs no traces"
                )
            self.target = with_states(language_model(self._load("target", device, **options)), [self.draft])
        self.stop_tokens = frozenset() if target is None else model_stop_tokens(target, self.tokenizer)
        self.embedding: Tensor = output_embedding(draft)

    def _load(self, role: Literal["target", "draft"], device: str, **options: Any) -> LoadedModel:
        """Return the model of ``role``; for the target, also load its tokenizer."""
        name = self.manifest.target if role == "target" else self.manifest.draft
        assert name is not None, "features are of a pair"
        model = load_same(role, name, self.manifest, dtype=self.options.dtype, device=device, **options)
        if role == "target":
            self.tokenizer = load_tokenizer(name)
            if tokenizer_fingerprint(self.tokenizer) != self.manifest.fingerprint["tokenizer"]:
                raise InputError(
                    f"target={name!r}: its tokenizer is not that of the data; restore the data's tokenizer"
                )
        return model

    def describe(self) -> Description:
        """Return the sizes and stop tokens of the models, which the planning of shards needs."""
        read = self.draft if self.options.context != ROUNDS else self.target
        assert read is not None
        identity = {"hidden_size": read.hidden_size, "stop_tokens": sorted(self.stop_tokens)}
        return Description(identity, embedding_bytes=self.embedding.nbytes)

    def make(self, unit: Unit, on_done: OnDone = ignore) -> FeatureShard:
        """Return the tensors of one shard.

        Args:
            unit: the contents of the shard.
            on_done: called with the progress.

        Raises:
            InputError: a state overflows the precision it is stored in.
        """
        if unit.part == EMBEDDING:
            return FeatureShard(EMBEDDING, {EMBEDDING: self.embedding.cpu()})
        tensors = to_tensors(*self._traced(unit)) if unit.part == TRACES else self._examples(unit).columns()
        for name in STATES & tensors.keys():
            tensors[name] = tensors[name].to(STORED[self.options.states])
            if not bool(torch.isfinite(tensors[name]).all()):
                raise InputError(
                    f"states={self.options.states}: a hidden state is too large for this precision; use float32"
                )
        for text in unit.texts:
            on_done(len(text.x))
        return FeatureShard(unit.part, tensors)

    def _traced(self, unit: Unit, longest: int = MAX_DRAFT) -> list[Trace]:
        assert self.target is not None, "the target is loaded if there are traces"
        models, budget, stops = (self.target, self.draft), self.manifest.budget, self.stop_tokens
        assert budget is not None, "feature_identity names it"
        return [
            trace(
                *models, text.prompt_ids, text.x, budget, unit.sampling, RandomSource(text_seed(text.prompt_id)), stops,
                longest, self.manifest.verifier,
            )
            for text in unit.texts
        ]  # fmt: skip

    def _examples(self, unit: Unit) -> Examples:
        if self.options.context == ROUNDS:
            return joined([round_examples(traced) for traced in self._traced(unit, ROUND_TOKENS)])
        if self.options.context == TARGET:
            size = self.draft.vocab_size if self.vocab_size is None else self.vocab_size
            if self.draft.reads_states:
                assert isinstance(self.target, CausalLM)
                assert isinstance(self.draft, CausalLM)
                return after_rounds(self.target, self.draft, unit.texts, unit.sampling, size)
            return after_target_text(self.draft, unit.texts, unit.sampling, size)
        if self.options.mixing == 1:
            return at_all_drafted_tokens(self.draft, unit.texts)
        drafted = [
            drafted_places(self.options, unit.part, number, len(text.x))
            for number, text in zip(unit.numbers, unit.texts, strict=True)
        ]
        return after_mixed_text(self.draft, unit.texts, drafted)


def drafted_places(options: FeatureSettings, part: str, number: int, length: int) -> NDArray[np.bool_]:
    """Return a mask (length,) that is true where a mixed text has a token of the draft.

    Args:
        options: settings of the features, with the share of target tokens and the seed.
        part: name of the dataset's part. Each part has a mixing of its own.
        number: index of the text in all data.
        length: number of tokens of the text.
    """
    assert options.mixing is not None, "mixed texts have a mixing and a seed"
    assert options.seed is not None
    if options.mixing == 1:
        return np.ones(length, dtype=np.bool_)
    stream = 0 if part == VALIDATION else 1 + int(part.removeprefix(TRAIN))
    return from_draft(options.seed, stream, number, length, options.mixing)


def round_examples(traced: Trace) -> Examples:
    """Return the M rounds of a text: the state before a draft, and its outcome, for each token except the last.

    The rounds come from a trace and have the distribution of decoding, whatever the data of the text. After a rejected
    token, a draft continues with its own tokens.
    """
    count = len(traced.text) - 1
    outcomes = torch.full((count, ROUND_TOKENS), NOT_DRAFTED, dtype=torch.int8)
    for row in range(count):
        node, alive = row + 1, True
        for depth in range(ROUND_TOKENS):
            if node == END:
                break
            alive = alive and traced.kept[node]
            outcomes[row, depth] = ACCEPTED if alive else REJECTED
            node = traced.after[node]
    return Examples(
        accept=torch.tensor(traced.accept[1 : count + 1]),
        states=traced.target_states[:count],
        places=torch.arange(1, count + 1, dtype=torch.int32),
        kept=outcomes,
    )
