"""Verification of chains on an accelerator, with one read by the host for all requests of a round.

The rules are those of :mod:`.token_wise`, :mod:`.block` and :mod:`.invariant`. A request's random source gives the same
numbers in the same order as there, so that a seed keeps the same tokens, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...common.errors import InputError
from ...controllers.sampling import draw_by, draw_unchecked, require_finite
from ..core import Draft, Drawn, TokenDistribution, Verdict, alike
from ..random_source import RandomSource
from .block import block
from .invariant import invariant
from .token_wise import token_wise

RULES = (token_wise, block, invariant)
HEADER = 3  # accepted tokens, the token that follows them, and the mass of what that was drawn from


class Drafted(NamedTuple):
    """A chain that ``rule``, one of ``RULES``, verifies.

    Attributes:
        p: the target's K + 1 distributions.
        drawn: that of ``draft``.
    """

    p: TokenDistribution
    draft: Draft
    drawn: Drawn
    rule: Callable[..., Verdict]
    rng: RandomSource
    stop_tokens: frozenset[int]


def verify_drawn(chains: Sequence[Drafted]) -> list[tuple[Draft, Verdict] | InputError]:
    """The draft with tokens that the host has read, and what is kept of it, for each of ``chains``."""
    uniforms = [_drawn_with(chain) for chain in chains]
    groups = [
        [among[i] for i in group]
        for rule in RULES
        if (among := [i for i, chain in enumerate(chains) if chain.rule is rule])
        for group in alike([chains[i].p for i in among])
    ]
    numbers = [
        (_matches if chains[group[0]].rule is invariant else _numbers)(
            [chains[i] for i in group], [uniforms[i] for i in group]
        )
        for group in groups
    ]
    read = iter(torch.cat([rows.flatten() for rows in numbers]).tolist())
    found: dict[int, tuple[Draft, Verdict] | InputError] = {}
    for group, rows in zip(groups, numbers, strict=True):
        for i in group:
            own = [next(read) for _ in range(rows.shape[1])]
            try:
                found[i] = _settled(chains[i], own, uniforms[i])
            except InputError as error:
                found[i] = error
    return [found[i] for i in range(len(chains))]


def _drawn_with(chain: Drafted) -> list[float]:
    """The numbers that the tokens of ``chain`` were drawn with, if they are unread, and those to verify them with.

    Under the rule ``invariant`` these are the same numbers, and one for the token after the chain.
    """
    count = len(chain.draft.tokens) + 1
    if chain.rule is invariant:
        return [chain.rng.number(depth) for depth in range(count)]
    return [*chain.drawn.numbers, *(chain.rng.uniform() for _ in range(count))]


def _settled(chain: Drafted, numbers: list[float], uniforms: list[float]) -> tuple[Draft, Verdict]:
    (accepted, token, mass), rest = numbers[:HEADER], numbers[HEADER:]
    tokens, ratios = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    draft = chain.draft.with_tokens([int(y) for y in tokens[: len(chain.draft.tokens)]], chain.stop_tokens)
    count = len(draft.tokens)
    require_finite(mass + sum(ratios[:count]))
    if chain.rule is not invariant:
        chain.rng.give_back(uniforms[len(uniforms) - 2 * (len(chain.draft.tokens) - count) :])
    return draft, Verdict.chain(int(accepted), int(token), ratios[:count] if chain.rule is token_wise else None)


def _sent(device: torch.device, rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.long) -> Tensor:
    """``rows`` on the device, padded to the longest."""
    width = max(map(len, rows))
    padded = [[*row, *[-1] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=dtype).to(device, non_blocking=True)


def _rows_of(lengths: Sequence[int]) -> list[list[int]]:
    """Rows (B, K + 1) of the joined p of chains of ``lengths``; those after a shorter chain's last repeat it."""
    firsts = accumulate((length + 1 for length in lengths), initial=0)
    k = max(lengths)
    return [[first + min(i, n) for i in range(k + 1)] for first, n in zip(firsts, lengths, strict=False)]


def _up_to_stop(chains: Sequence[Drafted], tokens: Tensor) -> Tensor:
    """A mask (B, K) of the chains' ``tokens`` that are drafted, up to a stop token."""
    device = tokens.device
    stop_tokens = _sent(device, [[*chain.stop_tokens, -1] for chain in chains])
    stops = (tokens.unsqueeze(-1) == stop_tokens.unsqueeze(1)).any(-1)
    place = torch.arange(tokens.shape[1], device=device)
    return (stops.cumsum(-1) - stops.long() == 0) & (place < _sent(device, [[len(one.drawn.tokens)] for one in chains]))


