"""``python -m experiments tiny``: trains the included tiny models from text.

The stages are:

1. Train the tokenizer.
2. Train the target on text.
3. Sample the target's outputs for training prompts.
4. Train the general draft and the specialised drafts on text and the target's outputs.
5. Distil the target's distributions on text and outputs into the drafts.
6. Train the drafts for overlap with the target, also on its answers to the built-in prompts.
7. Measure by domain the held-out loss of the models, and the agreement of the drafts, which is their acceptance on the
   target's outputs. Write model cards.

Every stage writes its result to the output folder and is skipped if the result exists, so that an interrupted run
continues.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from specpilot.common.console import quiet
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.compare.table import Row
from specpilot.data_gen.builtin import builtin_prompts
from specpilot.data_gen.dataset import differences
from specpilot.infer.prompting import encode_prompt
from specpilot.models import CausalLM
from specpilot.models.loading.names import load_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from .. import FolderOptions
from .card import measure_agreement, write_card
from .corpus import Document, Packed, encode, load_documents, pack, train_tokenizer
from .distillation import SoftLabels, compute_soft_labels, sample_outputs
from .language_model import fit
from .settings import TinyModelsOptions

VALIDATION_WINDOWS = 64
MAX_SHARD = "10MB"
# Domains of the built-in prompts → domains of the text.
BUILTIN_DOMAINS = {
    "math": "math",
    "sql": "text-to-sql",
    "shell": "bash",
    "code": "code-python",
    "prose": "stories-literary",
    "dialogue": "task-dialogue-api",
}
EASY = "easy"  # the name of the group of easy domains
SHAPES = {"target": (6, 384, 1024, 6), "draft": (1, 128, 384, 2)}  # layers, hidden, feed-forward, heads


def train_tiny(settings: TinyModelsOptions, output: Path, console: Console | None = None) -> Path:
    """Train every tiny model into ``output/<name>``; the runs' logs and checkpoints are in ``output/work``.

    Raises:
        InputError: a source of text is missing, or the folder belongs to a run with other settings.
    """
    recipe = Recipe(settings, output, console or Console(stderr=True))
    recipe.target()
    own_outputs = recipe.own_outputs()
    recipe.drafts_from_text(own_outputs)
    labels = recipe.text_labels(own_outputs)
    recipe.drafts_from_target(labels)
    recipe.drafts_from_builtin_prompts(labels)
    recipe.cards()
    return output


class Recipe:
    """The text, its tokenizer and the stages. Encoded documents are (ids, length of the prompt)."""

    def __init__(self, settings: TinyModelsOptions, output: Path, console: Console) -> None:
        self.settings, self.output, self.console = settings, output, console
        documents = load_documents(settings.data, settings.sources)
        self.work = output / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        same_settings(settings, self.work / "settings.json")
        self.train = [d for d in documents if not d.held_out]
        self.held_out = [d for d in documents if d.held_out]
        self.domain_of = {d.id: d.domain for d in documents}
        self.drafts: dict[str, list[str] | None] = {"tiny-draft": None, **settings.specialists}

        self.tokenizer = self._tokenizer()
        self.encoded = {d.id: encode(self.tokenizer, d.prompt, d.response) for d in documents}
        self.prompts = {id: ids[:head] for id, (ids, head) in self.encoded.items()}
        self.room = settings.context - settings.rollout_tokens  # the longest prompt with a continuation
        self.validation = _some(self._pack([self.encoded[d.id] for d in self.held_out]), settings.seed)

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        settings, folder = self.settings, self.work / "tokenizer"
        if not (folder / "tokenizer.json").exists():
            self.console.rule("tokenizer")
            mute = settings.without_prompts
            texts = (t for d in self.train for t in ([d.response] if d.source in mute else [d.response, d.prompt]))
            train_tokenizer(texts, settings.vocab_size, settings.context).save_pretrained(folder)
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(folder)
        return tokenizer

    def _pack(self, documents: list[tuple[list[int], int]]) -> Packed:
        return pack(documents, self.settings.context, self.settings.seed)

    def _text(self, documents: list[Document], domains: list[str] | None) -> list[tuple[list[int], int]]:
        return [self.encoded[d.id] for d in documents if domains is None or d.domain in domains]

    def target(self) -> None:
        """Train the target on text."""
        if (self.output / "tiny" / "config.json").exists():
            return
        self.console.rule("tiny: the target")
        model = new_model("target", self.settings, self.tokenizer)
        text = self._pack(self._text(self.train, None))
        self._fit(model, text, "tiny", self.settings.target_tokens, self.settings.lr)
        finish(self.work / "tiny" / "model", self.output / "tiny", self.tokenizer)

    def own_outputs(self) -> dict[str, tuple[list[int], int]]:
        """Return the target's continuations of training prompts, encoded, by document."""
        self.console.rule("the target's outputs")
        settings = self.settings
        fitting = [d for d in self.train if len(self.prompts[d.id]) <= self.room]
        chosen = _in_turn(_groups(fitting, lambda d: d.source))[: settings.rollouts]
        return self._sample({d.id: self.prompts[d.id] for d in chosen}, "outputs")

    def drafts_from_text(self, own_outputs: dict[str, tuple[list[int], int]]) -> None:
        """Train drafts on the text of their domains and the target's outputs."""
        settings = self.settings
        for name, domains in self.drafts.items():
            if (self.work / name / "model" / "config.json").exists():
                continue
            self.console.rule(f"{name}: text, and the target's outputs")
            outputs = [own_outputs[id] for id in own_outputs if domains is None or self.domain_of[id] in domains]
            text = self._pack(self._text(self.train, domains) + outputs * settings.rollout_repeats)
            budget = settings.draft_tokens if domains is None else settings.specialist_tokens
            self._fit(new_model("draft", settings, self.tokenizer), text, name, budget, settings.draft_lr)

    def drafts_from_target(self, labels: dict[str, SoftLabels]) -> None:
        """Distil the target's distributions into the drafts."""
        settings = self.settings
        for name, domains in self.drafts.items():
            data = list(labels.values()) if domains is None else [labels[name]]
            budget = settings.distil_tokens if domains is None else settings.specialist_distil_tokens
            self._distil(data, name, f"{name}-distilled", budget, overlap=False)

    def drafts_from_builtin_prompts(self, labels: dict[str, SoftLabels]) -> None:
        """Train the drafts for overlap with the target, also on its answers to the built-in prompts."""
        settings = self.settings
        answers = self._builtin_labels()

        def data(groups: list[str]) -> list[SoftLabels]:
            return [labels[g] for g in groups] + [answers[g] for g in groups if g in answers] * settings.builtin_repeats

        for name, domains in self.drafts.items():
            groups = list(labels) if domains is None else [name]
            budget = settings.builtin_tokens if domains is None else settings.specialist_builtin_tokens
            final = f"{name}-overlap"
            self._distil(data(groups), f"{name}-distilled", final, budget, overlap=True)
            if domains is None and EASY in labels:
                hard = data([group for group in groups if group != EASY])
                final = self._weaken_easy_domains(name, hard)
            if not (self.output / name / "config.json").exists():
                finish(self.work / final / "model", self.output / name, self.tokenizer)

    def _weaken_easy_domains(self, name: str, hard: list[SoftLabels]) -> str:
        """Reduce the general draft's agreement in easy domains, where a controller would have nothing to decide.

        The draft is trained further on the other domains, and then averaged with its previous weights.
        """
        settings, final = self.settings, f"{name}-final"
        self._distil(hard, f"{name}-overlap", f"{name}-hard", settings.hard_tokens, overlap=True)
        if not (self.work / final / "model" / "config.json").exists():
            stages: list[Any] = [
                load_model(str(self.work / f"{name}-{stage}" / "model")) for stage in ("overlap", "hard")
            ]
            before, after = stages
            with torch.no_grad():
                for average, moved in zip(before.parameters(), after.parameters(), strict=True):
                    average.lerp_(moved, settings.hard_share)
            self._keep(before, final)
        return final

    def _distil(self, data: list[SoftLabels], before: str, after: str, tokens: int, *, overlap: bool) -> None:
        """Train the model in ``work/before`` on ``data``, into ``work/after``."""
        if not (self.work / after / "model" / "config.json").exists():
            self.console.rule(after)
            model = load_model(str(self.work / before / "model")).requires_grad_(True).train()
            self._fit(model, SoftLabels.join(data), after, tokens, self.settings.distil_lr, overlap)

    def _groups(self) -> dict[str, list[str]]:
        """Return the domains of each specialist, the easy domains, and all other domains, by group."""
        groups = {**self.settings.specialists, EASY: self.settings.easy}
        special = {domain for domains in groups.values() for domain in domains}
        return {**groups, "rest": sorted(set(self.domain_of.values()) - special)}

    def _builtin_labels(self) -> dict[str, SoftLabels]:
        """Return soft labels for the target's answers to the built-in training prompts, by group."""
        settings = self.settings
        chosen = [p for p in builtin_prompts("builtin") if p.split == "train"][: settings.builtin_prompts]
        ids = {p.id: encode_prompt(self.tokenizer, p.prompt, chat=True) for p in chosen}
        prompts = {f"{p.id}/{turn}": ids[p.id] for p in chosen for turn in range(settings.builtin_answers)}
        answers = self._sample(
            {id: prompt for id, prompt in prompts.items() if len(prompt) <= self.room}, "builtin-outputs"
        )
        target = CausalLM(load_model(str(self.output / "tiny"), dtype="bfloat16"))
        labels = {}
        for name, domains in self._groups().items():
            part = [answers[id] for id in answers if BUILTIN_DOMAINS[id.partition("-")[0]] in domains]
            if part:
                labels[name] = compute_soft_labels(
                    target, self._pack(part), self.work / f"labels-builtin-{name}.safetensors"
                )
        return labels

    def _sample(self, prompts: dict[str, list[int]], folder: str) -> dict[str, tuple[list[int], int]]:
        """Return the target's continuations of ``prompts``, encoded; stored in ``work/folder``."""
        outputs = sample_outputs(
            CausalLM(load_model(str(self.output / "tiny"), dtype="bfloat16")),  # as it was trained
            prompts,
            self.work / folder,
            budget=self.settings.rollout_tokens,
            seed=self.settings.seed,
            stop_tokens=frozenset([self.tokenizer.eos_token_id]),
        )
        return {id: (prompts[id] + tokens, len(prompts[id])) for id, tokens in outputs.items()}

    def text_labels(self, own_outputs: dict[str, tuple[list[int], int]]) -> dict[str, SoftLabels]:
        """Return soft labels for some text and for the target's outputs, for each specialist and for the rest."""
        self.console.rule("the target's distributions")
        settings = self.settings
        target = CausalLM(load_model(str(self.output / "tiny"), dtype="bfloat16"))
        text = _in_turn(_groups(self.train, lambda d: d.source))
        text = text[: _how_many([len(self.encoded[d.id][0]) for d in text], settings.distil_text)]
        labels = {}
        for name, domains in self._groups().items():
            outputs = [own_outputs[id] for id in own_outputs if self.domain_of[id] in domains]
            if outputs:
                windows = self._pack(self._text(text, domains) + outputs)
                labels[name] = compute_soft_labels(target, windows, self.work / f"labels-{name}.safetensors")
        return labels

    def cards(self) -> None:
        """Measure the held-out loss of every model and the agreement of every draft, and write the model cards."""
        self.console.rule("held-out loss, agreement, model cards")
        settings, output = self.settings, self.output
        by_domain = _groups([d for d in self.held_out if len(self.prompts[d.id]) <= self.room], lambda d: d.domain)
        some = [d for group in by_domain for d in group[: settings.held_out_prompts]]
        path = self.work / "held_out.jsonl"
        path.write_text("".join(json.dumps({"id": d.id, "prompt": d.prompt}) + "\n" for d in some), encoding="utf-8")
        for name, domains in {"tiny": None, **self.drafts}.items():
            model = load_model(str(output / name))
            losses = held_out_loss(model, self.held_out, self.encoded, settings.context)
            agreement = []
            if name != "tiny":
                folder = self.work / f"agreement-{name}"
                agreement = measure_agreement(
                    output / "tiny", output / name, path, self.domain_of, folder, settings.seed
                )
            read = [d for d in self.train if domains is None or d.domain in domains]
            self._write_card(name, read, losses, agreement)

    def _write_card(self, name: str, read: list[Document], losses: dict[str, float], agreement: list[Row]) -> None:
        settings = self.settings
        if name == "tiny":
            role, tokens = "target", settings.target_tokens
        elif name in settings.specialists:
            role = f"draft for {', '.join(settings.specialists[name])}"
            tokens = settings.specialist_tokens + settings.specialist_distil_tokens + settings.specialist_builtin_tokens
        else:
            role = "general draft"
            tokens = settings.draft_tokens + settings.distil_tokens + settings.builtin_tokens + settings.hard_tokens
        about = (
            f"A tiny Llama-architecture language model ({role}) for developing and testing speculative decoding.\n"
            "It imitates the form of its training text; it knows nothing, and its answers are not to be relied on."
        )
        answers = "; drafts also on the target's own answers, with the target's distributions as labels"
        facts = [
            f"context: {settings.context} tokens; byte-level BPE of {settings.vocab_size} entries with a chat template",
            f"tokens seen in training: {tokens:,}{'' if name == 'tiny' else answers}",
            f"command: `python -m experiments tiny --data <folder of text> --seed {settings.seed}`",
        ]
        loss = [{"domain": domain, "loss": f"{value:.3f}"} for domain, value in losses.items()]
        tables = {
            "Held-out loss": ("Cross-entropy of response tokens, nats a token.", loss),
            "Agreement with the target": (
                "On the target's rollouts from held-out prompts at temperature 1, top-k 50: a = min(1, p(y)/q(y))\n"
                "for tokens y drawn from this draft.",
                agreement,
            ),
        }
        write_card(self.output / name, name, "text-generation", about, facts, read, tables)

    def _fit(
        self, model: Any, data: Packed | SoftLabels, name: str, tokens: int, lr: float, overlap: bool = False
    ) -> None:
        """Train ``model`` in ``work/name`` and save it in bfloat16 to ``work/name/model``."""
        fit(model, data, self.validation, self.work / name, self.settings, tokens=tokens, lr=lr, overlap=overlap)
        self._keep(model, name)

    def _keep(self, model: Any, name: str) -> None:
        """Save ``model`` in bfloat16 to ``work/name/model``, atomically."""
        folder = self.work / name
        model.to(dtype=torch.bfloat16).save_pretrained(folder / "new", max_shard_size=MAX_SHARD)
        (folder / "new").rename(folder / "model")


