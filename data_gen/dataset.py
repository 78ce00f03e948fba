"""Datasets on disk: shards, and a manifest that lists the finished shards with their hashes.

A shard appears by atomic rename, then the manifest is updated. The manifest holds no clock times, so that a killed and
resumed run writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as short
from typing import Any, ClassVar, Protocol, Self

from ..common.errors import InputError, counted
from ..common.files import LOCK, MANIFEST, FolderLock, check_no_pointer, lacking, replacing, sha256
from ..common.json_file import JsonObject, build, naming_file, read_object
from ..common.record import Identity, Record, SparseRecord, to_json
from ..controllers.arms import Arm
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.checkpoints.provenance import TOKEN_WISE
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams

SCHEMA_VERSION = 3
VERSIONS = {"schema_version": SCHEMA_VERSION, "code_version": version("specpilot")}  # in every manifest

# Kind of a dataset → the command that makes it.
COMMANDS = {
    "acceptance": "specpilot data acceptance",
    "answers": "specpilot data answers",
    "rounds": "specpilot data on-policy",
    "router": "specpilot data router",
    "features": "specpilot data features",
    "responses": "specpilot data acceptance --responses",
}
OUTCOME = ("shards", "mean_acceptance", "complete", "dataset_fingerprint")  # keys that are not part of the identity
ANSWERED = ("answers", "acceptance", "rounds")  # kinds whose tokens are those of the target's answers
ENOUGH = 8  # minimum number of prompts for a check that not all answers are empty
MAKE_AGAIN = "remove the folder and generate the data again"
REPAIR = "run the command that made the dataset again to repair such shards"
SERVED = "served requests cannot be repeated: remove the shard from manifest.json"


@dataclass(frozen=True, kw_only=True)
class ShardEntry(SparseRecord):
    """A shard in the manifest.

    The mean acceptance of a dataset is the sum of ``acceptance_sum`` over the sum of ``drafted``.

    Attributes:
        file: name of the file.
        part: the part of a feature dataset to which the shard belongs.
        texts: number of texts with examples in a feature dataset.
        rows: number of rows or examples.
        tokens: number of generated tokens.
        drafted: number of drafted tokens with a label.
        acceptance_sum: sum of the acceptance probabilities; the whole number 0 without drafted tokens.
        tokenised_again: number of texts that another engine returned without tokens.
        of_other_length: number of such texts with another number of tokens than the engine reported.
        sha256: hash of the file.
    """

    file: str
    part: str | None = None
    texts: int | None = None
    rows: int | None = None
    tokens: int | None = None
    drafted: int | None = None
    acceptance_sum: int | float | None = None  # the type is kept, so that a resumed run writes the same bytes
    tokenised_again: int | None = None
    of_other_length: int | None = None
    sha256: str


@dataclass(frozen=True, kw_only=True)
class RolloutSettings(Record):
    """Options on which the rows of a dataset of prompts depend.

    Rounds that a server logged have only some of these options; the others are None.

    Attributes:
        chat: whether the chat template was applied to the prompts.
        system: system message of the chat.
        max_prompt_tokens: maximum number of tokens of a prompt; None for no maximum.
        max_new_tokens: maximum number of new tokens of a text.
        batch_size: number of prompts that were decoded together.
        shard_size: number of prompts of a shard.
        dtype: precision of the models.
        device: type of the device, or the engine, that generated the texts.
    """

    chat: bool | None = None
    system: str | None = None
    max_prompt_tokens: int | None = None
    max_new_tokens: int
    batch_size: int | None = None
    shard_size: int | None = None
    dtype: str | None = None
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class FeatureSettings(Record):
    """Options on which features depend, see :class:`~specpilot.train.options.FeatureDataOptions`.

    ``mixing``, ``mixings`` and ``seed`` are None unless texts are mixed.
    """

    context: str
    mixing: float | None = None
    mixings: int | None = None
    seed: int | None = None
    texts: int | None = None
    traced: int
    max_length: int
    validation_fraction: float
    dtype: str
    states: str
    device: str

    def by_name(self) -> dict[str, object]:
        """Return the options by name, without those of mixed texts that are None."""
        mixed = {"mixing", "mixings", "seed"}
        return {name: value for name, value in vars(self).items() if name not in mixed or value is not None}


@dataclass(frozen=True, kw_only=True)
class PromptSet(Record):
    """The prompts of a dataset.

    Attributes:
        source: file, folder or name of the prompts.
        split: the split.
        count: number of prompts.
        left_out: number of prompts that were too long.
        sha256: hash of all prompts, in order.
    """

    source: str
    split: str = "train"
    count: int
    left_out: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ResponseSource(SparseRecord):
    """Another engine that generated texts.

    Attributes:
        source: ``openai`` (a server) or ``vllm``.
        base_url: address of the server.
        model: name of the target on the server.
        version: version of vLLM.
        tensor_parallel: number of GPUs among which vLLM divided the target.
        sha256: fingerprint of the dataset of texts. Only a dataset of labels for these texts has it; otherwise None.
    """

    source: str
    base_url: str | None = None
    model: str | None = None
    version: str | None = None
    tensor_parallel: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest(SparseRecord):
    """The manifest of a dataset, or of the data of a training run.

    Attributes:
        schema_version: version of this format. Other versions cannot be read.
        code_version: version of specpilot that made the data; None in the run folders of copy heads and drafts.
        kind: kind of the dataset, a key of ``COMMANDS``; ``draft`` or ``copies`` for the data of these training runs.
        target, draft: names of the models; ``draft`` is None for data of the target alone and of routers.
        fingerprint: hashes of ``target``, ``draft`` and ``tokenizer``, as far as the data depends on them.
        sampling: sampling parameters of the texts.
        other_sampling: sampling parameters of further datasets from which the data is made.
        vocab_size: size of the target's vocabulary if the draft's vocabulary is larger: the draft's distributions are
            cut to it. Otherwise None.
        arms: arms of a router's data.
        hidden_size: size of a router's embeddings, or of features.
        served: whether a server logged the texts, which cannot be made again.
        verifier: verification rule of the acceptance probabilities.
        length, threshold, cost: options of the decoder that drafted.
        controller: digest of the trained controller that drafted; None without one.
        seed: seed of the texts.
        prompts: description of the prompts; a list for the data of several datasets.
        day: date in the chat template.
        settings: further options on which the rows depend.
        responses: the engine that generated the texts; None for specpilot.
        budget: maximum number of new tokens of a text, without the prompt, for features.
        datasets: the ``dataset_fingerprint`` of each dataset from which the data is made; empty for a single dataset of
            texts.
        data_fingerprint: for features, one hash of all ``datasets``, or the only entry. A training run on these
            features has this hash as its ``dataset_fingerprint``.
        stop_tokens: tokens that end a text, for features.
        predictor: name of the predictor that a run trains, or ``copies`` or ``draft``; None for datasets and in the run
            folders of routers.
        kept_tokens: tokens to which the output of a draft is restricted, for a draft's training.
        shards: entries of the finished shards, in order.
        mean_acceptance: mean acceptance probability of the drafted tokens; None if there are no labels.
        complete: whether all shards are written.
        dataset_fingerprint: identifies the data: the SHA-256 of the shards' hashes; for several datasets together one
            hash of their fingerprints; for a draft's training the SHA-256 of the documents and the initial draft. None
            until the dataset is complete.
    """

    schema_version: int
    code_version: str | None = None
    kind: str
    target: str
    draft: str | None = None
    fingerprint: dict[str, str]
    sampling: SamplingParams
    other_sampling: list[SamplingParams] = field(default_factory=list)
    vocab_size: int | None = None
    arms: list[Arm] = field(default_factory=list)
    hidden_size: int | None = None
    served: bool = False
    verifier: str = TOKEN_WISE
    length: str | None = None
    threshold: float | None = None
    cost: CostModel | str | None = None
    controller: str | None = None
    seed: int | None = None
    prompts: PromptSet | list[PromptSet | None] | None = None
    day: str | None = None
    settings: RolloutSettings | FeatureSettings | None = None
    responses: ResponseSource | None = None
    budget: int | None = None
    datasets: list[str] = field(default_factory=list)
    data_fingerprint: str | None = None
    stop_tokens: list[int] = field(default_factory=list)
    predictor: str | None = None
    kept_tokens: list[int] | None = None
    shards: list[ShardEntry] = field(default_factory=list)
    mean_acceptance: float | None = None
    complete: bool = False
    dataset_fingerprint: str | None = None

    @property
    def pair(self) -> PairFingerprint:
        """The fingerprint of target, draft and tokenizer.

        Raises:
            InputError: the manifest has no hash of the target or of the tokenizer.
        """
        return build(PairFingerprint, {"draft": None, **self.fingerprint}, "fingerprint")

    @property
    def rollouts(self) -> RolloutSettings:
        """The settings of a dataset of texts.

        Raises:
            InputError: the manifest has no such settings.
        """
        if not isinstance(self.settings, RolloutSettings):
            raise InputError(f"a dataset of kind {self.kind!r} has no settings of texts; {MAKE_AGAIN}")
        return self.settings

    @property
    def allows_answers(self) -> bool:
        """Return true if answers may have more than one token; false for rounds that a server logged."""
        settings = self.settings
        return isinstance(settings, RolloutSettings) and settings.max_new_tokens > 1 and not self.served

    @property
    def features(self) -> FeatureSettings:
        """The settings of a feature dataset.

        Raises:
            InputError: the manifest has no such settings.
        """
        if not isinstance(self.settings, FeatureSettings):
            raise InputError(f"a dataset of kind {self.kind!r} has no settings of features; {MAKE_AGAIN}")
        return self.settings


def rule_identity(verifier: str) -> Identity:
    """Return the part of a dataset's identity that names the verification rule of its acceptance probabilities.

    It is empty for the rule ``token-wise``, which a manifest without a rule stands for.
    """
    return {} if verifier == TOKEN_WISE else {"verifier": verifier}


def new_manifest(identity: Identity) -> Manifest:
    """Return the manifest of a dataset with ``identity`` and without shards."""
    return Manifest.from_dict({**VERSIONS, **identity})


class Shard(Protocol):
    """The contents of a shard's file.

    Attributes:
        suffix: suffix of the file's name.
    """

    suffix: ClassVar[str]

    def save(self, file: Path) -> None:
        """Write the file."""

    def entry(self, file: str, sha256: str) -> ShardEntry:
        """Return the shard's entry in the manifest, with the name and the hash of its file."""


