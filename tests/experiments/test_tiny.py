"""The tiny models' recipes end to end on a handful of texts."""

import json
from pathlib import Path

import pytest
from specpilot.data_gen.builtin import builtin_prompts
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.tiny.recipe import train_tiny
from experiments.tiny.settings import TinyModelsOptions
from experiments.tiny_t5 import model as shapes
from experiments.tiny_t5 import recipe as t5
from experiments.tiny_t5.recipe import train_tiny_t5
from experiments.tiny_t5.settings import TARGET, TinyT5Options, draft_name

TEXTS = {  # of each source: the domain, prompts and responses in which {} is a number
    "sums": ("math", "What is {0} and {0}?", "It is {0}."),
    "tales": ("prose", "Tell me tale {}.", "Once there were {} kings."),
    "listing": ("shell", "List {} files", "ls | head -{}"),
    "asking": ("sql", "How many rows have {}?", "SELECT COUNT(*) FROM t WHERE a = {}"),
}


def write_texts(folder: Path, *sources: str, count: int) -> str:
    """Write a folder of JSON Lines files, one for each source."""
    folder.mkdir()
    for source in sources:
        domain, *texts = TEXTS[source]
        with (folder / f"{source}.jsonl").open("w") as file:
            for i in range(count):
                prompt, response = (text.format(i) for text in texts)
                row = {"id": f"{source}-{i}", "prompt": prompt, "response": response, "license": "CC0"}
                file.write(json.dumps(row | {"domain": domain}) + "\n")
    return str(folder)


@pytest.mark.timeout(1200)  # it trains in bfloat16, which processors without AVX-512 compute slowly
def test_recipe_end_to_end(tmp_path: Path) -> None:
    settings = TinyModelsOptions(
        data=write_texts(tmp_path / "text", "sums", "tales", count=150), sources=["sums", "tales"],
        specialists={"tiny-draft-math": ["math"]},
        vocab_size=300, context=64, target_tokens=1200, draft_tokens=900, specialist_tokens=600, rollouts=8,
        rollout_tokens=12, distil_tokens=600, specialist_distil_tokens=300, distil_text=3000,
        builtin_prompts=6, builtin_answers=1, builtin_tokens=300, specialist_builtin_tokens=300,
        held_out_prompts=2, batch_size=4,
        easy=["prose"], hard_tokens=300,
        compile=False,
    )  # fmt: skip
    output = train_tiny(settings, tmp_path / "models")
    card = (output / "tiny-draft-math" / "README.md").read_text()  # names what it was trained on alone
    assert ("| sums | CC0 |" in card, "| tales | CC0 |" in card, "## Agreement" in card) == (True, False, True)
    decoder = SpeculativeDecoder.from_pretrained(str(output / "tiny"), str(output / "tiny-draft-math"))
    assert decoder.generate("What is 3 and 4?", chat=True, max_new_tokens=10).tokens


def test_recipe_of_the_encoder_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "SHAPES", {"target": (1, 2, 32, 32, 2), "draft": (1, 1, 16, 16, 2)})
    some = {task: [p for p in builtin_prompts("builtin") if p.domain == task][:80] for task in ("shell", "sql")}
    monkeypatch.setattr(t5, "builtin_prompts", lambda name: [*some["shell"], *some["sql"]])
    settings = TinyT5Options(
        data=write_texts(tmp_path / "text", "listing", "asking", count=100),
        sources={"shell": ["listing"], "sql": ["asking"]},
        prompt_tokens=80, output_tokens=20, batch_tokens=1024,
        target_epochs=1, rollouts=20, builtin_answers=1, draft_epochs=1, overlap_epochs=1, held_out_prompts=3,
    )  # fmt: skip
    output = train_tiny_t5(settings, tmp_path / "models")
    drafts = [draft_name(task) for task in ("shell", "sql")]
    assert json.loads((output / "results.json").read_text())["agreement"].keys() == {TARGET, *drafts}
    decoder = SpeculativeDecoder.from_pretrained(str(output / TARGET), str(output / drafts[0]))
    plain = decoder.generate("List 3 files", chat=False, max_new_tokens=10)
    assert decoder.generate("List 3 files", chat=True, max_new_tokens=10).prompt_tokens == plain.prompt_tokens