def _matches(chains: Sequence[Drafted], keys: Sequence[list[float]]) -> Tensor:
    """As :func:`_numbers` for the rule ``invariant``: a comparison of the chains' tokens with the target's."""
    device = chains[0].p.probabilities.device
    lengths = [len(chain.drawn.tokens) for chain in chains]
    together = TokenDistribution.joined([chain.p for chain in chains])
    by = torch.tensor([key for of_chain in keys for key in of_chain]).to(device, non_blocking=True)
    places = draw_by(together.probabilities, together.tokens, by)
    words = places if together.tokens is None else together.tokens.gather(-1, places.unsqueeze(-1)).squeeze(-1)
    rows = _sent(device, _rows_of(lengths))
    y, mass = words[rows], together.probabilities.sum(-1)[rows]  # (B, K + 1)
    tokens = pad_sequence([chain.drawn.tokens for chain in chains], batch_first=True).to(device)  # (B, K)
    same = (tokens == y[:, :-1]) & _up_to_stop(chains, tokens)
    accepted = same.long().cumprod(-1).sum(-1, keepdim=True)
    read = torch.arange(y.shape[1], device=device) <= accepted
    checked = mass.where(read, 0.0).sum(-1, keepdim=True)
    return torch.cat([accepted, y.gather(-1, accepted), checked, tokens, torch.zeros_like(tokens)], -1).double()


def _numbers(chains: Sequence[Drafted], uniforms: Sequence[list[float]]) -> Tensor:
    """(B, 3 + 2·K) of chains with distributions of equal widths: ``HEADER``, y_1 … y_K, p_i(y_i) / q_i(y_i)."""
    device = chains[0].p.probabilities.device
    sent = partial(_sent, device)
    drawn = [chain.drawn for chain in chains]
    lengths = [len(one.tokens) for one in drawn]
    k = max(lengths)
    rows = sent(_rows_of(lengths))
    firsts = [*accumulate(lengths, initial=0)]
    rows_q = sent([[first + min(i, n - 1) for i in range(k)] for first, n in zip(firsts, lengths, strict=False)])
    together = TokenDistribution.joined([chain.p for chain in chains])
    p = together.probabilities[rows].double()  # (B, K + 1, k)
    words = None if together.tokens is None else together.tokens[rows]  # (B, K + 1, k)
    dense = TokenDistribution.joined([q for chain in chains for q in chain.draft.distributions]).dense.to(device)
    q = dense[rows_q] if words is None else dense[rows_q.unsqueeze(-1), words[:, :-1]]  # (B, K, k)
    tokens = pad_sequence([one.tokens for one in drawn], batch_first=True).to(device)  # (B, K)
    own = (
        p[:, :-1].gather(-1, tokens.unsqueeze(-1))
        if words is None
        else p[:, :-1] * (words[:, :-1] == tokens.unsqueeze(-1))
    )
    own_q = pad_sequence([one.q for one in drawn], batch_first=True, padding_value=1.0).to(device)
    ratios = own.sum(-1) / own_q.double()

    place = torch.arange(k, device=device)
    valid = _up_to_stop(chains, tokens)
    count = valid.sum(-1, keepdim=True)  # (B, 1) tokens up to a stop token
    # What follows of the numbers that the drafts up to there were drawn with, as if nothing had been drafted after it.
    offset = count * sent([[bool(one.numbers)] for one in drawn])
    random = sent(uniforms, torch.float64)
    for_tokens = random.gather(-1, (offset + place).clamp(max=random.shape[1] - 1))
    if chains[0].rule is token_wise:
        accepted = ((for_tokens < ratios) & valid).long().cumprod(-1).sum(-1, keepdim=True)
        scale = torch.ones_like(ratios[:, :1])
    else:
        one = torch.ones_like(ratios[:, 0])
        products = accumulate(ratios.unbind(-1), lambda c, ratio: (c * ratio).clamp(max=1), initial=one)
        c = torch.stack([*products][1:], -1)
        passed = c[:, :-1]
        gain = (passed.unsqueeze(-1) * p[:, 1:-1] - q[:, 1:]).clamp(min=0).sum(-1)
        whole = gain + 1 - passed
        h = torch.cat([gain / whole.where(whole > 0, 1.0), c[:, -1:]], -1)
        h = torch.where(place == count - 1, c, h)
        accepted = ((for_tokens < h) & valid).long().mul(place + 1).amax(-1, keepdim=True)
        scale = torch.cat([torch.ones_like(c[:, :1]), c], -1).gather(-1, accepted)
    whose = accepted.unsqueeze(-1).expand(-1, 1, p.shape[-1])
    after = p.gather(1, whose).squeeze(1)
    less = torch.cat([q, torch.zeros_like(q[:, :1])], 1).gather(1, whose).squeeze(1)
    left = (scale * after - less * (accepted < count)).clamp(min=0)
    left = torch.where(left.any(-1, keepdim=True), left, after)
    token = draw_unchecked(left, random.gather(-1, offset + count).squeeze(-1)).unsqueeze(-1)
    if words is not None:
        token = words.gather(1, whose).squeeze(1).gather(-1, token)
    return torch.cat([accepted.double(), token.double(), left.sum(-1, keepdim=True), tokens.double(), ratios], -1)
