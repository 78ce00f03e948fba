"""Verification of chains on an accelerator. The host reads one tensor for all requests of a round.

The rules are those of :mod:`.token_wise`, :mod:`.block` and :mod:`.invariant`. A request's random source gives the same
numbers in the same order as in these modules, so that the same seed gives the same tokens up to rounding.
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
HEADER = 3  # number of accepted tokens, the token that follows them, and the sum of the weights it was drawn from


class Drafted(NamedTuple):
    """A drafted chain with everything that its verification needs.

    Attributes:
        p: the target's K + 1 distributions.
        draft: the chain.
        drawn: the attribute ``drawn`` of ``draft``, which is not None.
        rule: the verification rule, one of ``RULES``.
        rng: the request's random source at the end of its text.
        stop_tokens: the token ids that end the text.
    """

    p: TokenDistribution
    draft: Draft
    drawn: Drawn
    rule: Callable[..., Verdict]
    rng: RandomSource
    stop_tokens: frozenset[int]


def verify_drawn(chains: Sequence[Drafted]) -> list[tuple[Draft, Verdict] | InputError]:
    """Verify ``chains``, and return for each its draft with the tokens as the host reads them, and its verdict.

    An error replaces the result of a chain whose probabilities are not finite.
    """
    uniforms = [_random_numbers(chain) for chain in chains]
    groups = [
        [indices[i] for i in group]
        for rule in RULES
        if (indices := [i for i, chain in enumerate(chains) if chain.rule is rule])
        for group in alike([chains[i].p for i in indices])
    ]
    numbers = [
        (_matches if chains[group[0]].rule is invariant else _numbers)(
            [chains[i] for i in group], [uniforms[i] for i in group]
        )
        for group in groups
    ]
    values = iter(torch.cat([rows.flatten() for rows in numbers]).tolist())
    results: dict[int, tuple[Draft, Verdict] | InputError] = {}
    for group, rows in zip(groups, numbers, strict=True):
        for i in group:
            row = [next(values) for _ in range(rows.shape[1])]
            try:
                results[i] = _settle(chains[i], row, uniforms[i])
            except InputError as error:
                results[i] = error
    return [results[i] for i in range(len(chains))]


def _random_numbers(chain: Drafted) -> list[float]:
    """Return the random numbers that drew the unread tokens of ``chain``, followed by those that verify the chain.

    The rule ``invariant`` uses the same numbers for both, and one more for the token after the chain.
    """
    count = len(chain.draft.tokens) + 1
    if chain.rule is invariant:
        return [chain.rng.number(depth) for depth in range(count)]
    return [*chain.drawn.numbers, *(chain.rng.uniform() for _ in range(count))]


def _settle(chain: Drafted, numbers: list[float], uniforms: list[float]) -> tuple[Draft, Verdict]:
    """Return the draft and the verdict that the row ``numbers`` of a result describes.

    Unused random numbers of ``uniforms`` go back to the chain's random source.

    Raises:
        InputError: a probability is not finite.
    """
    (accepted, token, mass), chain_numbers = numbers[:HEADER], numbers[HEADER:]
    tokens, ratios = chain_numbers[: len(chain_numbers) // 2], chain_numbers[len(chain_numbers) // 2 :]
    draft = chain.draft.with_tokens([int(y) for y in tokens[: len(chain.draft.tokens)]], chain.stop_tokens)
    count = len(draft.tokens)
    require_finite(mass + sum(ratios[:count]))
    if chain.rule is not invariant:
        chain.rng.give_back(uniforms[len(uniforms) - 2 * (len(chain.draft.tokens) - count) :])
    return draft, Verdict.chain(int(accepted), int(token), ratios[:count] if chain.rule is token_wise else None)


def _to_device(device: torch.device, rows: Sequence[Sequence[float]], dtype: torch.dtype = torch.long) -> Tensor:
    """Copy ``rows`` to the device, padded with -1 to the length of the longest."""
    width = max(map(len, rows))
    padded = [[*row, *[-1] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=dtype).to(device, non_blocking=True)


def _distribution_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Return the indices (B, K + 1) of the chains' distributions in the joined p; a shorter chain repeats its last."""
    firsts = accumulate((length + 1 for length in lengths), initial=0)
    k = max(lengths)
    return [[first + min(i, n) for i in range(k + 1)] for first, n in zip(firsts, lengths, strict=False)]


def _valid_tokens(chains: Sequence[Drafted], tokens: Tensor) -> Tensor:
    """Return a mask (B, K) that is true for the drafted ``tokens`` of each chain up to its first stop token."""
    device = tokens.device
    stop_tokens = _to_device(device, [[*chain.stop_tokens, -1] for chain in chains])
    stops = (tokens.unsqueeze(-1) == stop_tokens.unsqueeze(1)).any(-1)
    positions = torch.arange(tokens.shape[1], device=device)
    return (stops.cumsum(-1) - stops.long() == 0) & (
        positions < _to_device(device, [[len(chain.drawn.tokens)] for chain in chains])
    )