class ShardWriter:
    """Writes the shards of a dataset. It continues an earlier run with the same settings.

    Args:
        folder: the dataset's folder; created if necessary.
        identity: all settings that determine the shards. A folder with another identity is refused.

    Raises:
        InputError: the folder belongs to another run, contains other files, or another process writes to it.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder
        self._lock = FolderLock(folder, "is writing this dataset")
        try:
            self._is_new = not (folder / MANIFEST).exists()
            self._identity: JsonObject = {**VERSIONS, **identity}
            if self._is_new:
                self._require_empty()
            self.manifest = new_manifest(identity) if self._is_new else self._continued()
            for leftover in folder.glob("*.tmp"):
                leftover.unlink()
            self._save(self.manifest)  # before the first shard, because shards without a manifest cannot be identified
        except BaseException:
            self.close()
            raise

    def _continued(self) -> Manifest:
        """Return the manifest in the folder.

        Raises:
            InputError: the manifest has another identity.
        """
        manifest = read_manifest(self.folder)
        stored = {
            key: value for key, value in read_object(self.folder / MANIFEST, MAKE_AGAIN).items() if key not in OUTCOME
        }
        rule = {"verifier": TOKEN_WISE}  # the rule of manifests without one
        if changes := differences(rule | stored, {**rule, **self._identity}):
            changed_settings = "; ".join(
                f"{name} was {short(old)} and is {short(new)}" for name, (old, new) in changes.items()
            )
            raise InputError(
                f"{self.folder}: belongs to a run with other settings: {changed_settings}; repeat those settings, or "
                "choose another output folder"
            )
        self._identity = stored
        return manifest

    def _require_empty(self) -> None:
        """Raise InputError if the folder contains files of others."""
        foreign = [path.name for path in self.folder.iterdir() if path.name != LOCK and path.suffix != ".tmp"]
        if foreign:
            raise InputError(f"{self.folder}: is not empty and has no {MANIFEST}; choose another output folder")

    @property
    def path(self) -> Path:
        """The dataset's folder."""
        return self.folder

    @property
    def noun(self) -> str:
        """The noun for a row in messages: "text", or "reading" for features, which have several readings of a text."""
        return "reading" if self.manifest.kind == "features" else "text"

    @property
    def is_complete(self) -> bool:
        """Return true if all shards are written."""
        return self.manifest.complete

    @property
    def tokens(self) -> int:
        """The number of tokens of all written shards; of examples for shards without a number of tokens."""
        return sum(shard.rows or 0 if shard.tokens is None else shard.tokens for shard in self.manifest.shards)

    def missing(self, total: int) -> list[int]:
        """Return the numbers of the shards, of ``total`` in all, that are not yet written."""
        stored_stems = {Path(shard.file).stem for shard in self.manifest.shards}
        return [index for index in range(total) if stem_of(index) not in stored_stems]

    def forget_damaged(self) -> list[str]:
        """Remove shards that are missing or changed from the manifest, and return their names."""
        damaged = damaged_shards(self.folder, self.manifest.shards)
        if damaged:
            intact = [shard for shard in self.manifest.shards if shard.file not in damaged]
            self._save(
                replace(self.manifest, shards=intact, mean_acceptance=None, complete=False, dataset_fingerprint=None)
            )
        return damaged

    def write(self, shard: Shard, index: int | None = None) -> None:
        """Write a shard, then its entry in the manifest.

        Shards may be written in any order. The manifest lists them by index.

        Args:
            shard: the shard.
            index: index of the shard in the dataset; by default after the last shard.
        """
        if index is None:  # a shard before the last one may have been removed
            count = len(self.manifest.shards)
            index = next(index for index in self.missing(2 * count + 1) if index >= count)
        path = self.folder / f"{stem_of(index)}.{shard.suffix}"
        with replacing(path) as temporary:
            shard.save(temporary)
            digest = sha256(temporary)
        entries = [*self.manifest.shards, shard.entry(path.name, digest)]
        self._save(replace(self.manifest, shards=sorted(entries, key=lambda entry: (len(entry.file), entry.file))))

    def complete(self) -> None:
        """Mark the dataset as complete."""
        shards = self.manifest.shards
        digest = hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest()
        self._save(
            replace(self.manifest, mean_acceptance=mean_acceptance(shards), complete=True, dataset_fingerprint=digest)
        )

    def _save(self, manifest: Manifest) -> None:
        """Write ``manifest``: the identity unchanged, then the outcome."""
        outcome = {name: to_json(getattr(manifest, name)) for name in OUTCOME}
        with replacing(self.folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps({**self._identity, **outcome}, indent=1) + "\n", encoding="utf-8")
        self.manifest = manifest

    def close(self) -> None:
        """Release the folder's lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._is_new and {path.name for path in self.folder.iterdir()} <= {MANIFEST, LOCK}:
            (self.folder / MANIFEST).unlink(missing_ok=True)  # no shard was written
        self.close()


def differences(first: Any, second: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the values in which two nested dictionaries differ.

    Args:
        first, second: the dictionaries.
        name: the key of these dictionaries in a larger one; empty at the top.

    Returns:
        Both values by key, such as ``sampling.top_k``; None for a missing value.
    """
    if not isinstance(first, dict) or not isinstance(second, dict):
        return {} if first == second else {name: (first, second)}
    pairs: dict[str, tuple[Any, Any]] = {}
    for key in dict.fromkeys((*first, *second)):
        pairs |= differences(first.get(key), second.get(key), f"{name}.{key}".lstrip("."))
    return pairs


