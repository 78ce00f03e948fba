"""``specpilot train tiny``: the shipped tiny models from text, end to end.

Tokenizer → target → the target's own outputs → general draft and specialised drafts (text and outputs) → held-out loss
and agreement by domain → model cards. Every stage leaves its result in the output folder and is skipped when it is
there, so that a run cut short goes on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ...controllers.errors import InputError
from ...data_gen.dataset import replacing
from ...infer.cached_model import CachedModel
from ...infer.models import load_causal_lm
from .agreement import measure_agreement
from .card import write_card
from .corpus import Document, Packed, encode, load_documents, pack
from .language_model import fit
from .outputs import sample_outputs
from .settings import TinyModels
from .tokenizer import train_tokenizer

VALIDATION_WINDOWS = 64
MAX_SHARD = "10MB"
SHAPES = {"target": (6, 384, 1024, 6), "draft": (1, 128, 384, 2)}  # layers, hidden, feed-forward, heads


def train_tiny(settings: TinyModels, output: Path, console: Console | None = None) -> Path:
    """Make every tiny model; they lie in ``output/<name>``, the runs' logs and checkpoints in ``output/work``.

    Raises:
        InputError: a source of text is missing, or the folder was begun with other settings.
    """
    console = console or Console(stderr=True)
    documents = load_documents(settings.data, settings.sources)
    work = output / "work"
    work.mkdir(parents=True, exist_ok=True)
    _same_settings(settings, work / "settings.json")
    train = [d for d in documents if not d.held_out]
    held_out = [d for d in documents if d.held_out]

    console.rule("tokenizer")
    if not (work / "tokenizer" / "tokenizer.json").exists():
        texts = (
            text
            for d in train
            for text in ([d.response] if d.source in settings.without_prompts else [d.response, d.prompt])
        )
        train_tokenizer(texts, settings.vocab_size, settings.context).save_pretrained(work / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    encoded = {d.id: encode(tokenizer, d.prompt, d.response) for d in documents}
    validation = _some(pack((encoded[d.id] for d in held_out), settings.context, settings.seed), settings.seed)

    console.rule("tiny: the target")
    if not (output / "tiny" / "config.json").exists():
        packed = pack((encoded[d.id] for d in train), settings.context, settings.seed)
        _train(settings, "target", packed, validation, "tiny", output, tokenizer, settings.target_tokens, settings.lr)

    console.rule("the target's own outputs")
    room = settings.context - settings.rollout_tokens
    prompts = {d.id: encoded[d.id][0][: encoded[d.id][1]] for d in documents}
    by_source = _groups([d for d in train if len(prompts[d.id]) <= room], lambda d: d.source)
    chosen = _in_turn(by_source)[: settings.rollouts]
    target = CachedModel(load_causal_lm(str(output / "tiny"), dtype="bfloat16"))  # as it was trained
    stops = frozenset([tokenizer.eos_token_id])
    outputs = sample_outputs(
        target,
        {d.id: prompts[d.id] for d in chosen},
        work / "outputs",
        budget=settings.rollout_tokens,
        seed=settings.seed,
        stop_tokens=stops,
    )
    domain_of = {d.id: d.domain for d in documents}

    drafts = {"tiny-draft": None, **settings.specialists}
    for name, domains in drafts.items():
        console.rule(name)
        if (output / name / "config.json").exists():
            continue
        rows = [encoded[d.id] for d in train if domains is None or d.domain in domains]
        own = [
            (prompts[id] + tokens, len(prompts[id]))
            for id, tokens in outputs.items()
            if domains is None or domain_of[id] in domains
        ]
        packed = pack(rows + own * settings.rollout_repeats, settings.context, settings.seed)
        budget = settings.draft_tokens if domains is None else settings.specialist_tokens
        _train(settings, "draft", packed, validation, name, output, tokenizer, budget, settings.draft_lr)

    console.rule("held-out loss, agreement, model cards")
    by_domain = _groups([d for d in held_out if len(prompts[d.id]) <= room], lambda d: d.domain)
    some = [d for group in by_domain for d in group[: settings.held_out_prompts]]
    path = work / "held_out.jsonl"
    path.write_text("".join(json.dumps({"id": d.id, "prompt": d.prompt}) + "\n" for d in some), encoding="utf-8")
    for name, domains in {"tiny": [], **drafts}.items():
        losses = held_out_loss(load_causal_lm(str(output / name)), held_out, encoded, settings.context)
        agreement = []
        if name != "tiny":
            agreement = measure_agreement(
                output / "tiny", output / name, path, domain_of, work / f"agreement-{name}", settings.seed
            )
        read = [d for d in train if not domains or d.domain in domains]
        write_card(output / name, name, settings, read, losses, agreement)
    return output


def _same_settings(settings: TinyModels, path: Path) -> None:
    now = vars(settings)
    if not path.exists():
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(now, indent=1), encoding="utf-8")
    before = json.loads(path.read_text(encoding="utf-8"))
    differing = sorted(key for key in now if now[key] != before.get(key))
    if differing:
        raise InputError(
            f"{path.parent.parent}: begun with other settings ({', '.join(differing)} differ); choose another output"
        )


def _train(
    settings: TinyModels,
    shape: str,
    train: Packed,
    validation: Packed,
    name: str,
    output: Path,
    tokenizer: PreTrainedTokenizerBase,
    tokens: int,
    lr: float,
) -> None:
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
        model = LlamaForCausalLM(config)
    fit(
        model,
        train,
        validation,
        output / "work" / name,
        tokens=tokens,
        batch_size=settings.batch_size,
        lr=lr,
        prompt_weight=settings.prompt_weight,
        decay=settings.decay,
        compile=settings.compile,
        seed=settings.seed,
    )
    tokenizer.save_pretrained(output / name)
    # config.json comes last and marks the stage as done
    half: Any = model.to(dtype=torch.bfloat16)
    half.save_pretrained(output / "work" / name / "model", max_shard_size=MAX_SHARD)
    for file in sorted((output / "work" / name / "model").iterdir(), key=lambda p: p.name == "config.json"):
        file.replace(output / name / file.name)


def _some(packed: Packed, seed: int) -> Packed:
    rows = torch.randperm(len(packed.tokens), generator=torch.Generator().manual_seed(seed))[:VALIDATION_WINDOWS]
    return Packed(packed.tokens[rows], packed.is_response[rows])


def _groups(documents: list[Document], key: Callable[[Document], str]) -> list[list[Document]]:
    groups: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        groups[key(document)].append(document)
    return list(groups.values())


def _in_turn(groups: list[list[Document]]) -> list[Document]:
    """One of each group, then the next of each: small sources are not drowned by large ones."""
    return [d for row in zip_longest(*groups) for d in row if d is not None]


@torch.inference_mode()
def held_out_loss(
    model: PreTrainedModel, documents: list[Document], encoded: dict[str, tuple[list[int], int]], context: int
) -> dict[str, float]:
    """Mean cross-entropy of response tokens, in nats, by domain."""
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
