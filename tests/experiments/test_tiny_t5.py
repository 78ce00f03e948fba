"""The tiny encoder-decoders' recipe end to end on a handful of texts, and the models that ship."""

import json
from itertools import product
from pathlib import Path

import pytest
from specpilot.checkpoints import shipped
from specpilot.data_gen.builtin import builtin_prompts
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.names import load_model

from experiments.tiny_t5 import model as shapes
from experiments.tiny_t5 import recipe
from experiments.tiny_t5.recipe import train_tiny_t5
from experiments.tiny_t5.settings import SOURCES, TARGET, TinyT5Options, draft_name

from .test_tiny import card_of_shipped, write_texts

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
    found = {
        draft: [(row["task"], row["prompts from"]) for row in rows] for draft, rows in results["agreement"].items()
    }
    assert found == {TARGET: []} | {name: [*product(("shell", "sql"), ("text", "built-in"))] for name in drafts}
    decoder = SpeculativeDecoder.from_pretrained(str(output / TARGET), str(output / drafts[0]))
    plain = decoder.generate("List 3 files", max_new_tokens=10)
    assert decoder.generate("List 3 files", chat=True, max_new_tokens=10).prompt_tokens == plain.prompt_tokens


NAMES = [TARGET, *(draft_name(task) for task in SOURCES)]


def test_what_ships() -> None:
    """One vocabulary, cards; the target is many times a draft."""
    for name in NAMES:
        folder = shipped(name)
        assert folder is not None
        assert f'from_pretrained("{TARGET}", "' in card_of_shipped(name)
    target, *drafts = [sum(p.numel() for p in load_model(name).parameters()) for name in NAMES]
    assert all(6 * draft < target < 5e6 for draft in drafts)
