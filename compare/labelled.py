"""Datasets with acceptance labels as columns over their drafted tokens, and what predictors say about these.

Acceptance data has a drafted token at every position of a text; rounds, logged by the decoder or a server, have the
tokens that a controller drafted, each after accepted ones. Shapes: n texts, M drafted tokens, d the draft's states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.length.trained import predictor_of
from ..controllers.sampling import SamplingParams
from ..data_gen.builtin import FILES
from ..data_gen.dataset import read_manifest
from ..data_gen.draft_states import at_drafted_tokens, match_all, signals_of
from ..data_gen.kinds import LABELLED, RoundsRow, Text, read_texts
from ..data_gen.prompts import load_prompts
from ..models import CausalLM, LanguageModel, language_model, output_embedding
from ..train.datasets import check_same, load_same
from .decoders import trained_among
from .drafted import DEPTHS, OWN, UNKNOWN, Drafted, between
from .drift import Array
from .options import CompareOptions

MOST_READ, LONGEST_READ = 400, 1024  # texts, and tokens of each, that the draft reads
POSITIONS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)  # of confidence


class Reading(NamedTuple):
    """What the draft says about the M drafted tokens of a text.

    Attributes:
        signals, matches: draft signals and n-gram match of each.
        before, after: (M, d) its states before each token and at it.
    """

    signals: list[DraftSignals]
    matches: list[NgramMatch]
    before: Tensor
    after: Tensor


@dataclass(frozen=True)
class Labelled:
    """The drafted tokens of one or several datasets of a pair.

    Attributes:
        name: the folders.
        texts: texts with drafted tokens; ``prompts`` (n,) are hashes of their prompts' tokens.
        manifests, domains, readings: (n,) of each text; domain and reading may be unknown.
        predictors: by name, those that were evaluated.
        notes: what was left out, and why.
        placed: (n,) whether it is known where in the text its tokens were drafted; empty: of all.
    """

    name: str
    texts: list[Text]
    prompts: list[str]
    manifests: list[dict[str, Any]]
    domains: list[str]
    readings: list[Reading | None] = field(default_factory=list)
    predictors: dict[str, TrainedPredictor] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    placed: list[bool] = field(default_factory=list)

    @property
    def is_rounds(self) -> bool:
        """Whether the tokens are those that a controller drafted."""
        return all(manifest["kind"] == RoundsRow.kind for manifest in self.manifests)

    @cached_property
    def drafted(self) -> Drafted:
        """The drafted tokens as columns."""
        owner = np.repeat(np.arange(len(self.texts)), [len(text.tokens) for text in self.texts])
        depths, places = ([n for text in self.texts for n in getattr(text, name)] for name in ("depths", "places"))
        known = np.array(self.placed or [True] * len(self.texts))[owner]
        position = np.where(known, between(POSITIONS, places), UNKNOWN)
        found = {"depth": between(DEPTHS, depths), "position": position}
        along = "depth" if self.is_rounds else "position"
        temperatures = [m["sampling"].get("temperature") for m in self.manifests]
        groups = {
            along: found[along], **found, "domain": np.array(self.domains)[owner],
            "temperature": np.array([UNKNOWN if t is None else f"{t:g}" for t in temperatures])[owner],
        }  # fmt: skip
        predictions = self._predictions()
        if OWN in predictions:
            edges = [*SHARES, 1.0]
            names = np.array([UNKNOWN, *(f"{low:g}–{high:g}" for low, high in pairwise(edges))])
            groups["confidence"] = names[np.searchsorted(SHARES, np.nan_to_num(predictions[OWN], nan=-1), side="right")]
        accept = np.concatenate([text.accept for text in self.texts])
        return Drafted(np.array(self.prompts)[owner], accept, groups, predictions)

    def _predictions(self) -> dict[str, Array]:
        if not any(self.readings):
            return {}
        found: dict[str, list[Sequence[float]]] = {name: [] for name in (OWN, *self.predictors)}
        for text, reading in zip(self.texts, self.readings, strict=True):
            missing = [np.nan] * len(text.tokens)
            found[OWN].append(missing if reading is None else [signals[0] for signals in reading.signals])
            for name, predictor in self.predictors.items():
                found[name].append(missing if reading is None else predicted(predictor, text, reading))
        return {name: np.concatenate(values) for name, values in found.items()}


def predicted(predictor: TrainedPredictor, text: Text, reading: Reading) -> list[float]:
    """(M,) what ``predictor`` says about the drafted tokens of a text; one that lags reads the state at each."""
    states = reading.after if predictor.lag else reading.before
    return predictor.predict_all(reading.signals, reading.matches, states, text.tokens)


def read_labelled(folders: Sequence[str], options: CompareOptions, console: Console | None = None) -> Labelled:
    """Read datasets of one pair, and let their draft read the texts where it is found.

    Raises:
        InputError: a folder is no dataset, has no labels or no drafted token, or is of another pair; a controller named
            by ``length`` does not fit.
    """
    name = ", ".join(folders)
    within = [  # servers log requests of each sampling into a folder within
        str(found.parent) for folder in folders for pattern in (MANIFEST, f"*/{MANIFEST}")
        for found in sorted(Path(folder).glob(pattern))
    ]  # fmt: skip
    folders = within or folders
    manifests = [read_manifest(folder, *LABELLED) for folder in folders]
    check_same(folders, manifests, ("fingerprint",))
    texts: list[Text] = []
    of_text: list[dict[str, Any]] = []
    domains: list[str] = []
    for folder, manifest in zip(folders, manifests, strict=True):
        some = [text for text in read_texts(folder, manifest["kind"]) if text.tokens][: options.limit]
        known = domains_of(manifest)
        texts += some
        of_text += [manifest] * len(some)
        domains += [known.get(text.prompt_id, UNKNOWN) for text in some]
    if not texts:
        raise InputError(f"{name}: no token was drafted in it; log some rounds, 64 texts a shard")
    found = Labelled(name, texts, [prompt_name(text.prompt_ids) for text in texts], of_text, domains)
    draft = _draft(manifests[0], options, found.notes)
    if draft is None:
        return found
    fingerprint = PairFingerprint(**manifests[0]["fingerprint"])
    embedding = output_embedding(draft.model)
    of_pair = replace(options, target=manifests[0]["target"], draft=manifests[0]["draft"])
    for word in trained_among(of_pair.words):  # the included one of the pair, if none are named
        controller = load_controller(word)
        found.predictors[word] = predictor_of(
            word, controller, fingerprint, draft.device, embedding, calibrated=True, pair_check=options.pair_check
        )
        if any(manifest["dataset_fingerprint"] in controller.config.datasets for manifest in manifests):
            found.notes.append(f"{word} was trained on this data and looks better here than on other: {found.name}.")
    chosen = {*np.linspace(0, len(texts) - 1, min(MOST_READ, len(texts))).round().astype(int).tolist()}
    if len(chosen) < len(texts):
        found.notes.append(f"The draft has read {len(chosen)} of the {len(texts)} texts of {found.name}.")
    with progress_bar(console or stderr_console(), "texts read by the draft", len(chosen)) as advance:
        for index, (text, manifest) in enumerate(zip(texts, of_text, strict=True)):
            short = index in chosen and len(text.x) <= LONGEST_READ
            found.readings.append(read_drafted(draft, text, manifest) if short else None)
            if index in chosen:
                advance()
    return found


def prompt_name(tokens: Sequence[int]) -> str:
    """What a prompt of these tokens is called in every dataset."""
    return hashlib.sha256(np.array(tokens).tobytes()).hexdigest()[:16]


def domains_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Prompt id → domain, from the prompts that the dataset was made of, if these are on this machine."""
    made_of = manifest.get("prompts")
    if not isinstance(made_of, dict) or not isinstance(made_of.get("source"), str):
        return {}
    source = made_of["source"]
    if source not in FILES and not Path(source).expanduser().exists():
        return {}
    try:
        return {row.id: row.domain for row in load_prompts(source, split=str(made_of.get("split", "train")))}
    except InputError:  # moved or changed since
        return {}


