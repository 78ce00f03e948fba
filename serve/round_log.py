"""Served rounds as a dataset, in the format of ``specpilot data on-policy``.

The dataset contains prompts and texts of requests. A dataset has a single distribution, and its labels are ratios
p(y)/q(y) of drafts that are verified token by token.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError
from ..common.record import Identity
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.checkpoints.provenance import TOKEN_WISE
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import ShardWriter
from ..data_gen.kinds import RoundsRow, Rows
from ..data_gen.on_policy import Rounds, rounds_of
from ..infer.core import Request
from ..infer.decoder import SpeculativeDecoder

DISTRIBUTIONS = 17  # maximum number of datasets; requests choose their distributions
UNLIMITED = 2**31 - 1  # number of tokens of a text if no model limits it
KEPT_SHARDS = 16  # shards that are kept in memory while the disk cannot be written


def identity_of(
    target: str, draft: str, pair: PairFingerprint, longest: int, shard_size: int = 64, vocab_size: int | None = None
) -> Identity:
    """Return the entries that all manifests of a server's rounds share.

    Args:
        target, draft: names of the models.
        pair: fingerprint of the models.
        longest: maximum number of tokens of a text, by which training truncates.
        shard_size: number of texts in a shard, which is also the number that a crash may lose.
        vocab_size: size to which the draft's distributions are cut; None if the draft's vocabulary is not larger.
    """
    cut = {} if vocab_size is None else {"vocab_size": vocab_size}
    return {
        "kind": RoundsRow.kind, "target": target, "draft": draft, "fingerprint": pair.to_dict(), "served": True, **cut,
        "settings": {"max_new_tokens": longest, "shard_size": shard_size},
    }  # fmt: skip


class RoundWriter:
    """Writes texts with their rounds to a folder, one shard at a time.

    Shards appear by atomic rename, and the manifest names only complete shards. After a crash the folder is a valid
    dataset without the last, unfinished shard. A new start with the same pair and sampling continues the dataset.

    Raises:
        InputError: the folder belongs to another pair or sampling, or another process uses it.
    """

    def __init__(self, folder: Path, identity: Identity, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer, self.writer = tokenizer, ShardWriter(folder, identity)
        shard_size = self.writer.manifest.rollouts.shard_size
        assert shard_size is not None, "identity_of names it"
        self.shard_size = shard_size
        self.rows: list[RoundsRow] = []
        self._failing = False
        self.count = sum(shard.rows or 0 for shard in self.writer.manifest.shards)

    def keep(self, prompt: list[int], tokens: list[int], rounds: Rounds) -> None:
        """Add the text ``tokens``. While the disk cannot be written, the last texts are kept in memory."""
        digest = hashlib.sha256(repr((self.count, prompt, tokens)).encode()).hexdigest()
        name, text = f"served-{self.count}-{digest[:12]}", str(self.tokenizer.decode(prompt))
        self.rows.append(RoundsRow(name, text, list(prompt), tokens, *rounds))
        self.count += 1
        if len(self.rows) % self.shard_size == 0:
            self.rows = self.rows[-KEPT_SHARDS * self.shard_size :]
            self.flush()

    def flush(self) -> None:
        """Write all rows as shards, which completes the dataset.

        The first of consecutive disk errors is reported on standard error.
        """
        try:
            while self.rows:
                self.writer.write(Rows(self.rows[: self.shard_size]))
                self.rows = self.rows[self.shard_size :]
                self.writer.complete()
            self._failing = False
        except OSError as error:
            if not self._failing:
                message = f"{self.writer.folder}: rounds cannot be logged ({error.strerror}); free space on the disk"
                print(f"specpilot: error: {message}", file=sys.stderr, flush=True)
            self._failing = True

    def close(self) -> None:
        """Write the remaining rows and release the lock of the folder."""
        self.flush()
        self.writer.close()


class RoundWriters:
    """A writer for each distribution of the requests, in a subfolder of ``folder``.

    Args:
        folder: the folder of all datasets.
        identity: the result of :func:`identity_of`.
        tokenizer: the tokenizer of the target.
    """

    def __init__(self, folder: Path, identity: Identity, tokenizer: PreTrainedTokenizerBase) -> None:
        self.folder, self.identity, self.tokenizer = folder, identity, tokenizer
        self.writers: dict[SamplingParams, RoundWriter | None] = {}

    def make(self, folder: Path, sampling: SamplingParams) -> RoundWriter:
        """Return a writer for ``folder``.

        Raises:
            InputError: as for :class:`RoundWriter`.
        """
        return RoundWriter(folder, {**self.identity, "sampling": sampling.to_dict()}, self.tokenizer)

    def keep(self, sampling: SamplingParams, prompt: list[int], tokens: list[int], rounds: Rounds) -> bool:
        """Add a text to the dataset of its distribution.

        Returns:
            False if there are too many datasets or the folder cannot be used.
        """
        sampling = distribution_of(sampling)
        if sampling not in self.writers and len(self.writers) < DISTRIBUTIONS:
            folder = self.folder / folder_of(sampling)
            try:
                self.writers[sampling] = self.make(folder, sampling)
            except (InputError, OSError) as error:  # reported once
                self.writers[sampling] = None
                print(f"specpilot: warning: log_rounds={str(folder)!r}: {error}", file=sys.stderr, flush=True)
        writer = self.writers.get(sampling)
        if writer is not None:
            writer.keep(prompt, tokens, rounds)
        return writer is not None

    def close(self) -> None:
        """Write the remaining rows of all datasets and release the locks of their folders."""
        for writer in self.writers.values():
            if writer is not None:
                writer.close()


def distribution_of(sampling: SamplingParams) -> SamplingParams:
    """Return ``sampling`` without parameters that have no effect: at temperature 0, all others."""
    return SamplingParams(0.0) if sampling.temperature == 0 else sampling


def folder_of(sampling: SamplingParams) -> str:
    """Return the folder name of the dataset of texts that are sampled by ``sampling``."""
    if sampling.temperature == 0:
        return "temperature-0"
    return f"temperature-{sampling.temperature:.12g}-top-k-{sampling.top_k or 'all'}-top-p-{sampling.top_p:.12g}"


class RoundLog(RoundWriters):
    """Logs the finished requests of ``specpilot serve``.

    Texts of the default sampling are in ``folder`` itself, others in subfolders.

    Raises:
        InputError: as for :class:`RoundWriter`; or the decoder does not have exactly one draft model, drafts trees, or
            verifies by another rule than token-wise.
    """

    def __init__(
        self, folder: Path, decoder: SpeculativeDecoder, target: str, draft: str, *, shard_size: int = 64
    ) -> None:
        chains = len(decoder.drafts) == 1 and decoder.plan.verifier.rule == TOKEN_WISE and decoder.plan.drafts_chains
        if not chains or decoder.tokenizer is None:
            raise InputError(
                "log_rounds: needs one draft model, drafts that are chains, and --verifier token-wise; leave it out"
            )
        (model,) = decoder.drafts
        size = decoder.target.vocab_size
        cut = size if model.vocab_size > size else None
        longest = decoder.context or UNLIMITED
        super().__init__(
            folder, identity_of(target, draft, decoder.fingerprint, longest, shard_size, cut), decoder.tokenizer
        )
        sampling = distribution_of(decoder.defaults.sampling_params())
        self.writers[sampling] = self.make(folder, sampling)

    def add(self, request: Request) -> bool:
        """Log a finished request if its rounds are usable.

        Requests that end by a stop string are left out, because the drafts of their last round may continue after it.
        Requests with a seed are left out, because their rounds have no ratios of p and q.

        Returns:
            True if the request was logged.
        """
        output = request.output
        if output.verifier != TOKEN_WISE:
            return False
        ended = request.ended and output.finish_reason != "stop"
        if not ended or not any(round.drafted for round in output.rounds):
            return False
        return self.keep(request.sampling, request.prompt, output.tokens, rounds_of(output))
