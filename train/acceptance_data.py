"""Batches for the acceptance head: rollouts whose tokens are mixed from target and draft (SpecDec++, §3.3).

Of a rollout X of the target, Y_i ~ q(·|prompt, X_<i) and P_i = min(1, p(Y_i)/q(Y_i)) are given. The draft reads
prompt + Z, where Z_i = X_i with probability r and Y_i otherwise; the head reads the draft's hidden state at Z_i and
learns P_i, only where Z_i came from Y. The mixing is a pure function of (seed, epoch, row), so a resumed run sees what
an uninterrupted one sees.

r = 1 is the limit of a context that is the target's alone: the head learns from every Y_i after X_<i. Each position
then has a context of its own, which no one sequence Z holds, and the hidden states are computed beforehand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..controllers.errors import InputError
from ..data_gen.dataset import Row
from ..infer.models import CausalLM
from ..infer.models.hidden import forward_with_hidden
from ..options import AcceptanceTrainingOptions
from .features import FeatureCache
from .loader import ResumableLoader
from .target_context import read_target_context

VALIDATION = 0  # the mixing's stream: validation is fixed, epoch e of training has stream e + 1


class Batch(NamedTuple):
    """B rollouts with M supervised tokens in all.

    Attributes:
        tokens: (B, L) prompt + Z, padded on the right.
        real: (B, L) 1 where there is a token.
        keep: the last ``keep`` columns hold every response.
        where: (2, M) rows and columns, counted within the last ``keep``, of the tokens that come from Y.
        p: (M,) their acceptance probabilities.
        features: (M, d) the draft's hidden states there, if they were cached.
    """

    tokens: Tensor
    real: Tensor
    keep: int
    where: Tensor
    p: Tensor
    features: Tensor | None

    def to(self, device: torch.device) -> Batch:
        features = None if self.features is None else self.features.to(device)
        tokens, real, where, p = (tensor.to(device) for tensor in (self.tokens, self.real, self.where, self.p))
        return Batch(tokens, real, self.keep, where, p, features)


def draft_features(draft: PreTrainedModel, batch: Batch) -> Tensor:
    """The draft's last hidden states (M, d) at the supervised tokens, float32."""
    if batch.features is not None:
        return batch.features
    with torch.no_grad():
        _, hidden = forward_with_hidden(
            draft, input_ids=batch.tokens, attention_mask=batch.real, logits_to_keep=batch.keep, use_cache=False
        )
    return hidden[batch.where[0], batch.where[1]].float()


def mixing_for(mean_acceptance: float) -> float:
    """The share of target tokens to train with where the draft's tokens are accepted with this chance on average.

    A draft that agrees often writes nearly what the target would, and the paper's share (§3.3) is as good as any. One
    that does not leaves a context unlike what the head meets when it serves (``specpilot bench mixing``).
    """
    return 0.15 if mean_acceptance >= 0.5 else 0.5


def from_draft(seed: int, stream: int, row: int, length: int, mixing: float) -> NDArray[np.bool_]:
    """Where Z_i = Y_i, (length,): each with probability 1 - ``mixing``, as a function of the first three arguments."""
    return np.random.default_rng([seed, stream, row]).random(length) >= mixing


def is_validation(prompt_id: str, fraction: float) -> bool:
    """Whether a prompt is held out: by its own hash, so that more data moves no prompt across."""
    return int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:8]) < fraction * 2**64


def check_rows(rows: Sequence[Row]) -> None:
    """Raises InputError for lists of unequal length or a P outside [0, 1]."""
    for row in rows:
        if not len(row.x) == len(row.y) == len(row.p):
            raise InputError(f"prompt {row.prompt_id!r}: x, y and p differ in length; generate the data again")
        for probability in row.p:
            if not 0 <= probability <= 1:  # also false for NaN
                raise InputError(
                    f"prompt {row.prompt_id!r}: P={probability} is no probability in [0, 1]; generate the data again"
                )


