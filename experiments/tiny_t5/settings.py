"""Settings of the tiny encoder-decoders' recipe, without slow imports."""

from __future__ import annotations

from dataclasses import dataclass, field

from specpilot.common.errors import InputError
from specpilot.common.options import Count, Options

TARGET = "tiny-t5"
SOURCES = {"shell": ["nl2bash"], "sql": ["wikisql", "advising"]}


def draft_name(task: str) -> str:
    """Return the name of the draft for ``task``."""
    return f"{TARGET}-draft-{task}"


@dataclass(frozen=True, kw_only=True)
class TinyT5Options(Options):
    """Settings of the tiny encoder-decoders: a target of two tasks and a draft for each of them.

    Args:
        data: folder with a '<source>.jsonl' for each source (rows: prompt, response, and id, license if known).
            If it is not a folder, the sources are hub datasets.
        sources: text sources of each task; a task's name is that of its domain in the built-in prompts.
        vocabulary: name or folder of the model whose tokenizer is used, and whose embeddings are the initial ones.
        prompt_tokens: maximum prompt tokens; rows with longer prompts are left out.
        output_tokens: maximum output tokens including the end token; rows with longer outputs are left out.
        batch_tokens: tokens per step: prompts and outputs, with padding.
        target_epochs: epochs of the target over the text.
        lr: peak learning rate of the target.
        rollouts: number of training prompts of each task whose answers by the target are the draft's data.
        builtin_answers: number of answers to each built-in training prompt in the same data.
        draft_epochs: epochs of a draft by cross-entropy with the target's distributions.
        overlap_epochs: further epochs for overlap.
        draft_lr: peak learning rate of the cross-entropy epochs.
        overlap_lr: peak learning rate of the overlap epochs.
        decay: last share of the steps, over which the learning rate decays to zero.
        held_out_prompts: number of prompts of each task and origin for the evaluation.
        seed: seed of initial weights, order and samples.
    """

    data: str
    sources: dict[str, list[str]] = field(
        default_factory=lambda: {task: list(names) for task, names in SOURCES.items()}
    )
    vocabulary: str = "tiny"
    prompt_tokens: Count = 224
    output_tokens: Count = 96
    batch_tokens: Count = 4096
    target_epochs: Count = 3
    lr: float = 3e-3
    rollouts: Count = 6_000
    builtin_answers: int = 4
    draft_epochs: Count = 6
    overlap_epochs: Count = 3
    draft_lr: float = 6e-3
    overlap_lr: float = 4e-3
    decay: float = 0.6
    held_out_prompts: Count = 120
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sources) < 2:
            raise InputError(f"sources={self.sources}: name at least two tasks; there is a draft for each")
        for task, names in self.sources.items():
            if not names:
                raise InputError(f"sources: the task {task!r} has no source of text")
