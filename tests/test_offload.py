"""Targets spread by a device map, some layers on disk: the same texts as in one piece."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from specpilot.data_gen.acceptance import make_acceptance_data, make_answers
from specpilot.data_gen.feature_shards import FeatureDataset
from specpilot.data_gen.kinds import AcceptanceRow, AnswerRow, read_dataset
from specpilot.data_gen.options import AcceptanceDataOptions, AnswersDataOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models.base import is_dispatched
from specpilot.train.features import make_features
from specpilot.train.options import FeatureDataOptions

from .tiny import byte_tokenizer, make

PLACES = {
    "llama": {
        "model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "disk",
        "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu",
    },
    "gpt2": {
        "transformer.wte": "cpu", "transformer.wpe": "disk", "transformer.ln_f": "cpu", "lm_head": "cpu",
        "transformer.h.0": "disk", "transformer.h.1": "cpu", "transformer.h.2": "disk",
    },
}  # fmt: skip


def save(architecture: str, folder: Path) -> tuple[Path, Path]:
    """A target of three layers and a draft of one."""
    for name, layers in (("target", 3), ("draft", 1)):
        make(architecture, vocab=257, layers=layers).save_pretrained(folder / name)
        byte_tokenizer().save_pretrained(folder / name)
    return folder / "target", folder / "draft"


@pytest.mark.parametrize("architecture", PLACES)
def test_chains_trees_and_lists(architecture: str, tmp_path: Path) -> None:
    names = save(architecture, tmp_path)
    places = {"device_map": PLACES[architecture], "offload_folder": tmp_path / "offloaded"}
    whole, spread = (
        SpeculativeDecoder.from_pretrained(*names, length=3, device=device, **options)
        for device, options in (("cpu", {}), ("auto", places))
    )
    assert is_dispatched(spread.target.model)
    trees = [
        SpeculativeDecoder(d.target, d.drafts, d.tokenizer, tree=(2, 2), verifier="spec-infer") for d in (whole, spread)
    ]
    prompts = ["hello you", "a", "some more"]
    for one, other in ((whole, spread), trees):
        expected = [row.tokens for row in one.generate(prompts, max_new_tokens=12, seed=1)]
        assert [row.tokens for row in other.generate(prompts, max_new_tokens=12, seed=1)] == expected
        assert other.generate(prompts[0], max_new_tokens=12, seed=1).tokens == expected[0]


@pytest.mark.parametrize("architecture", PLACES)
def test_data_and_features(architecture: str, tmp_path: Path) -> None:
    target, draft = map(str, save(architecture, tmp_path))
    (tmp_path / "prompts.txt").write_text("".join(f"prompt {i} {'word ' * (i % 5)}\n" for i in range(12)))
    data = AcceptanceDataOptions(
        target=target, draft=draft, prompts=str(tmp_path / "prompts.txt"), chat=False, max_new_tokens=12, batch_size=5,
        shard_size=4,
    )  # fmt: skip
    for name, places in (("whole", {}), ("spread", PLACES[architecture])):
        placed = {"device_map": places or None, "offload_folder": str(tmp_path / "offloaded") if places else None}
        make_acceptance_data(replace(data, **placed), tmp_path / name)
        features = FeatureDataOptions(
            data=str(tmp_path / name), predictor="lag-free", traced=2, validation_fraction=0.4, **placed
        )
        make_features(features, tmp_path / f"{name}-features")
        shared = {field.name: getattr(data, field.name) for field in fields(AnswersDataOptions)}
        make_answers(AnswersDataOptions(**shared | placed), tmp_path / f"{name}-answers")
    assert read_dataset(tmp_path / "spread-answers", AnswerRow) == read_dataset(tmp_path / "whole-answers", AnswerRow)
    whole, spread = (read_dataset(tmp_path / name, AcceptanceRow) for name in ("whole", "spread"))
    for row, other in zip(whole, spread, strict=True):
        assert replace(row, p=[]) == replace(other, p=[])
        assert other.p == pytest.approx(row.p, abs=1e-5)
    ours, theirs = (FeatureDataset(tmp_path / f"{name}-features").manifest for name in ("whole", "spread"))
    assert [shard["file"] for shard in ours["shards"]] == [shard["file"] for shard in theirs["shards"]]
