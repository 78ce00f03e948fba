"""Routers: refused arms, the policy's sizes, checkpoints, and data compared with direct computation."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.arms import Arm, check_arms, parse_arm, shorten_names
from specpilot.controllers.router import PolicyRouter, RouterPolicy, policy
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen import builder
from specpilot.data_gen.options import RouterDataOptions
from specpilot.data_gen.router import RouterDatasetBuilder, make_router_data
from specpilot.data_gen.router_dataset import read_router_dataset, rewards
from specpilot.models import CausalLM, EarlyExit, EncoderDecoder

from experiments.router.single_arm import SingleArm

from ..helpers.controllers import CONFIGS
from ..helpers.matches import match_by_definition
from ..helpers.refusals import refused
from ..helpers.tiny import byte_tokenizer, make, save_pair
from ..helpers.training import accepted

ARMS = (
    Arm("draft", "small", "a" * 64, parameters=700),
    Arm("draft", "large", "b" * 64, parameters=7000),
    Arm("exit", "exit:2", layer=2, parameters=900),
    Arm("autoregressive", "autoregressive", parameters=12000),
)


def make_policy(seed: int = 0, hidden_size: int = 8, arms: int = 4, width: int = 16) -> RouterPolicy:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return RouterPolicy(hidden_size, arms, width)


def test_the_policy_is_the_papers() -> None:
    policy = RouterPolicy(384, 5)
    sizes = [tuple(parameter.shape) for parameter in policy.parameters()]
    assert sizes == [(512, 384), (512,), (512, 512), (512,), (5, 512), (5,)]
    x = torch.randn(3, 384)
    expected = policy.out(torch.tanh(policy.second(torch.tanh(policy.first(x)))))
    torch.testing.assert_close(policy(x), expected)


def test_greedy_and_sampled() -> None:
    policy, x = make_policy(), torch.randn(8)
    probabilities = policy(x).softmax(-1).tolist()
    assert PolicyRouter(policy, sample=True).weigh(x) == pytest.approx(probabilities)
    best = probabilities.index(max(probabilities))
    assert PolicyRouter(policy).weigh(x) == [float(i == best) for i in range(4)]
    assert SingleArm(2, 4).weigh(x) == [0, 0, 1, 0]


def test_arms_as_users_write_them() -> None:
    """A draft may be a folder named exit, and its folder may have moved."""
    parsed = [*map(parse_arm, ("tiny-draft", "autoregressive", "exit:3", "exit"))]
    assert parsed == [("draft", 0), ("autoregressive", 0), ("exit", 3), ("draft", 0)]
    check_arms(ARMS, [replace(arm, name=f"elsewhere/{arm.name}") for arm in ARMS])
    moved = shorten_names([Arm("draft", name) for name in ("/a/draft", "/b/draft", "/b/c/small", "c/draft")])
    assert [arm.name for arm in moved] == ["a/draft", "b/draft", "small", "c/draft"]


REFUSED: list[tuple[Callable[[], object], str]] = [
    *((partial(parse_arm, wrong), "as in 'exit:2'") for wrong in ("exit:", "exit:0", "exit:-1", "exit:x")),
    (lambda: SingleArm(4, 4), "arm=4:"),
    *((partial(EarlyExit, CausalLM(make()), layer), "exit:.*2 layers; choose one from 1 to 1") for layer in (0, 2)),
    (lambda: EarlyExit(EncoderDecoder(make("t5")), 1), "encoder-decoder"),
    (lambda: replace(CONFIGS["router"], arms=(ARMS[0], ARMS[0])), "'small': named twice"),
    (lambda: RouterPolicy(8, 1), "arms=1:"),
    *(
        (partial(check_arms, ARMS, arm_text), f"^draft: arm number {words}")
        for arm_text, words in (
            (ARMS[:3], "4 is missing, but the router was trained with 'autoregressive'; give the router's arms"),
            (ARMS[1:], "1 is 'large', but the router was trained with 'small'"),
            ((replace(ARMS[0], fingerprint="c" * 64), *ARMS[1:]), "1 is 'small' of other weights or configuration"),
            ((*ARMS, Arm("draft", "huge", "e" * 64)), "5 is 'huge', but the router has none"),
            ((*ARMS[:2], Arm("exit", "exit:1", layer=1), ARMS[3]), "3 is 'exit:1', but .* trained with 'exit:2'"),
        )
    ),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_unusable_arms_are_refused(make: Callable[[], object], words: str) -> None:
    with refused(words):
        make()


# Trained routers: settings of the training, and what the card says


def test_settings_that_differ_from_those_of_the_training() -> None:
    trained = PolicyRouter(make_policy(), sampling=SamplingParams(0.7, 20), verifier="token-wise")
    assert (trained.arms, trained.policy.training) == (4, False)
    with pytest.warns(UserWarning, match=r"trained under .*0\.7.*, decoding uses .*0\.8"):
        trained.check_sampling(SamplingParams(0.8, 20))
    with pytest.warns(UserWarning, match="the verification rule token-wise, decoding uses invariant"):
        trained.check_verifier("invariant")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained.check_sampling(SamplingParams(0.7, 20))
        trained.check_verifier("block")
        unknown = PolicyRouter(make_policy())
        unknown.check_sampling(SamplingParams(0.8, 20))
        unknown.check_verifier("invariant")


def test_policies_too_small() -> None:
    assert (RouterPolicy(1, 2, 1).hidden_size, RouterPolicy(1, 2, 1).arms, RouterPolicy(1, 2, 1).width) == (1, 2, 1)
    for sizes, words in (((0, 2, 1), "hidden_size=0:"), ((1, 1, 1), "arms=1:"), ((1, 2, 0), "width=0:")):
        with pytest.raises(InputError, match=f"^{words} must be at least"):
            RouterPolicy(*sizes)


def test_a_scale_is_folded_into_the_policy() -> None:
    policy, scale, x = make_policy(), torch.rand(8) + 0.5, torch.randn(3, 8)
    expected = policy(x / scale)
    policy.absorb(scale)
    torch.testing.assert_close(policy(x), expected)
    assert policy.first.weight.requires_grad
    half = PolicyRouter(make_policy().double())
    assert half.probabilities(x[0]) == pytest.approx(half.policy(x[0].double()).softmax(-1).tolist())


def test_rows_of_the_card() -> None:
    config = CONFIGS["router"]
    assert isinstance(config, policy.Config)
    assert config.usage() == 'target="org/target", router="path/to/this/folder"'
    assert config.rows() == {
        "arms, in the order of the outputs": "`org/draft` (draft), `exit:2` (exit), `autoregressive` (autoregressive)",
        "policy": "8 → 16 → 16 → 3, tanh",
        "reward": "0.5·ROUGE-L + 0.5·cost, by parameters (eq. 2)",
    }
    by_speed = replace(config, reward="throughput")
    assert by_speed.rows()["reward"] == "expected speed-up by the cost model"
    assert (config.verifier, by_speed.verifier) == (None, "token-wise")
    for change in ({"hidden_size": 0}, {"width": 0}, {"alpha": 1.5}, {"alpha": -0.1}, {"width": 10**9}):
        with pytest.raises(InputError, match=f"{next(iter(change))}="):
            replace(config, **change)
    module = replace(config, width=5).module()
    assert (module.hidden_size, module.arms, module.width) == (8, 3, 5)


def test_the_models_of_a_router_are_checked() -> None:
    """The check is exact, or compares the tokenizer and the kinds of the arms and warns of other models."""
    config = CONFIGS["router"]
    assert isinstance(config, policy.Config)
    target, tokenizer = config.provenance.fingerprint.target, config.provenance.fingerprint.tokenizer
    other = (replace(config.arms[0], fingerprint="9" * 64), *config.arms[1:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.check(target, tokenizer, config.arms)
        config.check(target, tokenizer, other, "tokenizer")
    refusals: list[tuple[tuple[Any, ...], str]] = [
        (("8" * 64, tokenizer, config.arms), "another target is given"),
        ((target, "8" * 64, config.arms, "tokenizer"), "another tokenizer is given"),
        ((target, tokenizer, other), "arm number 1"),
        ((target, tokenizer, config.arms[::-1], "tokenizer"), "arm number 1"),
        ((target, tokenizer, config.arms, "no"), "pair_check='no'"),
    ]
    for arguments, words in refusals:
        with pytest.raises(InputError, match=words):
            config.check(*arguments)
    with pytest.warns(UserWarning, match="another target is given"):
        config.check("8" * 64, tokenizer, config.arms, "tokenizer")


# Router data: embeddings, overlaps and scores against direct computation


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
    """Return true if ``tokens`` are the model's greedy output, by a plain forward over all of it."""
    logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return bool((logits.argmax(-1) == torch.tensor(tokens)).all())


