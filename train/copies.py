"""``specpilot train copies``: trains a copy head on texts of a target, and writes a run folder.

Examples are the tokens that prompt lookup would copy while decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..controllers.acceptance import copy_head
from ..controllers.acceptance.copy_head import EVIDENCE, Copies, copy_evidence
from ..controllers.acceptance.ngram_index import NgramIndex
from ..controllers.acceptance.training import Batch, DataSummary
from ..controllers.training_options import CopyTrainingOptions
from ..data_gen.dataset import Manifest, read_manifest
from ..data_gen.documents import Document, answers
from ..infer.drafters.ngram import Ngram
from ..infer.drafters.prompt_lookup import CopyRates, PromptLookup
from ..models import output_embedding
from .data_module import ResumableData
from .datasets import check_same, fingerprint_of, joint_fingerprint, joint_sampling, load_same, require_both, split
from .fitting import Training, TrainingResult, fit, train_run
from .predictor_module import PredictorModule


class CopiedToken(NamedTuple):
    """A copied token, one row of :class:`~specpilot.controllers.acceptance.copy_head.Copies`.

    Attributes:
        evidence: the 9 numbers of :func:`~specpilot.controllers.acceptance.copy_head.copy_evidence`.
        rate: the text's acceptance rate after matches of this length.
        token: the copied token.
        last: the token before it.
        accepted: whether the text continues with the copied token.
    """

    evidence: list[float]
    rate: float
    token: int
    last: int
    accepted: bool


def copied_tokens(prompt: list[int], answer: list[int]) -> Iterator[CopiedToken]:
    """Yield the copy of every token of ``answer`` after a match, with the inputs that decoding has there.

    The target sampled the answer. Token x_t has the distribution p, and equals the copy y with probability p(y), which
    is the acceptance probability of y. The forward over the prompt yields the first token.
    """
    text = [*prompt, *answer[:1]]
    index, rates = NgramIndex(text), CopyRates()
    lookup = PromptLookup(index, Ngram().longest)
    for token in answer[1:]:
        match = lookup.match()
        if match is not None:
            (copy,) = lookup.copy(match, 1, frozenset())
            rate = rates.after(match.run)
            evidence = copy_evidence(
                rate, rates.recent.value, match.run, index.match([copy]),
                answer=match.position >= len(prompt), distance=lookup.distance(match),
            )  # fmt: skip
            yield CopiedToken(evidence, rate, copy, text[-1], copy == token)
        text.append(token)
        for run, accepted in lookup.extend():
            rates.add(run, accepted)


def copies_of(documents: Iterable[Document], embedding: Tensor) -> Copies:
    """Return the copied tokens of ``documents``, in order; ``embedding`` (V, d) is the target's."""
    copies = [
        copy
        for document in documents
        for copy in copied_tokens(document.tokens[: document.start], document.tokens[document.start :])
    ]
    evidence, rate, tokens, last, accepted = zip(*copies, strict=True) if copies else [()] * 5
    return Copies(
        torch.tensor(evidence, dtype=torch.float32).reshape(-1, EVIDENCE),
        torch.tensor(rate, dtype=torch.float32),
        torch.tensor(tokens, dtype=torch.long),
        torch.tensor(last, dtype=torch.long),
        torch.tensor(accepted, dtype=torch.float32),
        embedding,
    )


class CopyDataModule(ResumableData[Copies, Batch]):
    """Training and validation batches of copied tokens, with about 60 bytes each in memory.

    Args:
        documents: the texts.
        embedding: the target's output embedding (V, d).
        settings: options of the training.

    Raises:
        InputError: training or validation would be empty.
    """

    settings: CopyTrainingOptions

    def __init__(self, documents: Sequence[Document], embedding: Tensor, settings: CopyTrainingOptions) -> None:
        fraction = settings.validation_fraction
        parts = split(documents, [document.id for document in documents], fraction)
        training, validation = (copies_of(part, embedding) for part in parts)
        require_both(len(training.accepted), len(validation.accepted), fraction, "copied token")
        super().__init__(settings, [training], validation)

    @property
    def summary(self) -> DataSummary:
        """The summary of the training data."""
        return DataSummary(self.training.embedding.shape[1], examples=len(self.training.accepted))

    def training_parts(self) -> Iterator[Copies]:
        """Return the examples of the first epoch."""
        return iter([self.training])

    def sizes(self, examples: Copies) -> list[int]:
        """Return the number of copied tokens."""
        return [len(examples.accepted)]

    def batch(self, examples: Copies, rows: Tensor, epoch: int | None) -> Batch:
        """Return this process's share of a batch."""
        share, first, total = self.share(rows)
        batch = Copies(
            examples.evidence[share], examples.rate[share], examples.tokens[share], examples.last[share],
            examples.accepted[share], examples.embedding,
        )  # fmt: skip
        return Batch(copy_head.inputs(batch, self.settings), batch.accepted, first, total, batch.rate)


KIND = "copies"


def train_copies(settings: CopyTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a copy head.

    Arguments and errors are those of :func:`~.acceptance.train_acceptance`.

    Raises:
        InputError: also if the data has several targets, or the target is missing or another model.
    """
    dataset = copies_manifest(settings)
    return train_run(output, settings, dataset, lambda: _load(settings, dataset), resume=resume)


def copies_manifest(settings: CopyTrainingOptions) -> Manifest:
    """Return the joint manifest of the datasets, which must agree in the target.

    Raises:
        InputError: a dataset has no manifest, or has another target.
    """
    manifests = [
        replace(manifest, fingerprint={name: manifest.fingerprint[name] for name in ("target", "tokenizer")})
        for manifest in map(read_manifest, settings.folders)
    ]
    check_same(settings.folders, manifests, ("fingerprint",))
    first, (sampling, *further) = manifests[0], joint_sampling(manifests)
    return Manifest(
        schema_version=first.schema_version,
        kind=KIND,
        predictor=KIND,
        target=settings.target or first.target,
        fingerprint=first.fingerprint,
        sampling=sampling,
        other_sampling=further,
        complete=True,
        datasets=[fingerprint_of(manifest) for manifest in manifests],
        dataset_fingerprint=joint_fingerprint(manifests),
    )


def _load(settings: CopyTrainingOptions, dataset: Manifest) -> Training:
    """Return the training on the texts of ``dataset`` with the target's embedding."""
    target = dataset.fingerprint["target"]
    documents = [document for folder in settings.folders for document in answers(Path(folder), target)]
    model = load_same("target", dataset.target, dataset, dtype="float32", device="cpu")
    embedding = output_embedding(model).clone()
    del model
    data = CopyDataModule(documents, embedding, settings)
    module = PredictorModule(KIND, settings, data)
    print(
        f"{len(data.training.accepted):,} copied tokens to train on, {len(data.validation.accepted):,} held out, "
        f"steps: {data.total_steps}; {sum(p.numel() for p in module.head.parameters()):,} parameters"
    )
    return lambda run: fit(run, module, data)