def same_settings(settings: object, path: Path) -> None:
    """Raise InputError if the folder belongs to a run with other settings, which ``path`` stores."""
    now = json.loads(json.dumps(vars(settings)))  # as they are stored
    if not path.exists():
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(now, indent=1), encoding="utf-8")
    before = json.loads(path.read_text(encoding="utf-8"))
    changed_settings = ", ".join(f"{key} was {was!r}" for key, (was, _) in differences(before, now).items())
    if changed_settings:
        raise InputError(f"{path.parent.parent}: begun with other settings: {changed_settings}; choose another output")


def new_model(shape: str, settings: TinyModelsOptions, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Return a Llama with random weights that depend only on the seed."""
    layers, hidden, feed_forward, heads = SHAPES[shape]
    config = LlamaConfig(
        vocab_size=settings.vocab_size,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        return LlamaForCausalLM(config)


def finish(model: Path, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Copy a trained model and its tokenizer to ``folder``; ``config.json`` is written last and marks completion."""
    tokenizer.save_pretrained(folder)
    for file in sorted(model.iterdir(), key=lambda path: path.name == "config.json"):
        shutil.copyfile(file, folder / file.name)


def _how_many(lengths: list[int], budget: int) -> int:
    """Return the number of first texts that fit into ``budget`` tokens."""
    return sum(total <= budget for total in accumulate(lengths))


def _some(packed: Packed, seed: int) -> Packed:
    rows = torch.randperm(len(packed.tokens), generator=torch.Generator().manual_seed(seed))[:VALIDATION_WINDOWS]
    return Packed(packed.tokens[rows], packed.is_response[rows])


def _groups(documents: list[Document], key: Callable[[Document], str]) -> list[list[Document]]:
    groups: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        groups[key(document)].append(document)
    return list(groups.values())


def _in_turn(groups: list[list[Document]]) -> list[Document]:
    """Return the documents of all groups in turn, so that small groups are represented as well as large ones."""
    return [d for row in zip_longest(*groups) for d in row if d is not None]


@torch.inference_mode()
def held_out_loss(
    model: PreTrainedModel, documents: list[Document], encoded: dict[str, tuple[list[int], int]], context: int
) -> dict[str, float]:
    """Return the mean cross-entropy of response tokens, in nats, by domain."""
    total: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for document in documents:
        ids, head = encoded[document.id]
        if len(ids) > context:
            continue
        tokens = torch.tensor([ids], device=model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[
            0, head - 1 : -1
        ]  # (T, V), one for each response token
        total[document.domain] += float(F.cross_entropy(logits.float(), tokens[0, head:], reduction="sum"))
        count[document.domain] += len(ids) - head
    return {domain: total[domain] / count[domain] for domain in sorted(total)}


def main(options: TinyModelsOptions, folder: FolderOptions) -> None:
    """Train the tiny models that ship with specpilot: a target, its drafts and their tokenizer."""
    quiet()
    train_tiny(options, folder.output)
