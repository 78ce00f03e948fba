"""Settings of the tiny models' recipe, without slow imports."""

from __future__ import annotations

from dataclasses import dataclass, field

from specpilot.common.errors import InputError
from specpilot.common.options import Count, Options

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
class TinyModelsOptions(Options):
    """Settings of the tiny models: one target, one general draft, three specialised drafts, one tokenizer.

    Args:
        data: folder with a '<source>.jsonl' for each source (rows: prompt, response, and id, domain, license if known).
            If it is not a folder, the sources are hub datasets.
        sources: files or datasets of training text.
        specialists: names of the specialised drafts and their domains.
        easy: domains in which the general draft would agree too well with the target to train controllers.
        hard_tokens: training tokens of the stage without the easy domains.
        hard_share: weight of the draft after that stage in the average with the draft before it.
        without_prompts: sources whose prompts are not used to train the tokenizer (transcripts longer than a window).
        vocab_size: size of the byte-level BPE vocabulary.
        context: maximum number of tokens of a text.
        target_tokens: training tokens of the target.
        draft_tokens: training tokens of the general draft.
        specialist_tokens: training tokens of each specialised draft.
        rollouts: number of prompts whose continuations by the target are training data of the drafts.
        rollout_tokens: maximum number of tokens of a continuation.
        rollout_repeats: epochs over the target's outputs per epoch over the text.
        distil_tokens: distillation tokens of the general draft.
        specialist_distil_tokens: distillation tokens of each specialised draft.
        distil_text: tokens of text, besides the target's outputs, with soft labels.
        distil_lr: peak learning rate of distillation.
        builtin_prompts: number of built-in training prompts for the last stage of the drafts.
        builtin_answers: number of answers of the target to each of them.
        builtin_repeats: epochs over these answers per epoch over the other data.
        builtin_tokens: training tokens of the last stage of the general draft.
        specialist_builtin_tokens: training tokens of the last stage of each specialised draft.
        held_out_prompts: number of prompts per domain for measuring agreement.
        lr: peak learning rate of the target.
        draft_lr: peak learning rate of the drafts.
        batch_size: windows of text per step.
        prompt_weight: weight of prompt tokens in the loss; responses weigh 1.
        decay: last share of the steps, over which the learning rate decays to zero.
        compile: compile the training step (needs a C++ compiler; about a quarter faster).
        seed: seed of initial weights and order.
    """

    data: str
    sources: list[str] = field(default_factory=lambda: list(CLEAN_SOURCES))
    specialists: dict[str, list[str]] = field(default_factory=lambda: dict(SPECIALISTS))
    easy: list[str] = field(default_factory=lambda: ["task-dialogue-api"])
    without_prompts: list[str] = field(default_factory=lambda: ["qmsum"])
    vocab_size: Count = 4096
    context: Count = 512
    target_tokens: Count = 14_000_000
    draft_tokens: Count = 12_000_000
    specialist_tokens: Count = 4_000_000
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
    batch_size: Count = 8
    prompt_weight: float = 0.25
    decay: float = 0.5
    compile: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources:
            raise InputError("sources=[]: name at least one source of text")
