"""The tiny encoder-decoders that ship: a target of two tasks, and a draft for each that knows little of the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors import safe_open
from specpilot.checkpoints import shipped
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.builtin import builtin_prompts
from specpilot.infer.loading.names import check_same_tokenizer, load_model, load_tokenizer

from experiments.tiny_t5.answers import answer
from experiments.tiny_t5.evaluation import overlaps
from experiments.tiny_t5.settings import SOURCES, TARGET, draft_name

NAMES = [TARGET, *(draft_name(task) for task in SOURCES)]


def test_what_ships() -> None:
    """One vocabulary, small files, cards; the target is many times a draft."""
    sizes = []
    for name in NAMES:
        folder = shipped(name)
        assert folder is not None
        assert f'from_pretrained("{TARGET}", "' in (folder / "README.md").read_text()
        check_same_tokenizer(load_tokenizer("tiny"), load_tokenizer(name))
        sizes.append(sum(path.stat().st_size for path in folder.iterdir()))
        with safe_open(folder / "model.safetensors", "pt") as tensors:
            assert all(str(tensors.get_tensor(key).dtype) == "torch.bfloat16" for key in list(tensors.keys()))
    assert sum(sizes) <= 15e6
    target, *drafts = [sum(p.numel() for p in load_model(name).parameters()) for name in NAMES]
    assert all(6 * draft < target < 5e6 for draft in drafts)


@pytest.mark.parametrize("task", SOURCES)
def test_each_draft_knows_its_own_task(task: str) -> None:
    """On built-in prompts that no model was trained on, by the probability that a drafted token is accepted."""
    target: Any = load_model(TARGET)
    tokenizer = load_tokenizer(TARGET)
    prompts = [
        tokenizer(p.prompt)["input_ids"] for p in builtin_prompts("builtin") if p.domain == task and p.split == "test"
    ][:24]
    uniforms = torch.rand(len(prompts), 48, generator=torch.Generator().manual_seed(0))
    pairs = answer(target, prompts, uniforms, SamplingParams(1.0, 50), tokenizer.eos_token_id)
    mean: dict[str, float] = {}
    for name in NAMES[1:]:
        draft: Any = load_model(name)
        mean[name] = float(torch.cat(overlaps(draft, pairs)).mean())
    own = mean.pop(draft_name(task))
    (other,) = mean.values()
    assert own > other + 0.2
