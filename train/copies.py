"""``specpilot train copies``: trains a copy head on a target's own texts and writes a run folder.

Examples are the tokens that prompt lookup would copy in decoding. The loss is the binary cross-entropy on whether the
text goes on with the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..controllers.acceptance.copy_head import EVIDENCE, VECTORS, CopyHead, CopyHeadConfig, copy_evidence
from ..controllers.acceptance.ngram_index import NgramIndex
from ..data_gen.dataset import read_manifest
from ..data_gen.documents import Document, answers
from ..infer.drafters.ngram import Ngram
from ..infer.drafters.prompt_lookup import CopyRates, PromptLookup
from ..models import output_embedding
from .controller_module import Batch, PredictorModule, seeded
from .data_module import ResumableData
from .datasets import check_same, joint_fingerprint, joint_sampling, load_same, require_both, split
from .fitting import Training, TrainingResult, fit, train_run
from .options import CopyTrainingOptions


class Copies(NamedTuple):
    """M copied tokens.

    Attributes:
        evidence: (M, 9) evidence of each.
        rate: (M,) what is predicted without a head: the text's own rate after matches of this length.
        tokens: (M,) the copied tokens.
        last: (M,) the tokens before them.
        kept: (M,) 1 where the text goes on with the copy, else 0.
    """

    evidence: Tensor
    rate: Tensor
    tokens: Tensor
    last: Tensor
    kept: Tensor


class CopiedToken(NamedTuple):
    """One copied token, see :class:`Copies`."""

    evidence: list[float]
    rate: float
    token: int
    last: int
    kept: bool


def copied_tokens(prompt: list[int], answer: list[int]) -> Iterator[CopiedToken]:
    """The copy of every token of ``answer`` before which there is a match, with what decoding knows there.

    The answer was sampled from the target: token x_t has the distribution p, and equals the copy y with probability
    p(y), the acceptance probability of y. The first token comes with the prompt's forward.
    """
    text = [*prompt, *answer[:1]]
    lookup, index, rates = PromptLookup([], text, Ngram().longest), NgramIndex(text), CopyRates()
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
        for run, kept in lookup.extend(text):
            rates.add(run, kept)


def copies_of(documents: Iterable[Document]) -> Copies:
    """The copied tokens of ``documents``, in order."""
    found = [
        one
        for document in documents
        for one in copied_tokens(document.tokens[: document.start], document.tokens[document.start :])
    ]
    evidence, rate, tokens, last, kept = zip(*found, strict=True) if found else [()] * 5
    return Copies(
        torch.tensor(evidence, dtype=torch.float32).reshape(-1, EVIDENCE),
        torch.tensor(rate, dtype=torch.float32),
        torch.tensor(tokens, dtype=torch.long),
        torch.tensor(last, dtype=torch.long),
        torch.tensor(kept, dtype=torch.float32),
    )


class CopyDataModule(ResumableData[Copies, Batch]):
    """Training and validation batches of copied tokens, some 60 bytes each in memory.

    Args:
        embedding: (V, d) the target's output embedding.

    Raises:
        InputError: training or validation would be empty.
    """

    def __init__(self, documents: Sequence[Document], embedding: Tensor, settings: CopyTrainingOptions) -> None:
        self.embedding = embedding
        fraction = settings.validation_fraction
        training, validation = map(copies_of, split(documents, [document.id for document in documents], fraction))
        require_both(len(training.kept), len(validation.kept), fraction, "copied token")
        super().__init__(settings, [training], validation)

    def sizes(self, examples: Copies) -> list[int]:
        return [len(examples.kept)]

    def batch(self, examples: Copies, rows: Tensor, epoch: int | None) -> Batch:
        mine, first, total = self.share(rows)
        evidence, rate, tokens, last, kept = (column[mine] for column in examples)
        return Batch((evidence, self.embedding[tokens], self.embedding[last]), kept, first, total, rate)


class CopyModule(PredictorModule):
    """The copy head in training. The best epoch is that of the lowest validation KL."""

    head: CopyHead
    config = CopyHeadConfig
    renamed: ClassVar = {"tokens": "examples"}
    criterion = "kl"

    def __init__(self, settings: CopyTrainingOptions, data: CopyDataModule) -> None:
        super().__init__(settings, data.total_steps)
        size = data.embedding.shape[1]
        self.head = seeded(settings.seed, lambda: CopyHead(size, settings.width))
        scale, mean = torch.std_mean(data.training.evidence, 0, correction=0)
        self.head.standardise(mean, scale)
        self.dropout, self.masked = settings.dropout, VECTORS * size
        self.examples = len(data.training.kept)

    def predictions(self, batch: Batch) -> tuple[Tensor, ...]:
        """Of the head, and of the text's own rates."""
        assert batch.prior is not None
        return self.logits(batch), torch.logit(batch.prior, eps=1e-4)

    def metrics(self) -> dict[str, float]:
        found, untrained = (metrics.compute() for metrics in self.found)
        return found | {f"{name}_rates": untrained[name] for name in ("kl", "auroc")}

    def findings(self) -> dict[str, Any]:
        return super().findings() | {"examples": self.examples, "hidden_size": self.head.hidden_size}


KIND = "copies"


def train_copies(settings: CopyTrainingOptions, output: str | Path, *, resume: bool = False) -> TrainingResult:
    """Train a copy head.

    Arguments and errors are those of :func:`~.acceptance.train_acceptance`.

    Raises:
        InputError: also if the data is of several targets, or the target is missing or another one.
    """
    dataset = copies_identity(settings)
    return train_run(output, settings, dataset, lambda: _load(settings, dataset), resume=resume)


def copies_identity(settings: CopyTrainingOptions) -> dict[str, Any]:
    """The joint manifest of the datasets, of which only the target matters.

    Raises:
        InputError: one of them has no manifest, or is of another target.
    """
    manifests = [
        manifest | {"fingerprint": {name: manifest["fingerprint"][name] for name in ("target", "tokenizer")}}
        for manifest in map(read_manifest, settings.folders)
    ]
    check_same(settings.folders, manifests, ("fingerprint",))
    first = manifests[0]
    return {
        **{name: first[name] for name in ("schema_version", "fingerprint")},
        "kind": KIND,
        "predictor": KIND,
        "target": settings.target or first["target"],
        **joint_sampling(manifests),
        "complete": True,
        "shards": [],
        "datasets": [manifest["dataset_fingerprint"] for manifest in manifests],
        "dataset_fingerprint": joint_fingerprint(manifests),
    }


def _load(settings: CopyTrainingOptions, dataset: dict[str, Any]) -> Training:
    """The training on the texts of ``dataset`` and the target's embedding."""
    target = dataset["fingerprint"]["target"]
    documents = [document for folder in settings.folders for document in answers(Path(folder), target)]
    model = load_same("target", dataset["target"], dataset, dtype="float32", device="cpu")
    embedding = output_embedding(model).clone()
    del model
    data = CopyDataModule(documents, embedding, settings)
    module = CopyModule(settings, data)
    print(
        f"{len(data.training.kept):,} copied tokens to train on, {len(data.validation.kept):,} held out, "
        f"steps: {data.total_steps}; {sum(p.numel() for p in module.head.parameters()):,} parameters"
    )
    return lambda run: fit(run, module, data)
