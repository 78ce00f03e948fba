"""Rounds of a vLLM engine as datasets, in the format of ``specpilot serve --log-rounds``.

Every request has its own sampling parameters, but a dataset has a single distribution. Each distribution therefore has
its own folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint
from specpilot.models.loading.names import load_tokenizer
from specpilot.serve.round_log import RoundWriters, identity_of
from torch import Tensor

from .drafted_request import DraftedRequest

# Sampling parameters of vLLM that change the target's distribution or may end a text within a round.
UNSUPPORTED = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p", "min_tokens", "stop", "structured_outputs",
    "logit_bias", "allowed_token_ids", "bad_words", "thinking_token_budget", "repetition_detection", "extra_args",
)  # fmt: skip


def is_plain(request: Any) -> bool:
    """Return true if only temperature, top-k and top-p change the distribution of a request of vLLM."""
    params = request.sampling_params
    default = type(params)()
    same = all(getattr(params, name, None) == getattr(default, name, None) for name in UNSUPPORTED)
    return same and request.lora_request is None and not request.mm_features


class VllmRoundLog:
    """A log that writes each finished request to the folder of its sampling parameters.

    Args:
        folder: folder of all datasets.
        target, draft: names of the models.
        pair: fingerprint of the models.
        longest: maximum number of tokens of a text.
    """

    def __init__(self, folder: Path, target: str, draft: str, pair: PairFingerprint, longest: int) -> None:
        self.writers = RoundWriters(folder, identity_of(target, draft, pair, longest), load_tokenizer(target))

    def observe(self, requests: Sequence[DraftedRequest | None], metadata: Any, logits: Tensor) -> None:
        """Set ``accept`` of each request to min(1, p(y)/q(y)) of its drafted tokens of this step.

        Args:
            requests: requests of the rows of vLLM's batch; None for rows that are not logged.
            metadata: vLLM's ``SpecDecodeMetadata`` of the step.
            logits: logits of the target (N + B, V) for N drafted tokens and the tokens after B drafts.
        """
        counts = metadata.num_draft_tokens
        of_target = logits[metadata.target_logits_indices].split_with_sizes(counts)
        for request, rows in zip(requests, of_target, strict=False):
            count = min(len(rows), 0 if request is None else len(request.tokens))
            if request is not None and count:
                y = torch.tensor(request.tokens[:count], device=rows.device).unsqueeze(1)
                probabilities, tokens = request.sampling.top(rows[:count])
                drawn_probabilities = probabilities.gather(1, y) if tokens is None else probabilities * (tokens == y)
                q = torch.tensor(request.probabilities[:count], device=rows.device)
                request.accept = (drawn_probabilities.sum(1) / q).clamp(max=1).tolist()

    def add(self, request: DraftedRequest) -> None:
        """Log a request that vLLM has released, if its text has ended and it has rounds with drafts."""
        tokens = request.final_tokens
        if not request.rounds or tokens is None:
            return
        starts, drafted, accept = map(list, zip(*request.rounds, strict=True))
        self.writers.keep(request.sampling, request.text[: request.prompt], tokens, (starts, drafted, accept))

    def close(self) -> None:
        """Write the remaining texts."""
        self.writers.close()
