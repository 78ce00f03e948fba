"""Trained controllers in vLLM, loaded by name and checked against its models.

With model runner V1 a length controller ends each draft. Model runner V2 drafts the same number of tokens for every
request: :class:`BatchPlanner` chooses it before drafts start. With ``enable_adaptive_verification`` V2 verifies fewer
where it pays. The probabilities it goes by come from its ``OnlineAcceptanceEstimator``;
:class:`TrainedAcceptanceEstimator` has the same interface, by tensor operations alone.
Shapes: N requests, V tokens, m candidates.

Cutting a draft keeps the distribution of the text only if the score of a position does not depend on the token drawn
there. The score is therefore the expected acceptance of that token, Σ_y q(y)·a(y) over the m most probable tokens y,
where a(y) is the head's prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.feature_model import SMALLEST
from specpilot.controllers.acceptance.lag_free_head import INPUTS, LagFreePredictor
from specpilot.controllers.acceptance.length_head import HORIZON, MEMORIES, UNKNOWN, LengthHead
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from specpilot.controllers.length import LengthController, load_rule, load_trained, trained
from specpilot.controllers.length.cost_model import CostModel
from specpilot.models import output_embedding
from specpilot.models.loading.names import load_model, load_tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from .settings import Settings


def load_length(settings: Settings, target: str | Path, draft: str | Path, device: torch.device) -> LengthController:
    """The controller named by ``settings``.

    Args:
        target, draft: names or folders of the models.
        device: where the draft model is.

    Raises:
        InputError: there is no such controller, or it was trained for another pair.
    """
    cost, batch = settings.costs()
    rule = load_rule(settings.spec, cost)
    if rule is not None:
        return rule.repriced(batch=batch)
    # Read once more: vLLM may keep its own copy of the embedding in another layout.
    embedding = output_embedding(load_model(draft, device=str(device)))
    found = load_trained(
        settings.spec,
        pair_fingerprint(target, draft),
        device,
        embedding,
        threshold=settings.threshold,
        cost=cost,
        pair_check=settings.pair_check,
    )
    if found.reads_target:
        raise InputError(
            f"length={settings.spec!r}: it reads the target's states, which vLLM does not give; take another controller"
        )
    return found.repriced(batch=batch)


def load_predictor(settings: Settings, target: str | Path, draft: str | Path, device: torch.device) -> LagFreePredictor:
    """The lag-free head named by ``settings``, for model runner V2; arguments as above.

    Raises:
        InputError: there is no such controller, it was trained for another pair, or is of another kind.
    """
    embedding = output_embedding(load_model(draft, device=str(device)))
    predictor = trained.predictor_of(
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
    """The fingerprint of two models in transformers' format, from their files: the weights are not loaded.

    vLLM's own modules have other weights, such as one for queries, keys and values.
    """
    models = []
    for name in (target, draft):
        config = AutoConfig.from_pretrained(name)
        with torch.device("meta"):
            models.append(model_fingerprint(AutoModelForCausalLM.from_config(config)))
    return PairFingerprint(models[0], models[1], tokenizer_fingerprint(load_tokenizer(target)))


CANDIDATES = 16  # m


class TrainedAcceptanceEstimator:
    """Nothing is read by the host, and n-gram matches, whose index is on the host, are left out.

    Args:
        predictor: a lag-free head and the draft's output embedding (V, d), on the device of the logits.

    Attributes:
        states: (N, d) the draft's last hidden states, from which the next logits come.
    """

    def __init__(self, predictor: LagFreePredictor) -> None:
        self.head, self.embedding = predictor.head, predictor.embedding
        self.states = torch.empty(0, predictor.embedding.shape[1])

    def step(self, idx_mapping: Tensor, num_sampled: Tensor, num_rejected: Tensor) -> None:
        """Called by vLLM with the outcome of a verification. A trained head is not fitted while it serves."""

    def predict(
        self,
        logits: Tensor,
        idx_mapping: Tensor,
        draft_step: Tensor,
        confidence_probs: Tensor,
        temperature: Tensor,
    ) -> None:
        """Called by vLLM for every drafted position; writes to column ``draft_step`` of ``confidence_probs``.

        Args:
            logits: (N, V) of the draft, before the temperature.
            idx_mapping: (N,) places of the requests in ``temperature``; -1 for rows that only pad the batch.
            draft_step: () index of the position in the draft.
            confidence_probs: (requests, positions) acceptance probabilities.
            temperature: (requests,) 0 is greedy.
        """
        rows = torch.arange(len(logits), device=logits.device)
        columns = draft_step.expand(len(logits))
        found = self.expected_acceptance(logits, self.states, temperature[idx_mapping.clamp(min=0)])
        kept = confidence_probs[rows, columns]
        confidence_probs[rows, columns] = torch.where(idx_mapping >= 0, found.to(kept.dtype), kept)

    def expected_acceptance(self, logits: Tensor, states: Tensor, temperature: Tensor) -> Tensor:
        """(N,) the probability that a token drawn from softmax(``logits`` / ``temperature``) is accepted.

        Args:
            logits: (N, V).
            states: (N, d).
            temperature: (N,) at 0 the token is the most probable one.
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
    """Let a V2 ``DraftModelSpeculator``, whose models are loaded, go by ``predictor``."""
    estimator = TrainedAcceptanceEstimator(predictor)
    compute = speculator.compute_draft_logits

    def compute_draft_logits(hidden_states: Tensor, spec_step_idx: int) -> Tensor:
        estimator.states = hidden_states
        logits: Tensor = compute(hidden_states, spec_step_idx)
        return logits

    speculator.compute_draft_logits = compute_draft_logits
    speculator.acceptance_estimator = estimator


