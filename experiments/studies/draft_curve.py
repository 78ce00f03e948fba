"""``python -m experiments draft-curve``: acceptance of trained drafts by the amount of training data.

Drafts are trained on nested parts of the target's answers, each for the same time, and evaluated on answers to other
prompts. The target runs once over all texts, and its states are stored for all drafts.

The acceptance of a draft is the mean of Σ_v min(p, q) over the tokens of the held-out answers, at temperature 1. An
EAGLE-3 draft has an acceptance for each drafted position, since it reads the target's states at the first position
and its own states at later ones.

A line through the acceptances over the logarithm of the number of tokens extrapolates to the number of tokens at which
a draft would reach a chosen acceptance.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import linear_regression, median
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.console import progress_bar
from specpilot.common.errors import InputError
from specpilot.common.options import (
    Count,
    DType,
    File,
    Folder,
    Fraction,
    Names,
    OutputFileOptions,
    Positive,
    Seed,
    Several,
)
from specpilot.compare.interval import Interval, interval, show
from specpilot.compare.store import Store
from specpilot.compare.table import Table
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.data_gen.documents import Document, most_frequent, read_documents
from specpilot.models.causal_lm import layer_modules
from specpilot.models.eagle import find_state_input
from specpilot.models.loading.generation_defaults import model_stop_tokens
from specpilot.models.loading.names import load_model, load_tokenizer
from specpilot.train.draft_model import choose_state_layers, freeze_shared, initial_draft, load_initial
from specpilot.train.draft_module import WARM_UP, DraftModule, overlap
from specpilot.train.modules import cosine
from specpilot.train.options import DraftTrainingOptions
from specpilot.train.target_states import StateFolder, Teacher, Windows, pack
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..figure import canvases, label, save

EAGLE = "target"  # word for an EAGLE-3 draft
TIMED, UNTIMED = 8, 3  # training steps that are timed, and steps before them
DRAFTED = 3  # drafted tokens of the round whose expected number of tokens is reported


@dataclass(frozen=True, kw_only=True)
class DraftCurveOptions(OutputFileOptions):
    """Study.

    Options of ``python -m experiments draft-curve``.

    Attributes:
        target: Target model.
        dtype: Precision of the target; drafts are trained in float32.
        data: Folders of the target's answers, written by `specpilot data answers`.
        held_out: Folder of the target's answers to other prompts. The kind of a prompt is its id without
            the numbers at the end.
        tokens: Numbers of tokens of answers to train on.
        drafts: Drafts to train: layers of the target, such as "0,1,29", or "target" for an EAGLE-3 draft.
        references: Trained drafts to evaluate on the same texts.
        continued: Trained drafts whose training is continued, each on every number of tokens.
        aim: Acceptance for which the necessary number of tokens is extrapolated.
        vocabulary: Number of tokens that a new draft can propose.
        minutes: Training time of each draft. The number of steps is computed from the time of a step.
        lr: Learning rate.
        batch_size: Number of windows in a step.
        window: Number of tokens of a window.
        seed: Seed of the order of texts and windows, and of new weights.
        figure: File for the plot.
        folder: Working folder with the target's states and the results of finished drafts.
    """

    target: str = "tiny"
    dtype: DType = "float32"
    data: Names
    held_out: str
    tokens: Annotated[tuple[Count, ...], Several()]
    drafts: Names = ()
    references: Names = ()
    continued: Names = ()
    aim: Fraction = 0.55
    vocabulary: Count = 8192
    minutes: Positive = 10.0
    lr: Positive = 1e-3
    batch_size: Count = 4
    window: Count = 256
    seed: Seed = 0
    figure: File | None = None
    folder: Folder = Path("runs/draft-curve")

    def training(self, draft: str) -> DraftTrainingOptions:
        """Return the options of `specpilot train draft` for a draft."""
        shape: dict[str, Any] = {"features": EAGLE} if draft == EAGLE else {"layers": layers_of(draft)}
        return DraftTrainingOptions(
            target=self.target, dtype=self.dtype, data=self.data, vocabulary=self.vocabulary, window=self.window,
            batch_size=self.batch_size, lr=self.lr, seed=self.seed, **shape,
        )  # fmt: skip

    def continuation(self, draft: str) -> DraftTrainingOptions:
        """Return the options of `specpilot train draft` that continue the training of a draft."""
        return DraftTrainingOptions(target=self.target, dtype=self.dtype, data=self.data, initial=draft)


def is_new(draft: str) -> bool:
    """Return true if ``draft`` is a word for a new draft: layers such as "0,1,29", or "target"."""
    return draft == EAGLE or all(word.isdecimal() for word in draft.split(","))


def layers_of(draft: str) -> tuple[int, ...]:
    """Return the layers that a word such as "0,1,29" names.

    Raises:
        InputError: the word is neither a list of layers nor "target".
    """
    if not is_new(draft):
        raise InputError(f'drafts={draft!r}: must be layers such as "0,1,29", or "{EAGLE}" for an EAGLE-3 draft')
    return tuple(map(int, draft.split(",")))


def name_of(draft: str) -> str:
    """Return the name of a draft for readers: its layers, "EAGLE-3", or the name of the folder of a trained draft."""
    if draft == EAGLE:
        return "EAGLE-3"
    return f"layers {draft.replace(',', ', ')}" if is_new(draft) else Path(draft).name


class Texts(NamedTuple):
    """The texts of the study.

    Attributes:
        training: the texts to train on, in random order.
        held_out: held-out texts by kind of prompt.
    """

    training: list[Document]
    held_out: dict[str, list[Document]]

    def first(self, tokens: int) -> list[Document]:
        """Return the first training texts with at least ``tokens`` learned tokens together.

        Raises:
            InputError: all texts together have fewer learned tokens.
        """
        totals = [*accumulate(sum(document.learned) for document in self.training)]
        count = next((number for number, total in enumerate(totals, 1) if total >= tokens), None)
        if count is None:
            raise InputError(
                f"tokens={tokens}: data has answers of {totals[-1] if totals else 0} tokens; make more answers with "
                "'specpilot data answers', or choose a smaller number"
            )
        return self.training[:count]


def read_texts(options: DraftCurveOptions, target: str, tokenizer: PreTrainedTokenizerBase) -> Texts:
    """Read the texts.

    Args:
        options: options of the study.
        target: fingerprint of the target.
        tokenizer: tokenizer of the target.

    Raises:
        InputError: a folder has no answers of the target, or a held-out prompt is also trained on.
    """
    training = read_documents(options.data, tokenizer, target=target)
    held_out: dict[str, list[Document]] = {}
    trained = {document.id for document in training}
    for document in read_documents([options.held_out], tokenizer, target=target):
        if document.id in trained:
            raise InputError(f"held_out={options.held_out!r}: prompt {document.id!r} is also in data; leave it out")
        held_out.setdefault(re.sub(r"(-\d+)+$", "", document.id), []).append(document)
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(options.seed)).tolist()
    return Texts([training[index] for index in order], held_out)


class StoredWindows(NamedTuple):
    """Windows of text with the target's states.

    Attributes:
        windows: windows of all texts.
        states: the states of the windows.
    """

    windows: Windows
    states: StateFolder

    def batch(self, rows: Tensor) -> Windows:
        """Return the windows ``rows`` with their states."""
        return self.windows.take(rows)._replace(target=self.states.take(rows))


class Curve:
    """The data of the study, and the training and the evaluation of one draft.

    Args:
        options: options of the study.
        console: console for progress.

    Raises:
        InputError: see :func:`read_texts`, :meth:`Texts.first` and :meth:`_load_draft`.
    """

    def __init__(self, options: DraftCurveOptions, console: Console) -> None:
        self.options, self.console = options, console
        self.target: PreTrainedModel = load_model(options.target, dtype=options.dtype, device="cpu", decoder_only=True)
        self.tokenizer = tokenizer = load_tokenizer(options.target)
        self.fingerprint = model_fingerprint(self.target)
        self.stops = model_stop_tokens(self.target, tokenizer)
        self.texts = read_texts(options, self.fingerprint, tokenizer)
        self.texts.first(max(options.tokens))
        self.loaded = {draft: self._load_draft(draft) for draft in (*options.references, *options.continued)}
        self.positions = options.training(EAGLE).positions
        training = self._packed(self.texts.training)
        parts = {kind: self._packed(documents) for kind, documents in self.texts.held_out.items()}
        windows = [training, *parts.values()]
        ends = [*accumulate(len(part.tokens) for part in windows)]
        self.held_out = {
            kind: torch.arange(first, last) for kind, (first, last) in zip(parts, pairwise(ends), strict=True)
        }
        count = self.target.config.num_hidden_layers
        layers = layer_modules(self.target, choose_state_layers(count), count)
        joined = Windows(torch.cat([part.tokens for part in windows]), torch.cat([part.learned for part in windows]))
        self.digest = hashlib.sha256(joined.tokens.numpy().tobytes() + joined.learned.numpy().tobytes()).hexdigest()
        name = f"states-{self.fingerprint[:8]}-{options.dtype}-{self.digest[:8]}"
        states = StateFolder(options.folder / name, len(joined.tokens))
        states.fill(Teacher(self.target, None, layers), joined, console)
        self.stored = StoredWindows(joined, states)

    def _packed(self, documents: Sequence[Document]) -> Windows:
        """Return the windows of ``documents``; all drafts learn and predict the same tokens of a window."""
        windows = pack(documents, self.options.window)
        windows.learned[:, : self.positions] = False
        return windows

    def module(self, draft: str, documents: Sequence[Document]) -> DraftModule:
        """Return the draft that training begins with.

        Args:
            draft: layers of the target, "target", or a draft whose training is continued.
            documents: texts that are trained on. Their most frequent tokens are the vocabulary of a new draft.
        """
        if draft in self.options.continued:
            return self._module(self.options.continuation(draft), self._load_draft(draft))
        settings = self.options.training(draft)
        among = range(len(self.target.get_output_embeddings().weight))
        draft_tokens = most_frequent(documents, min(self.options.vocabulary, len(among)), among, self.stops)
        return self._module(settings, initial_draft(self.target, settings, draft_tokens))

    def _module(self, settings: DraftTrainingOptions, draft: PreTrainedModel) -> DraftModule:
        left_out = freeze_shared(draft, self.target, settings, self.fingerprint)
        return DraftModule(settings, draft, self.target, left_out=left_out, steps=0)

    def windows_of(self, documents: Sequence[Document]) -> int:
        """Return the number of the first training windows that hold only tokens of ``documents``."""
        return max(1, sum(len(document.tokens) for document in documents) // self.options.window)

    def seconds_of_a_step(self, draft: str) -> float:
        """Return the median time of a training step of a draft."""
        documents = self.texts.first(min(self.options.tokens))
        seconds = []
        clock = time.perf_counter()
        for _ in self.steps(self.module(draft, documents), self.windows_of(documents), UNTIMED + TIMED):
            seconds.append(time.perf_counter() - clock)
            clock = time.perf_counter()
        return median(seconds[UNTIMED:])

    def steps(self, module: DraftModule, windows: int, steps: int) -> Any:
        """Train for ``steps`` steps on the first ``windows`` windows, and yield after each step.

        Windows come in random order, and begin again in another order after the last.
        """
        trained = [parameter for parameter in module.head.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=self.options.lr, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
        schedule = cosine(optimizer, steps, round(WARM_UP * steps))
        generator = torch.Generator().manual_seed(self.options.seed)
        waiting: list[int] = []
        for _ in range(steps):
            if len(waiting) < self.options.batch_size:
                waiting += torch.randperm(windows, generator=generator).tolist()
            rows, waiting = waiting[: self.options.batch_size], waiting[self.options.batch_size :]
            batch = self.stored.batch(torch.tensor(rows))
            if bool(batch.learned.any()):
                p, _, logits = module.predictions(batch)
                loss = (1 - torch.stack([overlap(z, p) for z in logits])).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            schedule.step()
            yield

    @torch.no_grad()
    def evaluate(self, module: DraftModule) -> dict[str, Any]:
        """Return the acceptance on all held-out texts and by kind of prompt.

        ``acceptance`` is that of the first drafted token with its 95 % interval over windows, ``positions`` has that of
        each drafted position, ``round`` is the expected number of tokens of a round with ``DRAFTED`` drafted tokens,
        as if positions were independent, and ``coverage`` is the target's probability of the draft's vocabulary.
        """
        sums: dict[str, list[list[float]]] = {}
        for kind, rows in self.held_out.items():
            for row in rows.tolist():
                batch = self.stored.batch(torch.tensor([row]))
                if bool(batch.learned.any()):
                    accept, coverage, _ = module.agreement(batch)
                    sums.setdefault(kind, []).append([len(coverage), coverage.sum().item(), *accept.sum(-1).tolist()])
        columns = {kind: np.array(each) for kind, each in sums.items()}
        whole = np.concatenate([*columns.values()])
        count, covered, *accepted = whole.sum(0)
        positions = [each / count for each in accepted]
        chain = [*positions, *[positions[-1]] * DRAFTED][:DRAFTED]
        return {
            "acceptance": mean(whole).to_dict(),
            "kinds": {kind: mean(each).to_dict() for kind, each in columns.items()},
            "positions": positions,
            "round": 1 + sum(math.prod(chain[:drafted]) for drafted in range(1, DRAFTED + 1)),
            "coverage": covered / count,
        }

    def trained(self, draft: str, tokens: int, seconds: float) -> dict[str, Any]:
        """Train a draft on ``tokens`` tokens of answers, with steps of ``seconds``, and return its results."""
        documents = self.texts.first(tokens)
        windows = self.windows_of(documents)
        steps = max(1, round(60 * self.options.minutes / seconds))
        module = self.module(draft, documents)
        with progress_bar(self.console, f"steps of draft {draft} with {tokens:,} tokens", steps) as advance:
            for _ in self.steps(module, windows, steps):
                advance()
        passes = steps * self.options.batch_size / windows
        return {
            "draft": draft, "tokens": tokens, "texts": len(documents), "steps": steps, "passes": passes,
            "parameters": parameters_read(module), **self.evaluate(module),
        }  # fmt: skip

    def _load_draft(self, draft: str) -> PreTrainedModel:
        """Return a trained draft.

        Raises:
            InputError: the draft cannot be loaded or trained, has other tokens than the target, or reads other states
                than the trained drafts.
        """
        model = load_initial(self.target, self.tokenizer, self.options.continuation(draft))
        state_input, count = find_state_input(model), self.target.config.num_hidden_layers
        stored = choose_state_layers(count)
        if state_input is not None and state_input.target_layers(count) != stored:
            raise InputError(
                f"draft {draft!r} reads the states of layers {state_input.target_layers(count)}, but the study "
                f"stores those of layers {stored}; leave it out"
            )
        return model

    def reference(self, draft: str) -> dict[str, Any]:
        """Return the results of a draft that is not trained here."""
        module = self._module(self.options.continuation(draft), self.loaded[draft])
        return {"draft": draft, "parameters": parameters_read(module), **self.evaluate(module)}

    def identity(self, *names: str) -> dict[str, Any]:
        """Return the models, the texts and the options ``names`` on which a stored result depends."""
        options = {name: getattr(self.options, name) for name in ("dtype", "window", *names)}
        return {"target": self.fingerprint, "texts": self.digest, **options}

    def measure_references(self, store: Store) -> list[dict[str, Any]]:
        """Return the results of all drafts that are not trained here; finished ones are taken from ``store``."""
        shared = self.identity()
        return [
            store.compute(
                shared | {"reference": draft, "draft": model_fingerprint(self.loaded[draft])},
                partial(self.reference, draft),
            )
            for draft in self.options.references
        ]

    def measure(self, store: Store) -> list[dict[str, Any]]:
        """Return the results of all trained drafts; finished ones are taken from ``store``."""
        options, shared = self.options, self.identity("vocabulary", "minutes", "lr", "batch_size", "seed")
        rows = []
        for draft in (*options.drafts, *options.continued):
            shared_by_draft = shared | {"draft": draft}
            if draft in options.continued:
                shared_by_draft |= {"initial": model_fingerprint(self.loaded[draft])}
            step = shared_by_draft | {"step": min(options.tokens)}
            seconds = store.compute(step, partial(self.seconds_of_a_step, draft))
            for tokens in options.tokens:
                identity = shared_by_draft | {"tokens": tokens, "seconds": seconds}
                rows.append(store.compute(identity, partial(self.trained, draft, tokens, seconds)))
        return rows


def parameters_read(module: DraftModule) -> int:
    """Return the number of parameters that a draft step reads: all but the embedding."""
    embedding = module.head.get_input_embeddings().weight
    parameters: int = sum(parameter.numel() for parameter in module.head.parameters())
    return parameters - int(embedding.numel())


def extrapolate(rows: Sequence[dict[str, Any]], aim: float) -> dict[str, dict[str, float | None]]:
    """Return the growth of each draft's acceptance with the number of tokens.

    The growth is the slope of the least-squares line of the acceptance over log2(tokens). All drafts were trained for
    the same time, so the line holds for this training time only.

    Args:
        rows: results of trained drafts.
        aim: the acceptance to reach.

    Returns:
        For each draft with at least two numbers of tokens: ``doubling``, the increase of the acceptance for twice as
        many tokens, and ``tokens``, the number of tokens at which the line reaches ``aim``. ``tokens`` is None if the
        acceptance does not increase, or if the line reaches ``aim`` only after 10¹⁵ tokens.
    """
    growth: dict[str, dict[str, float | None]] = {}
    for draft in dict.fromkeys(row["draft"] for row in rows):
        points = [(math.log2(row["tokens"]), row["acceptance"]["value"]) for row in rows if row["draft"] == draft]
        if len({x for x, _ in points}) > 1:
            slope, start = linear_regression(*zip(*points, strict=True))
            needed = (aim - start) / slope if slope > 0 else math.inf
            growth[draft] = {"doubling": slope, "tokens": 2**needed if needed < math.log2(1e15) else None}
    return growth


def mean(columns: Any) -> Interval:
    """Return the acceptance of the first drafted token of windows (n, 2 + J), with its interval over windows."""
    return interval(lambda accepted, count: accepted / count, columns[:, 2], columns[:, 0])


def plot(rows: Sequence[dict[str, Any]], references: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the acceptance of each trained draft over the number of tokens, and a line for each reference."""
    figure, (axes,) = canvases(7, 4.5)
    for draft in dict.fromkeys(row["draft"] for row in rows):
        points = [row for row in rows if row["draft"] == draft]
        x = [row["tokens"] for row in points]
        y = [row["acceptance"]["value"] for row in points]
        low, high = ([row["acceptance"][end] for row in points] for end in ("low", "high"))
        (line,) = axes.plot(x, y, "o-", label=name_of(draft))
        axes.fill_between(x, low, high, alpha=0.2, color=line.get_color())
    for row in references:
        axes.axhline(row["acceptance"]["value"], linestyle="--", color="gray", label=name_of(row["draft"]))
    axes.set_xscale("log")
    label(axes, "tokens of answers to train on", "acceptance of the first drafted token")
    save(figure, path)


