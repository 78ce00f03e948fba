"""Draws a draft model's next tokens, one for each request, and keeps the distributions they are verified against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.spec_decode.llm_base_proposer import compute_probs_and_sample_next_token

from ....controllers.sampling import SamplingParams
from .drafted_request import Drawn


def draw_as_requests(
    logits: Tensor, hidden: Tensor, sampling: Sequence[SamplingParams], generators: Mapping[int, torch.Generator]
) -> list[Drawn]:
    """Draw with temperature, top-k and top-p of each request.

    Args:
        logits: (B, V) the draft's logits.
        hidden: (B, d) its last hidden states.
        sampling: (B,) sampling parameters.
        generators: random generators of the requests that have a seed, by row.
    """
    groups: dict[SamplingParams, list[int]] = {}
    for row, params in enumerate(sampling):
        groups.setdefault(params, []).append(row)
    found: dict[int, Drawn] = {}
    for params, rows in groups.items():
        of_group = logits if len(rows) == len(logits) else logits[rows]
        q, tokens = params.top(of_group)  # (b, k)
        noise = torch.empty_like(q).exponential_()
        for i, row in enumerate(rows):
            if row in generators:
                noise[i].exponential_(generator=generators[row])
        chosen = (q / noise).argmax(-1, keepdim=True)  # an exponential race: each with its probability
        drawn = chosen if tokens is None else tokens.gather(1, chosen)
        full = q if tokens is None else torch.zeros_like(of_group, dtype=q.dtype).scatter_(1, tokens, q)
        pairs = zip(drawn.flatten().tolist(), q.gather(1, chosen).flatten().tolist(), strict=True)
        for i, (row, (token, probability)) in enumerate(zip(rows, pairs, strict=True)):
            found[row] = Drawn(
                token, probability, q[i : i + 1], logits[row : row + 1], hidden[row : row + 1], full[i : i + 1]
            )
    return [found[row] for row in range(len(logits))]


def draw_as_vllm(logits: Tensor, hidden: Tensor, rows: Tensor, metadata: Any) -> list[Drawn]:
    """Draw as vLLM's own drafter, with the temperature alone and without seeds.

    Args:
        logits: (B, V) the draft's logits.
        hidden: (B, d) its last hidden states.
        rows: (B,) places of the requests in the engine's batch.
        metadata: the engine's ``SamplingMetadata``.
    """
    if metadata.all_greedy:
        tokens = logits.argmax(-1)
        q = torch.zeros_like(logits, dtype=torch.float32).scatter_(1, tokens.unsqueeze(1), 1.0)
    else:
        own = replace(metadata, temperature=metadata.temperature[rows])
        tokens, q = compute_probs_and_sample_next_token(logits.clone(), own)
    probabilities = q.gather(1, tokens.unsqueeze(1)).flatten().tolist()
    return [
        Drawn(token, probability, q[i : i + 1], logits[i : i + 1], hidden[i : i + 1], q[i : i + 1])
        for i, (token, probability) in enumerate(zip(tokens.tolist(), probabilities, strict=True))
    ]