def _draft(manifest: Mapping[str, Any], options: CompareOptions, notes: list[str]) -> LanguageModel | None:
    """The draft of a dataset: that of ``options`` if one was given, else the one that the manifest names.

    Raises:
        InputError: the given one is another.
    """
    given = options.draft if options.draft != CompareOptions.draft else None
    try:
        draft = language_model(
            load_same("draft", given or manifest["draft"], dict(manifest), target=manifest["target"],
                      dtype=options.dtype, device=options.device)
        )  # fmt: skip
    except InputError as error:
        if given is not None:
            raise
        notes.append(f"Without the draft there are no confidences: {error}.")
        return None
    if not isinstance(draft, CausalLM) or draft.reads_states:
        notes.append("Confidences are left out: this draft reads the target's states.")
        return None
    return draft


@torch.inference_mode()
def read_drafted(draft: LanguageModel, text: Text, manifest: Mapping[str, Any]) -> Reading:
    """What the draft says about the drafted tokens of ``text``, each after its prefix of the text."""
    logits, before, after = at_drafted_tokens(draft, text)
    size = manifest.get("vocab_size") or draft.vocab_size
    _, signals = signals_of(text, logits, SamplingParams(**manifest["sampling"]), size)
    return Reading(signals, match_all(text), before.float().cpu(), after.float().cpu())
