"""One seed, one text: what is sampled with a seed depends on the seed and the target alone, token for token.

In double precision, so that no two tokens are nearly equally good. The texts are those of the same target without
drafts, for every way to draft and every interface.
"""

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from specpilot.checkpoints import FOLDER
from specpilot.common.errors import InputError
from specpilot.controllers.acceptance.calibration import Calibration
from specpilot.controllers.checkpoints.checkpoint import load_controller, save_controller
from specpilot.controllers.length import Fixed
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.shared_noise import position_key, scores, seed_key
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.build import Setup
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.options import DecodingOptions
from specpilot.infer.plan import resolve

from ..helpers.architectures import pair
from ..helpers.drafts import CHEAP, PROMPTS, options_of, real
from ..helpers.routing import ArmsInTurn, routed
from ..helpers.serving import serving
from ..helpers.tiny import byte_tokenizer, make

NEW = 20
SAMPLINGS = [
    SamplingParams(1.0, None), SamplingParams(0.7, 8), SamplingParams(1.0, None, 0.9), SamplingParams(1.0, 5, 0.8),
]  # fmt: skip
MODEL = [
    "1", "3", "cumulative confidence", "some rounds", "spec-infer 2x2x1", "mcss 3x2x1", "auto", "auto, adapting",
    "auto by confidence", "copies or 3", "auto or copies",
]  # fmt: skip
WAYS = [
    *(("model", "llama", way) for way in MODEL),
    *(("model", name, way) for name in ("gpt2", "gemma3", "t5") for way in ("3", "copies or 2")),
    *(("model", name, "3") for name in ("qwen3-padded-target", "qwen3-padded-draft", "bloom")),
    *(("none", name, "copies") for name in ("llama", "t5")),
    *(("trimmed", "llama", way) for way in ("3", "spec-infer 2x2")),
    *((kind, "llama", way) for kind in ("states", "eagle3") for way in ("3", "mcss 2x1", "auto")),
]


@cache
def models(draft: str, architecture: str) -> tuple[Any, Any]:
    with TemporaryDirectory() as folder:
        return tuple(
            deepcopy(model).double() if isinstance(model, torch.nn.Module) else model
            for model in real(draft, architecture, Path(folder))
        )


@cache
def texts(architecture: str, sampling: SamplingParams) -> list[list[int]]:
    """Return two texts of each prompt, without drafts."""
    generations = SpeculativeDecoder(deepcopy(pair(architecture)[0]).double(), None).generate(
        [*PROMPTS, *PROMPTS], max_new_tokens=NEW, sampling=sampling, seed=7
    )
    assert len({tuple(generation.tokens) for generation in generations}) == len(generations)
    return [generation.tokens for generation in generations]


@pytest.mark.parametrize(("draft", "architecture", "way"), WAYS)
def test_whatever_is_drafted(draft: str, architecture: str, way: str) -> None:
    """The texts are decoded together, and one of them alone."""
    options = options_of(way) | {"verifier": "auto"}
    decoder = SpeculativeDecoder(*models(draft, architecture), **options)
    drafted = accepted = 0
    for sampling in SAMPLINGS:
        settings: dict[str, Any] = {"max_new_tokens": NEW, "sampling": sampling}
        together = decoder.generate([*PROMPTS, *PROMPTS], seed=7, **settings)
        assert [generation.tokens for generation in together] == texts(architecture, sampling)
        assert {generation.verifier for generation in together} == {"invariant"}
        single = decoder.generate(PROMPTS[1], seed=together[5].seed, **settings)
        assert single.tokens == together[5].tokens
        drafted += sum(generation.stats.n_drafted for generation in together)
        accepted += sum(generation.stats.n_accepted for generation in together)
    assert 0 < accepted < drafted or (draft == "eagle3" and drafted)


def included(**options: Any) -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", dtype="float64", **options)


SIXTEEN: dict[str, Any] = {"max_new_tokens": NEW, "sampling": SAMPLINGS[1], "seed": 11}


@cache
def sixteen() -> tuple[list[list[int]], list[list[int]]]:
    """Return sixteen prompts, and their texts by the included target without drafts, each decoded alone."""
    decoder = included(length="none")
    rows = load_prompts("builtin", split="test")[:16]
    prompts = [row.encode(decoder.tokenizer, chat=True, system=None) for row in rows]
    seeds = [generation.seed for generation in decoder.generate(prompts, **SIXTEEN | {"max_new_tokens": 1})]
    generations = [decoder.generate(x, **SIXTEEN | {"seed": seed}) for x, seed in zip(prompts, seeds, strict=True)]
    return prompts, [generation.tokens for generation in generations]


