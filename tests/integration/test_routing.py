"""Routers and early exits in the decoder: exact distributions, greedy text, idle drafts, arms refused by name."""

import json
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from specpilot.cli.main import main
from specpilot.common.errors import InputError
from specpilot.controllers.arms import Arm
from specpilot.controllers.checkpoints.checkpoint import save_controller
from specpilot.controllers.checkpoints.fingerprint import PairFingerprint, model_fingerprint, tokenizer_fingerprint
from specpilot.controllers.checkpoints.provenance import Provenance
from specpilot.controllers.length import CumulativeConfidence, Fixed, Heuristic
from specpilot.controllers.router import Router, RouterPolicy, policy
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.loading.routing import LoadedArm, load_arms
from specpilot.models import CausalLM, EarlyExit, LanguageModel, TextReader
from specpilot.models.loading.names import load_model, load_tokenizer

from ..helpers.drafts import EVEN, REPEATING
from ..helpers.enumeration import assert_same, decoder_distribution, target_distribution
from ..helpers.routing import ArmsInTurn, routed
from ..helpers.tiny import ALIBI, ARCHITECTURES, byte_tokenizer, make, save_pair


class RandomRouter(Router):
    """Chooses an arm uniformly at random."""

    def __init__(self, arms: int) -> None:
        self.arms = arms

    def weigh(self, embedding: torch.Tensor) -> list[float]:
        return [1 / self.arms] * self.arms


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])  # the lean forward, and transformers' own
@pytest.mark.parametrize("sampling", [SamplingParams(1.0, 2), SamplingParams(0.0)])
def test_distribution_under_a_random_router(architecture: str, sampling: SamplingParams) -> None:
    """Every outcome of every arm is enumerated with real caches. The early exit uses the target's cache."""
    sizes = {"vocab": 3, "hidden": 8, "context": 32}
    target = make(architecture, seed=3, layers=2, sharpness=6.0, **sizes).double()
    drafts = [make(architecture, seed=seed, layers=1, sharpness=6.0, **sizes).double() for seed in (1003, 1004)]
    lengths = [Fixed(2), CumulativeConfidence(0.35), Fixed(2), Fixed(0)]
    copies = LoadedArm(Arm("ngram", "ngram"), None, Fixed(20), Ngram(2, EVEN))
    decoder = routed(target, drafts, RandomRouter(5), lengths, copies)
    distribution = decoder_distribution(decoder, sampling, 4, REPEATING)
    assert_same(distribution, target_distribution(CausalLM(target), sampling, REPEATING))


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "bloom", "t5"])
def test_greedy_text_is_the_targets_whatever_the_arm(architecture: str) -> None:
    """The router reads the target's last state, or for an encoder-decoder the mean of the encoding."""
    target = make(architecture, seed=1, layers=3)
    drafts = [make(architecture, seed=seed, layers=1) for seed in (1, 2)]
    lengths = [Fixed(3), Heuristic(), Fixed(4), Fixed(0)][: 2 if architecture == "t5" else 4]
    router = ArmsInTurn(len(lengths))
    decoder = routed(target, drafts, router, lengths)
    plain = SpeculativeDecoder(target, None)
    for prompt in ([1, 2, 3], [9, 60, 33, 2, 7]):
        expected = plain.generate(prompt, max_new_tokens=20, temperature=0).tokens
        for arm in range(len(lengths)):
            generation = decoder.generate(prompt, max_new_tokens=20, temperature=0)
            assert (generation.arm, generation.tokens) == (arm, expected)
            state = (
                target.get_encoder()(input_ids=torch.tensor([prompt])).last_hidden_state[0].mean(0)
                if architecture == "t5"
                else target(input_ids=torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0, -1]
            )
            torch.testing.assert_close(router.embedding, state, rtol=1e-3, atol=1e-4)
            stats = generation.stats
            assert (stats.n_draft_forwards == 0) == (arm == 3)
            trimmed = stats.n_generated + stats.n_discarded
            assert stats.n_draft_forwards + stats.n_target_forwards == trimmed
    both = decoder.generate([[1, 2, 3], [4, 5]], max_new_tokens=5, temperature=0)
    assert [generation.arm for generation in both] == [0, 1]


