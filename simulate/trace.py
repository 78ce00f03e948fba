"""Traces: the draft's proposals at every position of a target's output, and their acceptance by the target.

The output distribution does not depend on the length controller, so that one text can be replayed with any controller.
The draft's token at a position has its conditional distribution given the text's token x_t:

* Under token-wise verification the drafted token is x_t with probability min(1, q(x_t)/p(x_t)). Otherwise it is a
  rejected token, drawn from norm((q - p)+).
* Under the rule ``invariant`` the noise of the position has its conditional distribution given that the target chose
  x_t with this noise (:class:`TextNoise`). The draft chooses with the same noise. The drafted token is then x_t with
  probability 1 / Σ_j max(p_j, q_j·p(x_t)/q(x_t)).

There is one draw per position. After a rejected token, the draft continues from its own tokens instead of the text;
under ``invariant`` with the noise of the text's later positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from ..controllers.acceptance.ngram_index import NO_MATCH, NgramIndex, NgramMatch
from ..controllers.acceptance.step import DraftSignals, draft_signals
from ..controllers.checkpoints.provenance import INVARIANT, TOKEN_WISE
from ..controllers.length import MAX_DRAFT
from ..controllers.sampling import SamplingParams
from ..controllers.shared_noise import exponentials, position_key, seed_key
from ..data_gen.rollout import acceptance, moved, readable
from ..infer.core import TokenDistribution
from ..infer.random_source import RandomSource
from ..models import LanguageModel, TextReader, TreeMask

END = -1  # nothing is drafted after this node


@dataclass
class Trace:
    """One text and its drafts. The first T of N nodes are the tokens drafted at the text's positions.

    Attributes:
        text: x_0 … x_{T-1}, sampled from the target.
        budget: maximum number of tokens of the text.
        kept: (T,) whether the token drafted at a position is the text's token.
        after: (N,) the node drafted after each node; ``END`` after stop tokens and if no draft continues.
        tokens: (N,) drafted tokens y.
        q: (N,) q(y) under the sampling parameters.
        signals: (N,) draft signals.
        ngram_matches: (N,) match, in the text so far, of the n-gram before the token.
        accept: (N,) the probability that the target accepts y, see :func:`~specpilot.data_gen.rollout.acceptance`.
        states: (N, d) the draft's hidden states at the previous token.
        target_states: (T, D) the target's hidden states that the tokens of the text were drawn from.
        prompt: tokens of the prompt; empty if they are not known.
    """

    text: list[int]
    budget: int
    kept: list[bool]
    after: list[int]
    tokens: list[int]
    q: list[float]
    signals: list[DraftSignals]
    ngram_matches: list[NgramMatch]
    accept: list[float]
    states: Tensor
    target_states: Tensor = field(default_factory=lambda: torch.empty(0))
    prompt: list[int] = field(default_factory=list)


class TextNoise:
    """Noise that target and draft share, conditioned on the target's choice of a text's tokens.

    The noise of a token j at a position is an exponential variable E_j. The target chooses the token y with the
    smallest E_j / p_j. The smallest value τ is an exponential variable that does not depend on y. Given both,
    E_y = p_y·τ, and all other E_j - p_j·τ are independent exponential variables. E is therefore computed from variables
    W_j and one τ for each position: E_j = W_j + p_j·τ, without W_j for j = y. After the end of the text E is W.

    Args:
        p: the T distributions that the tokens of ``text`` were drawn from.
        text: the text.
        rng: the random source, whose next T + 1 numbers determine the noise.
    """

    def __init__(self, p: TokenDistribution, text: list[int], rng: RandomSource) -> None:
        self.p, self.text = moved(p, torch.device("cpu")), text
        self.key = seed_key(int(rng.uniform() * 2**53))
        self.smallest = [-math.log1p(-rng.uniform()) for _ in text]

    def token(self, q: TokenDistribution, row: int, position: int) -> int:
        """Return the token that the draft chooses at ``position`` of the text from distribution ``row`` of ``q``."""
        tokens, probabilities = (values.cpu() for values in q.support(row))
        noise = exponentials(torch.tensor([position_key(self.key, position)]), tokens)
        if position < len(self.text):
            target_p = self.p.row(position)[tokens].double()
            noise = noise.where(tokens != self.text[position], 0.0) + target_p * self.smallest[position]
        return int(tokens[(noise / probabilities.double()).where(probabilities > 0, torch.inf).argmin()])


# (distributions, row, position in the text) → the token that the draft chooses there
Draw: TypeAlias = Callable[[TokenDistribution, int, int], int]


def _independent(rng: RandomSource) -> Draw:
    """Return a function that draws each token with a new random number."""

    def draw(q: TokenDistribution, row: int, position: int) -> int:
        return q.sample(row, rng)

    return draw


@torch.inference_mode()
def trace(
    target: LanguageModel,
    draft: LanguageModel,
    prompt: list[int],
    text: list[int],
    budget: int,
    sampling: SamplingParams,
    rng: RandomSource,
    stop_tokens: frozenset[int],
    longest: int = MAX_DRAFT,
    verifier: str = TOKEN_WISE,
    draft_sampling: SamplingParams | None = None,
) -> Trace:
    """Trace ``text``, which the target generated after ``prompt`` under ``sampling``, up to ``budget`` tokens.

    The text is cut after the first token that the draft cannot read. If it then does not end with a stop token, the
    budget becomes its length.

    Args:
        target, draft: the models.
        prompt: tokens of the prompt.
        text: tokens of the text.
        budget: maximum number of tokens of the text.
        sampling: sampling parameters.
        rng: random source of the draft's tokens.
        stop_tokens: ids that end a text.
        longest: maximum length of a draft in the trace, in tokens.
        verifier: the rule that verifies drafts, ``"token-wise"`` or ``"invariant"``.
        draft_sampling: sampling parameters of the draft; None for those of the target. With temperature 0 the draft is
            greedy: q is a point mass, and the target accepts the token y with probability p(y).
    """
    draft_sampling = draft_sampling or sampling
    text = text[: readable(text, draft.vocab_size) + 1]
    budget = budget if text[-1] in stop_tokens else len(text)
    p, q = (TextReader.begin(model, prompt, (1 + MAX_DRAFT) * len(text))[0] for model in (target, draft))
    traced, draw = _trace_text(p, q, prompt, text, budget, (sampling, draft_sampling), rng, verifier)
    _trace_beside(traced, p, q, len(prompt), (sampling, draft_sampling), draw, stop_tokens, longest, verifier)
    _look_up(traced, prompt)
    return traced


def _trace_text(
    target: TextReader,
    draft: TextReader,
    prompt: list[int],
    text: list[int],
    budget: int,
    sampling: tuple[SamplingParams, SamplingParams],
    rng: RandomSource,
    verifier: str,
) -> tuple[Trace, Draw]:
    """Return a trace of the nodes at the text's positions, and the function that draws tokens after rejected tokens.

    ``sampling`` has the parameters of the target and of the draft. Afterwards the caches of both models have the text
    without its last token.
    """
    read, size = [*prompt, *text[:-1]], target.model.vocab_size
    p_logits, target_states = target.read(read, keep=len(text))
    q_logits, states = draft.read(read, keep=len(text))
    p = TokenDistribution.from_logits(sampling[0], p_logits)
    q = TokenDistribution.from_logits(sampling[1], q_logits, size)
    if verifier == INVARIANT:
        draw: Draw = TextNoise(p, text, rng).token
        tokens = [draw(q, t, t) for t in range(len(text))]
        kept = [token == x for token, x in zip(tokens, text, strict=True)]
    else:
        # p(x) = 0 can only be rounding, because the text was generated in another batch.
        kept = rng.accept([min(1.0, b / a) if a > 0 else 0.0 for a, b in zip(p.of(text), q.of(text), strict=True)])
        tokens = [
            x if keep else q.sample_beyond(t, p.part(t, t + 1), rng)
            for t, (x, keep) in enumerate(zip(text, kept, strict=True))
        ]
        draw = _independent(rng)
    chosen = q.of(tokens)
    traced = Trace(
        text,
        budget,
        kept,
        [t + 1 if keep and t + 1 < len(text) else END for t, keep in enumerate(kept)],
        tokens,
        chosen,
        draft_signals(chosen, tokens, q.probabilities, q_logits),
        [],
        _acceptances(p, [q], tokens, chosen, verifier),
        states.float().cpu(),
        target_states.float().cpu(),
        prompt,
    )
    return traced, draw


def _trace_beside(
    traced: Trace,
    target: TextReader,
    draft: TextReader,
    start: int,
    sampling: tuple[SamplingParams, SamplingParams],
    draw: Draw,
    stop_tokens: frozenset[int],
    longest: int,
    verifier: str,
) -> None:
    """Add the nodes after rejected tokens, with one draft forward per level of all branches, and one target forward.

    Args:
        traced: the result of :func:`_trace_text`, which is extended.
        target, draft: readers whose caches have the text.
        start: column of the text's first token.
        draw: draws the tokens.
        sampling: the sampling parameters of the target and of the draft.
        stop_tokens, longest, verifier: as for :func:`trace`.
    """
    tokens, length = traced.tokens, len(traced.text)
    roots = {t: t for t in range(length) if not traced.kept[t] and tokens[t] not in stop_tokens}
    above = {t: [*range(start, start + t)] for t in roots}  # columns of each node's ancestors
    read: list[int] = []
    states, levels = [traced.states], list[TokenDistribution]()
    level = [*roots]
    for depth in range(1, longest):
        level = [node for node in level if depth < traced.budget - roots[node] - 1]
        if not level:
            break
        column = draft.length
        branches = TreeMask(start, [above[node] for node in level])
        logits, hidden = draft.read([tokens[node] for node in level], tree=branches)
        distribution = TokenDistribution.from_logits(sampling[1], logits, target.model.vocab_size)
        drawn = [draw(distribution, row, roots[node] + depth) for row, node in enumerate(level)]
        chosen = distribution.of(drawn)
        for row, node in enumerate(level):
            child = len(tokens) + row
            traced.after[node], roots[child] = child, roots[node]
            above[child] = [*above[node], column + row]
        read += level
        level = [len(tokens) + row for row, token in enumerate(drawn) if token not in stop_tokens]
        traced.after += [END] * len(drawn)
        traced.q += chosen
        traced.signals += draft_signals(chosen, drawn, distribution.probabilities, logits)
        tokens += drawn
        states.append(hidden.float().cpu())
        if verifier == INVARIANT:
            levels.append(distribution)
    if read:
        branches = TreeMask(start, [above[node] for node in read])
        logits, _ = target.read([tokens[node] for node in read], tree=branches)
        p = TokenDistribution.from_logits(sampling[0], logits)
        traced.accept += _acceptances(p, levels, tokens[length:], traced.q[length:], verifier)
    traced.states = torch.cat(states)


def _look_up(traced: Trace, prompt: list[int]) -> None:
    """Add the n-gram match of every node in the prompt, the text and the draft so far."""
    traced.ngram_matches = [NO_MATCH] * len(traced.tokens)
    text = [*prompt]
    index = NgramIndex(text)
    for t, token in enumerate(traced.text):
        drafted, node = [], t
        while node != END:
            drafted.append(traced.tokens[node])
            traced.ngram_matches[node] = index.match(drafted)
            # The node of position t + 1 follows a kept token.
            node = END if traced.kept[t] else traced.after[node]
        text.append(token)


def _acceptances(
    p: TokenDistribution, q: Sequence[TokenDistribution], tokens: list[int], chosen: list[float], verifier: str
) -> list[float]:
    """Return the acceptance probabilities of the drafted ``tokens``.

    Args:
        p: the target's distributions.
        q: the draft's distributions, which token-wise verification does not need.
        tokens: the tokens.
        chosen: the probability of each token in its distribution; positive up to rounding.
        verifier: the verification rule.
    """
    if verifier == INVARIANT:
        draft_q = TokenDistribution.joined(q)
        accepted = acceptance(p, draft_q, torch.tensor(tokens, device=draft_q.probabilities.device), verifier)
        return [float(probability) for probability in accepted.tolist()]
    return [min(1.0, a / b) if b > 0 else 0.0 for a, b in zip(p.of(tokens), chosen, strict=True)]


STATES = {"states", "target_states"}

# The lists of a trace and their types in the shards of a feature dataset.
LISTS = {
    "text": torch.int32, "kept": torch.bool, "after": torch.int32, "tokens": torch.int32, "q": torch.float64,
    "signals": torch.float64, "accept": torch.float64,
}  # fmt: skip


def to_tensors(traced: Trace) -> dict[str, Tensor]:
    """Return the tensors of a trace, for :func:`from_tensors`."""
    matches = [(m.agrees, m.matches, m.share, -1 if m.copy is None else m.copy) for m in traced.ngram_matches]
    return {
        **{name: torch.tensor(vars(traced)[name], dtype=dtype) for name, dtype in LISTS.items()},
        "budget": torch.tensor(traced.budget),
        "ngram_matches": torch.tensor(matches, dtype=torch.float64),
        "states": traced.states,
        "target_states": traced.target_states,
    }


def from_tensors(tensors: dict[str, Tensor]) -> Trace:
    """Return the trace with these tensors, the result of :func:`to_tensors`."""
    lists = {name: tensors[name].tolist() for name in LISTS}
    matches = [
        NgramMatch(int(agrees), int(longest), share, None if copy < 0 else int(copy))
        for agrees, longest, share, copy in tensors["ngram_matches"].tolist()
    ]
    signals = [(confidence, top, entropy) for confidence, top, entropy in lists.pop("signals")]
    target_states = tensors.get("target_states", torch.empty(0))  # older traces have the draft's alone
    return Trace(
        **lists, signals=signals, budget=int(tensors["budget"]), ngram_matches=matches,
        states=tensors["states"].float(), target_states=target_states.float(),
    )  # fmt: skip