def test_sixteen_at_once_with_drafts_of_each_length() -> None:
    prompts, texts_alone = sixteen()
    decoder = included(length=1)
    for length in range(1, 9):
        assert [generation.tokens for generation in decoder.generate(prompts, length=length, **SIXTEEN)] == texts_alone


@pytest.mark.parametrize(
    "options",
    [
        {"length": "tiny-lag-free", "cost": 0.1}, {"length": "tiny-head", "threshold": 0.7},
        {"length": "online-confidence", "cost": 0.1}, {"length": "tiny-lag-free", "cost": 0.1, "tree": "auto"},
        {"draft": "tiny-draft+ngram", "length": "tiny-lag-free", "cost": 0.1, "adapt": True}, {"tree": "2x2x1"}, {},
    ],
    ids=str,
)  # fmt: skip
def test_sixteen_at_once_with_the_included_controllers(options: dict[str, Any]) -> None:
    prompts, texts_alone = sixteen()
    draft = options.get("draft", "tiny-draft")
    decoder = SpeculativeDecoder.from_pretrained("tiny", dtype="float64", **options | {"draft": draft})
    generations = decoder.generate(prompts, **SIXTEEN)
    assert [generation.tokens for generation in generations] == texts_alone
    assert sum(generation.stats.n_accepted for generation in generations) > 0


def is_near_tie(model: Any, text: list[int], tokens: list[int], sampling: SamplingParams, seed: int) -> bool:
    """Return true if in double precision log p + g of two tokens after ``text`` are the largest, and nearly equal."""
    with torch.inference_mode():
        logits = deepcopy(model).double()(torch.tensor([text])).logits[0, -1:]
    p = sampling(logits)
    values = scores(p, None, torch.tensor([position_key(seed_key(seed), len(text))]))[0].log()
    return float(values.max() - values[tokens].min()) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "included"])
def test_texts_differ_only_at_near_ties_in_single_precision(name: str) -> None:
    """At least 99.9 % of the tokens up to the first difference of a text are those without drafts."""
    sampling = SamplingParams(1.0, 50)
    plain = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=3)
    target, draft = (plain.target.model, plain.drafts[0].model) if name == "included" else pair(name)
    prompts = PROMPTS * 8
    if name == "included":
        prompts = [
            row.encode(plain.tokenizer, chat=True, system=None) for row in load_prompts("builtin", split="test")[:32]
        ]
    settings: dict[str, Any] = {"max_new_tokens": 40, "sampling": sampling, "seed": 7}
    expected = SpeculativeDecoder(target, None).generate(prompts, **settings)
    same = differences = 0
    for options in ({"length": 3}, {"length": 6}, {"tree": "3x2x1"}):
        decoder = SpeculativeDecoder(target, draft, **options)
        for together in (True, False):
            generations = (
                decoder.generate(prompts, **settings)
                if together
                else [decoder.generate(x.prompt_tokens, **settings | {"seed": x.seed}) for x in expected]
            )
            for generation, reference in zip(generations, expected, strict=True):
                pairs = zip(generation.tokens, reference.tokens, strict=False)
                at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                same += len(reference.tokens) if at is None else at
                if at is not None:
                    differences += 1
                    assert reference.seed is not None
                    text = [*reference.prompt_tokens, *reference.tokens[:at]]
                    assert is_near_tie(
                        target, text, [generation.tokens[at], reference.tokens[at]], sampling, reference.seed
                    )
    print(f"{name}: {differences} differences after {same} tokens")
    assert same > 2000
    assert differences <= same / 1000


def test_of_a_routers_arms() -> None:
    target, draft = models("model", "llama")
    decoder = routed(target, [draft, deepcopy(draft)], ArmsInTurn(4), [Fixed(2), Fixed(5), Fixed(1), Fixed(0)])
    generations = decoder.generate([*PROMPTS, *PROMPTS], max_new_tokens=NEW, sampling=SAMPLINGS[0], seed=7)
    assert [generation.tokens for generation in generations] == texts("llama", SAMPLINGS[0])
    assert len({generation.arm for generation in generations}) == 4


def decoders() -> tuple[SpeculativeDecoder, SpeculativeDecoder]:
    """Return decoders with drafts and without, for texts of bytes."""
    target, draft = (make(vocab=300, layers=layers, seed=1).double() for layers in (2, 1))
    tokenizer = byte_tokenizer()
    with_drafts = SpeculativeDecoder(target, draft, tokenizer, length=3, ngram=Ngram(2, CHEAP))
    return with_drafts, SpeculativeDecoder(target, None, tokenizer)


SETTINGS: dict[str, Any] = {"max_new_tokens": 24, "temperature": 1.0, "top_k": None, "chat": False}


