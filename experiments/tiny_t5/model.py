"""The tiny T5s: their shapes, the training of one on text or on the target's distributions, and its evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from specpilot.controllers.sampling import SamplingParams
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, T5Config, T5ForConditionalGeneration

from ..tiny.optimisation import Trained, run, token_losses
from .pairs import IGNORED, Pair, PairBatch, by_length, collate, loader
from .settings import TinyT5Options

# Layers of encoder and decoder, width, feed-forward, heads. The target is deep and narrow, since the time of a step
# grows with the layers, so that a draft of one layer is much faster.
SHAPES = {"target": (2, 6, 192, 384, 6), "draft": (2, 1, 96, 128, 3)}


def new_model(
    shape: str, tokenizer: PreTrainedTokenizerBase, embeddings: Tensor, seed: int
) -> T5ForConditionalGeneration:
    """Return a T5 with random weights and token embeddings from the principal components of ``embeddings`` (V, D).

    The end token is the tokenizer's; the start token is 0.
    """
    encoder, decoder, width, feed_forward, heads = SHAPES[shape]
    special: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    special |= {"decoder_start_token_id": 0, "tie_word_embeddings": True}
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=width,
        d_kv=width // heads,
        d_ff=feed_forward,
        num_heads=heads,
        num_layers=encoder,
        num_decoder_layers=decoder,
        feed_forward_proj="gated-silu",
        dropout_rate=0.0,
        **special,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(config)
    with torch.no_grad():
        model.shared.weight.copy_(principal(embeddings, width))
    return model


def principal(embeddings: Tensor, width: int) -> Tensor:
    """Return the first ``width`` principal components (V, width) of ``embeddings`` (V, D).

    Each row has a mean square of 1.

    The components replace random initial embeddings, since most tokens are too rare in the text to be learned from it.
    """
    centred = embeddings - embeddings.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    rows: Tensor = centred @ directions[:width].T
    return rows / rows.square().mean(-1, keepdim=True).sqrt()


def forward(model: nn.Module, batch: PairBatch) -> Tensor:
    """Return logits (B, T, V) of the outputs' tokens, each given the prompt and the tokens before it."""
    logits: Tensor = model(
        input_ids=batch.prompts, attention_mask=batch.real.long(), decoder_input_ids=batch.read, use_cache=False
    ).logits
    return logits


class Seq2Seq(Trained[PairBatch]):
    """One T5 on batches of pairs; all output tokens have the same weight (see ``token_losses``)."""

    def __init__(
        self, model: T5ForConditionalGeneration, steps: int, *, lr: float, decay: float, overlap: bool
    ) -> None:
        super().__init__(model, steps, lr=lr, decay=decay)
        self.overlap = overlap

    def _weighted_loss(self, batch: PairBatch) -> Tensor:
        logits = forward(self.model, batch).float()
        real = batch.outputs != IGNORED
        losses = token_losses(logits, batch.outputs.clamp(min=0), batch.soft, overlap=self.overlap)
        return losses[real.flatten()].mean()

    def transfer_batch_to_device(self, batch: PairBatch, device: torch.device, dataloader_idx: int) -> PairBatch:
        """Move a batch, a dataclass whose tensors Lightning does not move."""
        soft = None if batch.soft is None else (batch.soft[0].to(device), batch.soft[1].to(device))
        return PairBatch(batch.prompts.to(device), batch.real.to(device), batch.outputs.to(device), soft)


def fit(
    model: T5ForConditionalGeneration,
    train: list[Pair],
    validation: list[Pair],
    folder: Path,
    settings: TinyT5Options,
    *,
    epochs: int,
    lr: float,
    overlap: bool,
) -> None:
    """Train ``model`` in bf16 autocast; continues an interrupted run in ``folder``."""
    # The backward pass of torch's fused attention is six times as slow on the CPU.
    model.set_attn_implementation("eager")
    batches = loader(train, settings.batch_tokens, settings.seed)
    module = Seq2Seq(model, epochs * len(batches), lr=lr, decay=settings.decay, overlap=overlap)
    run(module, batches, loader(validation, settings.batch_tokens, settings.seed, shuffle=False), folder)


SAMPLING = SamplingParams(1.0, 50)  # sampling parameters of the shipped models


@torch.inference_mode()
def overlaps(draft: T5ForConditionalGeneration, pairs: list[Pair]) -> list[Tensor]:
    """Return Σ_x min(p(x), q(x)) at every token of the outputs, the probability that a drafted token is accepted.

    The result has a tensor (T,) for each pair. p and q are under the sampling parameters ``SAMPLING``.
    """
    result: dict[int, Tensor] = {}
    for rows in by_length(pairs, 4096, 0):
        batch = collate([pairs[i] for i in rows])
        assert batch.soft is not None
        p, likely = batch.soft
        a = torch.minimum(p, SAMPLING(forward(draft, batch)).gather(-1, likely)).sum(-1)  # (B, T)
        result |= {i: a[row, : len(pairs[i].output)] for row, i in enumerate(rows)}
    return [result[i] for i in range(len(pairs))]


@torch.inference_mode()
def held_out_loss(model: T5ForConditionalGeneration, pairs: list[Pair]) -> float:
    """Return the mean cross-entropy of the outputs' tokens, in nats."""
    total, count = 0.0, 0
    for rows in by_length(pairs, 4096, 0):
        batch = collate([pairs[i] for i in rows])
        logits = forward(model, batch).float()
        total += float(
            F.cross_entropy(logits.flatten(0, 1), batch.outputs.flatten(), ignore_index=IGNORED, reduction="sum")
        )
        count += int((batch.outputs != IGNORED).sum())
    return total / count