def test_a_target_that_answers_every_prompt_with_nothing(
    base: RouterDataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty answers are refused when a large shard is made, and for smaller shards when a router is trained."""
    monkeypatch.setattr(builder, "model_stop_tokens", lambda *_: frozenset(range(257)))
    with refused(r"the answers to 8 prompts are all empty; give prompts in the form .*--chat or --no-chat", "target="):
        make_router_data(replace(base, shard_size=8), tmp_path / "data")
    folder = make_router_data(base, tmp_path / "small shards")
    with refused("the target's answers to 12 prompts are all empty; remove the folder", str(folder)):
        read_router_dataset(folder)


@pytest.mark.parametrize(
    ("top_k", "verifier"), [(20, "token-wise"), (None, "token-wise"), (20, "invariant"), (None, "invariant")]
)
def test_rows_by_direct_computation(top_k: int | None, verifier: Any, base: RouterDataOptions, tmp_path: Path) -> None:
    """The labels are right with and without the target's distributions in the rollouts."""
    base = replace(base, top_k=top_k, verifier=verifier)
    generator = RouterDatasetBuilder(base)
    data = read_router_dataset(make_router_data(base, str(tmp_path / "data")))
    assert [row.prompt_id for row in data.rows] == [item.id for item in generator.prompts.items]
    assert [row.domain for row in data.rows] == ["a", "b"] * 6
    assert [arm.kind for arm in data.arms] == ["draft", "exit", "autoregressive"]
    assert data.manifest.verifier == verifier
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
            each = [accepted(p, q, torch.full((len(p), 1), y), verifier) for y in range(p.shape[1])]
            expected = (torch.stack(each, -1) * q).nan_to_num().sum(-1)
            torch.testing.assert_close(torch.tensor(row.overlap[arm]), expected, rtol=1e-3, atol=1e-4)
        assert row.overlap[2] == []
        assert row.rouge == pytest.approx([generator.alignment(row.greedy, tokens) for tokens in row.outputs])


def test_alignment_is_rouge_l(base: RouterDataOptions) -> None:
    generator = RouterDatasetBuilder(base)
    encode = generator.tokenizer.encode
    cat, dog = encode("the cat sat on"), encode("the dog sat on it")
    assert generator.alignment(cat, dog) == pytest.approx(2 / 3)  # 3 of 4, 5
    assert generator.alignment(encode("+-*"), encode("+-*")) == 1.0
    assert generator.alignment(encode("a b"), encode("c")) == 0.0


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
    """Copies are labelled by the target's sampled text.

    The output of the arm is the copies that equal the greedy text.
    """
    settings = replace(base, arms=("ngram", "autoregressive"), max_new_tokens=40)
    data = read_router_dataset(make_router_data(settings, tmp_path / "data"))
    assert (data.arms[0].kind, data.arms[0].parameters) == ("ngram", 0)
    assert data.times.arms[0] == 0.0 < data.times.arms[1]
    for row in data.rows:
        shares, text = row.overlap[0], [*row.prompt_ids, *row.sampled]
        assert len(shares) == len(row.sampled)
        for place, share in enumerate(shares, len(row.prompt_ids)):
            match = match_by_definition(text[:place], 4)
            assert share == float(match is not None and text[match.position] == text[place])
    assert any(any(row.overlap[0]) for row in data.rows)
    speeds = rewards(data, "throughput")
    assert (speeds[:, 0] > 0).all()
    assert (speeds[:, 1] == 1).all()
    assert np.isfinite(rewards(data, "rouge")).all()
