"""The vocabulary of decoding: the classes that decoder, scheduler, engine, drafters and verification rules exchange.

A :class:`Request` is a prompt with all its state. A round has four steps. A :class:`Drafter` proposes a :class:`Draft`.
One forward of the target reads the draft (a :class:`Read`, with a :class:`TreeMask` for a tree) and gives the target's
:class:`TokenDistribution`. A verification rule returns a :class:`Verdict`. The :class:`Round` is added to the request's
:class:`Generation`. Comments in the classes name the code that sets a field after the constructor.

Models and decoders have no state of a request, so that any number of requests may share a forward.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from ..common.errors import counted
from ..controllers.acceptance.ngram_index import NgramIndex
from ..controllers.acceptance.step import FEW
from ..controllers.length import LengthController
from ..controllers.sampling import SamplingParams
from ..models.read import Read, TreeMask
from .random_source import RandomSource
from .text_stream import PLAIN, TextStream, TextStyle

__all__ = [
    "NO_DRAFT",
    "Draft",
    "Drafter",
    "DraftingArm",
    "Drawn",
    "Generation",
    "Read",
    "Request",
    "Round",
    "RoundHook",
    "Stats",
    "TokenDistribution",
    "TreeMask",
    "Verdict",
    "Verifier",
    "alike",
    "read_together",
    "residual",
]


# Distributions


class TokenDistribution:
    """N distributions over the V tokens of the target.

    Args:
        probabilities: (N, k) probabilities.
        tokens: (N, k) their tokens; None for the first k tokens in order.
        size: vocabulary size V.

    Attributes:
        parent: for a part of a larger distribution: the larger one, and the indices in it of this part's first row and
            of the row after its last. ``lists`` are read for the larger one, with one read by the host. Otherwise None.
    """

    parent: tuple[TokenDistribution, int, int] | None = None

    def __init__(self, probabilities: Tensor, tokens: Tensor | None, size: int) -> None:
        self.probabilities, self.tokens, self.size = probabilities, tokens, size

    @classmethod
    def from_logits(
        cls, sampling: SamplingParams, logits: Tensor, size: int | None = None, kept_tokens: Tensor | None = None
    ) -> TokenDistribution:
        """Return the distributions for ``logits``.

        Args:
            sampling: the sampling parameters.
            logits: (N, V') logits; vocabularies may be padded to V'.
            size: V, to which the logits are cut. Default: V'.
            kept_tokens: (M,) the only tokens with finite logits, all below V; None for all.
        """
        size = logits.shape[-1] if size is None else size
        if kept_tokens is not None:  # M numbers instead of V
            probabilities, places = sampling.top(logits[:, kept_tokens])
            return cls(
                probabilities, kept_tokens.expand(len(logits), -1) if places is None else kept_tokens[places], size
            )
        if logits.shape[-1] > size:
            logits = logits[:, :size]
        return cls(*sampling.top(logits), size)

    @classmethod
    def joined(cls, parts: Sequence[TokenDistribution]) -> TokenDistribution:
        """Concatenate ``parts``; the result has the probabilities of all tokens if the parts are not :func:`alike`."""
        if len(parts) == 1:
            return parts[0]
        if len(alike(parts)) > 1:
            return cls(torch.cat([part.dense for part in parts]), None, parts[0].size)
        lists = [part.tokens for part in parts if part.tokens is not None]
        probabilities = torch.cat([part.probabilities for part in parts])
        return cls(probabilities, torch.cat(lists) if lists else None, parts[0].size)

    @cached_property
    def lists(self) -> list[tuple[list[float], list[int]]] | None:
        """The probabilities and tokens of each distribution as lists; None if a list would have more than ``FEW``.

        It is also None for distributions that do not list their tokens.
        """
        if self.tokens is None or self.tokens.shape[1] > FEW:
            return None
        if self.parent is not None:
            parent, start, end = self.parent
            return None if parent.lists is None else parent.lists[start:end]
        if self.probabilities.device.type == "cpu":
            return list(zip(self.probabilities.tolist(), self.tokens.tolist(), strict=True))
        return read_together(self.probabilities, self.tokens)

    @cached_property
    def dense(self) -> Tensor:
        """The probabilities (N, V) of all tokens."""
        if self.tokens is None and self.probabilities.shape[1] == self.size:
            return self.probabilities
        dense = self.probabilities.new_zeros(len(self.probabilities), self.size)
        if self.tokens is None:
            dense[:, : self.probabilities.shape[1]] = self.probabilities
            return dense
        return dense.scatter_(1, self.tokens, self.probabilities)

    def row(self, row: int) -> Tensor:
        """Return the probabilities (V,) of all tokens in distribution ``row``."""
        return self.part(row, row + 1).dense[0]

    def support(self, row: int) -> tuple[Tensor, Tensor]:
        """Return tokens (k,) and their probabilities (k,) in distribution ``row``; all other probabilities are zero.

        A token may occur a second time with probability zero.
        """
        probabilities = self.probabilities[row]
        if self.tokens is None:
            return torch.arange(len(probabilities), device=probabilities.device), probabilities
        return self.tokens[row], probabilities

    def part(self, start: int, end: int) -> TokenDistribution:
        """Return the distributions from ``start`` up to ``end``."""
        part = TokenDistribution(
            self.probabilities[start:end], None if self.tokens is None else self.tokens[start:end], self.size
        )
        part.parent = self, start, end
        return part

    def take(self, rows: list[int]) -> TokenDistribution:
        """Return the distributions with indices ``rows``, in this order; indices may repeat."""
        return TokenDistribution(
            self.probabilities[rows], None if self.tokens is None else self.tokens[rows], self.size
        )

    def of(self, tokens: list[int]) -> list[float]:
        """Return the probability of ``tokens[i]`` in row i; there may be fewer tokens than rows."""
        if self.lists is None:
            index = torch.tensor(tokens, dtype=torch.long, device=self.probabilities.device)
            return self.dense[: len(tokens)].gather(1, index.unsqueeze(1)).squeeze(1).tolist()
        return [
            row[0][row[1].index(token)] if token in row[1] else 0.0
            for row, token in zip(self.lists, tokens, strict=False)
        ]

    def token(self, row: int, choice: int) -> int:
        """Return the token of entry ``choice`` of distribution ``row``."""
        return choice if self.tokens is None else int(self.tokens[row, choice])

    def sample(self, row: int, rng: RandomSource) -> int:
        """Return a token drawn from distribution ``row``."""
        if self.lists is None:
            return self.token(row, rng.sample(self.probabilities[row]))
        probabilities, tokens = self.lists[row]
        return tokens[rng.pick(probabilities)]

    def sample_beyond(self, row: int, other: TokenDistribution, rng: RandomSource, scale: float = 1.0) -> int:
        """Return a token drawn from ``norm((scale·p - q)+)``.

        If the difference is empty, which can only be rounding, the token is drawn from p.

        Args:
            row: index of p.
            other: the distribution whose first row is q.
            rng: the random source.
            scale: the factor of p.
        """
        if self.lists is None or other.lists is None:
            if self.tokens is None:
                return rng.sample(residual(scale * self.dense[row], other.dense[0]))
            listed_tokens = self.tokens[
                row
            ]  # the order of the lists, so that the same random number draws the same token
            return self.token(row, rng.sample(residual(scale * self.probabilities[row], other.dense[0][listed_tokens])))
        probabilities, tokens = self.lists[row]
        q = dict(zip(other.lists[0][1], other.lists[0][0], strict=True))
        remaining = [max(0.0, scale * p - q.get(token, 0.0)) for p, token in zip(probabilities, tokens, strict=True)]
        return tokens[rng.pick(remaining if any(remaining) else probabilities)]


def read_together(probabilities: Tensor, tokens: Tensor) -> list[tuple[list[float], list[int]]]:
    """Return rows of probabilities (N, k) and tokens (N, k) as lists, with one read by the host.

    Tokens are converted to float32, which is exact up to 2^24.
    """
    k = tokens.shape[1]
    rows = torch.cat([probabilities, tokens.to(probabilities.dtype)], -1).tolist()
    return [(row[:k], [int(token) for token in row[k:]]) for row in rows]


def alike(parts: Sequence[TokenDistribution]) -> list[list[int]]:
    """Group the indices of ``parts`` that have equal widths and either all list their tokens or all do not."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for i, part in enumerate(parts):
        groups.setdefault((part.probabilities.shape[1], part.tokens is None), []).append(i)
    return list(groups.values())


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return ``norm((p - q)+)`` (V,); ``p`` if the difference is empty, which can only be rounding."""
    difference = (p - q).clamp(min=0)
    mass = difference.sum()
    return difference / mass if float(mass) > 0 else p


# Drafts and their verification


@dataclass(frozen=True)
class Drawn:
    """A chain's K tokens on the device.

    Attributes:
        tokens: (K,) y_1 … y_K.
        q: (K,) the probability of each token in the distribution that it was drawn from.
        numbers: the K random numbers that drew the tokens, if the host has not read the tokens; otherwise empty.
    """

    tokens: Tensor
    q: Tensor
    numbers: list[float]


@dataclass(frozen=True)
class Draft:
    """A tree of drafted tokens; a chain is a tree with a single branch.

    Attributes:
        tokens: token of each node; children come after their parents, siblings in the order of drawing.
        distributions: the distribution that each token was drawn from. For siblings that were drawn without
            replacement, it is the distribution of the first sibling. The distributions of a level of a tree may be one
            object of several rows.
        parents: parent of each node; -1 for children of the root.
        n_forwards: number of forwards of the draft model.
        from_target: whether the target chose and read the tokens, so that they need no verification.
        sequential: whether the target drew the tokens one after another, so that each is a round of its own.
        copied: number of first tokens that were copied from the text without a decision of the length controller.
        on_host: whether an accelerator's distributions were moved to the host's memory, where the draft is verified.
        drawn: the tokens of a chain that was drawn on an accelerator. If the host has not read them, ``tokens`` has
            zeros in their places, and may be longer than the draft, which ends with a stop token.
    """

    tokens: list[int]
    distributions: list[TokenDistribution]
    parents: list[int]
    n_forwards: int
    from_target: bool = False
    sequential: bool = False
    copied: int = 0
    on_host: bool = False
    drawn: Drawn | None = None

    @classmethod
    def chain(
        cls, tokens: list[int], distributions: list[TokenDistribution], n_forwards: int | None = None, copied: int = 0
    ) -> Draft:
        """Return a chain y_1 … y_K.

        Args:
            tokens: the K tokens.
            distributions: the distribution of each token.
            n_forwards: number of forwards of the draft model. Default: K.
            copied: number of first tokens that were copied.
        """
        forwards = len(tokens) if n_forwards is None else n_forwards
        return cls(tokens, distributions, list(range(-1, len(tokens) - 1)), forwards, copied=copied)

    @cached_property
    def q(self) -> Tensor:
        """The distribution (N, V) from which each token was drawn."""
        return torch.cat([distribution.dense for distribution in self.distributions])

    @cached_property
    def is_chain(self) -> bool:
        """Return true if each token follows the one before it."""
        return self.parents == list(range(-1, len(self.tokens) - 1))

    def ratios(self, p: TokenDistribution) -> list[float]:
        """Return p_i(y_i) / q_i(y_i) of a chain; q_i(y_i) > 0, because y_i was drawn from q_i."""
        drawn = [
            distribution.of([token])[0] for distribution, token in zip(self.distributions, self.tokens, strict=True)
        ]
        return [p_y / q_y for p_y, q_y in zip(p.of(self.tokens), drawn, strict=True)]

    def read_back(self, rng: RandomSource, stop_tokens: frozenset[int]) -> Draft:
        """Return the draft with tokens that the host has read; unused random numbers go back to ``rng``."""
        if self.drawn is None or not self.drawn.numbers:
            return self
        draft = self.with_tokens(self.drawn.tokens.tolist(), stop_tokens)
        rng.give_back(self.drawn.numbers[len(draft.tokens) :])
        return draft

    def with_tokens(self, tokens: list[int], stop_tokens: frozenset[int]) -> Draft:
        """Return the chain with ``tokens``, which the host has read, up to the first stop token."""
        count = next((i for i, token in enumerate(tokens, 1) if token in stop_tokens), len(tokens))
        return replace(
            self, tokens=tokens[:count], distributions=self.distributions[:count], parents=self.parents[:count],
            drawn=None,
        )  # fmt: skip


NO_DRAFT = Draft.chain([], [])


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        path: the accepted nodes of the draft, from the root down.
        token: the token that follows them.
        ratios: p(y_i)/q(y_i) of every drafted token under the rule ``token-wise``; otherwise empty.
    """

    path: list[int]
    token: int
    ratios: list[float] = field(default_factory=list)

    @classmethod
    def chain(cls, accepted: int, token: int, ratios: list[float] | None = None) -> Verdict:
        """Return the verdict on a chain whose first ``accepted`` tokens are accepted."""
        return cls(list(range(accepted)), token, ratios or [])

    @property
    def accepted(self) -> int:
        """The number of accepted tokens."""
        return len(self.path)


# A verification rule: (p after the text and after each drafted token, draft, rng) → verdict
Verifier: TypeAlias = Callable[[TokenDistribution, Draft, RandomSource], Verdict]


# Output


@dataclass
class Round:
    """One draft and its verification, created by :meth:`Request.append`.

    Attributes:
        drafted: drafted tokens; a token of a tree comes after the token before it in its branch.
        path: indices of the accepted tokens: the first tokens of a chain, or a path of a tree.
        emitted: tokens added to the output: the accepted tokens, then the target's token; up to the one that ends the
            text.
        ratios: p(y)/q(y) of each drafted token under token-wise verification, which accepts it with probability
            min(1, p(y)/q(y)) if all earlier tokens are accepted.
        parents: index of the token before each drafted token; -1 for the first tokens of a tree's branches.
        copied: number of first drafted tokens that were copied from the text.
    """

    drafted: list[int]
    path: list[int]
    emitted: list[int]
    ratios: list[float] = field(default_factory=list, compare=False)  # not compared, because of rounding
    parents: list[int] = field(default_factory=list)
    copied: int = field(default=0, compare=False)  # not compared, because it has no effect on the text

    @property
    def accepted(self) -> int:
        """Number of accepted drafted tokens."""
        return len(self.path)

    def to_dict(self) -> dict[str, int | list[int]]:
        """Return the tokens and the result of their verification as JSON values."""
        names = ("drafted", "parents", "accepted", "path", "emitted")
        return {name: getattr(self, name) for name in names}


@dataclass
class Stats:
    """Counters of one run; ``docs/metrics.md`` defines them and the rates.

    Attributes:
        n_generated: generated tokens, the end token included.
        n_draft_forwards: forwards of the draft, without its prefill.
        n_target_forwards: forwards of the target, with its prefill, which gives the first token.
        n_drafted: drafted tokens, copies included.
        n_accepted: drafted tokens that were accepted.
        n_discarded: drafted tokens that were not accepted.
        n_verified_tokens: positions scored by all target forwards but the prefill.
        seconds: wall time of the rounds, prefill excluded.
        prefill_seconds: wall time of both prefills.
    """

    n_generated: int = 0
    n_draft_forwards: int = 0
    n_target_forwards: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_discarded: int = 0
    n_verified_tokens: int = 0
    seconds: float = 0.0
    prefill_seconds: float = 0.0

    def __add__(self, other: Stats) -> Stats:
        return Stats(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of wall time, prefill included."""
        return _ratio(self.n_generated, self.seconds + self.prefill_seconds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens."""
        return _ratio(self.n_accepted, self.n_drafted)

    @property
    def discard_rate(self) -> float:
        """Discarded draft tokens per generated token (SpecDec++ eq. 2.3)."""
        return _ratio(self.n_discarded, self.n_generated)

    @property
    def verification_rate(self) -> float:
        """Target forwards per generated token (SpecDec++ eq. 2.3)."""
        return _ratio(self.n_target_forwards, self.n_generated)

    @property
    def tokens_per_forward(self) -> float:
        """Generated tokens per target forward. The forward that reads the prompt counts, since it gives a token.

        It is 1 without drafts. SpecTr (Sun et al. 2023, §2) calls this quantity block efficiency.
        """
        return _ratio(self.n_generated, self.n_target_forwards)


def _ratio(numerator: float, denominator: float) -> float:
    """Return the ratio; 0 if the denominator is 0."""
    return numerator / denominator if denominator else 0.0


@dataclass
class Generation:
    """The output of one prompt.

    Attributes:
        prompt_tokens: token ids of the prompt; for an encoder-decoder, the encoder's input.
        tokens: generated ids, up to the end token or the token that completes a stop string.
        text: the text of ``tokens`` without special tokens and stop string; it continues the prompt's text.
        finish_reason: ``"eos"``, ``"stop"`` (a stop string, or a stop token of the request), ``"length"`` (the budget)
            or ``"context"`` (the model's longest input).
        arm: index of the arm that a router chose; None without a router.
        seed: the seed that reproduces this text alone; None if the caller passed a random source.
        verifier: the verification rule. Under ``"invariant"`` the seed gives this text for all drafts; under other
            rules only for the same drafts.
        rounds: the trace. Round 0 is the prefill, without drafted tokens and with one emitted token.
        stats: the counters.
    """

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str = "length"
    arm: int | None = None
    seed: int | None = None
    verifier: str = ""
    rounds: list[Round] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    def record(self, round: Round, ends: Callable[[int], bool]) -> list[int]:
        """Add a round, cut its output after the first token for which ``ends`` is true, and return this output."""
        for i, token in enumerate(round.emitted):
            if ends(token):
                del round.emitted[i + 1 :]
                round.path = round.path[: i + 1]
                break
        self.rounds.append(round)
        self.tokens += round.emitted
        self.stats.n_generated += len(round.emitted)
        self.stats.n_drafted += len(round.drafted)
        self.stats.n_accepted += round.accepted
        self.stats.n_discarded += len(round.drafted) - round.accepted
        return round.emitted


# Requests


class Drafter(ABC):
    """Proposes drafts, using each request's random source, length controller and sampling parameters.

    A drafter owns the caches of its draft models. All requests of an engine share its forwards.

    Attributes:
        reads_states: whether the drafter reads ``Request.states``, the target's hidden states.
        is_only_drafter: whether all requests of the round use this drafter; set by the engine before :meth:`propose`.
    """

    reads_states = False
    is_only_drafter = True

    def start(self, requests: Sequence[Request]) -> None:  # noqa: B027 — not every drafter prepares something
        """Add requests whose prompts the target has read."""

    @abstractmethod
    def propose(self, requests: Sequence[Request]) -> list[Draft]:
        """Return a draft for each request, at most ``max_draft`` tokens deep."""

    def commit(self, request: Request, draft: Draft, path: list[int]) -> None:  # noqa: B027 — some have no cache
        """Keep the accepted nodes ``path`` of ``draft``; ``request.text`` does not include their tokens yet."""

    def timed(self, tokens: int, forwards: int, seconds: float) -> None:  # noqa: B027 — most do not use times
        """Receive the wall time of a round, and the largest numbers of tokens and forwards of its drafts."""

    def release(self, request: Request) -> None:  # noqa: B027 — some have no state of a request
        """Remove a request."""

    def columns_needed(self, request: Request) -> int:
        """Return the number of cache columns needed after a request's prompt."""
        return request.budget

    def growth(self, requests: Sequence[Request]) -> int:
        """Return the bytes by which the memory of the draft's keys and values grows with further ``requests``."""
        return 0

    def clear(self) -> None:  # noqa: B027 — some have no state of requests
        """Remove all requests, also after an interrupted round."""


@dataclass(frozen=True)
class DraftingArm:
    """A drafter and a length controller.

    Attributes:
        drafter: the drafter.
        length: the length controller.
        draft_exponent: the power of the draft's probabilities; 1 except under the rule ``invariant``.
    """

    drafter: Drafter
    length: LengthController
    draft_exponent: float = 1.0


class RoundHook:
    """Observes the rounds of an engine, or of one request. The methods of this base class do nothing."""

    def round_started(self) -> None:
        """Observe the start of a round; called for hooks of the engine only."""

    def prompt_read(self, request: Request, state: Tensor) -> None:
        """Observe that the target has read a request's prompt.

        The hook may choose another arm for the request, by ``request.choose(arm)``.

        Args:
            request: the request, which has its first arm.
            state: (d + L·d,) states at the prompt's last token: the last hidden state, then the outputs of the target's
                ``state_layers``, of which there are L.
        """

    def verified(self, request: Request, draft: Draft, verdict: Verdict, p: TokenDistribution, logits: Tensor) -> None:
        """Observe the verification of a draft, whose accepted tokens have been added to the request.

        Args:
            request: the request.
            draft: the draft.
            verdict: the result.
            p: N + 1 distributions of the target: after the text, and after each of the N drafted tokens.
            logits: (N + 1, V) the logits of ``p``.
        """

    def round_ended(self, drafts: Mapping[Request, Draft], joining: Sequence[Request]) -> None:
        """Observe the end of a round; called for hooks of the engine only.

        Args:
            drafts: the draft of each request.
            joining: the requests whose prompts were read; they drafted nothing.
        """


@dataclass(eq=False)
class Request:
    """A prompt and its continuation so far.

    Attributes:
        prompt: token ids of the prompt.
        sampling: sampling parameters of both models.
        rng: random source of this request.
        budget: maximum number of new tokens.
        stop_tokens: ids that end the text.
        verify: the verification rule.
        arms: pairs of a drafter and a length controller; one of them is chosen when the prompt has been read.
        output: generated tokens, trace and counters.
        style: the rules that make the text from the tokens, with the stop strings.
        stopping: searches for stop strings; None if there are none.
        hooks: hooks of this request only, such as the server's recorder.
        text: tokens that the target reads: prompt and output; for an encoder-decoder, start token and output.
        ngrams: an n-gram index of ``text``.
        drafter: the drafter of the chosen arm.
        draft_sampling: the sampling parameters of drafted tokens.
        shared_length: the length controller of the chosen arm.
        length: the request's length controller, which ``shared_length.for_text`` returned.
        drafting: whether the drafter has been started.
        states: the target's hidden states, (n, d) for each round, that the drafter has not read yet.
        ended: whether the text is complete, by its budget or a stop token.
        error: the exception that failed the request, or None.
        cancelled: whether the caller no longer waits for the request.
        streamed: whether the caller waits for each token instead of the whole text.
    """

    prompt: list[int]
    sampling: SamplingParams
    rng: RandomSource
    budget: int
    stop_tokens: frozenset[int]
    verify: Verifier
    arms: Sequence[DraftingArm]
    output: Generation  # Request.append adds each round; the decoder or the server sets its seed and text

    # Set by the decoder or the server before the request is submitted.
    style: TextStyle = PLAIN
    stopping: TextStream | None = None
    hooks: Sequence[RoundHook] = ()
    streamed: bool = False  # also set by the scheduler

    # Set by the engine when the request joins (Request.begin); Request.append extends the text. A drafter of copies
    # sets another index, which may have longer n-grams.
    text: list[int] = field(default_factory=list)
    ngrams: NgramIndex = field(init=False)

    # Set when the request joins, and by a router's hook when the prompt has been read (Request.choose).
    drafter: Drafter = field(init=False)
    draft_sampling: SamplingParams = field(init=False)
    shared_length: LengthController = field(init=False)
    length: LengthController = field(init=False)

    # Set by the engine: drafting at the end of the first round, states in every round (the drafter takes them out).
    drafting: bool = False
    states: list[Tensor] = field(default_factory=list)

    # How the request ends: set by Request.append; by the engine, a drafter or the scheduler; by the scheduler.
    ended: bool = False
    error: BaseException | None = None
    cancelled: bool = False

    def begin(self, text: list[int]) -> None:
        """Set the first tokens of the target's text, and choose the first arm."""
        self.text = text
        self.ngrams = NgramIndex(self.text)
        self.choose(0)

    def choose(self, arm: int) -> None:
        """Choose the arm with index ``arm``."""
        chosen = self.arms[arm]
        self.drafter, self.shared_length = chosen.drafter, chosen.length
        self.draft_sampling = self.sampling.to_power(chosen.draft_exponent)
        self.length = self.shared_length.for_text()
        self.length.start_text()

    @property
    def source(self) -> RandomSource:
        """The random source of the tokens that follow the text."""
        return self.rng.at(len(self.text))

    @property
    def reads_states(self) -> bool:
        """Return true if the drafter of an arm reads the target's hidden states."""
        return any(arm.drafter.reads_states for arm in self.arms)

    def add_states(self, states: Tensor, draft: Draft, path: list[int]) -> None:
        """Add the target's states of new tokens of the text, and of the nodes ``path`` of ``draft``.

        Args:
            states: (n, d) the states of all tokens that the target has read in this round.
            draft: the draft, whose nodes were read last.
            path: the accepted nodes.
        """
        new = len(states) - len(draft.tokens)
        self.states.append(torch.cat([states[:new], states[new:][path]]))  # a copy of a part of a batch

    @property
    def remaining(self) -> int:
        """Number of tokens left in the budget."""
        return self.budget - len(self.output.tokens)

    @property
    def max_draft(self) -> int:
        """Maximum depth of a draft, which leaves room for the target's token."""
        return self.remaining - 1

    @property
    def finished(self) -> bool:
        """Return true if the request has ended, failed, or been cancelled."""
        return self.ended or self.cancelled or self.error is not None

    def append(self, draft: Draft, verdict: Verdict) -> None:
        """Append the accepted tokens of a draft and the target's token."""
        controlled = len(draft.tokens) - draft.copied
        if controlled and verdict.accepted >= draft.copied and not draft.from_target:
            self.length.end_round(controlled, verdict.accepted - draft.copied)
        emitted = self._record(draft, verdict)
        self.text += emitted
        if len(self.output.tokens) >= self.budget:
            self.ended = True

    def _ends(self, token: int) -> bool:
        """Return true if ``token``, the next token of the output, ends the output."""
        if self.stopping is not None:
            self.stopping.push([token])
        if (self.stopping is not None and self.stopping.ended) or token in self.style.stop_token_ids:
            self.output.finish_reason = "stop"
        elif token in self.stop_tokens:
            self.output.finish_reason = "eos"
        else:
            return False
        self.ended = True
        return True

    def _record(self, draft: Draft, verdict: Verdict) -> list[int]:
        """Add the round of a verified draft to the output, count its forwards, and return its tokens."""
        emitted, stats = [*(draft.tokens[node] for node in verdict.path), verdict.token], self.output.stats
        if draft.sequential:
            return self._record_each(emitted)
        if draft.from_target:  # each forward read one token per beam
            stats.n_target_forwards += draft.n_forwards
            return self.output.record(Round([], [], emitted), self._ends)
        stats.n_draft_forwards += draft.n_forwards
        stats.n_target_forwards += 1
        if self.output.rounds:  # the first token comes from the prefill
            stats.n_verified_tokens += len(draft.tokens) + 1
        round = Round(draft.tokens, verdict.path, emitted, verdict.ratios, draft.parents, draft.copied)
        return self.output.record(round, self._ends)

    def _record_each(self, tokens: list[int]) -> list[int]:
        """Add a round without a draft for each of ``tokens`` up to the one that ends the text; return these tokens."""
        emitted: list[int] = []
        for token in tokens:
            emitted += self._record(NO_DRAFT, Verdict([], token))
            if self.ended:
                break
        return emitted


def warn_of_context(outputs: Sequence[Generation], context: int | None) -> None:
    """Warn if texts ended at the target's longest input, before they had ``max_new_tokens`` tokens.

    Args:
        outputs: the texts.
        context: the longest input, in tokens; None if there is no limit, so that no text ended there.
    """
    count = sum(output.finish_reason == "context" for output in outputs)
    if count:
        warnings.warn(
            f"max_new_tokens: {count} of {counted(len(outputs), 'text')} ended earlier, at the context of {context} "
            "tokens; shorten the prompt, or take a model that reads more",
            stacklevel=3,
        )
