"""The drafter's state of a request of vLLM: text, length controller, and the draft that is being verified.

Tokens are drawn with the request's sampling parameters, or as by vLLM's drafter. The distributions from which they are
drawn are kept for the verification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from specpilot.controllers.acceptance.ngram_index import NgramIndex, NgramMatch
from specpilot.controllers.length import LengthController, Step
from specpilot.controllers.sampling import SamplingParams
from torch import Tensor


@dataclass(frozen=True)
class Drawn:
    """A token drawn from the draft's distribution.

    Attributes:
        token: the token y.
        probability: q(y).
        q: the distribution (1, k), without the tokens that sampling excludes.
        logits: the draft's logits (1, V).
        hidden: the draft's last hidden state before y (1, d).
        row: the distribution over the vocabulary (1, V), for the verification of y.
    """

    token: int
    probability: float
    q: Tensor
    logits: Tensor
    hidden: Tensor
    row: Tensor


@dataclass(eq=False)
class DraftedRequest:
    """The state of a request between two steps of the engine.

    Attributes:
        text: prompt and verified tokens.
        shared_length: the engine's length controller, from which the request's controller is made.
        sampling: sampling parameters of the draft.
        budget: maximum number of tokens of the text.
        stop_tokens: tokens that end the text.
        read: number of tokens of ``text`` whose keys and values the draft model has cached.
        prompt: number of tokens of the prompt in ``text``.
        logged: whether the rounds are kept.
        tokens: the draft; empty after the verification until the next draft.
        rows: the distributions from which the draft's tokens were drawn, (1, V) each.
        probabilities: probabilities of the draft's tokens in ``rows``.
        accept: min(1, p(y)/q(y)) of the draft's tokens while the draft is verified, if the request is logged.
        rounds: number of new tokens before each logged draft, its tokens up to the first rejected token, and their
            ``accept``.
    """

    text: list[int]
    shared_length: LengthController
    sampling: SamplingParams
    budget: int
    stop_tokens: frozenset[int]
    prompt: int = 0
    logged: bool = False
    read: int = 0
    tokens: list[int] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    accept: list[float] = field(default_factory=list)
    rounds: list[tuple[int, list[int], list[float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ngrams = NgramIndex(self.text)
        self.length = self.shared_length.for_text()
        self.length.start_text()
        self.length.check_sampling(self.sampling)

    def verified(self, drafted: int, sampled: Sequence[int]) -> None:
        """Process the verification of the draft.

        Args:
            drafted: number of verified tokens of the draft; vLLM may leave out the last tokens.
            sampled: the accepted tokens and the target's token after them; empty while a prompt is read.
        """
        drafted = min(drafted, len(self.tokens))
        if drafted and sampled:
            accepted = len(sampled) - 1
            self.read += min(accepted, len(self.tokens) - 1)  # the draft has not read its last token
            self.length.end_round(drafted, accepted)
            if self.accept:
                decided = min(drafted, accepted + 1)
                start = len(self.text) - self.prompt
                self.rounds.append((start, self.tokens[:decided], self.accept[:decided]))
        self.forget_draft()
        self.text += sampled

    def forget_draft(self) -> None:
        """Remove the draft."""
        self.tokens, self.rows, self.probabilities, self.accept = [], [], [], []

    def restart(self) -> None:
        """Start without cached keys and values, as after a preemption."""
        self.read = 0
        self.forget_draft()

    @property
    def ended(self) -> bool:
        """Return true if the text is complete. vLLM drops the request after this step."""
        return len(self.text) >= self.budget or self.text[-1] in self.stop_tokens

    @property
    def final_tokens(self) -> list[int] | None:
        """The new tokens without the prompt, up to the token that ends the text; None for an unfinished text.

        vLLM drops tokens after that token.
        """
        tokens = self.text[self.prompt : self.budget]
        ends = [index for index, token in enumerate(tokens) if token in self.stop_tokens]
        if ends:
            return tokens[: ends[0] + 1]
        return tokens if self.prompt + len(tokens) == self.budget else None

    def start_round(self, rows: int) -> bool:
        """Return true if the request drafts in a round of ``rows`` requests."""
        self.length.shared_by(rows)
        return self.length.start_round()

    def add(self, drawn: Drawn, longest: int) -> bool:
        """Append a token to the draft, and return true if another token should be drawn, up to ``longest`` tokens.

        The token stays in the draft whatever the controller decides. Leaving out a token because of its own probability
        would change the distribution of the text.
        """
        self.tokens.append(drawn.token)
        self.rows.append(drawn.row)
        self.probabilities.append(drawn.probability)
        step = Step(len(self.tokens), drawn.token, drawn.probability, drawn.q, drawn.logits, drawn.hidden, self._match)
        return len(self.tokens) < longest and drawn.token not in self.stop_tokens and self.length.observe(step)

    def _match(self) -> NgramMatch:
        """Return the n-gram match of the draft."""
        return self.ngrams.match(self.tokens)


def draw_as_requests(
    logits: Tensor, hidden: Tensor, sampling: Sequence[SamplingParams], generators: Mapping[int, torch.Generator]
) -> list[Drawn]:
    """Draw a token for each request with its temperature, top-k and top-p.

    Args:
        logits: the draft's logits (B, V).
        hidden: the draft's last hidden states (B, d).
        sampling: sampling parameters of each of B requests.
        generators: random generators of requests with a seed, by row.
    """
    groups: dict[SamplingParams, list[int]] = {}
    for row, params in enumerate(sampling):
        groups.setdefault(params, []).append(row)
    by_row: dict[int, Drawn] = {}
    for params, rows in groups.items():
        of_group = logits if len(rows) == len(logits) else logits[rows]
        q, tokens = params.top(of_group)  # (b, k)
        noise = torch.empty_like(q).exponential_()
        for i, row in enumerate(rows):
            if row in generators:
                noise[i].exponential_(generator=generators[row])
        chosen = (q / noise).argmax(-1, keepdim=True)  # an exponential race draws each token with its probability
        drawn = chosen if tokens is None else tokens.gather(1, chosen)
        full = q if tokens is None else torch.zeros_like(of_group, dtype=q.dtype).scatter_(1, tokens, q)
        pairs = zip(drawn.flatten().tolist(), q.gather(1, chosen).flatten().tolist(), strict=True)
        for i, (row, (token, probability)) in enumerate(zip(rows, pairs, strict=True)):
            by_row[row] = Drawn(
                token, probability, q[i : i + 1], logits[row : row + 1], hidden[row : row + 1], full[i : i + 1]
            )
    return [by_row[row] for row in range(len(logits))]


def draw_as_vllm(logits: Tensor, hidden: Tensor, rows: Tensor, metadata: Any) -> list[Drawn]:
    """Draw a token for each request as vLLM's drafter does, with the temperature only and without seeds.

    Args:
        logits: the draft's logits (B, V).
        hidden: the draft's last hidden states (B, d).
        rows: places of the requests in the engine's batch (B,).
        metadata: the engine's ``SamplingMetadata``.
    """
    from vllm.v1.spec_decode.llm_base_proposer import compute_probs_and_sample_next_token

    if metadata.all_greedy:
        tokens = logits.argmax(-1)
        q = torch.zeros_like(logits, dtype=torch.float32).scatter_(1, tokens.unsqueeze(1), 1.0)
    else:
        metadata_of_rows = replace(metadata, temperature=metadata.temperature[rows])
        tokens, q = compute_probs_and_sample_next_token(logits.clone(), metadata_of_rows)
    probabilities = q.gather(1, tokens.unsqueeze(1)).flatten().tolist()
    return [
        Drawn(token, probability, q[i : i + 1], logits[i : i + 1], hidden[i : i + 1], q[i : i + 1])
        for i, (token, probability) in enumerate(zip(tokens.tolist(), probabilities, strict=True))
    ]
