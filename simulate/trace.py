"""Traces: the draft's proposals at every position of a target's output, and their acceptance by the target.

The output distribution does not depend on the length controller, so one text can be replayed under any controller.
Token-wise verification is coupled in reverse: the drafted token is the text's token x_t with probability
min(1, q(x_t)/p(x_t)); otherwise it is a rejected token, drawn from norm((q - p)+). The draws are made once per
position. After a rejected token, the draft continues from its own tokens instead of the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..controllers.acceptance.ngram_index import NOTHING, NgramIndex, NgramMatch
from ..controllers.acceptance.step import DraftSignals, draft_signals
from ..controllers.length import MAX_DRAFT
from ..controllers.sampling import SamplingParams
from ..data_gen.rollout import readable
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
        after: (N,) the node drafted after each; ``END`` after stop tokens and where no draft continues.
        tokens: (N,) drafted tokens y.
        q: (N,) q(y) under the sampling parameters.
        signals: (N,) draft signals.
        ngram_matches: (N,) match, in the text so far, of the n-gram before the token.
        accept: (N,) min(1, p(y)/q(y)).
        states: (N, d) the draft's hidden states at the previous token.
        target_states: (T, D) the target's that the tokens of the text were drawn from.
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
) -> Trace:
    """Trace ``text``, which the target generated after ``prompt`` under ``sampling``, up to ``budget`` tokens.

    The text is cut after the first token that the draft cannot read. If it is shorter than its budget and does not end
    with a stop token, it was cut, and the budget becomes its length.

    Args:
        longest: tokens of the longest draft that the trace holds.
    """
    text = text[: readable(text, draft.vocab_size) + 1]
    budget = budget if text[-1] in stop_tokens else len(text)
    p, q = (TextReader.begin(model, prompt, (1 + MAX_DRAFT) * len(text))[0] for model in (target, draft))
    traced = _trace_text(p, q, prompt, text, budget, sampling, rng)
    _trace_beside(traced, p, q, len(prompt), sampling, rng, stop_tokens, longest)
    _look_up(traced, prompt)
    return traced


def _trace_text(
    target: TextReader,
    draft: TextReader,
    prompt: list[int],
    text: list[int],
    budget: int,
    sampling: SamplingParams,
    rng: RandomSource,
) -> Trace:
    """The nodes at the text's positions; afterwards both models' caches hold the text without its last token."""
    read, size = [*prompt, *text[:-1]], target.model.vocab_size
    p_logits, target_states = target.read(read, keep=len(text))
    q_logits, states = draft.read(read, keep=len(text))
    p, q = TokenDistribution.from_logits(sampling, p_logits), TokenDistribution.from_logits(sampling, q_logits, size)
    # p(x) = 0 can only be rounding, since the text was generated in another batch.
    kept = rng.accept([min(1.0, b / a) if a > 0 else 0.0 for a, b in zip(p.of(text), q.of(text), strict=True)])
    tokens = [
        x if keep else q.sample_beyond(t, p.part(t, t + 1), rng)
        for t, (x, keep) in enumerate(zip(text, kept, strict=True))
    ]
    chosen = q.of(tokens)
    return Trace(
        text,
        budget,
        kept,
        [t + 1 if keep and t + 1 < len(text) else END for t, keep in enumerate(kept)],
        tokens,
        chosen,
        draft_signals(chosen, tokens, q.probabilities, q_logits),
        [],
        _acceptances(p.of(tokens), chosen),
        states.float().cpu(),
        target_states.float().cpu(),
    )


def _trace_beside(
    traced: Trace,
    target: TextReader,
    draft: TextReader,
    start: int,
    sampling: SamplingParams,
    rng: RandomSource,
    stop_tokens: frozenset[int],
    longest: int,
) -> None:
    """Add the nodes after rejected tokens, with one draft forward per level of all branches and one target forward.

    Args:
        start: column of the text's first token.
    """
    tokens, length = traced.tokens, len(traced.text)
    roots = {t: t for t in range(length) if not traced.kept[t] and tokens[t] not in stop_tokens}
    above = {t: [*range(start, start + t)] for t in roots}  # columns of each node's ancestors
    read: list[int] = []
    states = [traced.states]
    level = [*roots]
    for depth in range(1, longest):
        level = [node for node in level if depth < traced.budget - roots[node] - 1]
        if not level:
            break
        column = draft.length
        branches = TreeMask(start, [above[node] for node in level])
        logits, hidden = draft.read([tokens[node] for node in level], tree=branches)
        distribution = TokenDistribution.from_logits(sampling, logits, target.model.vocab_size)
        drawn = [distribution.sample(row, rng) for row in range(len(level))]
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
    if read:
        branches = TreeMask(start, [above[node] for node in read])
        logits, _ = target.read([tokens[node] for node in read], tree=branches)
        p = TokenDistribution.from_logits(sampling, logits).of(tokens[length:])
        traced.accept += _acceptances(p, traced.q[length:])
    traced.states = torch.cat(states)


def _look_up(traced: Trace, prompt: list[int]) -> None:
    """Add the n-gram match of every node in the prompt, the text and the draft so far."""
    traced.ngram_matches = [NOTHING] * len(traced.tokens)
    text = [*prompt]
    index = NgramIndex(text)
    for t, token in enumerate(traced.text):
        drafted, node = [], t
        while node != END:
            drafted.append(traced.tokens[node])
            traced.ngram_matches[node] = index.match(drafted)
            node = END if traced.kept[t] else traced.after[node]  # after a kept token comes the node of position t + 1
        text.append(token)


def _acceptances(p: list[float], q: list[float]) -> list[float]:
    """min(1, p/q); the tokens were drawn from q, so it is positive up to rounding."""
    return [min(1.0, a / b) if b > 0 else 0.0 for a, b in zip(p, q, strict=True)]


STATES = {"states", "target_states"}

# The lists of a trace, as they are stored in the shards of a feature dataset.
LISTS = {
    "text": torch.int32, "kept": torch.bool, "after": torch.int32, "tokens": torch.int32, "q": torch.float64,
    "signals": torch.float64, "accept": torch.float64,
}  # fmt: skip


def as_tensors(traced: Trace) -> dict[str, Tensor]:
    """The tensors of a trace, to be read by :func:`from_tensors`."""
    matches = [(m.agrees, m.matches, m.share, -1 if m.copy is None else m.copy) for m in traced.ngram_matches]
    return {
        **{name: torch.tensor(vars(traced)[name], dtype=dtype) for name, dtype in LISTS.items()},
        "budget": torch.tensor(traced.budget),
        "ngram_matches": torch.tensor(matches, dtype=torch.float64),
        "states": traced.states,
        "target_states": traced.target_states,
    }


def from_tensors(tensors: dict[str, Tensor]) -> Trace:
    """The trace whose tensors :func:`as_tensors` returned."""
    lists = {name: tensors[name].tolist() for name in LISTS}
    matches = [
        NgramMatch(int(agrees), int(longest), share, None if copy < 0 else int(copy))
        for agrees, longest, share, copy in tensors["ngram_matches"].tolist()
    ]
    signals = [(confidence, top, entropy) for confidence, top, entropy in lists.pop("signals")]
    of_target = tensors.get("target_states", torch.empty(0))  # older traces have the draft's alone
    return Trace(
        **lists, signals=signals, budget=int(tensors["budget"]), ngram_matches=matches,
        states=tensors["states"].float(), target_states=of_target.float(),
    )  # fmt: skip
