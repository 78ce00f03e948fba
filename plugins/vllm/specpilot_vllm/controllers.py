"""Trained controllers in vLLM, loaded by name and checked against vLLM's models.

With model runner V1, a length controller ends each draft. Model runner V2 drafts the same number of tokens for every
request; with ``enable_adaptive_verification`` it verifies fewer if that is faster. V2 takes the probabilities for this
from its ``OnlineAcceptanceEstimator``. :class:`TrainedAcceptanceEstimator` has the same interface and only uses tensor
operations.
Shapes: N requests, V tokens, m candidates.

Cutting a draft keeps the distribution of the text only if the score of a position does not depend on the token drawn
there. The score is therefore the expected acceptance of that token, Σ_y q(y)·a(y) over the m most probable tokens y,
where a(y) is the head's prediction.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.feature_model import SMALLEST
from specpilot.controllers.acceptance.lag_free_head import INPUTS, LagFreePredictor
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from specpilot.controllers.length import LengthController, load_rule, load_trained, trained
from specpilot.models import output_embedding
from specpilot.models.loading.names import load_model, load_tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from .settings import Settings


def load_length(settings: Settings, target: str | Path, draft: str | Path, device: torch.device) -> LengthController:
    """Return the length controller that ``settings`` name.

    Args:
        settings: the plugin's settings.
        target, draft: names or folders of the models.
        device: device of the draft model.

    Raises:
        InputError: there is no such controller, or it was trained for another pair.
    """
    cost, batch = settings.costs()
    rule = load_rule(settings.spec, cost)
    if rule is not None:
        return rule.repriced(batch=batch)
    # The embedding is loaded again, because vLLM's copy may have another layout.
    embedding = output_embedding(load_model(draft, device=str(device)))
    controller = load_trained(
        settings.spec,
        pair_fingerprint(target, draft),
        device,
        embedding,
        threshold=settings.threshold,
        cost=cost,
        pair_check=settings.pair_check,
    )
    if controller.reads_target:
        raise InputError(
            f"length={settings.spec!r}: reads the target's states, which vLLM does not provide; choose another "
            "controller"
        )
    return controller.repriced(batch=batch)


def load_predictor(settings: Settings, target: str | Path, draft: str | Path, device: torch.device) -> LagFreePredictor:
    """Return the lag-free head that ``settings`` name, for model runner V2; arguments as for :func:`load_length`.

    Raises:
        InputError: there is no such controller, or it was trained for another pair.
    """
    embedding = output_embedding(load_model(draft, device=str(device)))
    predictor = trained.make_predictor(
        settings.spec,
        load_controller(settings.spec),
        pair_fingerprint(target, draft),
        device,
        embedding,
        calibrated=True,
        pair_check=settings.pair_check,
    )
    assert isinstance(predictor, LagFreePredictor), "the settings were checked before"
    return predictor


def pair_fingerprint(target: str | Path, draft: str | Path) -> PairFingerprint:
    """Return the fingerprint of two models in transformers' format, without loading their weights.

    vLLM's modules have other weights, such as a single one for queries, keys and values.
    """
    models = []
    for name in (target, draft):
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            models.append(model_fingerprint(AutoModelForCausalLM.from_config(config)))
    return PairFingerprint(models[0], models[1], tokenizer_fingerprint(load_tokenizer(target)))


CANDIDATES = 16  # number m of candidates


class TrainedAcceptanceEstimator:
    """An acceptance estimator of vLLM that predicts by a lag-free head.

    The host reads no tensor. N-gram matches, whose index is on the host, are left out.

    Args:
        predictor: a lag-free head and the draft's output embedding (V, d), on the device of the logits.

    Attributes:
        states: the draft's last hidden states (N, d), from which the next logits are computed.
    """

    def __init__(self, predictor: LagFreePredictor) -> None:
        self.head, self.embedding = predictor.head, predictor.embedding
        self.states = torch.empty(0, predictor.embedding.shape[1])

    def step(self, idx_mapping: Tensor, num_sampled: Tensor, num_rejected: Tensor) -> None:
        """Do nothing with the outcome of a verification, because a trained head is not fitted while it serves."""

    def predict(
        self,
        logits: Tensor,
        idx_mapping: Tensor,
        draft_step: Tensor,
        confidence_probs: Tensor,
        temperature: Tensor,
    ) -> None:
        """Write acceptance probabilities to column ``draft_step`` of ``confidence_probs``; vLLM calls it for each
        position.

        Args:
            logits: logits of the draft (N, V), before the temperature.
            idx_mapping: places of the requests in ``temperature`` (N,); -1 for rows that only pad the batch.
            draft_step: index of the position in the draft, a scalar.
            confidence_probs: acceptance probabilities (requests, positions).
            temperature: temperatures (requests,); 0 is greedy.
        """
        rows = torch.arange(len(logits), device=logits.device)
        columns = draft_step.expand(len(logits))
        accept = self.expected_acceptance(logits, self.states, temperature[idx_mapping.clamp(min=0)])
        previous = confidence_probs[rows, columns]
        confidence_probs[rows, columns] = torch.where(idx_mapping >= 0, accept.to(previous.dtype), previous)

    def expected_acceptance(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """Return the probability (N,) that a token drawn from softmax(``logits`` / ``temperature``) is accepted.

        Args:
            logits: logits of the draft (N, V).
            states: hidden states of the draft (N, d).
            temperature: temperatures (N,); at 0 the token is the most probable one.
        """
        greedy = (temperature == 0).unsqueeze(1)
        q = (logits.float() / torch.where(greedy, 1.0, temperature.unsqueeze(1))).softmax(-1)
        weights, tokens = q.topk(min(CANDIDATES, q.shape[1]))  # (N, m)
        evidence = weights.new_zeros(*weights.shape, INPUTS)  # without n-gram matches
        evidence[..., 0] = weights.clamp(min=1e-30).log()
        evidence[..., 1] = (1.0 - weights[:, :1]).clamp(min=SMALLEST).log()
        embedded = self.embedding[tokens]  # (N, m, d)
        hidden = states.unsqueeze(1).expand(embedded.shape)
        accept = torch.sigmoid(self.head(evidence, hidden, embedded, torch.zeros_like(embedded)))
        best = torch.zeros_like(weights)
        best[:, 0] = 1.0
        weights = torch.where(greedy, best, weights / weights.sum(-1, keepdim=True))
        return (weights * accept).sum(-1)


def estimate(speculator: Any, predictor: LagFreePredictor) -> None:
    """Make a V2 ``DraftModelSpeculator`` with loaded models use ``predictor``."""
    estimator = TrainedAcceptanceEstimator(predictor)
    compute = speculator.compute_draft_logits

    def compute_draft_logits(hidden_states: Tensor, spec_step_idx: int) -> Tensor:
        estimator.states = hidden_states
        logits: Tensor = compute(hidden_states, spec_step_idx)
        return logits

    speculator.compute_draft_logits = compute_draft_logits
    speculator.acceptance_estimator = estimator


def use_trained_head(runner: Any, settings: Settings, config: Any, device: torch.device) -> None:
    """Make a V2 model runner with loaded models use the head that ``settings`` name.

    Args:
        runner: the model runner.
        settings: the plugin's settings.
        config: the engine's ``VllmConfig``.
        device: device of the models.
    """
    pair = config.model_config.model, config.speculative_config.draft_model_config.model
    estimate(runner.speculator, load_predictor(settings, *pair, device))