class BatchPlanner:
    """How many tokens all requests of a V2 batch draft next, by a length head: most tokens in the time of the round.

    Args:
        head: on the device of the target's states.
        cost: by the number of requests.
        lengths: that may be chosen, at most ``HORIZON``.
        places: number of places for requests.

    Attributes:
        length: what was chosen last.
        rates: (places, 2) of :class:`.Outcomes`, and ``drafted`` (places,) tokens of the last draft, by place.
    """

    def __init__(self, head: LengthHead, cost: Callable[[int], CostModel], lengths: Sequence[int], places: int) -> None:
        device = head.out.weight.device
        self.head, self.cost, self.lengths, self.length = head, cost, lengths, max(lengths)
        self.rates = torch.full((places, len(MEMORIES)), UNKNOWN, device=device)
        self.drafted = torch.zeros(places, dtype=torch.int64, device=device)
        self.kept = 1.0 - 1.0 / torch.tensor(MEMORIES, device=device)  # share of a rate that one more token leaves
        self.names: dict[int, str] = {}

    def plan(self, batch: Any, states: Tensor, sampled: Tensor, rejected: Tensor, most: int) -> int:
        """The number of tokens to draft, at most ``most``; the host reads from the device once.

        Args:
            batch: vLLM's ``InputBatch`` of N requests.
            states: (M, d) the target's last hidden states of all tokens of the step.
            sampled: (N,) tokens that the target accepted or drew, 0 while a prompt is read.
            rejected: (N,) drafted tokens that it rejected.
        """
        count, names = batch.num_reqs, dict(zip(batch.idx_mapping_np.tolist(), batch.req_ids, strict=False))
        begun = [place for place, name in names.items() if self.names.get(place) != name]
        self.rates[begun], self.drafted[begun] = UNKNOWN, 0
        self.names |= names
        places, sampled, rejected = batch.idx_mapping[:count], sampled[:count].long(), rejected[:count].long()
        ready, drafted = (sampled > 0).unsqueeze(1), self.drafted[places].unsqueeze(1)
        accepted = torch.minimum((sampled - 1).clamp(min=0).unsqueeze(1), drafted)
        ended = accepted < torch.minimum(accepted + rejected.unsqueeze(1), drafted)  # by a rejected token
        rates = 1.0 - (1.0 - self.rates[places]) * self.kept**accepted
        self.rates[places] = rates = torch.where(ended, rates * self.kept, rates)
        newest = batch.query_start_loc[1 : count + 1].long() - rejected - 1
        survivals = self.head(rates, states[newest].float()).sigmoid().cumprod(-1)
        rows, *gains = (torch.cat([torch.ones_like(survivals[:, :1]), survivals], 1) * ready).sum(0).tolist()
        if rows:
            tokens, cost = [*accumulate(gains, initial=rows)], self.cost(int(rows))
            usable = [k for k in self.lengths if k <= most]
            self.length = max(usable, key=lambda k: tokens[k] / cost.round(k))
        self.drafted[places] = self.length
        return self.length


def plan(runner: Any, planner: BatchPlanner) -> None:
    """Let the drafts of a V2 ``GPUModelRunner`` with a draft model, whose models are loaded, be as long as planned.

    ``propose`` ignores the number that it is handed: its loop goes by an attribute of the drafter. What the runner
    hands on to a synchronous scheduler, which verifies as many tokens in the next step, is cut to the same length.
    """
    speculator, handler = runner.speculator, runner.draft_tokens_handler
    propose, set_draft_tokens = speculator.propose, handler.set_draft_tokens
    longest, names = speculator.num_speculative_steps, signature(propose)

    def proposed(*args: Any, **kwargs: Any) -> Tensor:
        given = names.bind(*args, **kwargs).arguments
        batch, most = given["input_batch"], given.get("num_speculative_tokens")
        if not given.get("dummy_run"):
            outcome = given["last_hidden_states"], given["num_sampled"], given["num_rejected"]
            length = planner.plan(batch, *outcome, longest if most is None else most)
            speculator.num_speculative_steps = max(length, 1)
        try:
            propose(*args, **kwargs)
        finally:
            speculator.num_speculative_steps = longest
        drafts: Tensor = speculator.draft_tokens[: batch.num_reqs]
        return drafts

    speculator.propose = proposed
    handler.set_draft_tokens = lambda batch, drafts: set_draft_tokens(batch, drafts[:, : planner.length])


def steer(runner: Any, settings: Settings, config: Any, device: torch.device) -> None:
    """Let a V2 model runner, whose models are loaded, go by the head that ``settings`` name.

    Args:
        config: the engine's ``VllmConfig``.
    """
    speculative = config.speculative_config
    pair = config.model_config.model, speculative.draft_model_config.model
    if speculative.enable_adaptive_verification:
        estimate(runner.speculator, load_predictor(settings, *pair, device))
        return
    controller = load_controller(settings.spec)
    controller.config.provenance.check_pair(pair_fingerprint(*pair), settings.pair_check)
    alone, batch = settings.costs()
    assert isinstance(controller.head, LengthHead), "the settings were checked before"
    assert alone is not None, "the settings were checked before"
    longest = min(speculative.num_speculative_tokens, HORIZON)
    tiers = {length for *_, length in speculative.num_speculative_tokens_per_batch_size or ()} or {*range(longest)}
    lengths = [0, *sorted(length for length in tiers if 0 < length < longest), longest]
    cost = (lambda rows: alone) if batch is None else batch.at
    head = controller.head.to(device)
    plan(runner, BatchPlanner(head, cost, lengths, config.scheduler_config.max_num_seqs))
