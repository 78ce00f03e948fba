"""Served rounds as a dataset: what ``specpilot data on-policy`` makes of prompts, made of a server's own requests.

Prompts and texts are part of it. A dataset has one distribution, and its labels are ratios p(y)/q(y) of drafts that are
verified token by token.
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

DISTRIBUTIONS = 17  # that are logged; requests choose them
UNLIMITED = 2**31 - 1  # tokens, where no model limits them
KEPT_SHARDS = 16  # that wait in memory while the disk cannot be written


def identity_of(
    target: str, draft: str, pair: PairFingerprint, longest: int, shard_size: int = 64, vocab_size: int | None = None
) -> Identity:
    """What the manifests of one server's rounds have in common.

    Args:
        target, draft: names of the models, and ``pair`` their fingerprint.
        longest: tokens of the longest text that can come, by which training cuts.
        shard_size: texts a shard; also what a crash may lose.
        vocab_size: size that the draft's distributions are cut to if its vocabulary is larger.
    """
    cut = {} if vocab_size is None else {"vocab_size": vocab_size}
    return {
        "kind": RoundsRow.kind, "target": target, "draft": draft, "fingerprint": pair.to_dict(), "served": True, **cut,
        "settings": {"max_new_tokens": longest, "shard_size": shard_size},
    }  # fmt: skip


class RoundWriter:
    """Writes texts with their rounds to a folder, a shard at a time.

    A shard appears by atomic rename, and the manifest names complete shards only: after a crash the folder is a valid
    dataset without the last, unfinished shard. Starting again with the same pair and sampling continues it.

    Raises:
        InputError: the folder belongs to another pair or sampling or is in use.
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
        """Add the text ``tokens``. While the disk cannot be written, the last ones are kept in memory."""
        digest = hashlib.sha256(repr((self.count, prompt, tokens)).encode()).hexdigest()
        name, text = f"served-{self.count}-{digest[:12]}", str(self.tokenizer.decode(prompt))
        self.rows.append(RoundsRow(name, text, list(prompt), tokens, *rounds))
        self.count += 1
        if len(self.rows) % self.shard_size == 0:
            self.rows = self.rows[-KEPT_SHARDS * self.shard_size :]
            self.flush()

    def flush(self) -> None:
        """Write the rows there are as shards; the dataset is then complete as it stands.

        An error of the disk is reported once, on standard error.
        """
        try:
            while self.rows:
                self.writer.write(Rows(self.rows[: self.shard_size]))
                self.rows = self.rows[self.shard_size :]
                self.writer.complete()
            self._failing = False
        except OSError as error:
            if not self._failing:
                message = f"{self.writer.folder}: rounds cannot be logged ({error.strerror}); free space"
                print(f"specpilot: error: {message}", file=sys.stderr, flush=True)
            self._failing = True

    def close(self) -> None:
        """Write what is left and let others use the folder."""
        self.flush()
        self.writer.close()


class RoundWriters:
    """Writers for each distribution that requests bring, in a folder of its own within ``folder``.

    Args:
        identity: of :func:`identity_of`.
    """

    def __init__(self, folder: Path, identity: Identity, tokenizer: PreTrainedTokenizerBase) -> None:
        self.folder, self.identity, self.tokenizer = folder, identity, tokenizer
        self.writers: dict[SamplingParams, RoundWriter | None] = {}

    def make(self, folder: Path, sampling: SamplingParams) -> RoundWriter:
        """The writer of a folder; raises InputError as that does."""
        return RoundWriter(folder, {**self.identity, "sampling": sampling.to_dict()}, self.tokenizer)

    def keep(self, sampling: SamplingParams, prompt: list[int], tokens: list[int], rounds: Rounds) -> bool:
        """Add a text to the dataset of its sampling, unless there are too many or its folder cannot be used."""
        sampling = distribution_of(sampling)
        if sampling not in self.writers and len(self.writers) < DISTRIBUTIONS:
            folder = self.folder / folder_of(sampling)
            try:
                self.writers[sampling] = self.make(folder, sampling)
            except (InputError, OSError) as error:  # is said once
                self.writers[sampling] = None
                print(f"specpilot: warning: log_rounds={str(folder)!r}: {error}", file=sys.stderr, flush=True)
        writer = self.writers.get(sampling)
        if writer is not None:
            writer.keep(prompt, tokens, rounds)
        return writer is not None

    def close(self) -> None:
        """Write what is left."""
        for writer in self.writers.values():
            if writer is not None:
                writer.close()


def distribution_of(sampling: SamplingParams) -> SamplingParams:
    """``sampling`` without what does not matter: at temperature 0 all else."""
    return SamplingParams(0.0) if sampling.temperature == 0 else sampling


def folder_of(sampling: SamplingParams) -> str:
    """The name of the dataset of texts under ``sampling``."""
    if sampling.temperature == 0:
        return "temperature-0"
    return f"temperature-{sampling.temperature:.12g}-top-k-{sampling.top_k or 'all'}-top-p-{sampling.top_p:.12g}"


class RoundLog(RoundWriters):
    """The finished requests of ``specpilot serve``; those under its default sampling in ``folder`` itself.

    Raises:
        InputError: as for :class:`RoundWriter`; or the decoder has no single draft model, drafts trees or has another
            rule than token-wise.
    """

    def __init__(
        self, folder: Path, decoder: SpeculativeDecoder, target: str, draft: str, *, shard_size: int = 64
    ) -> None:
        chains = len(decoder.drafts) == 1 and decoder.plan.verifier.rule == TOKEN_WISE and decoder.plan.drafts_chains
        if not chains or decoder.tokenizer is None:
            raise InputError("log_rounds: needs one draft model's chains and the verifier token-wise; leave it out")
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
        """Keep a request, if it is one to keep.

        One that a stop string ended is not: the drafts of its last round may go on behind it. One with a seed is not:
        its rounds have no ratios of p and q.
        """
        output = request.output
        if output.verifier != TOKEN_WISE:
            return False
        ended = request.ended and output.finish_reason != "stop"
        if not ended or not any(round.drafted for round in output.rounds):
            return False
        return self.keep(request.sampling, request.prompt, output.tokens, rounds_of(output))
