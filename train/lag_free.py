"""``specpilot train lag-free``: drafted tokens in, a lag-free head out; the epoch is chosen by simulated tokens/s."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from ..controllers.acceptance.lag_free_head import LagFreeHead, copied_embeddings
from ..controllers.checkpoints.checkpoint import check_free, save_controller
from ..controllers.checkpoints.fingerprint import PairFingerprint
from ..controllers.checkpoints.lag_free_head import LagFreeHeadConfig
from ..controllers.checkpoints.provenance import Provenance
from ..controllers.errors import InputError
from ..controllers.length import LagFreePredictor, RateOptimal
from ..controllers.length.cost_model import CostModel
from ..controllers.sampling import SamplingParams
from ..data_gen.dataset import read_manifest
from ..data_gen.vocabulary import traceable
from ..infer.generation import Stats
from ..infer.generation_defaults import stop_tokens_of
from ..infer.loading import load_causal_lm, load_tokenizer
from ..infer.models import CausalLM
from ..infer.random_source import RandomSource
from ..options import LagFreeTrainingOptions
from ..simulate.replay import PrecomputedPredictor, replay
from ..simulate.trace import Trace, trace
from .acceptance_data import is_validation
from .datasets import check_same
from .fitting import quiet_lightning
from .lag_free_data import Examples, Text, read_examples, read_texts
from .metrics import auroc, brier

PAPER_COST = CostModel(0.21, 1.0, 0.0)  # SpecDec++'s pair: t_draft / t_verify


class LagFreeModule(pl.LightningModule):
    """The head in training: binary cross-entropy against the target's own chances, for both outputs.

    Args:
        validation: examples of the prompts held out.
        traces: texts of prompts held out, to replay a controller over.

    Attributes:
        best: metrics of the epoch with the most simulated tokens/s, and the weights it had.
    """

    def __init__(
        self,
        head: LagFreeHead,
        embedding: Tensor,
        settings: LagFreeTrainingOptions,
        steps: int,
        validation: Examples,
        traces: Sequence[Trace],
        stop_tokens: frozenset[int],
        mean: float,
    ) -> None:
        super().__init__()
        self.head, self.settings, self.steps = head, settings, steps
        self._embedding = (embedding,)  # in a tuple it is no buffer: not trained, not saved
        self.validation, self.traces, self.stop_tokens, self.mean = validation, traces, stop_tokens, mean
        self.predicts_next = bool(validation.then.isfinite().any())
        self.cost = PAPER_COST if settings.cost is None else CostModel.load(settings.cost)
        self.best: tuple[dict[str, float], dict[str, Tensor]] | None = None
        self.history: list[dict[str, float]] = []

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        *examples, accept, then = batch
        kept, next_kept = self._logits(*examples).unbind(-1)
        loss = F.binary_cross_entropy_with_logits(kept, accept)
        known = then.isfinite()
        if bool(known.any()):
            loss = loss + F.binary_cross_entropy_with_logits(next_kept[known], then[known])
        return loss

    def on_train_epoch_end(self) -> None:
        metrics = self.validation_metrics()
        self.history.append(metrics)
        self.print(f"epoch {self.current_epoch + 1}: " + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
        if self.best is None or metrics["simulated_speedup"] > self.best[0]["simulated_speedup"]:
            self.best = metrics, deepcopy(self.head.state_dict())

    @torch.no_grad()
    def validation_metrics(self) -> dict[str, float]:
        """Metrics on the prompts held out."""
        self.head.eval()
        v = self.validation
        logits = self._logits(v.evidence, v.hidden, v.tokens, v.copies)
        known = v.then.isfinite()
        metrics = {"auroc": auroc(logits[:, 0], v.accept), "brier": brier(logits[:, 0], v.accept)}
        if self.predicts_next:
            metrics["next_auroc"] = auroc(logits[known, 1], v.then[known])
        source = LagFreePredictor(
            deepcopy(self.head),
            self._embedding[0],
            mean=self.mean,
            predicts_next=self.predicts_next,
            uses_ngrams=self.settings.use_ngrams,
        )
        metrics["simulated_speedup"] = simulated_speedup(source, self.traces, self.cost, self.stop_tokens)
        self.head.requires_grad_(True).train()
        return metrics

    def _logits(self, evidence: Tensor, hidden: Tensor, tokens: Tensor, copies: Tensor) -> Tensor:
        (embedding,) = self._embedding
        logits: Tensor = self.head(evidence, hidden, embedding[tokens], copied_embeddings(embedding, copies))
        return logits

    def configure_optimizers(self) -> Any:
        settings = self.settings
        optimizer = torch.optim.AdamW(self.head.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.lr, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def simulated_speedup(
    source: LagFreePredictor, traces: Sequence[Trace], cost: CostModel, stop_tokens: frozenset[int]
) -> float:
    """Tokens/s of rate-optimal stopping by ``source`` over ``traces``, relative to autoregressive decoding."""
    total = Stats()
    for traced in traces:
        judged = source.judge_all(traced.said, traced.ngram_matches, traced.states, traced.tokens)
        total += replay(traced, RateOptimal(PrecomputedPredictor(source, judged), cost), stop_tokens)
    rounds = total.n_target_forwards - len(traces)  # the first token of a text is the prefill's
    seconds = (
        total.n_draft_forwards * cost.t_draft
        + rounds * cost.t_verify
        + total.n_verified_tokens * cost.t_verify_token
    )  # fmt: skip
    return (total.n_generated - len(traces)) * cost.round(0) / seconds


def train_lag_free(settings: LagFreeTrainingOptions, output: Path, *, overwrite: bool = False) -> dict[str, float]:
    """Train a lag-free head and write its checkpoint to ``output``.

    Returns:
        validation metrics of the chosen epoch.

    Raises:
        InputError: the datasets are incomplete, too small, or not of one pair and sampling; the draft is another;
            or ``output`` is taken.
    """
    manifests = [read_manifest(folder) for folder in settings.folders]
    check_same(settings.folders, manifests, ("fingerprint", "sampling"))
    first = manifests[0]
    check_free(output, overwrite)
    training: list[Text] = []
    held_out: list[Text] = []
    for folder in settings.folders:
        texts = read_texts(folder)
        fraction = settings.validation_fraction
        training += [text for text in texts if not is_validation(text.prompt_id, fraction)][: settings.texts]
        held_out += [text for text in texts if is_validation(text.prompt_id, fraction)]
    if not training or not held_out:
        raise InputError(
            f"validation_fraction={settings.validation_fraction}: gives {len(training)} texts to training and "
            f"{len(held_out)} to validation; each needs at least one: use more data or another fraction"
        )
    sampling = SamplingParams(**first["sampling"])
    target, draft = (load_causal_lm(name, device=settings.device) for name in (first["target"], first["draft"]))
    tokenizer = load_tokenizer(first["target"])
    pair = PairFingerprint.of(target, draft, tokenizer)
    Provenance(first["target"], first["draft"], PairFingerprint(**first["fingerprint"]), sampling).check_pair(pair)
    size = target.get_output_embeddings().weight.shape[0]
    examples, validation = (
        read_examples(draft, part, sampling, size, use_ngrams=settings.use_ngrams) for part in (training, held_out)
    )
    stop_tokens = stop_tokens_of(target, tokenizer)
    budget = max(manifest["settings"]["max_new_tokens"] for manifest in manifests)
    models = CausalLM(target), CausalLM(draft)
    traces = trace_texts(*models, held_out[: settings.traced], budget, sampling, stop_tokens)
    embedding = draft.get_output_embeddings().weight.detach().float().cpu()
    module = _fit(examples, validation, traces, embedding, settings, stop_tokens)
    assert module.best is not None, "an epoch has ended"
    metrics, weights = module.best
    head = module.head
    head.load_state_dict(weights)
    config = LagFreeHeadConfig(
        hidden_size=head.hidden_size,
        width=head.width,
        predicts_next=module.predicts_next,
        uses_ngrams=settings.use_ngrams,
        mean=module.mean,
        tokens=len(examples),
        provenance=Provenance(first["target"], first["draft"], pair, sampling),
        datasets=[manifest["dataset_fingerprint"] for manifest in manifests],
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
    )
    save_controller(output, head, config, overwrite=overwrite)
    return metrics


def trace_texts(
    target: CausalLM,
    draft: CausalLM,
    texts: Sequence[Text],
    budget: int,
    sampling: SamplingParams,
    stop_tokens: frozenset[int],
) -> list[Trace]:
    """Traces of ``texts``, each with tosses that depend on its prompt's id alone."""
    traces = []
    for text in track(texts, "tracing texts", transient=True):
        seed = int.from_bytes(hashlib.sha256(text.prompt_id.encode()).digest()[:8])
        x, room = traceable(text.x, budget, draft.vocab_size, stop_tokens)
        traces.append(trace(target, draft, text.prompt_ids, x, room, sampling, RandomSource(seed), stop_tokens))
    return traces


def _fit(
    examples: Examples,
    validation: Examples,
    traces: Sequence[Trace],
    embedding: Tensor,
    settings: LagFreeTrainingOptions,
    stop_tokens: frozenset[int],
) -> LagFreeModule:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = LagFreeHead(embedding.shape[1], settings.width, settings.dropout)
    head.mean.copy_(examples.evidence.mean(0))
    scale = examples.evidence.std(0)
    head.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))
    data = TensorDataset(*(vars(examples)[entry.name] for entry in fields(examples)))
    loader = DataLoader(data, settings.batch_size, shuffle=True, generator=torch.Generator().manual_seed(settings.seed))
    module = LagFreeModule(
        head, embedding, settings, settings.epochs * len(loader), validation, traces, stop_tokens,
        float(examples.accept.mean()),
    )  # fmt: skip
    print(
        f"{len(examples):,} drafted tokens to train on, {len(validation):,} and {len(traces)} traced texts to judge by"
    )
    with quiet_lightning():
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=settings.epochs, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, loader)
    return module
