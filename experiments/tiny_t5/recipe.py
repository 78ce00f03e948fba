"""``python -m experiments tiny-t5``: the shipped encoder-decoders from text, end to end.

A target is trained on the text of all tasks → it answers training prompts of each task, including the built-in ones →
one draft per task is trained on these answers with the target's distributions → held-out loss, agreement of
every draft on every task → model cards. Every stage writes its result to the output folder and is skipped if the
result exists, so that an interrupted run continues.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from specpilot.common.console import quiet
from specpilot.common.files import replacing
from specpilot.common.machine import commit, machine, versions
from specpilot.compare.table import Row
from specpilot.data_gen.builtin import builtin_prompts
from specpilot.models.loading.names import load_model, load_tokenizer

from .. import FolderOptions
from ..tiny.card import agreement_row, write_card
from ..tiny.corpus import Document, load_documents
from ..tiny.recipe import MAX_SHARD, finish, same_settings
from .answers import kept_answers
from .model import SAMPLING, fit, held_out_loss, new_model, overlaps
from .pairs import Pair
from .settings import TARGET, TinyT5Options, draft_name

VALIDATION_PAIRS = 300
# The chat template adds no tokens: chat and plain text are the same.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{- message['content'] -}}{%- if not loop.last -%}{{- '\\n' -}}{%- endif -%}"
    "{%- endfor -%}"
)


def train_tiny_t5(settings: TinyT5Options, output: Path, console: Console | None = None) -> Path:
    """Train the target and its drafts into ``output/<name>``; logs and checkpoints are in ``output/work``.

    Raises:
        InputError: a source of text is missing, or the folder belongs to a run with other settings.
    """
    recipe = Recipe(settings, output, console or Console(stderr=True))
    recipe.target()
    recipe.drafts()
    recipe.report()
    return output


class Recipe:
    """The text, the tokenizer and the stages."""

    def __init__(self, settings: TinyT5Options, output: Path, console: Console) -> None:
        self.settings, self.output, self.console = settings, output, console
        self.documents = {task: load_documents(settings.data, names) for task, names in settings.sources.items()}
        self.work = output / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        same_settings(settings, self.work / "settings.json")
        self.tokenizer = load_tokenizer(settings.vocabulary)
        vocabulary: Any = load_model(settings.vocabulary)
        self.embeddings = vocabulary.get_input_embeddings().weight
        self.tokenizer.chat_template = CHAT_TEMPLATE
        self.train = {task: self._fitting(task, lambda d: not d.held_out) for task in self.documents}
        self.held_out = {task: self._fitting(task, lambda d: d.held_out) for task in self.documents}

    def _fitting(self, task: str, is_eligible: Callable[[Document], bool]) -> list[tuple[Document, Pair]]:
        """Return the task's eligible documents with their tokens, without those that are too long."""
        settings, fitting = self.settings, []
        for document in filter(is_eligible, self.documents[task]):
            pair = Pair(self._encode(document.prompt), [*self._encode(document.response), self.tokenizer.eos_token_id])
            if len(pair.prompt) <= settings.prompt_tokens and len(pair.output) <= settings.output_tokens:
                fitting.append((document, pair))
        return fitting

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def target(self) -> None:
        """Train the target on the text of every task."""
        if (self.output / TARGET / "config.json").exists():
            return
        self.console.rule(f"{TARGET}: the target")
        text = [pair for rows in self.train.values() for _, pair in rows]
        model = new_model("target", self.tokenizer, self.embeddings, self.settings.seed)
        self._fit(model, text, self._some_held_out(), TARGET, self.settings.target_epochs, self.settings.lr)
        finish(self.work / TARGET / "model", self.output / TARGET, self.tokenizer)

    def _some_held_out(self) -> list[Pair]:
        pairs = [pair for rows in self.held_out.values() for _, pair in rows]
        random.Random(self.settings.seed).shuffle(pairs)
        return pairs[:VALIDATION_PAIRS]

    def drafts(self) -> None:
        """Train a draft for each task on the target's answers: first by cross-entropy, then for overlap."""
        settings = self.settings
        for task in self.train:
            name = draft_name(task)
            if (self.output / name / "config.json").exists():
                continue
            self.console.rule(f"{name}: the target's distributions")
            data, check = self._draft_data(task), self._answers(task, self._eval_prompts(task), "held-out")
            followed, final = f"{name}-followed", f"{name}-overlap"
            if not (self.work / followed / "model").exists():
                model = new_model("draft", self.tokenizer, self.embeddings, settings.seed)
                self._fit(model, data, check, followed, settings.draft_epochs, settings.draft_lr)
            if not (self.work / final / "model").exists():
                model = load_model(str(self.work / followed / "model")).requires_grad_(True).train()
                self._fit(model, data, check, final, settings.overlap_epochs, settings.overlap_lr, overlap=True)
            finish(self.work / final / "model", self.output / name, self.tokenizer)

    def _draft_data(self, task: str) -> list[Pair]:
        """Return the target's answers to training prompts of the task, from its text and from the built-in prompts."""
        settings = self.settings
        prompts = list({tuple(pair.prompt): pair.prompt for _, pair in self.train[task]}.values())
        random.Random(settings.seed).shuffle(prompts)
        built_in = self._builtin_prompts(task, "train") * settings.builtin_answers
        return self._answers(task, prompts[: settings.rollouts] + built_in, "answers")

    def _builtin_prompts(self, task: str, split: str) -> list[list[int]]:
        prompts = (self._encode(p.prompt) for p in builtin_prompts("builtin") if p.domain == task and p.split == split)
        return [prompt for prompt in prompts if len(prompt) <= self.settings.prompt_tokens]

    def _eval_prompts(self, task: str) -> list[list[int]]:
        return [pair.prompt for _, pair in self._eval_rows(task)]

    def _eval_rows(self, task: str) -> list[tuple[Document, Pair]]:
        """Return held-out rows with distinct prompts that do not occur in the training rows."""
        training_prompts = {document.prompt for document, _ in self.train[task]}
        rows = list(
            {d.prompt: (d, pair) for d, pair in self.held_out[task] if d.prompt not in training_prompts}.values()
        )
        random.Random(self.settings.seed).shuffle(rows)
        return rows[: self.settings.held_out_prompts]

    def _answers(self, task: str, prompts: list[list[int]], kind: str) -> list[Pair]:
        model: Any = load_model(str(self.output / TARGET), dtype="bfloat16")  # as it was trained
        return kept_answers(
            model,
            prompts,
            self.work / f"{kind}-{task}",
            sampling=SAMPLING,
            budget=self.settings.output_tokens,
            end=self.tokenizer.eos_token_id,
            seed=self.settings.seed,
        )

    def report(self) -> None:
        """Evaluate the target and every draft on every task; write model cards and ``results.json``."""
        self.console.rule("held-out loss, agreement, model cards")
        settings = self.settings
        models: dict[str, Any] = {
            name: load_model(str(self.output / name)) for name in (TARGET, *map(draft_name, self.train))
        }
        eval_sets = []
        for task in self.train:
            built_in = self._builtin_prompts(task, "test")[: settings.held_out_prompts]
            eval_sets.append((task, "text", self._answers(task, self._eval_prompts(task), "held-out")))
            if built_in:
                eval_sets.append((task, "built-in", self._answers(task, built_in, "held-out-built-in")))
        losses = {
            name: {task: held_out_loss(model, [pair for _, pair in rows]) for task, rows in self.held_out.items()}
            for name, model in models.items()
        }
        agreements: dict[str, list[Row]] = {TARGET: []}
        for draft in map(draft_name, self.train):
            agreements[draft] = [
                {"task": task, "prompts from": origin, **agreement_row(overlaps(models[draft], pairs))}
                for task, origin, pairs in eval_sets
            ]
        for name in models:
            served = next((task for task in self.train if name == draft_name(task)), None)
            self._write_card(name, served, losses[name], agreements[name])
        result = {
            "held_out_loss": losses,
            "agreement": agreements,
            "settings": asdict(settings) | {"data": "<folder of text>"},
            "commit": commit(),
            "machine": machine().to_dict(),
            "versions": versions(),
        }
        with replacing(self.output / "results.json") as path:
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    def _write_card(self, name: str, task: str | None, losses: dict[str, float], agreements: list[Row]) -> None:
        settings = self.settings
        if task is None:
            role, read = f"target for {' and '.join(self.train)}", [d for rows in self.train.values() for d, _ in rows]
            tokens = settings.target_epochs * sum(len(pair) for rows in self.train.values() for _, pair in rows)
            answers = ""
        else:
            role, read = f"draft for {task}", [document for document, _ in self.train[task]]
            tokens = (settings.draft_epochs + settings.overlap_epochs) * sum(map(len, self._draft_data(task)))
            answers = ", all of them prompts and the target's answers to these, with its distributions as labels"
        draft = draft_name(task or next(iter(self.train)))
        prompt = r"Write a bash command for this task.\nTask: Count the files in /tmp\nCommand:"
        about = (
            f"A tiny T5-architecture encoder-decoder ({role}) for developing and testing speculative decoding.\n"
            "It imitates the form of its training text, and its answers are not to be relied on: do not run its "
            "commands.\n\n```python\nfrom specpilot import SpeculativeDecoder\n\n"
            f'decoder = SpeculativeDecoder.from_pretrained("{TARGET}", "{draft}")\n'
            f'print(decoder.generate("{prompt}").text)\n```'
        )
        facts = [
            f"vocabulary: that of `{settings.vocabulary}`, from whose embeddings these began",
            f"trained on up to {settings.prompt_tokens} tokens of prompts and {settings.output_tokens} of outputs",
            f"tokens seen in training, prompts and outputs: {tokens:,}{answers}",
            f"command: `python -m experiments tiny-t5 --data <folder of text> --seed {settings.seed}`",
        ]
        loss = [{"task": other, "loss": f"{value:.3f}"} for other, value in losses.items()]
        tables = {
            "Held-out loss": ("Cross-entropy of the reference outputs, nats a token.", loss),
            "Agreement with the target": (
                "On the target's outputs sampled at temperature 1, top-k 50, for prompts that neither has seen:\n"
                "a = Σ min(p, q), the probability that a token drawn from this draft is accepted.",
                agreements,
            ),
        }
        write_card(self.output / name, name, "text2text-generation", about, facts, read, tables)

    def _fit(
        self,
        model: Any,
        train: list[Pair],
        validation: list[Pair],
        name: str,
        epochs: int,
        lr: float,
        overlap: bool = False,
    ) -> None:
        """Train ``model`` in ``work/name`` and save it in bfloat16 to ``work/name/model``, atomically."""
        folder = self.work / name
        fit(model, train, validation, folder, self.settings, epochs=epochs, lr=lr, overlap=overlap)
        model.to(dtype=torch.bfloat16).save_pretrained(folder / "new", max_shard_size=MAX_SHARD)
        (folder / "new").rename(folder / "model")


def main(options: TinyT5Options, folder: FolderOptions) -> None:
    """Train the encoder-decoders that ship with specpilot: a T5 of two tasks, and a draft for each of them."""
    quiet()
    train_tiny_t5(options, folder.output)
