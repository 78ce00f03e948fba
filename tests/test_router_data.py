"""Router data: embeddings, overlaps and scores against direct computation; encoder-decoders; kill -9; bad arms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.labels import overlap
from specpilot.data_gen.options import RouterDataOptions
from specpilot.data_gen.rollout import roll_out
from specpilot.data_gen.router import RouterDatasetBuilder, make_router_data
from specpilot.data_gen.router_dataset import read_router_dataset, rewards
from specpilot.infer.models import CausalLM

from .test_ngram_drafts import defined
from .tiny import byte_tokenizer, make, save_pair


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> RouterDataOptions:
    folder = tmp_path_factory.mktemp("pair")
    target, draft = save_pair(folder)
    prompts = folder / "prompts.jsonl"
    lines = [{"prompt": f"prompt {i} {'word ' * (i % 5)}", "domain": "ab"[i % 2]} for i in range(12)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return RouterDataOptions(
        target=target, arms=(draft, "exit:1", "autoregressive"), prompts=str(prompts), chat=False, max_new_tokens=8,
        batch_size=5, shard_size=4, top_k=20, seed=3,
    )  # fmt: skip


def greedy(model: torch.nn.Module, prompt: list[int], tokens: list[int]) -> bool:
    """Whether ``tokens`` are the model's own greedy output, by a plain forward over all of it."""
    logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return bool((logits.argmax(-1) == torch.tensor(tokens)).all())


def test_rows_by_direct_computation(base: RouterDataOptions, tmp_path: Path) -> None:
    generator = RouterDatasetBuilder(base)
    data = read_router_dataset(make_router_data(base, str(tmp_path / "data")))
    assert [row.prompt_id for row in data.rows] == [item.id for item in generator.prompts.items]
    assert [row.domain for row in data.rows] == ["a", "b"] * 6
    assert [arm.kind for arm in data.arms] == ["draft", "exit", "autoregressive"]
    assert len(data.times.arms) == 3
    target = generator.target.model
    models = [arm.model.model for arm in generator.arms if arm.model is not None]
    for row in data.rows:
        assert greedy(target, row.prompt_ids, row.greedy)
        assert row.outputs[2] == row.sampled
        out = target(input_ids=torch.tensor([row.prompt_ids]), output_hidden_states=True).hidden_states[-1][0, -1]
        torch.testing.assert_close(torch.tensor(row.embedding), out, rtol=1e-3, atol=1e-4)
        text, start = torch.tensor([row.prompt_ids + row.sampled]), len(row.prompt_ids) - 1
        for arm, model in enumerate(models):
            assert greedy(model, row.prompt_ids, row.outputs[arm])
            p, q = (generator.sampling(m(input_ids=text).logits[0, start:-1]) for m in (target, model))
            expected = torch.minimum(p, q).sum(-1)
            torch.testing.assert_close(torch.tensor(row.overlap[arm]), expected, rtol=1e-3, atol=1e-4)
        assert row.overlap[2] == []
        assert row.rouge == pytest.approx([generator.alignment(row.greedy, tokens) for tokens in row.outputs])


def test_alignment_is_rouge_l(base: RouterDataOptions) -> None:
    generator = RouterDatasetBuilder(base)
    encode = generator.tokenizer.encode
    assert generator.alignment(encode("the cat sat on"), encode("the dog sat on it")) == pytest.approx(
        2 / 3
    )  # 3 of 4, 5
    assert generator.alignment(encode("+-*"), encode("+-*")) == 1.0
    assert generator.alignment(encode("a b"), encode("c")) == 0.0


@pytest.mark.parametrize("sampling", [SamplingParams(1.0, 20), SamplingParams(1.0, None), SamplingParams(0.0)])
@pytest.mark.parametrize("draft_vocab", [50, 64, 70])
def test_overlap_of_rows_padded_apart(sampling: SamplingParams, draft_vocab: int) -> None:
    """Whether or not the rollouts keep their distributions, and whichever model has more rows."""
    target, draft = CausalLM(make("llama")), CausalLM(make("gpt2", vocab=draft_vocab))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(50, (n,), generator=generator).tolist() for n in (3, 9, 4)]
    uniforms = torch.rand(3, 6, generator=generator)
    rows = roll_out(target, prompts, list(uniforms), sampling, frozenset(range(50, 64)), batch_size=3)
    rows = [replace(row, tokens=row.tokens) for row in rows]
    found = overlap(target, draft, prompts, rows, sampling)
    again = overlap(target, draft, prompts, [replace(r, likely=None, probabilities=None) for r in rows], sampling)
    size = min(64, draft_vocab)
    for one, other, row, prompt in zip(found, again, rows, prompts, strict=True):
        text, start = torch.tensor([prompt + row.tokens[:-1]]), len(prompt) - 1
        p, q = (sampling(model.model(input_ids=text).logits[0, start:, :64]) for model in (target, draft))
        assert one == pytest.approx(torch.minimum(p[:, :size], q[:, :size]).sum(-1).tolist(), abs=1e-4)
        assert one == pytest.approx(other, abs=1e-4)


def test_encoder_decoders(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    for name, seed in (("target", 0), ("one", 1), ("two", 2)):
        make("t5", seed=seed, vocab=257).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "prompts.txt").write_text("first words\nsecond\n")
    names = [str(tmp_path / name) for name in ("target", "one", "two")]
    settings = RouterDataOptions(
        target=names[0], arms=(names[1], names[2], "autoregressive"), prompts=str(tmp_path / "prompts.txt"), chat=False,
        max_new_tokens=6,
    )  # fmt: skip
    data = read_router_dataset(make_router_data(settings, tmp_path / "data"))
    model = make("t5", seed=0, vocab=257)
    for row in data.rows:
        encoded = model.get_encoder()(input_ids=torch.tensor([row.prompt_ids])).last_hidden_state[0]
        torch.testing.assert_close(torch.tensor(row.embedding), encoded.mean(0), rtol=1e-3, atol=1e-4)
        text = torch.tensor([[0, *row.greedy[:-1]]])
        logits = model(input_ids=torch.tensor([row.prompt_ids]), decoder_input_ids=text).logits[0]
        assert logits.argmax(-1).tolist() == row.greedy
        assert [len(shares) for shares in row.overlap] == [len(row.sampled), len(row.sampled), 0]


def test_n_grams_as_an_arm(base: RouterDataOptions, tmp_path: Path) -> None:
    """Along the target's own text: drawn, it decides on the copies; greedy, the copies are what n-grams know of it."""
    settings = replace(base, arms=("ngram", "autoregressive"), max_new_tokens=40)
    data = read_router_dataset(make_router_data(settings, tmp_path / "data"))
    assert (data.arms[0].kind, data.arms[0].parameters) == ("ngram", 0)
    assert data.times.arms[0] == 0.0 < data.times.arms[1]
    for row in data.rows:
        shares, text = row.overlap[0], [*row.prompt_ids, *row.sampled]
        assert len(shares) == len(row.sampled)
        for place, share in enumerate(shares, len(row.prompt_ids)):
            match = defined(text[:place], 4)
            assert share == float(match is not None and text[match.position] == text[place])
    assert any(any(row.overlap[0]) for row in data.rows)
    speeds = rewards(data, "throughput")
    assert (speeds[:, 0] > 0).all()
    assert (speeds[:, 1] == 1).all()
    assert np.isfinite(rewards(data, "rouge")).all()
