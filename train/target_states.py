"""The target's results for the training of drafts, computed in every step or once for all epochs.

Let h_t be the last hidden state after the final norm, and W the output projection. The logit of the token v after
position t is W_v · h_t, and its probability is p(v) = exp(W_v · h_t - log Z_t) with log Z_t = log Σ_v exp(W_v · h_t).
States and normalisers therefore suffice to compute p over the draft's M tokens, and the target runs once over the data
instead of in every epoch.

Shapes: B windows of T tokens, N positions from which the draft is trained to propose the next token, V tokens of the
target, M tokens of the draft.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..common.console import progress_bar
from ..common.errors import InputError
from ..common.files import replacing
from ..data_gen.documents import Document
from ..data_gen.feature_shards import FeatureShard, Part, StoredShard, mapped
from ..data_gen.rollout import scores_at_once
from ..models.causal_lm import forward_with_hidden


class TargetStates(NamedTuple):
    """Stored results of a target's forward over B windows of T tokens.

    Attributes:
        states: last hidden states after the final norm, and the outputs of L layers, in bfloat16 (B, T, d + L·d).
        log_normaliser: log Σ_v exp(z_v) of the logits z over all V tokens (B, T).
        best: the most probable tokens (B, T).
    """

    states: Tensor
    log_normaliser: Tensor
    best: Tensor


class Windows(NamedTuple):
    """B windows of T tokens.

    Attributes:
        tokens: the tokens (B, T).
        learned: whether the draft is to propose the token after each token (B, T).
        target: the target's states; None if they are not stored.
    """

    tokens: Tensor
    learned: Tensor
    target: TargetStates | None = None

    def take(self, rows: Tensor) -> Windows:
        """Return the windows ``rows``."""
        return Windows(self.tokens[rows], self.learned[rows])


def pack(documents: Sequence[Document], window: int) -> Windows:
    """Return the documents one after another, cut into windows. Tokens that are not learned fill the last window."""
    tokens: list[int] = []
    learned: list[bool] = []
    for document in documents:
        tokens += document.tokens
        learned += [*document.learned[1:], False]
    missing = -len(tokens) % window
    shape = -1, window
    return Windows(
        torch.tensor(tokens + [0] * missing, dtype=torch.int32).view(shape),
        torch.tensor(learned + [False] * missing).view(shape),
    )


SHARD, TOGETHER = 64, 4  # number of windows in a file, and in a forward of the target on a CPU
ROWS, ROWS_OF_ACCELERATOR = 8, 4096  # rows of logits that are summed at a time; few rows fit a processor's cache
ALIKE = 0.05  # tolerance of logits in standard deviations, above the rounding of states to bfloat16


class Teacher:
    """Computes the labels of a draft's training.

    Args:
        target: the target.
        kept: the draft's tokens (M,); None for all.
        layers: the L modules of the target whose outputs the draft reads.
    """

    def __init__(self, target: PreTrainedModel, draft_tokens: Tensor | None, layers: Sequence[nn.Module] = ()) -> None:
        self.target, self.draft_tokens, self.layers = target, draft_tokens, layers
        head: Any = target.get_output_embeddings()
        rows = slice(None) if draft_tokens is None else draft_tokens.to(head.weight.device)
        self.weight: Tensor = head.weight.detach()[rows]  # (M, d)
        self.bias: Tensor | None = None if head.bias is None else head.bias.detach()[rows]

    def to(self, device: torch.device) -> None:
        """Move the target to ``device``."""
        if self.weight.device == device:
            return  # in every step except the first
        self.target.to(device)  # type: ignore[arg-type]
        self.weight = self.weight.to(device)
        self.bias = None if self.bias is None else self.bias.to(device)

    @property
    def state_size(self) -> int:
        """Number of values of the states of one token, d + L·d."""
        return int(self.weight.shape[1]) * (1 + len(self.layers))

    def windows_at_once(self, tokens: int) -> int:
        """Return the best number of windows of ``tokens`` tokens for a forward of the target."""
        if self.weight.device.type == "cpu":
            return TOGETHER
        head: Any = self.target.get_output_embeddings()
        vocabulary = int(head.weight.shape[0])
        return min(SHARD, max(1, scores_at_once(self.weight.device) // (tokens * vocabulary)))

    @torch.no_grad()
    def teach(self, batch: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Return the labels of ``batch``, from stored states if it has them, else by a forward of the target.

        Returns:
            The target's states (B, T, d + L·d), its probabilities of the draft's tokens (N, M), and its most
            probable tokens (N,).
        """
        learned = batch.learned
        if batch.target is not None:
            states, mass, best = batch.target.states, batch.target.log_normaliser[learned], batch.target.best[learned]
            return states, (self._project(states[learned]) - mass.unsqueeze(-1)).exp_(), best.long()
        z, states = self._run(batch)
        draft_logits = z if self.draft_tokens is None else z[:, self.draft_tokens]
        mass, best = summarise(z)
        return states, (draft_logits.float() - mass.unsqueeze(-1)).exp_(), best

    @torch.no_grad()
    def states(self, batch: Windows) -> TargetStates:
        """Return the states to store. Normalisers and most probable tokens are zero where nothing is learned.

        Raises:
            InputError: the target's logits are not the output projection of its states alone.
        """
        z, states = self._run(batch)
        stored = states.to(torch.bfloat16)
        draft_logits = z if self.draft_tokens is None else z[:, self.draft_tokens]
        difference = (self._project(stored[batch.learned]) - draft_logits.float()).abs().mean()
        if len(z) and bool(difference > ALIKE * draft_logits.float().std()):
            raise InputError(
                f"cache_states: the logits of {self.target.config.model_type} are scaled or capped after the output "
                "projection, so that they cannot be computed from states; leave it out"
            )
        normaliser = states.new_zeros(batch.learned.shape, dtype=torch.float32)
        best = torch.zeros_like(batch.tokens)
        mass, top = summarise(z)
        normaliser[batch.learned], best[batch.learned] = mass, top.to(best.dtype)
        return TargetStates(stored, normaliser, best)

    def _run(self, batch: Windows) -> tuple[Tensor, Tensor]:
        """Return logits (N, V) of the learned positions, and states (B, T, d + L·d) of all positions."""
        tokens = batch.tokens.long()
        return forward_with_hidden(
            self.target, lambda states: states[batch.learned], self.layers, input_ids=tokens, use_cache=False
        )

    def _project(self, states: Tensor) -> Tensor:
        """Return logits (N, M) of states (N, d + L·d)."""
        return F.linear(states[:, : self.weight.shape[1]].to(self.weight.dtype), self.weight, self.bias).float()


