"""``specpilot data answers`` and ``data acceptance``: the target's answers to prompts, and labels of drafted tokens.

Prompts → rollouts of the target → labels of target and draft → shards (SpecDec++, Huang et al. 2024, §3.3).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rich.console import Console
from torch.nn.utils.rnn import pad_sequence

from ..common.console import stderr_console
from ..common.errors import InputError, naming
from ..common.files import MANIFEST
from ..common.record import Identity
from ..controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint
from ..models import language_model
from ..models.loading.names import check_same_tokenizer, has_tokenizer, load_any_model, load_tokenizer
from .builder import Item, TargetBuilder, make_dataset, pair_identity
from .dataset import day_in
from .kinds import AcceptanceRow, AnswerRow
from .options import (
    ONE_PROCESS,
    OWN_RESPONSES,
    AcceptanceDataOptions,
    ResponseOptions,
    WorkerOptions,
)
from .responses import make_responses
from .rollout import Rollout, label
from .workers import OnDone


class AnswersBuilder(TargetBuilder[AnswerRow]):
    """Makes the rows of a dataset of answers."""

    kind = AnswerRow

    def identity(self) -> Identity:
        return {"draft": None, "fingerprint": self.fingerprint}

    def rows(self, items: list[Item], on_done: OnDone) -> list[AnswerRow]:
        pairs = zip(items, self.answers(items, on_done), strict=True)
        return [AnswerRow(item.id, item.prompt, item.ids, rollout.tokens) for item, rollout in pairs]


class AcceptanceDatasetBuilder(TargetBuilder[AcceptanceRow]):
    """Makes the rows of an acceptance dataset.

    Raises:
        InputError: a model is missing, or the pair does not fit.
    """

    kind = AcceptanceRow
    token_bytes = 9
    settings: AcceptanceDataOptions

    def __init__(self, settings: AcceptanceDataOptions) -> None:
        self.settings = settings
        check_draft(settings.draft)
        with naming("draft", settings.draft):
            tokenizer = load_tokenizer(settings.draft, trust_remote_code=settings.trust_remote_code)
        check_same_tokenizer(self.tokenizer, tokenizer)
        super().__init__(settings)
        with naming("draft", settings.draft):
            draft = load_any_model(settings.draft, target=self.target.model, **settings.loading, decoder_only=True)
        self.pair = PairFingerprint(draft=model_fingerprint(draft), **self.fingerprint)
        self.draft = language_model(draft)
        self.models.append(self.draft)

    def identity(self) -> Identity:
        return pair_identity(self.settings, self.pair, self.target, self.draft)

    def rows(self, items: list[Item], on_done: OnDone) -> list[AcceptanceRow]:
        """Return the labelled rollouts of the prompts. Rollouts are generated unless another engine made them."""
        size = self.settings.batch_size
        x = [Rollout(item.response) for item in items if item.response is not None]
        for rollout in x:
            on_done(len(rollout.tokens))
        x = x or self.answers(items, on_done)
        rows = []
        for start in range(0, len(items), size):
            batch = slice(start, start + size)
            points = pad_sequence([self.uniforms(item, "y") for item in items[batch]], batch_first=True)
            prompts = [item.ids for item in items[batch]]
            rule = self.settings.verifier
            labels = label(self.target, self.draft, prompts, x[batch], points, self.sampling, rule)
            for item, rollout, (y, p) in zip(items[batch], x[batch], labels, strict=True):
                rows.append(AcceptanceRow(item.id, item.prompt, item.ids, rollout.tokens[: len(y)], y, p))
        return rows


def check_draft(name: str) -> None:
    """Check that the draft ``name`` can read texts without a decoder, before any model is loaded.

    Raises:
        InputError: the draft reads the target's states, as EAGLE-3 drafts do; or there is no such model.
    """
    with naming("draft", name):
        if not has_tokenizer(name):
            raise InputError(
                f"{name}: an EAGLE-3 draft, which reads the target's states; data acceptance has no states, because it "
                "reads drafts without decoding. Make the data with specpilot data on-policy"
            )


make_answers = partial(make_dataset, AnswersBuilder)
"""Make or complete a dataset of answers; see :func:`~specpilot.data_gen.builder.make_dataset`."""


def make_acceptance_data(
    settings: AcceptanceDataOptions,
    output: str | Path,
    *,
    workers: WorkerOptions = ONE_PROCESS,
    responses: ResponseOptions = OWN_RESPONSES,
    console: Console | None = None,
) -> Path:
    """Make or complete the acceptance dataset ``output``; see :func:`~specpilot.data_gen.builder.make_dataset`.

    Texts of another engine are stored in a second dataset, ``<output>-responses``.

    Raises:
        InputError: as for ``make_dataset`` and :func:`make_responses`.
    """
    check_draft(settings.draft)
    texts, stored_day = None, None
    if responses.responses is not None:
        folder = Path(f"{Path(output)}-responses")
        texts = make_responses(settings, responses, folder, console or stderr_console(), workers)
        stored_day = day_in(folder / MANIFEST)  # the texts answer prompts with that date
    return make_dataset(
        AcceptanceDatasetBuilder, settings, output, console=console, workers=workers, texts=texts, stored_day=stored_day
    )
