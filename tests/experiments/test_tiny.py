"""The tiny models' recipe end to end on a handful of texts, and the models that ship."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from specpilot.checkpoints import FOLDER, shipped, shipped_models
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.names import check_same_tokenizer, load_causal_lm, load_tokenizer

from experiments.tiny.recipe import train_tiny
from experiments.tiny.settings import TinyModelsOptions


def write_texts(folder: Path, texts: Mapping[str, tuple[str, str]], count: int, **more: str) -> str:
    """A folder of JSON Lines, one file a source, of prompts and responses in which ``{}`` is a number."""
    folder.mkdir()
    for source, (prompt, response) in texts.items():
        rows = [
            {
                "id": f"{source}-{i}",
                "prompt": prompt.format(i),
                "response": response.format(i),
                "license": "CC0",
                **more,
            }
            for i in range(count)
        ]
        (folder / f"{source}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def card_of_shipped(name: str) -> str:
    """The card of an included model, which is stored in bfloat16 and shares the tokenizer of ``tiny``."""
    folder = shipped(name)
    assert folder is not None
    check_same_tokenizer(load_tokenizer("tiny"), load_tokenizer(name))
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            assert all(str(tensors.get_tensor(key).dtype) == "torch.bfloat16" for key in list(tensors.keys()))
    return (folder / "README.md").read_text()


def test_recipe_end_to_end(tmp_path: Path) -> None:
    texts = {"sums": ("What is {0} and {0}?", "It is {0}."), "tales": ("Tell me tale {}.", "Once there were {} kings.")}
    for source, domain in (("sums", "math"), ("tales", "prose")):
        write_texts(tmp_path / domain, {source: texts[source]}, 150, domain=domain)
    (tmp_path / "prose" / "tales.jsonl").rename(tmp_path / "math" / "tales.jsonl")
    settings = TinyModelsOptions(
        data=str(tmp_path / "math"), sources=["sums", "tales"], specialists={"tiny-draft-math": ["math"]},
        vocab_size=300, context=64, target_tokens=1200, draft_tokens=900, specialist_tokens=600, rollouts=8,
        rollout_tokens=12, distil_tokens=600, specialist_distil_tokens=300, distil_text=3000,
        builtin_prompts=6, builtin_answers=1, builtin_tokens=300, specialist_builtin_tokens=300,
        held_out_prompts=2, batch_size=4,
        easy=["prose"], hard_tokens=300,
        compile=False,
    )  # fmt: skip
    output = train_tiny(settings, tmp_path / "models")
    names = ["tiny", "tiny-draft", "tiny-draft-math"]
    for name in names:
        card = (output / name / "README.md").read_text()
        assert "| sums | CC0 |" in card
        assert ("| tales | CC0 |" in card) == (name != "tiny-draft-math")
        assert ("## Agreement" in card) == (name != "tiny")
    decoder = SpeculativeDecoder.from_pretrained(str(output / "tiny"), str(output / "tiny-draft-math"))
    assert decoder.generate("What is 3 and 4?", chat=True, max_new_tokens=10).tokens


DRAFTS = ["tiny-draft", "tiny-draft-math", "tiny-draft-sql-shell", "tiny-draft-code-prose"]


def test_what_ships_is_small_complete_and_of_one_family() -> None:
    assert {"tiny", *DRAFTS} <= set(shipped_models())
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".md", ".jinja", ".py", ".pyc", ".xz"}
    for name in ("tiny", *DRAFTS):
        assert "## Held-out loss" in card_of_shipped(name)
    target, draft = (sum(p.numel() for p in load_causal_lm(name).parameters()) for name in ("tiny", "tiny-draft"))
    assert 11e6 < target < 13e6
    assert 0.6e6 < draft < 0.8e6