def test_streams_samples_and_ids_of_the_same_text() -> None:
    drafting, plain = decoders()
    assert drafting.tokenizer is not None
    expected = plain.generate("to be or", seed=3, n=3, **SETTINGS)
    assert [generation.tokens for generation in drafting.generate("to be or", seed=3, n=3, **SETTINGS)] == [
        generation.tokens for generation in expected
    ]
    assert len({tuple(generation.tokens) for generation in expected}) == 3
    assert "".join(drafting.stream("to be or", seed=3, **SETTINGS)) == expected[0].text
    assert drafting.generate(drafting.tokenizer.encode("to be or"), seed=3, **SETTINGS).tokens == expected[0].tokens


def test_custom_generate_by_the_seed_of_torch() -> None:
    generations = []
    for decoder in decoders():
        torch.manual_seed(5)
        model = decoder.target.model
        ids = torch.tensor([[*b"to be or"]])
        settings: dict[str, Any] = {"max_new_tokens": 24, "do_sample": True, "top_k": 0, "temperature": 0.9}
        generations.append(model.generate(ids, custom_generate=decoder, **settings).tolist())
    assert generations[0] == generations[1]


def test_requests_of_a_server() -> None:
    drafting, plain = decoders()
    expected = plain.generate("to be or", seed=3, **SETTINGS).text
    question = {"prompt": "to be or", "max_tokens": 24, "temperature": 1.0, "top_k": -1, "seed": 3}
    with serving(drafting) as (_, address):
        for more in ({}, {"speculation": {"length": "5"}}, {"speculation": {"length": "none"}}):
            body = json.dumps(question | more).encode()
            request = Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
            with urlopen(request) as answer:
                assert json.load(answer)["choices"][0]["text"] == expected


def test_a_server_returns_the_seed_of_each_text() -> None:
    drafting, _ = decoders()
    question: dict[str, Any] = {"prompt": "to be or", "max_tokens": 24, "temperature": 1.0, "top_k": -1}

    def ask(address: str, **fields: Any) -> bytes:
        body = json.dumps(question | fields).encode()
        request = Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
        with urlopen(request) as answer:
            content: bytes = answer.read()
        return content

    with serving(drafting) as (_, address):
        choices = json.loads(ask(address, seed=3, n=2))["choices"]
        assert choices[0]["seed"] == 3
        assert choices[1]["text"] != choices[0]["text"]
        for choice in choices:
            assert choice["verifier"] == "invariant"
            assert json.loads(ask(address, seed=choice["seed"]))["choices"][0] == choice | {"index": 0}
        (unseeded,) = json.loads(ask(address))["choices"]
        assert unseeded["verifier"] == "token-wise"
        again = drafting.generate("to be or", seed=unseeded["seed"], verifier="token-wise", **SETTINGS)
        assert again.text == unseeded["text"]
        lines = ask(address, seed=3, stream=True).decode().split("\n\n")
        chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines if line.startswith("data: {")]
        assert [chunk.get("seed") for chunk in chunks] == [None] * (len(chunks) - 1) + [3]
        assert chunks[-1]["verifier"] == "invariant"


def test_without_a_seed_every_text_has_another() -> None:
    drafting, _ = decoders()
    generations = [drafting.generate("to be or", **SETTINGS) for _ in range(4)]
    assert (
        len({generation.seed for generation in generations})
        == len({tuple(generation.tokens) for generation in generations})
        == 4
    )
    assert {generation.verifier for generation in generations} == {"token-wise"}
    again = drafting.generate("to be or", seed=generations[0].seed, verifier="token-wise", **SETTINGS)
    assert again.tokens == generations[0].tokens


def test_the_rule_that_is_named_is_used() -> None:
    drafting, _ = decoders()
    for verifier in ("token-wise", "block", "invariant"):
        assert drafting.generate("to be or", seed=3, verifier=verifier, **SETTINGS).verifier == verifier
    assert drafting.generate("to be or", seed=3, temperature=0.0).verifier == "token-wise"  # the text is the same
    assert drafting.generate("to be or", seed=3, temperature=0.0, verifier="invariant").verifier == "invariant"


@pytest.mark.parametrize("way", ["3", "cumulative confidence", "mcss 3x2x1", "auto by confidence", "copies or 3"])
def test_texts_do_not_depend_on_the_exponent_of_the_draft(way: str) -> None:
    """The draft proposes other tokens, and the target chooses the same."""
    rounds = []
    for exponent in (None, 0.3, 3.0):
        options = options_of(way) | {"verifier": "auto", "draft_exponent": exponent}
        decoder = SpeculativeDecoder(*models("model", "llama"), **options)
        generations = decoder.generate([*PROMPTS, *PROMPTS], max_new_tokens=NEW, sampling=SAMPLINGS[0], seed=7)
        assert [generation.tokens for generation in generations] == texts("llama", SAMPLINGS[0])
        rounds.append([generation.rounds for generation in generations])
    assert rounds[0] != rounds[1] != rounds[2] != rounds[0]


