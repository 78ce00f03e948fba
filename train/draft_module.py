"""The batches and the training step of drafts: total variation distillation.

A drafted token is accepted with probability Σ_v min(p, q) (Leviathan et al. 2023, Theorem 3.5), which is one minus the
total variation distance ½ Σ_v |p - q|, so that distance is the loss (Zhou et al. 2024, "DistillSpec"). Shapes: B
windows of T tokens, N learned positions, V tokens of the target, M tokens of the draft, J drafted positions.

An EAGLE-3 draft is trained on several drafted positions. With the target's states at all previous positions, the
prediction at every position of a window is that of a first drafted token. Drafted token j > 1 is predicted from the
draft's state at the previous position. The last j - 1 entries of the KV cache then come from the draft's states, and
earlier ones from the target's states. All positions of a window are predicted together (training-time test, Li et al.
2025, arXiv 2503.01840, §3): forward j adds the entries of T positions to the cache, and a mask gives each position the
entries that it has in decoding. The tokens are those of the text, as in decoding as long as drafts are accepted. The
first J tokens of a window are not learned, because drafted token J needs J states before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from ..common.errors import InputError
from ..data_gen.documents import Document
from ..models.causal_lm import forward_with_hidden, layer_modules
from ..models.eagle import find_state_input
from ..models.masks import CHUNKED, SLIDING, MaskTypes, additive_mask, mask_types
from ..models.trimmed_head import TrimmedHead
from .best_epoch import BestEpoch
from .data_module import ResumableData
from .datasets import require_both, split
from .modules import cosine, finish_validation, optimizers, require_finite, total, training_loss
from .options import DraftTrainingOptions
from .target_states import StateFolder, Teacher, Windows, pack


class DraftDataModule(ResumableData[Windows, Windows]):
    """Cuts documents into training and validation windows; documents are held out by the hash of their id.

    Args:
        documents: the texts.
        settings: options of the training.
        unread: number of first tokens of each window after which nothing is learned.

    Attributes:
        states: the target's states on all windows; None if they are not stored.

    Raises:
        InputError: training or validation would be empty, or a window has at most ``unread`` tokens.
    """

    def __init__(self, documents: Sequence[Document], settings: DraftTrainingOptions, *, unread: int = 0) -> None:
        self.states: StateFolder | None = None
        fraction, window = settings.validation_fraction, settings.window
        training, validation = split(documents, [document.id for document in documents], fraction)
        require_both(len(training), len(validation), fraction, "text")
        generator = torch.Generator().manual_seed(settings.seed)
        order = torch.randperm(len(training), generator=generator).tolist()
        if unread >= window:
            raise InputError(f"window={window}: must be larger than positions={unread}; choose a larger window")
        parts = [pack([training[i] for i in order], window), pack(validation, window)]
        for part in parts:
            part.learned[:, :unread] = False
        learned = [int(part.learned.sum()) for part in parts]
        require_both(learned[0], learned[1], fraction, "token")
        super().__init__(settings, parts[:1], parts[1])

    @property
    def windows(self) -> Windows:
        """The training windows, followed by the validation windows."""
        parts = self.training, self.validation
        return Windows(torch.cat([part.tokens for part in parts]), torch.cat([part.learned for part in parts]))

    def sizes(self, examples: Windows) -> list[int]:
        return [len(examples.tokens)]

    def batch(self, examples: Windows, rows: Tensor, epoch: int | None) -> Windows:
        """Return this process's windows of a batch; if it has none, a window in which nothing is learned."""
        share, _, _ = self.share(rows)
        empty = not len(share)
        share = torch.tensor([0]) if empty else share
        windows = examples.take(share)
        if empty:
            windows.learned.zero_()
        first = 0 if examples is self.training else len(self.training.tokens)  # index of the examples in `self.windows`
        return windows if self.states is None else windows._replace(target=self.states.take(first + share))


