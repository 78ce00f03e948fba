"""The lag-free head: acceptance of a drafted token before the draft has read it.

SpecDec++'s head (Huang et al. 2024) reads the draft's state *at* a token, which exists one forward later. The lag-free
head reads inputs that exist when the token is drawn: the state that its distribution came from, the token's embedding,
the draft signals, and n-gram matches of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import add, mul
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...common.options import Count, LearningRate, NotNegative
from ..checkpoints.config import ControllerConfig, check_range
from ..sampling import SamplingParams
from ..training_options import Dropout, PredictorTrainingOptions
from .calibration import sigmoid
from .feature_model import FEATURES, features
from .ngram_index import MAX_NGRAM, NO_MATCH, NgramMatch
from .predictor import TrainedPredictor, check_states
from .step import DraftSignals, Step
from .token_head import TokenHead, check_sizes, normalised, tabulate
from .training import (
    Batch,
    DataSummary,
    Examples,
    Origin,
    Parts,
    confidence_logits,
    cross_entropy,
    network_logits,
)

if TYPE_CHECKING:
    from .metrics import Metrics

INPUTS = FEATURES + 4  # the four are agrees, matches and share of the n-gram match, and whether y is the copy
ENTROPY = 2  # index of the entropy; the head does not use it, because computing it takes most of a prediction's time
VECTORS = 3  # the draft's state, the embedding of y and the embedding of the copy


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(PredictorTrainingOptions):
    """Lag-free head. The learning rate is the highest of a one-cycle schedule of AdamW.

    Attributes:
        width: Hidden units of the head. A prediction takes about 0.3 µs for each.
        dropout: Dropout on the draft's state and on the embeddings of the token and of the copied token; it helps on
            text of other domains than the training data.
        use_ngrams: Use features of n-gram matches in the text.
    """

    width: Count = 32
    dropout: Dropout = 0.3
    use_ngrams: bool = True
    epochs: Count = 4
    batch_size: Count = 512
    lr: LearningRate = 2e-3
    weight_decay: NotNegative = 0.05


@dataclass(frozen=True, kw_only=True)
class Config(ControllerConfig):
    """The configuration of a lag-free head.

    Attributes:
        hidden_size: size d of the draft's last hidden state.
        width: number of hidden units of the head.
        uses_ngrams: whether the head reads n-gram matches.
        mean: mean acceptance in the training data.
        tokens: number of drafted tokens in the training data.
    """

    kind = "lag-free-head"
    title = "Lag-free acceptance head"
    summary = (
        "Predicts, when a token is drawn from the draft model and before the draft reads it, the probability that the "
        "target model accepts it. Its inputs are the draft's last hidden state, the token's embedding, log q(y), "
        "log(1 - max q), and n-gram matches of the text so far. `cost.json` is what `specpilot bench cost --output "
        "cost.json` measures: drafting stops where a token no longer pays."
    )

    hidden_size: int
    width: int
    uses_ngrams: bool
    mean: float
    tokens: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self.hidden_size, self.width)
        check_range("mean", self.mean, 0, 1)

    def module(self) -> LagFreeHead:
        return LagFreeHead(self.hidden_size, self.width)

    def predictor(
        self, head: nn.Module, embedding: Tensor, device: torch.device, *, calibrated: bool
    ) -> LagFreePredictor:
        assert isinstance(head, LagFreeHead)
        check_states(self.hidden_size, embedding)
        return LagFreePredictor(
            head.to(embedding.device), embedding, mean=self.mean, uses_ngrams=self.uses_ngrams,
            samplings=self.provenance.samplings,
        )  # fmt: skip

    def rows(self) -> dict[str, str]:
        return {
            "hidden units": f"{self.width}",
            "trained on": f"{self.tokens:,} drafted tokens, mean acceptance {self.mean:.3f}",
            "reads n-gram matches": "yes" if self.uses_ngrams else "no",
        }


class LagFreeHead(TokenHead):
    """A :class:`.TokenHead` ℝ^(7 + 3d) → ℝ, where d is the size of the draft's states and of its output embedding.

    The draft's state is divided by a constant. Normalising the state would take longer than the rest of a prediction.
    """

    state_scale: Tensor

    def __init__(self, hidden_size: int, width: int = 32) -> None:
        super().__init__(INPUTS, VECTORS, hidden_size, width)
        self.register_buffer("state_scale", torch.ones(()))

    def forward(
        self, evidence: Tensor, hidden: Tensor, embedding: Tensor, copied: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the logits (…) that the token is accepted if all tokens before it are.

        Args:
            evidence: (…, 7) :func:`evidence` of the token.
            hidden: (…, d) the draft's last hidden state at the token before.
            embedding: (…, d) the draft's output embedding of the token.
            copied: (…, d) the draft's output embedding of the n-gram match's copy; zeros without a match.
            mask: (…, 3d) dropout factors of the three scaled vectors.
        """
        vectors = torch.cat([hidden.float() / self.state_scale, normalised(embedding), normalised(copied)], -1)
        numbers = self.numbers(evidence)
        numbers[..., ENTROPY] = 0.0
        return self.logit(numbers, vectors, mask)


