"""Settings of the tiny models' recipe; light enough to be imported for ``--help``."""

from __future__ import annotations

from dataclasses import dataclass, field

from specpilot.controllers.errors import InputError

CLEAN_SOURCES = [
    "gsm8k", "svamp", "math500", "aqua", "nl2bash", "wikisql", "advising", "python_functions", "mbpp", "taskmaster4",
    "bfcl", "books", "shakespeare", "qmsum", "self_instruct",
]  # fmt: skip

SPECIALISTS = {
    "tiny-draft-math": ["math", "math-competition"],
    "tiny-draft-sql-shell": ["bash", "text-to-sql"],
    "tiny-draft-code-prose": ["code-python", "stories-literary", "stories-verse"],
}


@dataclass(frozen=True, kw_only=True)
class TinyModelsOptions:
    """Settings of the tiny models: one target, one general draft, three specialised drafts, one tokenizer.

    Args:
        data: folder with a '<source>.jsonl' for each source (rows: prompt, response, and id, domain, license if known).
            If it is no folder, the sources are taken for hub datasets.
        sources: files or datasets to learn from.
        specialists: name of each specialised draft and the domains it is trained on.
        easy: domains in which the general draft would follow the target too closely for a controller to learn from.
        hard_tokens: tokens of a lesson without them.
        hard_share: weight of the draft after that lesson in the average with the draft before it.
        without_prompts: sources whose prompts the tokenizer is not learnt from (transcripts that no window holds).
        vocab_size: size of the byte-level BPE vocabulary.
        context: longest text, in tokens.
        target_tokens: tokens the target is trained on.
        draft_tokens: tokens the general draft is trained on.
        specialist_tokens: tokens each specialised draft is trained on.
        rollouts: prompts whose continuation by the target the drafts are trained on, beside the text.
        rollout_tokens: longest such continuation.
        rollout_repeats: how often the target's own outputs are seen for each time the text is.
        distil_tokens: tokens the general draft then learns to follow the target's own distribution on.
        specialist_distil_tokens: the same for each specialised draft.
        distil_text: tokens of text, beside the target's outputs, that the target's distribution is computed on.
        distil_lr: peak learning rate of that.
        builtin_prompts: built-in training prompts that the target answers for a last lesson of the drafts.
        builtin_answers: answers it gives to each.
        builtin_repeats: how often those are seen for each time the other lessons are.
        builtin_tokens: tokens of that last lesson for the general draft.
        specialist_builtin_tokens: the same for each specialised draft.
        held_out_prompts: prompts a domain on which agreement of target and draft is measured.
        lr: peak learning rate of the target.
        draft_lr: peak learning rate of the drafts.
        batch_size: windows of text a step.
        prompt_weight: weight of prompt tokens in the loss; responses weigh 1.
        decay: share of the steps, at the end, over which the learning rate falls to zero.
        compile: compile the training step (needs a C++ compiler; about a quarter faster).
        seed: seed of initial weights and order.
    """

    data: str
    sources: list[str] = field(default_factory=lambda: list(CLEAN_SOURCES))
    specialists: dict[str, list[str]] = field(default_factory=lambda: dict(SPECIALISTS))
    easy: list[str] = field(default_factory=lambda: ["task-dialogue-api"])
    without_prompts: list[str] = field(default_factory=lambda: ["qmsum"])
    vocab_size: int = 4096
    context: int = 512
    target_tokens: int = 14_000_000
    draft_tokens: int = 12_000_000
    specialist_tokens: int = 4_000_000
    rollouts: int = 1_536
    rollout_tokens: int = 128
    rollout_repeats: int = 3
    distil_tokens: int = 18_000_000
    specialist_distil_tokens: int = 4_000_000
    distil_text: int = 2_000_000
    distil_lr: float = 4e-3
    builtin_prompts: int = 2_500
    builtin_answers: int = 6
    builtin_repeats: int = 2
    builtin_tokens: int = 80_000_000
    specialist_builtin_tokens: int = 2_000_000
    hard_tokens: int = 12_000_000
    hard_share: float = 0.45
    held_out_prompts: int = 40
    lr: float = 3e-3
    draft_lr: float = 6e-3
    batch_size: int = 8
    prompt_weight: float = 0.25
    decay: float = 0.5
    compile: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "target_tokens", "draft_tokens", "specialist_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        if not self.sources:
            raise InputError("sources=[]: name at least one source of text")