def draft_logits(draft: PreTrainedModel, batch: Windows, states: Tensor, positions: int) -> Iterator[Tensor]:
    """Yield the logits (N, M) of each drafted position; a draft that reads no states has a single position.

    Args:
        draft: the draft.
        batch: the windows.
        states: the target's states (B, T, d_t + L·d_t).
        positions: number of drafted positions.
    """
    tokens, state_input = batch.tokens.long(), find_state_input(draft)
    skipped = 0 if state_input is None else state_input.skipped

    def learned(hidden: Tensor) -> Tensor:
        return hidden[batch.learned[:, skipped:]]

    if state_input is None:
        yield forward_with_hidden(draft, select=learned, input_ids=tokens, use_cache=False)[0]
        return
    embeddings = draft.get_input_embeddings()(tokens[:, skipped:])
    types = mask_types(draft.config.get_text_config(decoder=True))
    assert types is not None
    width = embeddings.shape[1]
    cache = DynamicCache()
    before = state_input.from_target(states[:, :-1])
    for number in range(positions):
        if number:
            before = F.pad(before, (0, 0, 1, 0))[:, :-1]  # the state of the position before, zero at the first
        inputs: dict[str, Any] = {"inputs_embeds": state_input(embeddings, before), "past_key_values": cache}
        inputs["position_ids"] = torch.arange(width, device=tokens.device).unsqueeze(0)
        if number:
            inputs["attention_mask"] = step_masks(types, width, number, embeddings)
        logits, before = forward_with_hidden(draft, select=learned, use_cache=True, **inputs)
        yield logits