def summarise(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Σ_v exp(z_v) in float32 (N,) and the arg-max (N,) of logits (N, V)."""
    size = ROWS if z.device.type == "cpu" else ROWS_OF_ACCELERATOR
    parts = [(rows.logsumexp(-1), rows.argmax(-1)) for rows in (part.float() for part in torch.split(z, size))]
    return torch.cat([mass for mass, _ in parts]), torch.cat([best for _, best in parts])


class StateFolder:
    """States of the target on windows of text, in memory-mapped files of 64 windows each.

    A file appears when it is complete, so that an interrupted pass continues.

    Args:
        folder: folder of the files.
        count: number of windows.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        rows = [min(SHARD, count - start) for start in range(0, count, SHARD)]
        files = [folder / f"{number:05}.safetensors" for number in range(len(rows))]
        self.part = Part([StoredShard(file, "", rows=size) for file, size in zip(files, rows, strict=True)])

    def fill(self, teacher: Teacher, windows: Windows, console: Console) -> None:
        """Compute the missing states of ``windows``.

        Raises:
            InputError: see :meth:`Teacher.states`.
        """
        device, width = teacher.weight.device, teacher.state_size
        size = windows.tokens.numel() * (2 * width + 8)
        console.print(f"target states: {size / 1e6:,.0f} MB in {self.folder}, until the run is complete")
        self.folder.mkdir(exist_ok=True)
        all_rows = torch.split(torch.arange(len(windows.tokens)), SHARD)
        together = teacher.windows_at_once(windows.tokens.shape[1])
        pairs = [(shard, torch.split(rows, together)) for shard, rows in zip(self.part.shards, all_rows, strict=True)]
        stored = sum(len(batches) for shard, batches in pairs if shard.file.exists())
        with progress_bar(console, "batches of target states", sum(len(b) for _, b in pairs), stored) as advance:
            for shard, batches in pairs:
                if shard.file.exists():
                    continue
                parts = []
                for batch in map(windows.take, batches):
                    parts.append(teacher.states(Windows(batch.tokens.to(device), batch.learned.to(device))))
                    advance()
                joined = TargetStates(*(torch.cat(values).cpu() for values in zip(*parts, strict=True)))
                with replacing(shard.file) as temporary:
                    FeatureShard("states", joined._asdict()).save(temporary)

    def take(self, rows: Tensor) -> TargetStates:
        """Return the states of the windows ``rows``."""
        return TargetStates(**self.part.gather(rows))

    def remove(self) -> None:
        """Remove the files."""
        mapped.cache_clear()
        shutil.rmtree(self.folder, ignore_errors=True)