def save_head(folder: Path, exponent: float) -> str:
    """Save the included head with an exponent of the draft; the path of the folder."""
    trained = load_controller(FOLDER / "tiny-head")
    calibration = Calibration(1.0, 0.0, "platt", draft_exponent=exponent)
    save_controller(folder, trained.head, replace(trained.config, calibration=calibration), overwrite=True)
    return str(folder)


def exponents_of(setup: Setup) -> list[float]:
    return [arm.draft_exponent for arm in setup.arms]


@pytest.mark.parametrize("cost", [None, 0.2])
def test_the_exponent_of_the_draft_is_that_of_the_controller(tmp_path: Path, cost: float | None) -> None:
    """The option replaces the exponent, and rules other than invariant use none."""
    options = DecodingOptions(length=save_head(tmp_path / "head", 1.4), cost=cost)
    decoder = SpeculativeDecoder.from_options(options)
    assert exponents_of(decoder.setup) == [1]
    setup = decoder.setup_for(seed=0)
    assert exponents_of(setup) == [1.4]
    assert "the draft's probabilities to the power 1.4" in setup.plan.describe()
    assert exponents_of(decoder.setup_for(seed=0, verifier="block")) == [1]
    assert exponents_of(decoder.setup_for(seed=0, length="3")) == [1]
    replaced = SpeculativeDecoder.from_options(replace(options, draft_exponent=0.5)).setup_for(seed=0)
    assert exponents_of(replaced) == [0.5]
    assert "to the power 0.5" in replaced.plan.describe()
    with pytest.raises(InputError, match="draft_exponent=2: only for verifier='invariant'"):
        resolve(DecodingOptions(verifier="block", draft_exponent=2))
    with pytest.raises(InputError, match="draft_exponent=2: there is no draft model"):
        resolve(DecodingOptions(draft=None, draft_exponent=2))


def test_the_exponent_is_loaded_with_the_controller(tmp_path: Path) -> None:
    """Files that change later have no effect until the controller is loaded again."""
    name = save_head(tmp_path / "head", 1.4)
    decoder = SpeculativeDecoder.from_options(DecodingOptions(length=name))
    save_head(tmp_path / "head", 1.6)
    assert exponents_of(decoder.setup_for(seed=0)) == [1.4]
    loaded = decoder.load_length(name)
    rmtree(name)
    assert exponents_of(decoder.setup_for(verifier="invariant")) == [1.4]
    decoder.use_length(loaded)
    assert exponents_of(decoder.setup_for(seed=0)) == [1.6]
    assert exponents_of(decoder.setup_for(length=loaded, seed=0)) == [1.6]


def test_each_arm_of_a_router_has_the_exponent_of_its_controller(tmp_path: Path) -> None:
    head = save_head(tmp_path / "head", 1.4)
    decoder = SpeculativeDecoder.from_pretrained(
        "tiny", ["tiny-draft", "exit:2"], router=ArmsInTurn(2), length=[head, "3"]
    )
    assert exponents_of(decoder.setup_for(seed=0)) == [1.4, 1]
    request = decoder.new_request([1, 2, 3], SamplingParams(0.5), 4, 0, setup=decoder.setup_for(seed=0))
    for arm, temperature in ((0, 0.5 / 1.4), (1, 0.5)):
        request.begin([1, 2, 3])
        request.choose(arm)
        assert request.draft_sampling.temperature == pytest.approx(temperature)


def test_the_plan_says_which_rule_and_why() -> None:
    drafting, _ = decoders()
    assert "token-wise" in drafting.plan.describe()
    assert "with a seed and a temperature above 0 it is invariant" in drafting.plan.describe()
    assert "verification: invariant" in drafting.setup_for(seed=0).plan.describe()


@pytest.mark.parametrize("rule", ["mtad", "mtjd"])
def test_rules_that_choose_the_text_themselves_are_not_replaced(rule: str) -> None:
    target, draft = (make(vocab=300, layers=layers, seed=1) for layers in (2, 1))
    decoder = SpeculativeDecoder(target, draft if rule == "mtad" else None, byte_tokenizer(), length=2, verifier=rule)
    assert decoder.generate("to be", seed=3, max_new_tokens=6).verifier == rule
    with pytest.raises(InputError, match="verifier"):
        decoder.generate("to be", seed=3, verifier="nonsense")
