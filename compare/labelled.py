"""Datasets with acceptance labels as columns over their drafted tokens, and predictions of acceptance for them.

Acceptance data has a drafted token at every position of a text. Rounds, logged by the decoder or a server, have the
tokens that a controller drafted, each after accepted ones. Shapes: n texts, M drafted tokens, d the size of the draft's
states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from ..common.console import progress_bar, stderr_console
from ..common.errors import InputError
from ..common.files import MANIFEST
from ..controllers.acceptance.ngram_index import NgramMatch
from ..controllers.acceptance.predictor import TrainedPredictor
from ..controllers.acceptance.step import DraftSignals
from ..controllers.checkpoints.checkpoint import load_controller
from ..controllers.length.trained import make_predictor
from ..data_gen.builtin import FILES
from ..data_gen.dataset import Manifest, PromptSet, read_manifest
from ..data_gen.draft_states import at_drafted_tokens, match_all, signals_of
from ..data_gen.kinds import LABELLED, RoundsRow, Text, read_texts
from ..data_gen.prompts import load_prompts
from ..models import CausalLM, LanguageModel, language_model, output_embedding
from ..train.datasets import check_same, load_same
from .decoders import trained_among
from .drafted import DEPTHS, DRAFT_CONFIDENCE, UNKNOWN, Drafted, between
from .drift import Array
from .options import CompareOptions

MOST_READ, LONGEST_READ = 400, 1024  # maximum number of texts, and of tokens of each, that the draft reads
POSITIONS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)  # starts of groups of confidence


class Reading(NamedTuple):
    """The draft's signals and states at the M drafted tokens of a text.

    Attributes:
        signals, matches: (M,) draft signals and n-gram match of each token.
        before, after: (M, d) the draft's states before each token and at it.
    """

    signals: list[DraftSignals]
    matches: list[NgramMatch]
    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class Source:
    """The origin of texts.

    Attributes:
        kind: kind of the dataset.
        target, draft: names of the models.
        fingerprint: fingerprints of ``target``, ``draft`` and ``tokenizer``; None if they are not known.
        sampling: the known sampling parameters.
        verifier: verification rule of the acceptance; empty if it is not known.
    """

    kind: str
    target: str
    draft: str
    fingerprint: Mapping[str, str] | None = None
    sampling: Mapping[str, float | int | None] = field(default_factory=dict)
    verifier: str = ""

    @classmethod
    def of(cls, manifest: Manifest) -> Source:
        """Return the origin of the texts of a dataset."""
        assert manifest.draft is not None, "data with labels is of a pair"
        sampling = manifest.sampling.to_dict()
        return cls(
            manifest.kind, manifest.target, manifest.draft, manifest.fingerprint, sampling, manifest.verifier
        )  # fmt: skip


@dataclass(frozen=True)
class Labelled:
    """The drafted tokens of one or several datasets of a pair.

    Attributes:
        name: the folders.
        texts: (n,) texts with drafted tokens.
        prompts: (n,) hashes of the tokens of the prompts.
        sources: (n,) origin of each text.
        domains: (n,) the domain of each prompt, ``UNKNOWN`` where it is not known.
        readings: (n,) the draft's signals of each text, None if the draft did not read it; empty without a draft.
        predictors: evaluated predictors by name.
        notes: sentences about texts that were left out, with reasons.
        placed: (n,) whether the places of the drafted tokens in the text are known; empty if all are.
        eagle3: name of the draft if it is an EAGLE-3 draft; empty for other drafts, and if the draft cannot be loaded.
    """

    name: str
    texts: list[Text]
    prompts: list[str]
    sources: list[Source]
    domains: list[str]
    readings: list[Reading | None] = field(default_factory=list)
    predictors: dict[str, TrainedPredictor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    placed: list[bool] = field(default_factory=list)
    eagle3: str = ""

    @property
    def is_rounds(self) -> bool:
        """Return true if a controller drafted the tokens; otherwise every position has a drafted token."""
        return all(source.kind == RoundsRow.kind for source in self.sources)

    @cached_property
    def drafted(self) -> Drafted:
        """The drafted tokens as columns."""
        text_index = np.repeat(np.arange(len(self.texts)), [len(text.tokens) for text in self.texts])
        depths, places = ([n for text in self.texts for n in getattr(text, name)] for name in ("depths", "places"))
        is_placed = np.array(self.placed or [True] * len(self.texts))[text_index]
        position = np.where(is_placed, between(POSITIONS, places), UNKNOWN)
        by_place = {"depth": between(DEPTHS, depths), "position": position}
        place_grouping = "depth" if self.is_rounds else "position"
        temperatures = [source.sampling.get("temperature") for source in self.sources]
        groups = {
            place_grouping: by_place[place_grouping], **by_place, "domain": np.array(self.domains)[text_index],
            "temperature": np.array([UNKNOWN if t is None else f"{t:g}" for t in temperatures])[text_index],
        }  # fmt: skip
        predictions = self._predictions()
        if DRAFT_CONFIDENCE in predictions:
            edges = [*SHARES, 1.0]
            names = np.array([UNKNOWN, *(f"{low:g}–{high:g}" for low, high in pairwise(edges))])
            groups["confidence"] = names[
                np.searchsorted(SHARES, np.nan_to_num(predictions[DRAFT_CONFIDENCE], nan=-1), side="right")
            ]
        accept = np.concatenate([text.accept for text in self.texts])
        return Drafted(np.array(self.prompts)[text_index], accept, groups, predictions)

    def _predictions(self) -> dict[str, Array]:
        if not any(self.readings):
            return {}
        columns: dict[str, list[Sequence[float]]] = {name: [] for name in (DRAFT_CONFIDENCE, *self.predictors)}
        for text, reading in zip(self.texts, self.readings, strict=True):
            missing = [np.nan] * len(text.tokens)
            columns[DRAFT_CONFIDENCE].append(
                missing if reading is None else [signals[0] for signals in reading.signals]
            )
            for name, predictor in self.predictors.items():
                columns[name].append(missing if reading is None else predicted(predictor, text, reading))
        return {name: np.concatenate(values) for name, values in columns.items()}


def predicted(predictor: TrainedPredictor, text: Text, reading: Reading) -> list[float]:
    """Return the predicted acceptance (M,) of the drafted tokens of a text.

    A predictor with a lag reads the draft's state at each token, other predictors the state before it.
    """
    states = reading.after if predictor.lag else reading.before
    return predictor.predict_all(reading.signals, reading.matches, states, text.tokens)


def read_labelled(folders: Sequence[str], options: CompareOptions, console: Console | None = None) -> Labelled:
    """Read datasets of a pair. Their draft reads the texts if it can be loaded.

    Raises:
        InputError: a folder is not a dataset, has no labels or no drafted token, or has another pair or verification
            rule; or a controller in ``length`` does not fit.
    """
    name = ", ".join(folders)
    within = [  # servers log the requests of each sampling to a subfolder
        str(file.parent) for folder in folders for pattern in (MANIFEST, f"*/{MANIFEST}")
        for file in sorted(Path(folder).glob(pattern))
    ]  # fmt: skip
    folders = within or folders
    manifests = [read_manifest(folder, *LABELLED) for folder in folders]
    check_same(folders, manifests, ("fingerprint", "verifier"))
    texts: list[Text] = []
    of_text: list[Manifest] = []
    domains: list[str] = []
    for folder, manifest in zip(folders, manifests, strict=True):
        selected = [text for text in read_texts(folder, manifest.kind) if text.tokens][: options.limit]
        domain_of = domains_of(manifest)
        texts += selected
        of_text += [manifest] * len(selected)
        domains += [domain_of.get(text.prompt_id, UNKNOWN) for text in selected]
    if not texts:
        raise InputError(f"{name}: contains no drafted token; log some rounds first, 64 texts for each shard")
    data = Labelled(name, texts, [prompt_name(text.prompt_ids) for text in texts], [*map(Source.of, of_text)], domains)
    draft = _draft(manifests[0], options, data.notes)
    if draft is None:
        return data
    if draft.reads_states:
        data.notes.append("The report has no confidences, because this draft reads the target's states.")
        return replace(data, eagle3=draft_name(manifests[0], options))
    fingerprint = manifests[0].pair
    embedding = output_embedding(draft.model)
    of_pair = replace(options, target=data.sources[0].target, draft=data.sources[0].draft)
    for word in trained_among(of_pair.words):  # by default the included controller of the pair
        controller = load_controller(word)
        data.predictors[word] = make_predictor(
            word, controller, fingerprint, draft.device, embedding, calibrated=True, pair_check=options.pair_check
        )
        if (rule := controller.config.provenance.verifier) != manifests[0].verifier:
            data.notes.append(f"{word} was trained for the verification rule {rule}, which is not that of {data.name}.")
        if any(manifest.dataset_fingerprint in controller.config.datasets for manifest in manifests):
            data.notes.append(f"{word} was trained on {data.name}, so its results here are too good.")
    chosen = {*np.linspace(0, len(texts) - 1, min(MOST_READ, len(texts))).round().astype(int).tolist()}
    if len(chosen) < len(texts):
        data.notes.append(f"The draft read {len(chosen)} of the {len(texts)} texts of {data.name}.")
    with progress_bar(console or stderr_console(), "texts read by the draft", len(chosen)) as advance:
        for index, (text, manifest) in enumerate(zip(texts, of_text, strict=True)):
            short = index in chosen and len(text.x) <= LONGEST_READ
            data.readings.append(read_drafted(draft, text, manifest) if short else None)
            if index in chosen:
                advance()
    return data


def prompt_name(tokens: Sequence[int]) -> str:
    """Return the name of a prompt with ``tokens``, which is the same in every dataset."""
    return hashlib.sha256(np.array(tokens).tobytes()).hexdigest()[:16]


def domains_of(manifest: Manifest) -> dict[str, str]:
    """Return the domain by prompt id, from the prompts of the dataset if they are on this machine."""
    if not isinstance(manifest.prompts, PromptSet):
        return {}
    source = manifest.prompts.source
    if source not in FILES and not Path(source).expanduser().exists():
        return {}
    try:
        return {row.id: row.domain for row in load_prompts(source, split=manifest.prompts.split)}
    except InputError:  # the prompts were moved or changed
        return {}


def _draft(manifest: Manifest, options: CompareOptions, notes: list[str]) -> LanguageModel | None:
    """Return the draft of a dataset: the draft of ``options`` if they name one, else that of the manifest.

    Returns:
        None if the draft cannot be loaded or is not a causal model; ``notes`` then get the reason.

    Raises:
        InputError: the draft of ``options`` cannot be loaded or is not the draft of the dataset.
    """
    try:
        draft = language_model(
            load_same("draft", draft_name(manifest, options), manifest, target=manifest.target, dtype=options.dtype,
                      device=options.device)
        )  # fmt: skip
    except InputError as error:
        if options.draft not in (None, CompareOptions.draft):
            raise
        notes.append(f"The draft cannot be loaded, so the report has no confidences: {error}.")
        return None
    if not isinstance(draft, CausalLM):
        notes.append("The report has no confidences, because the draft is not a causal model of transformers.")
        return None
    return draft


def draft_name(manifest: Manifest, options: CompareOptions) -> str:
    """Return the name of a dataset's draft: that of ``options`` if they name one, else that of the manifest."""
    return options.draft if options.draft not in (None, CompareOptions.draft) else Source.of(manifest).draft


@torch.inference_mode()
def read_drafted(draft: LanguageModel, text: Text, manifest: Manifest) -> Reading:
    """Return the draft's signals and states at the drafted tokens of ``text``, each after its prefix of the text."""
    logits, before, after = at_drafted_tokens(draft, text)
    size = manifest.vocab_size or draft.vocab_size
    _, signals = signals_of(text, logits, manifest.sampling, size)
    return Reading(signals, match_all(text), before.float().cpu(), after.float().cpu())
