"""Settings of the tiny encoder-decoders' recipe; light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass, field

from specpilot.controllers.errors import InputError

TARGET = "tiny-t5"
SOURCES = {"shell": ["nl2bash"], "sql": ["wikisql", "advising"]}


def draft_name(task: str) -> str:
    """The draft model that learns ``task`` alone."""
    return f"{TARGET}-draft-{task}"


@dataclass(frozen=True, kw_only=True)
class TinyT5Options:
    """Settings of the tiny encoder-decoders: a target of two tasks and a draft for each of them.

    Args:
        data: folder with a '<source>.jsonl' for each source (rows: prompt, response, and id, license if known).
            If it is no folder, the sources are taken for hub datasets.
        sources: the text of each task; a task's name is that of its domain in the built-in prompts.
        vocabulary: name or folder of the model whose tokenizer these share, and whose embeddings theirs begin from.
        prompt_tokens: longest prompt; rows with a longer one are left out.
        output_tokens: longest output, its end included; rows with a longer one are left out.
        batch_tokens: tokens a step, prompts and outputs, with padding.
        target_epochs: how often the target sees the text.
        lr: peak learning rate of the target.
        rollouts: training prompts of each task that the target answers, as the draft's lessons.
        builtin_answers: answers to each built-in training prompt, among the same lessons.
        draft_epochs: how often a draft sees its lessons, learning the target's distributions by cross-entropy.
        overlap_epochs: how often after that, learning them for overlap.
        draft_lr: peak learning rate of the first of these.
        overlap_lr: peak learning rate of the second.
        decay: share of the steps, at the end, over which the learning rate falls to zero.
        held_out_prompts: prompts of each task and origin on which outputs and agreement are judged.
        seed: seed of initial weights, order and samples.
    """

    data: str
    sources: dict[str, list[str]] = field(
        default_factory=lambda: {task: list(names) for task, names in SOURCES.items()}
    )
    vocabulary: str = "tiny"
    prompt_tokens: int = 224
    output_tokens: int = 96
    batch_tokens: int = 4096
    target_epochs: int = 3
    lr: float = 3e-3
    rollouts: int = 6_000
    builtin_answers: int = 4
    draft_epochs: int = 6
    overlap_epochs: int = 3
    draft_lr: float = 6e-3
    overlap_lr: float = 4e-3
    decay: float = 0.6
    held_out_prompts: int = 120
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "prompt_tokens", "output_tokens", "batch_tokens", "target_epochs", "rollouts", "draft_epochs",
            "overlap_epochs", "held_out_prompts",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        if len(self.sources) < 2:
            raise InputError(f"sources={self.sources}: name at least two tasks; there is a draft for each")
        for task, names in self.sources.items():
            if not names:
                raise InputError(f"sources: the task {task!r} has no source of text")
