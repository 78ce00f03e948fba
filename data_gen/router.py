"""``specpilot data router``: prompts → outputs of target and arms → rewards → shards (Huang et al. 2024, §2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from ..common.errors import optional_import
from ..common.machine import Machine, machine
from ..common.record import Identity
from ..controllers.acceptance.ngram_index import NgramIndex
from ..controllers.arms import NGRAM
from ..controllers.sampling import SamplingParams
from ..infer.costs import step_times
from ..infer.drafters.ngram import Ngram
from ..infer.drafters.prompt_lookup import PromptLookup
from ..infer.loading.routing import load_arms
from ..models import LanguageModel, Read
from .builder import Item, TargetBuilder, make_dataset
from .dataset import rule_identity
from .kinds import RouterRow, Rows
from .options import ONE_PROCESS, RouterDataOptions, WorkerOptions
from .rollout import Rollout, can_read, overlap
from .router_dataset import TIMES, Times
from .workers import OnDone, Workers

GREEDY = SamplingParams(0.0, None)


class RouterDatasetBuilder(TargetBuilder[RouterRow]):
    """Makes the rows of a router dataset with target and arms.

    Raises:
        InputError: a model is missing, an arm does not fit the target, or rouge-score is not installed.
    """

    decoder_only = False
    kind = RouterRow
    settings: RouterDataOptions

    def __init__(self, settings: RouterDataOptions) -> None:
        with optional_import("bench"):
            from rouge_score.rouge_scorer import RougeScorer  # slow to import
        self.rouge = RougeScorer(["rougeL"])
        super().__init__(settings)
        self.arms = load_arms(settings.arms, self.target, self.tokenizer, **settings.loading)
        self.models += [arm.model for arm in self.arms if arm.model is not None]
        self.texts = 2 + len(self.arms)
        self.token_bytes = 2.5 + 4 * len(self.arms) / self.texts  # an overlap for each arm and token
        self.row_bytes = 4 * self.target.hidden_size
        for arm in self.arms:
            if arm.model is not None:
                arm.model.require_tokens_alone(f"arm {arm.name!r}", "data router reads drafts without decoding")

    def identity(self) -> Identity:
        return {
            "arms": [arm.arm.to_dict() for arm in self.arms],
            "fingerprint": self.fingerprint,
            "hidden_size": self.target.hidden_size,
            **rule_identity(self.settings.verifier),
        }

    def times(self, items: list[Item]) -> tuple[Times, Machine]:
        """Measure the seconds per token of each arm, and the target's cost of verification, on this machine.

        Returns:
            The times, measured with the first of ``items`` that all models can read, and the machine.
        """
        models = [arm.model for arm in self.arms]
        size = min((model.vocab_size for model in models if model is not None), default=self.target.vocab_size)
        prompt = next((item.ids for item in items if can_read(item.ids, size)), [0])
        steps = step_times(self.target, models, prompt, self.sampling)
        of_arms = [0.0 if arm.arm.kind == NGRAM else t for arm, t in zip(self.arms, steps.models, strict=True)]
        return Times(of_arms, steps.cost), machine()

    def rows(self, items: list[Item], on_done: OnDone) -> list[RouterRow]:
        prompts = [item.ids for item in items]
        budgets = [torch.zeros(item.budget) for item in items]
        embeddings = self._embed(prompts)
        greedy = self.roll_out(self.target, prompts, budgets, GREEDY)
        self.check_answers([text.tokens for text in greedy], self.stop_tokens)
        sampled = self.answers(items)
        outputs: list[list[Rollout]] = []
        overlaps: list[list[list[float]]] = []
        for arm in self.arms:
            if arm.arm.kind == NGRAM:
                outputs.append([copies(prompt, text.tokens) for prompt, text in zip(prompts, greedy, strict=True)])
                drawn = [copied(prompt, text.tokens) for prompt, text in zip(prompts, sampled, strict=True)]
                overlaps.append([[*map(float, shares)] for shares in drawn])
                continue
            if arm.model is None:
                outputs.append(sampled)
                overlaps.append([[] for _ in items])
                continue
            outputs.append(self._answers(arm.model, prompts, budgets))
            rule = self.settings.verifier
            overlaps.append(overlap(self.target, arm.model, prompts, sampled, self.sampling, rule))
        rows = []
        for i, item in enumerate(items):
            of_arms = [output[i].tokens for output in outputs]
            row = RouterRow(
                item.id, item.domain, item.prompt, item.ids, embeddings[i].tolist(),
                greedy[i].tokens, sampled[i].tokens, of_arms,
                [self.alignment(greedy[i].tokens, tokens) for tokens in of_arms], [shares[i] for shares in overlaps],
            )  # fmt: skip
            rows.append(row)
            on_done(len(row.greedy) + len(row.sampled) + sum(map(len, of_arms)))
        return rows

    def alignment(self, reference: list[int], tokens: list[int]) -> float:
        """Return ROUGE-L F1 of the texts of two outputs, f of eq. 1; 1 for equal texts, even without words."""
        expected, text = self.tokenizer.batch_decode([reference, tokens], skip_special_tokens=True)
        return 1.0 if expected == text else float(self.rouge.score(expected, text)["rougeL"].fmeasure)

    def _answers(self, model: LanguageModel, prompts: list[list[int]], budgets: list[Tensor]) -> list[Rollout]:
        """Return the greedy outputs of an arm; empty for prompts with a token outside its vocabulary."""
        rollouts = [Rollout([]) for _ in prompts]
        rows = [row for row, prompt in enumerate(prompts) if can_read(prompt, model.vocab_size)]
        if rows:
            read = self.roll_out(model, [prompts[row] for row in rows], [budgets[row] for row in rows], GREEDY)
            for row, rollout in zip(rows, read, strict=True):
                rollouts[row] = rollout
        return rollouts

    @torch.inference_mode()
    def _embed(self, prompts: list[list[int]]) -> Tensor:
        """Return the target's embedding (N, d) of each prompt, as in the decoder's prefill."""
        size = self.settings.batch_size
        embeddings: list[Tensor] = []
        for start in range(0, len(prompts), size):
            cache = self.target.new_cache()
            group = enumerate(prompts[start : start + size])
            reads = [Read(row, self.target.begin(cache, row, prompt, 0)) for row, prompt in group]
            _, hidden = self.target.forward(cache, reads)
            embeddings += [self.target.embed(cache, row, last) for row, last in enumerate(hidden)]
        return torch.stack(embeddings).float().cpu()


def copied(prompt: Sequence[int], text: Sequence[int]) -> list[bool]:
    """Return for each token of ``text`` whether it equals the copy that an n-gram match of the tokens before proposes.

    It is false for a token without a match. If the text was sampled from the target, the result is a draw of the copy's
    acceptance. Token x_t has the distribution p and equals the copy y with probability p(y), which is the acceptance
    probability of y.
    """
    tokens = [*prompt]
    lookup, equal = PromptLookup(NgramIndex(tokens), Ngram().longest), []
    for token in text:
        tokens.append(token)
        equal.append(any(right for _, right in lookup.extend()))
    return equal


def copies(prompt: Sequence[int], text: Sequence[int]) -> Rollout:
    """Return the tokens of ``text`` that equal the proposed copy, in order, which are the output of n-grams alone."""
    return Rollout([token for token, right in zip(text, copied(prompt, text), strict=True) if right])


def make_router_data(
    settings: RouterDataOptions,
    output: str | Path,
    *,
    workers: WorkerOptions = ONE_PROCESS,
    console: Console | None = None,
) -> Path:
    """Make or complete the router dataset ``output``; see :func:`~specpilot.data_gen.builder.make_dataset`."""

    def measure(group: Workers[list[Item], Rows[RouterRow]], items: list[Item]) -> None:
        if not (Path(output) / TIMES).exists():
            times, machine = group.ask(lambda builder: builder.times(items))
            times.save(Path(output), machine)

    return make_dataset(
        RouterDatasetBuilder, settings, output, console=console, workers=workers, prepare=measure
    )  # fmt: skip
