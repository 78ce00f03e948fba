"""Evaluation on held-out prompts: loss, exact match, and each draft's agreement with the target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rouge_score.rouge_scorer import RougeScorer
from specpilot.controllers.sampling import SamplingParams
from torch import Tensor
from transformers import PreTrainedTokenizerBase, T5ForConditionalGeneration

from .answers import answer
from .model import forward
from .pairs import IGNORED, Pair, by_length, collate

SAMPLING = SamplingParams(1.0, 50)  # sampling parameters of the shipped models
HARD = 0.3


@dataclass(frozen=True)
class EvalSet:
    """Prompts of one task and origin, with the target's outputs.

    Attributes:
        sampled: the target's outputs under ``SAMPLING``, with its distributions.
        greedy: the target's greedy outputs as text.
        exact_match: share of greedy outputs that equal the reference; None without references.
    """

    task: str
    origin: str
    sampled: list[Pair]
    greedy: list[str]
    exact_match: float | None


@dataclass(frozen=True)
class Agreement:
    """Agreement of one draft with the target on one :class:`EvalSet`.

    Attributes:
        overlap: mean of a = Σ_x min(p(x), q(x)), the acceptance probability of a drafted token, over the positions of
            the target's sampled outputs.
        hard: share of positions with a < 0.3.
        rouge_l: mean ROUGE-L F1 of the draft's greedy output against the target's.
    """

    draft: str
    task: str
    origin: str
    prompts: int
    positions: int
    overlap: float
    hard: float
    rouge_l: float


def evaluate_target(
    model: T5ForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    task: str,
    origin: str,
    prompts: list[list[int]],
    references: list[str] | None,
    *,
    budget: int,
    seed: int,
) -> EvalSet:
    """Generate the target's outputs for an evaluation set."""
    uniforms = torch.rand(len(prompts), budget, generator=torch.Generator().manual_seed(seed))
    greedy = greedy_texts(model, tokenizer, prompts, budget)
    match = None
    if references is not None:
        match = sum(text == wanted for text, wanted in zip(greedy, references, strict=True)) / len(prompts)
    end = int(tokenizer.eos_token_id)
    return EvalSet(task, origin, answer(model, prompts, uniforms, SAMPLING, end), greedy, match)


def greedy_texts(
    model: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], budget: int
) -> list[str]:
    """Greedy outputs, as text without the end token."""
    answers = answer(
        model, prompts, torch.zeros(len(prompts), budget), SamplingParams(0.0), int(tokenizer.eos_token_id)
    )
    return tokenizer.batch_decode([pair.output for pair in answers], skip_special_tokens=True)


def agree(
    draft: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, name: str, eval_set: EvalSet, *, budget: int
) -> Agreement:
    """Measure the agreement of ``draft`` on the target's sampled outputs and by its own greedy outputs."""
    a = torch.cat(overlaps(draft, eval_set.sampled))
    own = greedy_texts(draft, tokenizer, [pair.prompt for pair in eval_set.sampled], budget)
    scorer = RougeScorer(["rougeL"])
    rouge = [scorer.score(ours, theirs)["rougeL"].fmeasure for ours, theirs in zip(eval_set.greedy, own, strict=True)]
    return Agreement(
        name,
        eval_set.task,
        eval_set.origin,
        len(own),
        len(a),
        float(a.mean()),
        float((a < HARD).float().mean()),
        sum(rouge) / len(rouge),
    )


@torch.inference_mode()
def overlaps(draft: T5ForConditionalGeneration, pairs: list[Pair]) -> list[Tensor]:
    """a = Σ_x min(p(x), q(x)) under ``SAMPLING`` at every token of the outputs: a tensor (T,) for each pair."""
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
    """Mean cross-entropy of the outputs' tokens, in nats."""
    total, count = 0.0, 0
    for rows in by_length(pairs, 4096, 0):
        batch = collate([pairs[i] for i in rows])
        logits = forward(model, batch).float()
        total += float(
            F.cross_entropy(logits.flatten(0, 1), batch.outputs.flatten(), ignore_index=IGNORED, reduction="sum")
        )
        count += int((batch.outputs != IGNORED).sum())
    return total / count