def evidence(signals: DraftSignals, ngram_match: NgramMatch, token: int) -> list[float]:
    """Return the numbers (7,) that describe a token: of the draft's distribution and of the n-gram match."""
    agrees, matches, share, copy = ngram_match
    is_copy = 0.0 if copy is None else 1.0 if copy == token else -1.0
    return [*features(*signals), agrees / MAX_NGRAM, matches / MAX_NGRAM, share, is_copy]


def evidence_rows(signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], tokens: Sequence[int]) -> Tensor:
    """Return the :func:`evidence` (N, 7) of N tokens."""
    rows = [evidence(*token_inputs) for token_inputs in zip(signals, ngram_match, tokens, strict=True)]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, INPUTS)


def match_copies(ngram_match: Sequence[NgramMatch]) -> Tensor:
    """Return the tokens (N,) that the matches would continue with; -1 without a match."""
    return torch.tensor([-1 if match.copy is None else match.copy for match in ngram_match], dtype=torch.long)


def copied_embeddings(embedding: Tensor, copies: Tensor) -> Tensor:
    """Return the rows (N, d) of ``embedding`` (V, d) for ``copies`` (N,); zeros for -1 and for tokens from V on."""
    copies = copies.to(embedding.device)
    in_vocabulary = (copies >= 0) & (copies < len(embedding))
    return torch.where(in_vocabulary.unsqueeze(-1), embedding[torch.where(in_vocabulary, copies, 0)], 0.0)


def new_network(options: TrainingOptions, data: DataSummary, parts: Parts) -> LagFreeHead:
    """Return a head with random weights and the scales of the training examples' inputs."""
    head = LagFreeHead(data.hidden_size, options.width)
    head.standardise(*evidence_moments(parts))
    # The root mean square of the states' entries in the first part that training reads.
    head.state_scale.copy_(next(parts()).states.float().square().mean().sqrt())
    return head


def evidence_moments(parts: Parts) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation, (7,) each, of the training examples' evidence."""
    count, total = 0, torch.zeros(INPUTS, dtype=torch.float64)
    squares = torch.zeros(INPUTS, dtype=torch.float64)
    for examples in parts():
        numbers = examples.evidence.double()
        count += len(numbers)
        total += numbers.sum(0)
        squares += numbers.square().sum(0)
    mean = total / count
    return mean.float(), (squares / count - mean.square()).clamp(min=0).sqrt().float()


def inputs(examples: Examples, options: TrainingOptions) -> tuple[Tensor, ...]:
    """Return the arguments of :meth:`LagFreeHead.forward`."""
    numbers, copied = examples.evidence, copied_embeddings(examples.embedding, examples.copies.long())
    if not options.use_ngrams:
        numbers, copied = F.pad(numbers[:, :FEATURES], (0, INPUTS - FEATURES)), torch.zeros_like(copied)
    return numbers, examples.states, examples.embedding[examples.tokens], copied