def router_for(target: str, arms: Sequence[str]) -> tuple[RouterPolicy, policy.Config]:
    model, tokenizer = load_model(target), load_tokenizer(target)
    loaded = load_arms(arms, CausalLM(model), tokenizer, dtype="float32", device="cpu")
    pair = PairFingerprint(model_fingerprint(model), None, tokenizer_fingerprint(tokenizer))
    config = policy.Config(
        provenance=Provenance(target, None, pair, SamplingParams()), datasets=["d" * 64], hidden_size=32, width=16,
        arms=tuple(arm.arm for arm in loaded), reward="rouge", alpha=0.5, cost="parameters",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return RouterPolicy(32, len(arms), 16), config


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """Return folders of a target, a draft, and a router over the draft, an early exit and no draft."""
    folder = tmp_path_factory.mktemp("routed")
    target, draft = save_pair(folder)
    policy, config = router_for(target, [draft, "exit:1", "autoregressive"])
    save_controller(folder / "router", policy, config)
    return target, draft, str(folder / "router")


def test_routers_are_compared(saved: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Routers with and without own lengths are compared, and the printed command of the winner runs unchanged."""
    target, draft, router = saved
    routed = {"router": router, "draft": [draft, "exit:1", "autoregressive"]}
    decoders = {"routed": routed, "routed, 2 or 1": routed | {"length": ["2", "1", "none"]}}
    (tmp_path / "decoders.yaml").write_text(json.dumps(decoders))
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n")
    words = f"compare --target {target} --draft null --no-rules --prompts {tmp_path}/prompts.txt --max-new-tokens 6"
    words += f" --minutes 60 --decoders {tmp_path}/decoders.yaml --output {tmp_path}/out"
    assert main(words.split()) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report["decoders"]) == {"none", *decoders}
    for name in decoders:
        row = report["decoders"][name]
        assert row["clock"]["value"] > 0
        assert row["replay"] is None
        assert row["accepted"] is not None
    output = capsys.readouterr().out
    for command in report["commands"].values():
        assert command in output
        if command.startswith("specpilot generate"):
            assert main([*shlex.split(command)[1:], "--max-new-tokens", "2", "--stats"]) == 0
            assert ("arm: " in capsys.readouterr().err) == ("--router" in command)


def test_a_trained_router_by_name(saved: tuple[str, str, str]) -> None:
    target, draft, router = saved
    arms, prompt = [draft, "exit:1", "autoregressive"], "some words"
    decoder = SpeculativeDecoder.from_pretrained(target, router=router, length=["3", 2, "none"])
    assert decoder.routing is not None
    assert [arm.name for arm in decoder.routing.arms] == arms
    assert [arm.length.k for arm in decoder.setup.arms] == [3, 2, 0]  # type: ignore[attr-defined]
    expected = SpeculativeDecoder.from_pretrained(target).generate(prompt, max_new_tokens=16, temperature=0).tokens
    for options in ({}, {"sample_arm": True}, {"length": "cumulative-confidence:0.4"}, {"draft": arms}):
        decoder = SpeculativeDecoder.from_pretrained(target, router=router, **options)  # type: ignore[arg-type]
        generation = decoder.generate(prompt, max_new_tokens=16, temperature=0)
        assert generation.tokens == expected
        assert generation.arm in range(3)
    with pytest.warns(UserWarning, match="the router was trained under"):
        decoder.generate(prompt, max_new_tokens=2, temperature=0.3)
    decoder = SpeculativeDecoder.from_pretrained(target, router=router, draft_dtype="bfloat16")
    assert decoder.routing is not None
    dtypes = [model.model.dtype for model in decoder.routing.models]
    assert dtypes == [torch.bfloat16, torch.float32]  # the exit's layers are the target's
    assert decoder.generate(prompt, max_new_tokens=16, temperature=0).tokens == expected


@pytest.mark.parametrize("rule", ["token-wise", "invariant"])
@pytest.mark.parametrize("reward", ["throughput", "rouge"])
def test_a_router_for_another_rule_warns(rule: str, reward: str, tmp_path: Path) -> None:
    """The warning needs a reward that depends on the rule, and sampling: greedy drafts are accepted alike."""
    target, draft = save_pair(tmp_path)
    head, config = router_for(target, [draft, "exit:1", "autoregressive"])
    provenance = replace(config.provenance, verifier=rule)
    folder = save_controller(tmp_path / "router", head, replace(config, reward=reward, provenance=provenance))
    decoder = SpeculativeDecoder.from_pretrained(target, router=str(folder), length=2)
    other = "token-wise" if rule == "invariant" else "invariant"

    def messages(**options: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            decoder.generate("some words", max_new_tokens=2, **options)
        return [str(warning.message) for warning in caught if "verification rule" in str(warning.message)]

    assert messages(verifier=rule) == messages(verifier=other, temperature=0.0) == []
    expected = f"the router was trained for the verification rule {rule}, decoding uses {other}: "
    assert [message.startswith(expected) for message in messages(verifier=other)] == [True] * (reward == "throughput")
    seeded = messages(seed=3)  # by the rule invariant
    assert bool(seeded) == (reward == "throughput" and rule == "token-wise")


def test_mismatched_routers_are_refused(saved: tuple[str, str, str], tmp_path: Path) -> None:
    target, draft, router = saved
    arms = [draft, "exit:1", "autoregressive"]
    undrafted = {"router": RandomRouter(2), "draft": arms[1:], "draft_dtype": "bfloat16"}
    other, _ = save_pair(tmp_path, target_seed=5, draft_seed=6)
    make("llama", vocab=300, layers=1).save_pretrained(tmp_path / "wide")
    byte_tokenizer(extra=3).save_pretrained(tmp_path / "wide")
    wide = str(tmp_path / "wide")
    for options, words in (
        ({"draft": arms[:2]}, "^draft: arm number 3 is missing, but the router was trained with 'autoregressive'"),
        ({"draft": [draft, wide]}, rf"^arm '{wide}': target .* and draft .* do not share a tokenizer"),
        ({"target": other, "draft": arms}, "another target is given"),
        ({"length": [1, 2]}, "length: 2 for 3 arms"),
        ({"length": "oracle"}, rf"^arm '{draft}': length='oracle'"),
        ({"length": "tiny-head"}, rf"^arm '{draft}': the controller was trained for"),
        ({"tree": "2x1"}, "tree and router"),
        ({"router": RandomRouter(3)}, "has no names of arms"),
        ({"router": RandomRouter(2), "draft": arms}, "chooses between 2 arms, but 3 are given"),
        ({"router": RandomRouter(3), "draft": arms, "sample_arm": True}, "sample_arm"),
        ({"router": None, "length": [1, 2]}, "length: several"),
        (undrafted, "draft_dtype='bfloat16': no arm has a draft model"),
    ):
        with pytest.raises(InputError, match=words):
            SpeculativeDecoder.from_pretrained(**{"target": target, "router": router, **options})  # type: ignore[arg-type]


# Early exits against the model's own hidden states, and in the target's cache


TOKENS = [5, 3, 8, 13, 2, 60, 7]
NORMS = {"llama": "model.norm", "qwen": "model.norm", "gpt2": "transformer.ln_f", "bloom": "transformer.ln_f"}


def read(model: LanguageModel, tokens: list[int], *chunks: int) -> torch.Tensor:
    """Return logits (N, V) of ``tokens``, which are read in ``chunks``."""
    reader, text = TextReader.begin(model, tokens)
    with torch.inference_mode():
        return torch.cat([reader.read(part.tolist())[0] for part in torch.tensor(text).split(chunks or len(text))])


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *ALIBI])
def test_an_exit_is_layer_norm_and_head(architecture: str) -> None:
    model = make(architecture, layers=3)
    target = CausalLM(model)
    exit = EarlyExit(target, 2)
    exit_logits = read(exit, TOKENS, 4, 3)
    whole, text = TextReader.begin(target, TOKENS[:4])
    whole.read(text)
    beside = TextReader(exit, whole.cache, whole.text).read(TOKENS[4:])[0]  # in the target's cache
    torch.testing.assert_close(beside, exit_logits[4:], rtol=1e-4, atol=1e-4)
    ids = torch.tensor([TOKENS])
    if architecture in NORMS:
        with torch.inference_mode():
            hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[2]
            expected = model.get_output_embeddings()(model.get_submodule(NORMS[architecture])(hidden))
        torch.testing.assert_close(exit_logits, expected[0], rtol=1e-4, atol=1e-4)
    full = model(input_ids=ids).logits[0]  # the model itself is as it was
    assert not torch.allclose(exit_logits, full)
    torch.testing.assert_close(read(target, TOKENS), full, rtol=1e-4, atol=1e-4)