def stem_of(index: int) -> str:
    """Return the file name of a shard, without its suffix."""
    return f"shard-{index:05d}"


def mean_acceptance(shards: Sequence[ShardEntry]) -> float | None:
    """Return the mean acceptance probability of the drafted tokens of ``shards``; None if no shard counts them."""
    counted = [
        (shard.acceptance_sum, shard.drafted)
        for shard in shards
        if shard.acceptance_sum is not None and shard.drafted is not None
    ]
    if not counted:
        return None
    return float(sum(accepted for accepted, _ in counted) / max(1, sum(drafted for _, drafted in counted)))


def read_manifest(folder: str | Path, *kinds: str, complete: bool = False) -> Manifest:
    """Return the manifest of a dataset.

    Args:
        folder: folder of the dataset.
        kinds: allowed kinds of the dataset. By default, all kinds.
        complete: whether the dataset must be complete, as for training.

    Raises:
        InputError: the folder has no manifest, or a damaged one, or one of another schema version; or the dataset is of
            another kind, incomplete or without answers.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder}: no dataset, {lacking(path.parent, MANIFEST)}; make one with 'specpilot data …'")
    manifest = parse_manifest(path)
    kind = manifest.kind
    if kinds and kind not in kinds:
        commands = " or ".join(f"'{COMMANDS[kind]}'" for kind in kinds)
        raise InputError(f"{folder}: a dataset of kind {kind!r}; make one with {commands}")
    if complete and not manifest.complete:
        raise InputError(f"{folder}: the dataset is incomplete; run '{COMMANDS[kind]}' again to finish it")
    if complete:
        check_answered(folder, manifest)
    return manifest


def check_answered(folder: str | Path, manifest: Manifest) -> None:
    """Raise InputError if the answers of a dataset only have an end token, though more tokens were allowed.

    Rounds that a server logged are not checked, because a client may request single tokens.
    """
    rows, tokens = (sum(getattr(shard, name) or 0 for shard in manifest.shards) for name in ("rows", "tokens"))
    if manifest.kind in ANSWERED and manifest.allows_answers and rows >= ENOUGH and tokens <= rows:
        raise InputError(
            f"{folder}: the answers to {rows} prompts are empty ({counted(tokens, 'token')} in all); remove "
            "the folder and make the data again, of prompts in the form that the model was trained with, by --chat or "
            "--no-chat"
        )


def day_in(file: Path) -> str | None:
    """Return the date that the chat template wrote when the work in ``file`` began, as YYYY-MM-DD.

    The result is None if the file or the date is missing.

    Args:
        file: a manifest, a run's ``dataset.json``, or the settings file of a text file.

    Raises:
        InputError: the file is damaged.
    """
    values = read_object(file, MAKE_AGAIN) if file.is_file() else {}
    with naming_file(file, MAKE_AGAIN):
        return build(str, values["day"], "day") if values.get("day") is not None else None


def parse_manifest(file: Path, remedy: str = MAKE_AGAIN) -> Manifest:
    """Return the manifest in ``file``.

    Args:
        file: the file.
        remedy: the remedy at the end of error messages.

    Raises:
        InputError: the file cannot be read, is damaged or of another schema version.
    """
    values = read_object(file, remedy)
    with naming_file(file, remedy):
        if values.get("schema_version") != SCHEMA_VERSION:
            raise InputError(f"schema_version={values.get('schema_version')!r}: this version reads {SCHEMA_VERSION}")
        build(SamplingParams, values.get("sampling", {}), "sampling")  # no unknown parameter is ignored
        return Manifest.from_dict(values)


def whole_manifest(folder: Path, identity: Identity) -> Manifest | None:
    """Return the manifest of a complete dataset with ``identity``; None if it is missing, different or damaged."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest, stored = read_manifest(folder), read_object(folder / MANIFEST, MAKE_AGAIN)
    same = {**VERSIONS, **identity}.items() <= stored.items()
    return manifest if same and manifest.complete and not damaged_shards(folder, manifest.shards) else None


def shard_files(folder: str | Path) -> Iterator[Path]:
    """Yield the shards of a dataset in order, after checking each against the manifest's hash.

    Raises:
        InputError: a shard is missing or does not match the manifest.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for shard in manifest.shards:
        if damaged_shards(folder, [shard]):
            check_no_pointer(folder / shard.file)
            remedy = SERVED if manifest.served else REPAIR
            raise InputError(f"{folder / shard.file}: missing or changed since it was written; {remedy}")
        yield folder / shard.file


def damaged_shards(folder: Path, shards: Sequence[ShardEntry]) -> list[str]:
    """Return the names of those ``shards`` that are missing or do not match their hashes."""
    return [
        shard.file
        for shard in shards
        if not (folder / shard.file).is_file() or sha256(folder / shard.file) != shard.sha256
    ]