class AcceptanceDataModule(pl.LightningDataModule):
    """Training and validation batches of a dataset's rows.

    Raises:
        InputError: a row is malformed, or training or validation would be empty.
    """

    def __init__(self, rows: Sequence[Row], settings: AcceptanceTrainingOptions) -> None:
        super().__init__()
        check_rows(rows)
        self.settings = settings
        self.rows = [row for row in rows if row.x and len(row.prompt_ids) < settings.max_length]
        self.left_out = len(rows) - len(self.rows)
        held_out = [is_validation(row.prompt_id, settings.validation_fraction) for row in self.rows]
        self.validation = [index for index, held in enumerate(held_out) if held]
        self.training = [index for index, held in enumerate(held_out) if not held]
        if not self.training or not self.validation:
            raise InputError(
                f"validation_fraction={settings.validation_fraction}: gives {len(self.training)} rollouts to training "
                f"and {len(self.validation)} to validation; each needs at least one: use more data or another fraction"
            )
        assert settings.mixing is not None, "left open in settings only"
        self.mixing = settings.mixing
        self.target_context = settings.mixing == 1
        # epochs with a mixing of their own
        self.mixings = 1 if self.target_context else settings.cache_epochs or settings.epochs
        self.cache: FeatureCache | None = None
        self.train_loader = ResumableLoader(len(self.training), settings.batch_size, settings.seed, self._train_batch)

    @property
    def total_steps(self) -> int:
        return self.settings.epochs * len(self.train_loader)

    def use_cache(self, cache: FeatureCache, draft: PreTrainedModel) -> None:
        """Take the draft's hidden states from ``cache``, computing first those that are not there yet."""
        streams = [(VALIDATION, self.validation), *((1 + e, self.training) for e in range(self.mixings))]
        counts = {(stream, row): int(self._from_draft(stream, row).sum()) for stream, rows in streams for row in rows}
        size = self.settings.batch_size
        batches = [
            (stream, rows[start : start + size]) for stream, rows in streams for start in range(0, len(rows), size)
        ]
        if self.target_context:
            model = CausalLM(draft)
            features = (self._after_target(model, rows) for _, rows in batches)
        else:
            features = (draft_features(draft, self.batch(stream, rows).to(draft.device)) for stream, rows in batches)
        cache.fill(counts, len(batches), features)
        self.cache = cache

    def batch(self, stream: int, rows: Sequence[int]) -> Batch:
        """The rollouts ``rows`` under the mixing of ``stream``."""
        tokens: list[Tensor] = []
        first = min(len(self.rows[row].prompt_ids) for row in rows)
        where: list[NDArray[np.int64]] = []
        p: list[NDArray[np.float32]] = []
        for b, index in enumerate(rows):
            row, drafted = self.rows[index], self._from_draft(stream, index)
            length = len(drafted)
            z = np.where(drafted, row.y[:length], row.x[:length])
            tokens.append(torch.tensor([*row.prompt_ids, *z.tolist()]))
            columns = np.flatnonzero(drafted) + len(row.prompt_ids) - first
            where.append(np.stack([np.full_like(columns, b), columns]))
            p.append(np.asarray(row.p[:length], dtype=np.float32)[drafted])
        padded = pad_sequence(tokens, batch_first=True)
        lengths = torch.tensor([len(row) for row in tokens])
        real = (torch.arange(padded.shape[1]) < lengths[:, None]).long()
        features = None if self.cache is None else self.cache.read([(stream, row) for row in rows])
        return Batch(
            padded,
            real,
            padded.shape[1] - first,
            torch.from_numpy(np.concatenate(where, 1)),
            torch.from_numpy(np.concatenate(p)),
            features,
        )

    def _from_draft(self, stream: int, row: int) -> NDArray[np.bool_]:
        settings, rollout = self.settings, self.rows[row]
        length = min(len(rollout.x), settings.max_length - len(rollout.prompt_ids))
        if self.target_context:
            return np.ones(length, dtype=np.bool_)
        return from_draft(settings.seed, stream, row, length, self.mixing)

    def _after_target(self, draft: CausalLM, rows: Sequence[int]) -> Tensor:
        """Hidden states (m, d) at every Y_i after X_<i."""
        states = []
        for index in rows:
            row, length = self.rows[index], len(self._from_draft(VALIDATION, index))
            short = replace(row, x=row.x[:length], y=row.y[:length], p=row.p[:length])
            states.append(read_target_context(draft, short)[1].float())
        return torch.cat(states)

    def _train_batch(self, epoch: int, rows: Tensor) -> Batch:
        return self.batch(1 + epoch % self.mixings, [self.training[row] for row in rows.tolist()])

    def _validation_batch(self, epoch: int, rows: Tensor) -> Batch:
        return self.batch(VALIDATION, [self.validation[row] for row in rows.tolist()])

    def train_dataloader(self) -> ResumableLoader[Batch]:
        return self.train_loader

    def val_dataloader(self) -> ResumableLoader[Batch]:
        settings = self.settings
        return ResumableLoader(
            len(self.validation), settings.batch_size, settings.seed, self._validation_batch, shuffle=False
        )

    # Lightning restores a loader's own state only in the middle of an epoch; without this a run resumed at an epoch's
    # end would start over with the first epoch's order and mixing.
    def state_dict(self) -> dict[str, int]:
        return self.train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.train_loader.load_state_dict(state_dict)