def _matches(chains: Sequence[Drafted], keys: Sequence[list[float]]) -> Tensor:
    """Return the result of :func:`_numbers` for the rule ``invariant``: compare drafted tokens with the target's.

    Args:
        keys: for each chain the K + 1 numbers that the target draws its tokens with.
    """
    device = chains[0].p.probabilities.device
    lengths = [len(chain.drawn.tokens) for chain in chains]
    joined = TokenDistribution.joined([chain.p for chain in chains])
    key_tensor = torch.tensor([key for chain_keys in keys for key in chain_keys]).to(device, non_blocking=True)
    choices = draw_by(joined.probabilities, joined.tokens, key_tensor)
    drawn_tokens = choices if joined.tokens is None else joined.tokens.gather(-1, choices.unsqueeze(-1)).squeeze(-1)
    rows = _to_device(device, _distribution_rows(lengths))
    y, mass = drawn_tokens[rows], joined.probabilities.sum(-1)[rows]  # (B, K + 1)
    tokens = pad_sequence([chain.drawn.tokens for chain in chains], batch_first=True).to(device)  # (B, K)
    agrees = (tokens == y[:, :-1]) & _valid_tokens(chains, tokens)
    accepted = agrees.long().cumprod(-1).sum(-1, keepdim=True)
    read = torch.arange(y.shape[1], device=device) <= accepted
    checked = mass.where(read, 0.0).sum(-1, keepdim=True)
    return torch.cat([accepted, y.gather(-1, accepted), checked, tokens, torch.zeros_like(tokens)], -1).double()


def _numbers(chains: Sequence[Drafted], uniforms: Sequence[list[float]]) -> Tensor:
    """Verify B chains, whose distributions have equal widths, by the rules ``token-wise`` or ``block``.

    Args:
        uniforms: for each chain the result of :func:`_random_numbers`.

    Returns:
        (B, 3 + 2·K) for each chain the entries of ``HEADER``, y_1 … y_K, and p_i(y_i) / q_i(y_i) for i = 1 … K.
    """
    device = chains[0].p.probabilities.device
    to_device = partial(_to_device, device)
    drawn = [chain.drawn for chain in chains]
    lengths = [len(chain_tokens.tokens) for chain_tokens in drawn]
    k = max(lengths)
    rows = to_device(_distribution_rows(lengths))
    firsts = [*accumulate(lengths, initial=0)]
    rows_q = to_device([[first + min(i, n - 1) for i in range(k)] for first, n in zip(firsts, lengths, strict=False)])
    joined = TokenDistribution.joined([chain.p for chain in chains])
    p = joined.probabilities[rows].double()  # (B, K + 1, k)
    listed = None if joined.tokens is None else joined.tokens[rows]  # (B, K + 1, k)
    dense = TokenDistribution.joined([q for chain in chains for q in chain.draft.distributions]).dense.to(device)
    q = dense[rows_q] if listed is None else dense[rows_q.unsqueeze(-1), listed[:, :-1]]  # (B, K, k)
    tokens = pad_sequence([chain_tokens.tokens for chain_tokens in drawn], batch_first=True).to(device)  # (B, K)
    target_probability = (
        p[:, :-1].gather(-1, tokens.unsqueeze(-1))
        if listed is None
        else p[:, :-1] * (listed[:, :-1] == tokens.unsqueeze(-1))
    )
    draft_probability = pad_sequence(
        [chain_tokens.q for chain_tokens in drawn], batch_first=True, padding_value=1.0
    ).to(device)
    ratios = target_probability.sum(-1) / draft_probability.double()

    positions = torch.arange(k, device=device)
    valid = _valid_tokens(chains, tokens)
    count = valid.sum(-1, keepdim=True)  # (B, 1) tokens up to a stop token
    # The numbers that verify a chain follow those that drew its tokens up to the stop token.
    offset = count * to_device([[bool(chain_tokens.numbers)] for chain_tokens in drawn])
    random = to_device(uniforms, torch.float64)
    uniforms_of_tokens = random.gather(-1, (offset + positions).clamp(max=random.shape[1] - 1))
    if chains[0].rule is token_wise:
        accepted = ((uniforms_of_tokens < ratios) & valid).long().cumprod(-1).sum(-1, keepdim=True)
        scale = torch.ones_like(ratios[:, :1])
    else:
        first = torch.ones_like(ratios[:, 0])
        products = accumulate(ratios.unbind(-1), lambda c, ratio: (c * ratio).clamp(max=1), initial=first)
        c = torch.stack([*products][1:], -1)
        passed = c[:, :-1]
        gain = (passed.unsqueeze(-1) * p[:, 1:-1] - q[:, 1:]).clamp(min=0).sum(-1)
        denominator = gain + 1 - passed
        h = torch.cat([gain / denominator.where(denominator > 0, 1.0), c[:, -1:]], -1)
        h = torch.where(positions == count - 1, c, h)
        accepted = ((uniforms_of_tokens < h) & valid).long().mul(positions + 1).amax(-1, keepdim=True)
        scale = torch.cat([torch.ones_like(c[:, :1]), c], -1).gather(-1, accepted)
    index = accepted.unsqueeze(-1).expand(-1, 1, p.shape[-1])
    next_p = p.gather(1, index).squeeze(1)
    next_q = torch.cat([q, torch.zeros_like(q[:, :1])], 1).gather(1, index).squeeze(1)
    remaining = (scale * next_p - next_q * (accepted < count)).clamp(min=0)
    remaining = torch.where(remaining.any(-1, keepdim=True), remaining, next_p)
    token = draw_unchecked(remaining, random.gather(-1, offset + count).squeeze(-1)).unsqueeze(-1)
    if listed is not None:
        token = listed.gather(1, index).squeeze(1).gather(-1, token)
    return torch.cat([accepted.double(), token.double(), remaining.sum(-1, keepdim=True), tokens.double(), ratios], -1)
