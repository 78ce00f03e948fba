"""Served rounds as a dataset: what ``specpilot data on-policy`` makes of prompts, made of the server's own requests.

Prompts and texts are part of it. Only requests under the server's default sampling are kept, and only those that are
verified token by token: a dataset has one distribution, and labels are ratios p(y)/q(y).
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from ..data_gen.builder import Item
from ..data_gen.dataset import ShardWriter
from ..data_gen.kinds import RoundsRow, Rows
from ..data_gen.on_policy import as_row
from ..infer.decoder import SpeculativeDecoder
from ..infer.request import Request

UNLIMITED = 2**31 - 1  # tokens, where no model limits them
KEPT_SHARDS = 16  # that wait in memory while the disk cannot be written


class RoundLog:
    """Writes finished requests to a folder, a shard at a time.

    A shard appears by atomic rename, and the manifest names complete shards only: after a crash the folder is a valid
    dataset without the last, unfinished shard. Starting again with the same pair and sampling continues it.

    Args:
        folder: the dataset.
        target, draft: names of the models, for the manifest.
        shard_size: texts a shard; also what a crash may lose.

    Raises:
        InputError: the decoder has no single draft model, drafts trees or has another rule than token-wise, or the
            folder belongs to another pair or sampling or is in use.
    """

    def __init__(
        self, folder: Path, decoder: SpeculativeDecoder, target: str, draft: str, *, shard_size: int = 64
    ) -> None:
        chains = len(decoder.drafts) == 1 and decoder.config.rule == "token-wise" and decoder.config.tree is None
        if not chains or decoder.tokenizer is None:
            raise InputError("log_rounds: needs one draft model's chains and the verifier token-wise; leave it out")
        self.decoder, self.shard_size = decoder, shard_size
        self.sampling = decoder.defaults.sampling_params()
        (model,) = decoder.drafts
        identity: dict[str, Any] = {
            "kind": RoundsRow.kind,
            "target": target,
            "draft": draft,
            "fingerprint": decoder.fingerprint.as_dict(),
            "sampling": self.sampling.as_dict(),
            "served": True,
            **({"vocab_size": decoder.target.vocab_size} if model.vocab_size > decoder.target.vocab_size else {}),
            # The longest text that can come, by which training cuts.
            "settings": {"max_new_tokens": decoder.context or UNLIMITED, "shard_size": shard_size},
        }
        self.writer = ShardWriter(folder, identity)
        self.rows: list[RoundsRow] = []
        self._failing = False
        self.count = sum(shard["rows"] for shard in self.writer.manifest["shards"])

    def add(self, request: Request) -> bool:
        """Keep a request, if it is one to keep. While the disk cannot be written, the last ones are kept in memory.

        One that a stop string ended is not: the drafts of its last round may go on behind it.
        """
        if (
            not request.ended
            or request.output.finish_reason == "stop"
            or request.sampling != self.sampling
            or not any(round.drafted for round in request.output.rounds)
        ):
            return False
        digest = hashlib.sha256(repr((self.count, request.prompt, request.output.tokens)).encode()).hexdigest()
        assert self.decoder.tokenizer is not None
        text = str(self.decoder.tokenizer.decode(request.prompt))
        item = Item(f"served-{self.count}-{digest[:12]}", text, list(request.prompt), request.budget)
        self.rows.append(as_row(item, request.output))
        self.count += 1
        if len(self.rows) % self.shard_size == 0:
            self.rows = self.rows[-KEPT_SHARDS * self.shard_size :]
            self.flush()
        return True

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
