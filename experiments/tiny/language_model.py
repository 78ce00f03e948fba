"""Training of one small Llama on text or on the target's distributions."""

from __future__ import annotations

from pathlib import Path

import torch
from specpilot.train.data_module import ResumableLoader
from torch import Tensor
from transformers import LlamaForCausalLM

from .corpus import Packed
from .distillation import SoftLabels
from .optimisation import Trained, run, token_losses
from .settings import TinyModelsOptions

# tokens (B, T), whether each belongs to a response (B, T), and for distillation the target's probabilities (B, T, k) of
# the most probable next tokens, and their ids (B, T, k)
Batch = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


class LanguageModel(Trained[Batch]):
    """One model on packed windows; the loss depends on the data (see ``token_losses``).

    Prompt tokens have weight ``prompt_weight``, since only responses are generated.
    """

    def __init__(
        self, model: LlamaForCausalLM, steps: int, settings: TinyModelsOptions, *, lr: float, overlap: bool
    ) -> None:
        super().__init__(model, steps, lr=lr, decay=settings.decay)
        self.overlap, self.prompt_weight = overlap, settings.prompt_weight
        self.loss = torch.compile(self._loss) if settings.compile else self._loss

    def _loss(self, tokens: Tensor, weight: Tensor, probabilities: Tensor | None, likely: Tensor | None) -> Tensor:
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1].float()  # (B, T - 1, V)
        soft = None if probabilities is None or likely is None else (probabilities[:, :-1], likely[:, :-1])
        losses = token_losses(logits, tokens[:, 1:], soft, overlap=self.overlap)
        weight = weight[:, 1:].flatten()
        return (losses * weight).sum() / weight.sum()

    def _weighted_loss(self, batch: Batch) -> Tensor:
        tokens, is_response, probabilities, likely = batch
        return self.loss(tokens, torch.where(is_response, 1.0, self.prompt_weight), probabilities, likely)


def fit(
    model: LlamaForCausalLM,
    train: Packed | SoftLabels,
    validation: Packed,
    folder: Path,
    settings: TinyModelsOptions,
    *,
    tokens: int,
    lr: float,
    overlap: bool,
) -> None:
    """Train ``model`` on about ``tokens`` tokens in bf16 autocast; continues an interrupted run in ``folder``."""
    batch_size = settings.batch_size
    steps = max(1, tokens // (batch_size * validation.tokens.shape[1]))

    def loader(data: Packed | SoftLabels, shuffle: bool) -> ResumableLoader[Batch]:
        text = data.text if isinstance(data, SoftLabels) else data

        def batch(epoch: int, rows: Tensor) -> Batch:
            if isinstance(data, SoftLabels):
                soft = data.probabilities[rows].float(), data.tokens[rows].long()
                return text.tokens[rows], text.is_response[rows], *soft
            return text.tokens[rows], text.is_response[rows], None, None

        whole = len(text.tokens) // batch_size * batch_size  # whole batches: one compiled shape
        return ResumableLoader(whole or len(text.tokens), batch_size, settings.seed, batch, shuffle)

    module = LanguageModel(model, steps, settings, lr=lr, overlap=overlap)
    run(module, loader(train, True), loader(validation, False), folder)