def main(options: DraftCurveOptions) -> None:
    """Train drafts on parts of the data, and compute their acceptance on held-out prompts."""
    console = begin()
    if not (options.drafts or options.references or options.continued):
        raise InputError("no draft: name drafts, references, or drafts to be continued")
    for draft in options.drafts:
        options.training(draft)
    for draft in (*options.references, *options.continued):
        if is_new(draft):
            raise InputError(f"draft {draft!r}: is a word for a new draft; write './{draft}' for a folder of this name")
    with Store(options.folder) as store:
        curve = Curve(options, console)
        references, rows = curve.measure_references(store), curve.measure(store)
    growth = extrapolate(rows, options.aim)
    table_rows = [
        {
            "draft": name_of(row["draft"]),
            "tokens": f"{row['tokens']:,}" if "tokens" in row else "–",
            "passes": f"{row['passes']:.1f}" if "passes" in row else "–",
            "acceptance": show(Interval.from_dict(row["acceptance"]), 3),
            "by position": " ".join(f"{each:.3f}" for each in row["positions"]),
            "tokens per round": f"{row['round']:.2f}",
        }
        for row in [*rows, *references]
    ]
    console.print(Table("Acceptance on held-out prompts", table_rows))
    for draft, line in growth.items():
        end = "is not reached" if line["tokens"] is None else f"needs {line['tokens']:,.0f} tokens"
        doubled = f"{line['doubling']:+.3f} acceptance for twice the tokens"
        console.print(f"{name_of(draft)}: {doubled}; by this line, {options.aim} {end}")
    if options.figure is not None:
        plot(rows, references, options.figure)
    finish({"rows": rows, "references": references, "growth": growth}, options, options.output)