def step_masks(types: MaskTypes, width: int, number: int, like: Tensor) -> Tensor | dict[str, Tensor]:
    """Return the additive masks (1, 1, T, (number + 1)·T) of a forward over the cache entries of all forwards so far.

    Position t attends to the entries of the first forward up to t - number, and to the entry of each later forward i
    at t - number + i.

    Args:
        types: the types of the draft's layers.
        width: T, the number of tokens of a window.
        number: number of the forward, from 0.
        like: a tensor with the precision and the device of the masks.

    Returns:
        The mask, or masks by layer type for models that expect a dictionary.
    """
    t = torch.arange(width).unsqueeze(-1)
    visible = torch.cat([t - number >= t.T] + [t - number + i == t.T for i in range(1, number + 1)], -1)
    distance = t - torch.arange(width).repeat(number + 1)
    masks = {}
    for name, size in types.sizes.items():
        mask = visible
        if size is not None and name == SLIDING:
            mask = visible & (distance < size)
        elif size is not None and name == CHUNKED:
            mask = visible & (t // size == (t - distance) // size)
        masks[name] = additive_mask(mask.unsqueeze(0), like.dtype).to(like.device)
    return masks if types.by_type else next(iter(masks.values()))


def overlap(logits: Tensor, p: Tensor) -> Tensor:
    """Return Σ_v min(p, q) (N,), the probability that a token that the draft samples is accepted.

    Args:
        logits: (N, M) the draft's logits, whose softmax is q.
        p: (N, M) the target's probabilities of the draft's tokens.
    """
    return torch.minimum(p, logits.float().softmax(-1)).sum(-1)


WARM_UP = 0.05  # share of the steps
METRICS = ("acceptance", "coverage", "greedy_agreement")


class DraftModule(pl.LightningModule):
    """A draft in training.

    Args:
        draft: the draft; parameters that do not require gradients are not trained.
        target: the target, whose weights are not part of the module.
        left_out: names of the draft's weights that checkpoints leave out, since they are the target's.
        steps: number of steps of the whole training.
    """

    criterion = "acceptance"
    validation: dict[str, float]

    def __init__(
        self,
        settings: DraftTrainingOptions,
        draft: PreTrainedModel,
        target: PreTrainedModel,
        *,
        left_out: set[str],
        steps: int,
    ) -> None:
        super().__init__()
        self.settings, self.steps = settings, steps
        self.validation = {}
        self.head = draft.eval()  # distillation without dropout
        self.positions = 1 if find_state_input(draft) is None else settings.positions
        head = draft.get_output_embeddings()
        self.draft_tokens = head.tokens if isinstance(head, TrimmedHead) else None
        reader, count = find_state_input(draft), target.config.num_hidden_layers
        layers = () if reader is None else reader.target_layers(count)
        self.teacher = Teacher(target, self.draft_tokens, layer_modules(target, layers, count) if layers else ())
        self.strict_loading = False
        self.head.register_state_dict_post_hook(partial(_leave_out, left_out))

    def predictions(self, batch: Windows) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the predictions of target and draft on ``batch``.

        Returns:
            The target's probabilities (N, M) of the draft's tokens, its most probable tokens (N,), and the draft's
            logits (N, M) of each of J drafted positions.
        """
        self.teacher.to(self.device)
        states, p, best = self.teacher.teach(batch)
        return p, best, [*draft_logits(self.head, batch, states, self.positions)]

    def agreement(self, batch: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Return the agreement of draft and target at each learned position of ``batch``.

        Returns:
            Σ_v min(p, q) (J, N) by drafted position, Σ p (N,) of the draft's tokens, and whether the arg-max (N,) of
            the first position agrees.
        """
        p, best, logits = self.predictions(batch)
        chosen = logits[0].argmax(-1)
        agree = (chosen if self.draft_tokens is None else self.draft_tokens[chosen]) == best
        return torch.stack([overlap(z, p) for z in logits]), p.sum(-1), agree

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        require_weights(self.head, {name.removeprefix("head.") for name in checkpoint["state_dict"]})

    def configure_optimizers(self) -> Any:
        schedule = partial(cosine, steps=self.steps, warm_up=round(WARM_UP * self.steps))
        return optimizers(self, self.steps, betas=(0.9, 0.99), fused=True, schedule=schedule)

    def training_step(self, batch: Windows, batch_idx: int) -> Tensor:
        p, _, logits = self.predictions(batch)
        accept = torch.stack([overlap(z, p) for z in logits])
        return training_loss(self, (1 - accept).sum(), accept.new_tensor(accept.numel()))

    def on_validation_epoch_start(self) -> None:
        # Created here, because spawned processes share the memory of existing tensors.
        self._sums = torch.zeros(len(METRICS) + self.positions + 1, dtype=torch.float64)

    def validation_step(self, batch: Windows, batch_idx: int) -> None:
        accept, coverage, agree = self.agreement(batch)
        require_finite(self, "predictions are", accept)
        count = accept.new_tensor(len(coverage))
        sums = [accept.mean(0).sum(), coverage.sum(), agree.sum(), *accept.sum(-1), count]
        self._sums += torch.stack(sums).double().cpu()

    def on_validation_epoch_end(self) -> None:
        *sums, count = total(self, self._sums).tolist()
        names = [*METRICS, *(f"acceptance_{position}" for position in range(1, self.positions + 1))]
        if self.positions == 1:
            names.pop()
        finish_validation(self, {name: value / max(1, count) for name, value in zip(names, sums, strict=False)})

    def add_findings(self, best: BestEpoch) -> BestEpoch:
        return best


def require_weights(draft: nn.Module, names: Iterable[str]) -> None:
    """Check that a checkpoint's weights ``names`` are weights of ``draft``.

    Raises:
        InputError: the names are those of another architecture.
    """
    if unknown := sorted({*names} - {name for name, _ in draft.named_parameters()}):
        raise InputError(
            f"the run trained a draft with the weights {unknown[0]}, an architecture that this release does not train; "
            "train again, in a new folder"
        )


def _leave_out(names: set[str], module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Remove ``names`` from a state dictionary."""
    for name in names:
        state.pop(prefix + name, None)
