"""The stages of the pipeline on a GPU, in tokens per second: rolling out, labels, target states, training a draft."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.rollout import Rollout, label
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.train.draft_model import initial_draft
from specpilot.train.draft_module import DraftModule, overlap
from specpilot.train.options import DraftTrainingOptions
from specpilot.train.target_states import Windows

from .subject import Subject, reader, seconds

PROMPT_TOKENS, NEW = 128, 128
TEXTS = 64
WINDOW = 256  # tokens
VOCABULARY = 8192  # of the draft that is trained
REPEATED = 3


def prompts(count: int, size: int) -> list[list[int]]:
    """Return ``count`` different prompts of ``PROMPT_TOKENS`` token ids below ``size``."""
    return [[(7 * i + 31 * text) % (size - 1) + 1 for i in range(PROMPT_TOKENS)] for text in range(count)]


def rolled_out(subject: Subject, texts: int) -> dict[str, float]:
    """Measure the tokens per second of ``texts`` texts that the target continues together."""
    decoder = SpeculativeDecoder(reader(subject.target, subject.graphs), None, max_running=texts)
    together = prompts(texts, min(1000, decoder.target.vocab_size))
    options: dict[str, Any] = {"temperature": 1.0, "top_k": 50}
    decoder.generate(together, max_new_tokens=24, **options)  # captures the graphs
    outputs: list[Any] = []
    spent = seconds(subject.device, lambda: outputs.extend(decoder.generate(together, max_new_tokens=NEW, **options)))
    return {"tokens/s": round(sum(len(output.tokens) for output in outputs) / spent)}


@torch.inference_mode()
def labelled(subject: Subject) -> dict[str, float]:
    """Measure the tokens per second that get a label: a drafted token and its acceptance probability."""
    target, draft = (reader(model, subject.graphs) for model in (subject.target, subject.draft))
    together = prompts(TEXTS, min(1000, target.vocab_size))
    rollouts = [Rollout([(11 * i + text) % 1000 + 1 for i in range(NEW)]) for text in range(TEXTS)]
    uniforms = torch.rand(TEXTS, NEW, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        label(target, draft, together, rollouts, uniforms, SamplingParams(1.0, 50))

    run()
    return {"tokens/s": round(REPEATED * TEXTS * NEW / seconds(subject.device, lambda: repeat(run)))}


def repeat(call: Callable[[], Any]) -> None:
    for _ in range(REPEATED):
        call()


def windows(subject: Subject, count: int) -> Windows:
    vocabulary = subject.target.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(VOCABULARY, vocabulary), (count, WINDOW), generator=generator, dtype=torch.int32)
    return Windows(tokens.to(subject.device), torch.ones(count, WINDOW, dtype=torch.bool, device=subject.device))


def draft_module(subject: Subject) -> DraftModule:
    """Return a draft of two of the target's layers in training, as `train draft` makes it."""
    vocabulary = subject.target.config.vocab_size
    size = VOCABULARY if vocabulary > VOCABULARY else None
    settings = DraftTrainingOptions(target="random", data="random", layers=2, vocabulary=size)
    draft = initial_draft(subject.target, settings, None if size is None else list(range(size)))
    for name, parameter in draft.named_parameters():
        parameter.requires_grad_("layers." in name)
    return DraftModule(settings, draft, subject.target, left_out=set(), steps=100)


def target_states(subject: Subject) -> dict[str, float]:
    """Measure the tokens per second whose states the target computes for `--cache-states`."""
    teacher = draft_module(subject).teacher
    batch = windows(subject, teacher.windows_at_once(WINDOW))

    def run() -> None:
        teacher.states(batch)

    run()
    spent = seconds(subject.device, lambda: repeat(run))
    return {"tokens/s": round(REPEATED * batch.tokens.numel() / spent), "windows": len(batch.tokens)}


def trained(subject: Subject, count: int) -> dict[str, float]:
    """Measure the tokens per second of a draft's training with stored target states, in steps of ``count`` windows."""
    module = draft_module(subject).to(subject.device)
    batch = windows(subject, count)
    size = module.teacher.windows_at_once(WINDOW)
    parts = [module.teacher.states(batch.take(rows)) for rows in torch.split(torch.arange(count), size)]
    states = type(parts[0])(*(torch.cat(values) for values in zip(*parts, strict=True)))
    batch = batch._replace(target=states)
    learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-4, fused=True)

    def step() -> None:
        p, _, logits = module.predictions(batch)
        loss: Any = (1 - torch.stack([overlap(position_logits, p) for position_logits in logits])).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    spent = seconds(subject.device, lambda: repeat(step)) / REPEATED
    return {"ms": round(spent * 1e3, 3), "tokens/s": round(batch.tokens.numel() / spent)}


STAGES: dict[str, Callable[[Subject], dict[str, float]]] = {
    "roll-out of 64 texts": partial(rolled_out, texts=TEXTS),
    "roll-out of 256 texts": partial(rolled_out, texts=4 * TEXTS),
    "labels": labelled,
    "target states": target_states,
    "training on 4 windows": partial(trained, count=4),
    "training on 64 windows": partial(trained, count=64),
}