def loss(network: LagFreeHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, Tensor]:
    """Return the binary cross-entropy with the acceptance probabilities, with dropout on the vectors."""
    mask = batch.dropout(options.dropout, VECTORS * network.hidden_size)
    return cross_entropy(network_logits(network, batch, mask), batch.labels)


def predictions(network: LagFreeHead, batch: Batch, options: TrainingOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the labels, and the logits of the head and of the draft's confidence."""
    return batch.labels, {
        "head": network_logits(network, batch), "draft": confidence_logits(batch.inputs[0][:, 0])
    }  # fmt: skip


def metrics(judged: Mapping[str, Metrics], options: TrainingOptions) -> dict[str, float]:
    """Return the metrics of the head, and the AUROC of the draft's confidence."""
    return judged["head"].compute() | {"auroc_draft": judged["draft"].auroc()}


def to_checkpoint(options: TrainingOptions, data: DataSummary, origin: Origin) -> Config:
    """Return the configuration of a trained head."""
    return Config(
        **vars(origin), hidden_size=data.hidden_size, width=options.width, uses_ngrams=options.use_ngrams,
        mean=data.mean_acceptance, tokens=data.examples,
    )  # fmt: skip


class LagFreePredictor(TrainedPredictor):
    """Predicts acceptance with a lag-free head.

    For one token, the call of a tensor operation takes longer than the arithmetic, and its code is rarely in the
    processor's caches. The first prediction therefore tabulates the contributions of tokens to the hidden units:
    (V, width) numbers for the drafted token and for the copied token. The contribution of the draft's state takes two
    operations and one read by the host, which is the only read on an accelerator. The remaining arithmetic uses Python
    floats and takes about 0.3 µs for each hidden unit.

    Args:
        head: the head; its current weights are copied.
        embedding: (V, d) the draft's output embedding.
        mean: mean acceptance in the training data.
        uses_ngrams: whether the head was trained on n-gram matches.
        samplings: sampling parameters of the training data; empty if they are not known.
    """

    lag = 0

    def __init__(
        self,
        head: LagFreeHead,
        embedding: Tensor,
        *,
        mean: float = 0.5,
        uses_ngrams: bool = True,
        samplings: tuple[SamplingParams, ...] = (),
    ) -> None:
        self.head = head.eval().requires_grad_(False)
        self.embedding, self.mean, self.samplings = embedding.detach(), mean, samplings
        self.uses_ngrams, self.width = uses_ngrams, head.width
        state_weight, self.token_weight, self.copy_weight = head.inner.weight.detach()[:, INPUTS:].chunk(VECTORS, dim=1)
        self.state_weight = (state_weight / head.state_scale).t().contiguous()  # (d, width)

    @cached_property
    def tables(self) -> Tables:
        """The contributions of tokens and n-gram matches to the hidden units."""
        return Tables.of(self.head, self.embedding, self.token_weight, self.copy_weight)

    def state_values(self, hidden: Tensor) -> Tensor:
        """Return the contributions (N, width) of draft states ``hidden`` (N, d) to the hidden units."""
        return torch.mm(hidden.to(self.state_weight), self.state_weight)

    def predict(self, step: Step) -> float:
        ngram_match = step.match() if self.uses_ngrams else NO_MATCH
        signals, hidden = step.host_signals(entropy=False), step.state_values
        if hidden is None:
            added = self.state_values(step.hidden)
            if signals is None:
                ((*hidden, confidence, top, entropy),) = torch.cat([added, step.signals_tensor()], -1).tolist()
                signals = confidence, top, entropy
            else:
                (hidden,) = added.tolist()
        assert signals is not None
        return self._finish(hidden, signals, ngram_match, step.token)

    def _finish(self, hidden: list[float], signals: DraftSignals, ngram_match: NgramMatch, token: int) -> float:
        """Return the prediction, given the contribution ``hidden`` (width,) of the draft's state."""
        tables, width = self.tables, self.width
        log_q, doubt, _ = features(*signals)
        agrees, matches, share, copy = ngram_match
        match_units = tables.matches[agrees, matches, 0 if copy is None else 1 if copy == token else -1]
        token_units = tables.tokens[token * width : (token + 1) * width].tolist()
        units = [
            x + y + z + a * log_q + b * doubt + c * share
            for x, y, z, a, b, c in zip(hidden, token_units, match_units, *tables.numbers, strict=True)
        ]
        if copy is not None and copy < tables.size:
            units = [*map(add, units, tables.copies[copy * width : (copy + 1) * width].tolist())]
        active = [unit if unit > 0.0 else 0.0 for unit in units]
        return sigmoid(sum(map(mul, tables.out, active), tables.bias))

    def predict_all(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> list[float]:
        return self.probabilities(signals, ngram_match, hidden, tokens).tolist()

    @torch.inference_mode()
    def probabilities(
        self, signals: Sequence[DraftSignals], ngram_match: Sequence[NgramMatch], hidden: Tensor, tokens: Sequence[int]
    ) -> Tensor:
        """Return the acceptance probabilities (N,) of N tokens, on the device of the head and the embedding.

        Args:
            signals: the draft signals of each token.
            ngram_match: the n-gram match of each token.
            hidden: (N, d) the draft's states before the tokens, on any device.
            tokens: the tokens.
        """
        if not self.uses_ngrams:
            ngram_match = [NO_MATCH] * len(ngram_match)
        device = self.embedding.device
        copied = copied_embeddings(self.embedding, match_copies(ngram_match))
        numbers = evidence_rows(signals, ngram_match, tokens).to(device)
        embedded = self.embedding[torch.tensor(tokens, device=device)]
        return torch.sigmoid(self.head(numbers, hidden.to(device), embedded, copied))


@dataclass(frozen=True)
class Tables:
    """The contributions of a head's inputs, except the draft's state, to its ``width`` hidden units, on the host.

    Attributes:
        size: the draft's vocabulary size V.
        tokens: (V·width,) contributions of each drafted token, with the bias.
        copies: (V·width,) contributions of each token that an n-gram match would continue with.
        matches: (width,) contributions of an n-gram match, by ``agrees``, ``matches`` and a sign: 1 if the token is the
            match's copy, -1 if it is another token, 0 without a match.
        numbers: (3, width) weights of log q(y), log(1 - max q) and the match's share.
        out: (width,) weights of the hidden units in the logit.
        bias: bias of the logit.
    """

    size: int
    tokens: memoryview
    copies: memoryview
    matches: dict[tuple[int, int, int], list[float]]
    numbers: list[list[float]]
    out: list[float]
    bias: float

    @classmethod
    @torch.inference_mode()
    def of(cls, head: LagFreeHead, embedding: Tensor, token_weight: Tensor, copy_weight: Tensor) -> Tables:
        """Compute the tables; ``token_weight`` and ``copy_weight`` are the weights (width, d) of the two embeddings."""
        # (width, 7), including the standardisation
        evidence_weight = (head.inner.weight[:, :INPUTS] / head.scale).cpu()
        evidence_weight[:, ENTROPY] = 0.0
        bias = head.inner.bias.cpu() - evidence_weight @ head.mean.cpu()
        log_q, doubt, _, agrees, matches, share, is_copy = evidence_weight.unbind(1)
        return cls(
            len(embedding),
            tabulate(embedding, token_weight, bias).flatten().numpy().data,
            tabulate(embedding, copy_weight, torch.zeros_like(bias)).flatten().numpy().data,
            {
                (m, n, sign): (agrees * m / MAX_NGRAM + matches * n / MAX_NGRAM + is_copy * sign).tolist()
                for m, n, sign in product(range(MAX_NGRAM + 1), range(MAX_NGRAM + 1), (-1, 0, 1))
            },
            torch.stack([log_q, doubt, share]).tolist(),
            head.out.weight[0].tolist(),
            float(head.out.bias),
        )
