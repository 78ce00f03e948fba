"""The tiny encoder-decoders' recipe end to end on a handful of texts, and its parts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from specpilot.checkpoints import shipped
from specpilot.data_gen.builtin import builtin_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.names import load_model

from experiments.tiny_t5 import model as shapes
from experiments.tiny_t5 import recipe
from experiments.tiny_t5.model import Seq2Seq
from experiments.tiny_t5.pairs import Pair, collate
from experiments.tiny_t5.recipe import train_tiny_t5
from experiments.tiny_t5.settings import SOURCES, TARGET, TinyT5Options, draft_name

from ..tiny import make
from .test_tiny import assert_made_once, card_of_shipped, write_texts

END = 1
TEXTS = {
    "listing": ("List {} files", "ls | head -{}"),
    "asking": ("How many rows have {}?", "SELECT COUNT(*) FROM t WHERE a = {}"),
}


def test_recipe_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "SHAPES", {"target": (1, 2, 32, 32, 2), "draft": (1, 1, 16, 16, 2)})
    some = [
        prompt
        for task in ("shell", "sql")
        for prompt in [p for p in builtin_prompts("builtin") if p.domain == task][:80]
    ]
    monkeypatch.setattr(recipe, "builtin_prompts", lambda name: some)
    settings = TinyT5Options(
        data=write_texts(tmp_path / "text", TEXTS, 100), sources={"shell": ["listing"], "sql": ["asking"]},
        prompt_tokens=80, output_tokens=20, batch_tokens=1024,
        target_epochs=1, rollouts=20, builtin_answers=1, draft_epochs=1, overlap_epochs=1, held_out_prompts=3,
    )  # fmt: skip
    output = train_tiny_t5(settings, tmp_path / "models")
    drafts = [draft_name(task) for task in ("shell", "sql")]
    for name, source, other in zip(drafts, ("listing", "asking"), ("asking", "listing"), strict=True):
        card = (output / name / "README.md").read_text()
        assert f"| {source} | CC0 |" in card
        assert other not in card
        assert "| sql | built-in | 3 |" in card
    results = json.loads((output / "results.json").read_text())
    assert [(a["draft"], a["task"], a["origin"]) for a in results["agreement"]] == [
        (draft, task, origin) for draft in drafts for task in ("shell", "sql") for origin in ("text", "built-in")
    ]
    decoder = SpeculativeDecoder.from_pretrained(str(output / TARGET), str(output / drafts[0]))
    plain = decoder.generate("List 3 files", max_new_tokens=10)
    assert decoder.generate("List 3 files", chat=True, max_new_tokens=10).prompt_tokens == plain.prompt_tokens
    assert_made_once(train_tiny_t5, settings, output)


def log_q(model: torch.nn.Module, pair: Pair) -> torch.Tensor:
    """(T, V), one pair alone."""
    read = torch.tensor([[0, *pair.output[:-1]]])
    return model(input_ids=torch.tensor([pair.prompt]), decoder_input_ids=read).logits[0].log_softmax(-1)


@pytest.mark.parametrize("labels", ["text", "cross-entropy", "overlap"])
def test_what_is_minimised(labels: str) -> None:
    """By hand, pair by pair: padding on either side takes no part."""
    model = make("t5")
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for prompt, output in ((3, 4), (6, 2), (1, 7)):
        draw = torch.rand(output, 64, generator=generator)
        p, ids = draw.softmax(-1).topk(5)
        tokens = torch.randint(64, (prompt + output,), generator=generator).tolist()
        soft = None if labels == "text" else (p / p.sum(-1, keepdim=True), ids)
        pairs.append(Pair(tokens[:prompt], tokens[prompt:], soft))
    got = Seq2Seq(model, 1, lr=1.0, decay=0.5, overlap=labels == "overlap")._weighted_loss(collate(pairs))
    losses = []
    for pair in pairs:
        for row, (token, q) in enumerate(zip(pair.output, log_q(model, pair), strict=True)):
            if pair.soft is None:
                losses.append(-float(q[token]))
                continue
            p = torch.zeros(64).index_put((pair.soft[1][row],), pair.soft[0][row])
            losses.append(float((p - q.exp()).abs().sum() / 2 if labels == "overlap" else -(p * q).sum()))
    assert float(got) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


NAMES = [TARGET, *(draft_name(task) for task in SOURCES)]


def test_what_ships() -> None:
    """One vocabulary, small files, cards; the target is many times a draft."""
    sizes = []
    for name in NAMES:
        folder = shipped(name)
        assert folder is not None
        assert f'from_pretrained("{TARGET}", "' in card_of_shipped(name)
        sizes.append(sum(path.stat().st_size for path in folder.iterdir()))
    assert sum(sizes) <= 15e6
    target, *drafts = [sum(p.numel() for p in load_model(name).parameters()) for name in NAMES]
    assert all(6 * draft < target < 5e6 for draft in drafts)
