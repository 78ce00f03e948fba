"""Copies of the text: alone, before a draft model's tokens, as a router's arm, and with a copy head."""

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.controllers import MAX_DRAFT
from specpilot.controllers.acceptance.copy_head import EVIDENCE, CopyPredictor
from specpilot.controllers.acceptance.ngram_index import MAX_NGRAM, NO_MATCH, NgramIndex, NgramMatch
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length import (
    Confidence,
    CumulativeConfidence,
    Entropy,
    Fallback,
    Fixed,
    LengthController,
    RateOptimal,
    Step,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.draft_sources import DraftSources, Plan
from specpilot.controllers.training_options import CopyTrainingOptions
from specpilot.data_gen.acceptance import make_answers
from specpilot.data_gen.options import AnswersDataOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters import prompt_lookup
from specpilot.infer.drafters.ngram import Ngram, TextCopies
from specpilot.infer.drafters.prompt_lookup import CopyRates, Match, PromptLookup
from specpilot.infer.loading.controllers import load_copies
from specpilot.models.loading.names import load_model, load_tokenizer
from specpilot.train.copies import copied_tokens, train_copies
from specpilot.train.export import export

from experiments.router.single_arm import SingleArm

from ..helpers.drafts import CHEAP, copy_head, predictor
from ..helpers.matches import match_by_definition
from ..helpers.tiny import make, pair_and_prompts
from ..helpers.training import differ, last_weights


@settings(max_examples=200)
@given(
    before=st.lists(st.integers(0, 2), max_size=12),
    text=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    start=st.integers(0, 30),
    longest=st.integers(1, 5),
    is_whole=st.booleans(),
)
def test_lookup_by_its_definition(before: list[int], text: list[int], start: int, longest: int, is_whole: bool) -> None:
    growing = text[:start]
    index = NgramIndex(growing, before, longest)
    lookup = PromptLookup(index, longest)
    growing += text[start:]
    if is_whole:  # features are read in between, for which the index is brought up to date
        index.match([0])
    predicted = lookup.extend()
    tokens = [*before, *text]
    expected = []
    for place in range(len(before) + len(text[:start]), len(tokens)):
        match = match_by_definition(tokens[:place], longest)
        if match is not None:
            expected.append((match.run, tokens[match.position] == tokens[place]))
    assert predicted == expected
    match = lookup.match()
    assert match == match_by_definition(tokens, longest)
    if match is not None:
        copied = lookup.copy(match, 7, frozenset([2]))
        whole = tokens[:]
        for token in copied:
            assert token == whole[match.position + len(whole) - len(tokens)]
            whole.append(token)
        assert copied.index(2) == len(copied) - 1 if 2 in copied else len(copied) == 7


def test_rates_follow_the_text() -> None:
    rates = CopyRates()
    for _ in range(50):
        rates.add(3, True)
        rates.add(5, False)
    assert (rates.after(3) > 0.9, rates.after(5) < 0.1) == (True, True)
    assert rates.recent.value == pytest.approx(0.5, abs=0.05)


def survivals(run: int, copies: int) -> list[float]:
    """Return the survival probabilities of copies after a match of ``run`` at the beginning of a text."""
    rates = CopyRates()
    return [*accumulate((rates.after(length) for length in range(run, run + copies)), mul, initial=1.0)]


def test_sources_learn_what_the_model_yields() -> None:
    sources = DraftSources(CostModel(0.2, 1.0, 0.05), model=True)
    for _ in range(60):
        sources.end_round(0, 4, 0)
    assert sources.plan([1.0]) == Plan(0, False)
    for _ in range(16):
        sources.end_round(0, 0, 0)
    assert sources.plan([1.0]) == Plan(0, True)  # a probe
    sources.end_round(0, 4, 0)
    for idle in range(1, 33):  # the next one comes after twice as many rounds
        sources.end_round(0, 0, 0)
        assert sources.plan([1.0]) == Plan(0, idle == 32)
    for _ in range(60):
        sources.end_round(0, 4, 4)
    assert sources.plan([1.0]) == Plan(0, True)
    accepted_before, below = sources.accepted.value, sources.rate.below * sources.rate.keep
    sources.end_round(3, 4, 2)  # the model's tokens were not looked at
    assert sources.accepted.value == accepted_before
    assert sources.rate.below - below == pytest.approx(sources.cost.round(7, 4))


def repetitive(n: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    piece = torch.randint(64, (n,), generator=generator).tolist()
    return [*piece, *torch.randint(64, (3,), generator=generator).tolist(), *piece]


@pytest.mark.parametrize("rule", [Confidence(0.9), CumulativeConfidence(0.9), Entropy(0.9), Fallback(0.9)])
def test_rules_steer_copies_as_certain_tokens(rule: LengthController) -> None:
    decoder = SpeculativeDecoder(make(), None, ngram=Ngram(), length=rule)
    generation = decoder.generate(repetitive(20, 1), max_new_tokens=30, temperature=0)
    longest = max(len(round.drafted) for round in generation.rounds)
    assert longest == (10 if isinstance(rule, Fallback) else 20)


class Matches(LengthController):
    """Continues every draft, and records the n-gram match of each observed token."""

    def __init__(self) -> None:
        self.matches: list[NgramMatch] = []

    def observe(self, step: Step) -> bool:
        self.matches.append(step.match())
        return True


def test_rules_see_the_matches_of_copied_tokens() -> None:
    rule, prompt = Matches(), repetitive(6, 1)
    decoder = SpeculativeDecoder(make(), None, ngram=Ngram(), length=rule)
    expected, text = list[NgramMatch](), [*prompt]
    for round in decoder.generate(prompt, max_new_tokens=30, temperature=0).rounds:
        drafted = round.drafted
        expected += [by_hand([*text, *drafted[:place]], drafted[place]) for place in range(len(drafted) - 1)]
        text += round.emitted
    assert rule.matches == expected != []


def test_the_length_controller_sees_the_models_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It also gets their n-gram matches after the copy. The draft equals the target, so its tokens are accepted."""
    observed, ended_rounds = list[tuple[int, int]](), list[tuple[int, int]]()
    monkeypatch.setattr(
        prompt_lookup, "PRIOR", (0.05, 0.9, 0.9, 0.9, 0.05, 0.05, 0.05)
    )  # copies end, the model goes on
    monkeypatch.setattr(
        Fixed, "observe", lambda self, s: bool(observed.append((s.index, s.match().matches))) or s.index < 2
    )
    monkeypatch.setattr(Fixed, "end_round", lambda self, *round: ended_rounds.append(round))
    decoder = SpeculativeDecoder(make(), make(), ngram=Ngram(4, CHEAP), length=Fixed(2))
    rounds = decoder.generate(repetitive(4, 1), max_new_tokens=100, temperature=0).rounds[1:]
    assert any(len(round.drafted) > 2 for round in rounds)
    assert ({index for index, _ in observed}, max(matches for _, matches in observed)) == ({1, 2}, 4)
    assert {*ended_rounds} <= {(1, 1), (2, 2)}
    assert 0 < len(ended_rounds) < len([round for round in rounds if round.drafted])


@pytest.mark.parametrize("tree", [None, "auto"])
def test_rounds_copy_if_the_length_controller_does_not_draft(tree: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is selected as the source in every round in which it can draft, but its controller never drafts."""
    asked, plan = list[bool](), DraftSources.plan

    def plan_model(self: DraftSources, survivals: Iterable[float], max_draft: int, *, measure: bool) -> Plan:
        return Plan(0, True) if max_draft else plan(self, survivals, 0)

    monkeypatch.setattr(DraftSources, "plan", plan_model)
    monkeypatch.setattr(RateOptimal, "start_round", lambda self: bool(asked.append(True)))
    length = RateOptimal(predictor(2.0), CHEAP)
    decoder = SpeculativeDecoder(make(), make(), ngram=Ngram(4, CHEAP), length=length, tree=tree)
    generation = decoder.generate(repetitive(20, 1), max_new_tokens=60, temperature=0)
    assert asked
    assert generation.stats.n_draft_forwards == 0 < generation.stats.n_drafted


@pytest.fixture(scope="module")
def plain() -> list[int]:
    decoder = SpeculativeDecoder.from_pretrained("tiny", None)
    return list(decoder.generate("def add(a, b):", max_new_tokens=24, temperature=0).tokens)


ARMS: dict[str, Any] = {"draft": ["tiny-draft", "ngram", "autoregressive"], "router": SingleArm(0, 3)}


@pytest.mark.parametrize(
    ("options", "drafts", "ngrams"),
    [
        ({"draft": "ngram"}, 0, [Ngram()]),
        ({"draft": "ngram:7", "cost": 0.3}, 0, [Ngram(7, CostModel.load(0.3))]),
        ({"draft": "ngram", "length": 5}, 0, [Ngram()]),
        ({"draft": "tiny-draft+ngram", "length": "confidence:0.4", "cost": 0.1}, 1, [Ngram(4, CostModel.load(0.1))]),
        ({"draft": "tiny-draft+ngram:2", "length": "tiny-lag-free", "cost": 0.2}, 1, [Ngram(2, CostModel.load(0.2))]),
        (ARMS | {"length": "tiny-lag-free", "cost": 0.2}, 0, [None, Ngram(cost=CostModel.load(0.2)), None]),
    ],
)
def test_ngram_drafts_by_name(
    options: dict[str, Any], drafts: int, ngrams: list[Ngram | None], plain: list[int]
) -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", **options)
    arms = decoder.setup.arms
    assert (len(decoder.drafts), [getattr(arm.drafter, "options", None) for arm in arms]) == (drafts, ngrams)
    assert isinstance(arms[0].length, RateOptimal) == (options.get("length") == "tiny-lag-free")
    assert decoder.generate("def add(a, b):", max_new_tokens=24, temperature=0).tokens == plain


tokens = st.integers(0, 3)
texts = st.lists(tokens, max_size=30)


def followers(text: list[int], length: int) -> list[int]:
    """Return the tokens after each earlier occurrence of the last ``length`` tokens."""
    end = text[len(text) - length :]
    return [text[i + length] for i in range(len(text) - length) if text[i : i + length] == end]


def by_hand(text: list[int], token: int) -> NgramMatch:
    lengths = [n for n in range(1, min(MAX_NGRAM, len(text)) + 1) if followers(text, n)]
    if not lengths:
        return NO_MATCH
    matches = followers(text, max(lengths))
    agrees = max((n for n in lengths if token in followers(text, n)), default=0)
    return NgramMatch(agrees, max(lengths), matches.count(token) / len(matches), matches[-1])


@settings(max_examples=200)
@given(
    prompt=texts,
    before=st.lists(tokens, max_size=6),
    longest=st.integers(MAX_NGRAM, 6),
    rounds=st.lists(st.tuples(st.lists(tokens, max_size=6), st.integers(0, 6), tokens, st.booleans()), max_size=6),
)
def test_drafts_come_and_go(
    prompt: list[int], before: list[int], longest: int, rounds: list[tuple[list[int], int, int, bool]]
) -> None:
    """Round by round: a draft is looked up token by token, or not at all, then some of it is kept and a token added.

    Tokens before the text and longer n-grams, which copies are looked up by, change no match.
    """
    text = [*prompt]
    index = NgramIndex(text, before, longest)
    for draft, accepted, bonus, is_copied in rounds:
        for k in range(1, len(draft) + 1) if is_copied else ():
            assert index.match(draft[:k]) == by_hand([*text, *draft[: k - 1]], draft[k - 1])
        text += [*draft[:accepted], bonus]
    assert index.match([0]) == by_hand(text, 0)


# Copy heads: their predictions, training on a target's texts, and copies steered by one


@given(seed=st.integers(0, 1000), vocab=st.integers(1, 40))
def test_predictions_are_the_heads(seed: int, vocab: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head, embedding = copy_head(seed), 3 * torch.randn(vocab, 8, generator=generator)
    evidence = torch.randn(6, EVIDENCE, generator=generator)
    tokens, last = torch.randint(vocab, (2, 6), generator=generator)
    predictor = CopyPredictor(head, embedding)
    predictions = [
        predictor.predict(*example) for example in zip(evidence.tolist(), tokens.tolist(), last.tolist(), strict=True)
    ]
    expected = torch.sigmoid(head(evidence, embedding[tokens], embedding[last]))
    assert predictions == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_embedding_that_does_not_fit() -> None:
    with pytest.raises(InputError, match="reads embeddings of size 8, but this target's embeddings have size 6; train"):
        CopyPredictor(copy_head(0), torch.zeros(3, 6))
    with pytest.raises(InputError, match="the target's output embedding, which is offloaded"):
        CopyPredictor(copy_head(0), torch.zeros(3, 8, device="meta"))


@given(
    accepts=st.lists(st.floats(0, 1), max_size=8),
    cost=st.builds(CostModel, st.floats(0.01, 2), st.just(1.0), st.floats(0, 1.5), st.floats(0, 0.5)),
    model=st.booleans(), joined=st.booleans(), max_draft=st.integers(0, MAX_DRAFT), idle=st.integers(0, 20),
)  # fmt: skip
def test_plans_are_the_best_of_all(
    accepts: list[float], cost: CostModel, model: bool, joined: bool, max_draft: int, idle: int
) -> None:
    """Plans are the best, although survivals are only read until a copy cannot pay."""
    sources = DraftSources(cost, model=model, joined=joined)
    for _ in range(idle):
        sources.end_round(0, 0, 0)
    survivals = [*accumulate(accepts, mul, initial=1.0)]
    rate, read = sources.rate.value, iter(survivals)
    start = rate * cost.t_draft_start
    price = start + rate * (cost.t_verify_token * sources.drafted.value + cost.t_draft * sources.forwards.value)
    probe = model and sources.idle >= 16 and sources.forwards.value > price

    def value(plan: Plan) -> float:
        if plan == Plan(0, False):
            return -price if probe else 0.0
        if (not plan.model and probe) or (plan.model and not (plan.copies < max_draft and (joined or not plan.copies))):
            return -np.inf
        copied = sum(survivals[1 : plan.copies + 1]) - rate * cost.t_verify_token * plan.copies
        return copied + (survivals[plan.copies] * sources.accepted.value - price if plan.model else -start)

    plans = [Plan(count, drafted) for count in range(len(survivals)) for drafted in (False, True)[: 1 + model]]
    best = max(map(value, plans))
    assert value(sources.plan(read, max_draft)) == pytest.approx(best, abs=1e-9)
    if 0.0 in accepts and cost.t_verify_token > 0:
        assert len([*read]) >= len(accepts) - accepts.index(0.0) - 1


class Listening(CopyPredictor):
    """Records the arguments of its predictions."""

    def __init__(self, vocab: int, hidden: int) -> None:
        super().__init__(copy_head(1, hidden), torch.zeros(vocab, hidden))
        self.inputs: list[list[float]] = []

    def predict(self, evidence: Sequence[float], token: int, last: int) -> float:
        self.inputs.append([*evidence, token, last])
        return 0.9


@pytest.mark.parametrize("model", [False, True], ids=["copies alone", "with a draft model"])
def test_training_sees_what_decoding_does(model: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copy of every round is a training example of the finished text, with the same evidence."""
    predictor, firsts = Listening(12, 8), []
    acceptance = TextCopies._acceptance

    def listened(text: TextCopies, match: Match, copied: list[int]) -> float:
        acceptances = acceptance(text, match, copied)
        if len(copied) == 1:
            firsts.append(predictor.inputs[-1])
        return acceptances

    monkeypatch.setattr(TextCopies, "_acceptance", listened)
    target, draft = make(vocab=12, seed=3), make(vocab=12, seed=4, layers=1) if model else None
    ngram = Ngram(cost=CostModel(0.1, 1.0, 0.05), predictor=predictor)
    decoder = SpeculativeDecoder(target, draft, ngram=ngram)
    prompt = [1, 5, 2, 7, 1, 5, 2, 7, 1, 5]
    output = decoder.generate(prompt, max_new_tokens=60, seed=5, top_k=None)
    examples = [[*copied.evidence, copied.token, copied.last] for copied in copied_tokens(prompt, [*output.tokens])]
    assert len(predictor.inputs) > len(firsts) > len(output.rounds) / 2
    assert all(any(first == pytest.approx(example) for example in examples) for first in firsts)


def test_copied_tokens_by_hand() -> None:
    """In the prompt and in the answer, 2 follows 1; the last time, 3 follows."""
    first, second, third = copied_tokens([1, 2, 4], [1, 2, 1, 3, 5])
    assert (first.token, first.last, first.accepted) == (2, 1, True)
    assert first.evidence[2:] == pytest.approx([1, 0, 0.25, 0.25, 1.0, 0, np.log(3)])
    assert (second.token, second.last, second.accepted) == (4, 2, False)
    assert second.evidence[2:] == pytest.approx([2, np.log(2), 0.5, 0.5, 1.0, 0, np.log(3)])
    assert second.rate < first.rate * 2
    assert (third.token, third.last, third.accepted) == (2, 1, False)
    assert third.evidence[7] == 1.0  # from the answer


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return texts of a target, and the target's pair."""
    folder = tmp_path_factory.mktemp("copies")
    paths = pair_and_prompts(folder, (f"one two {i} one two" for i in range(30)))
    del paths["draft"]
    for name, temperature in (("data", 1.0), ("greedy", 0.0)):
        make_answers(AnswersDataOptions(**paths, max_new_tokens=16, temperature=temperature), folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"width": 9}, {"dropout": 0.3}, {"weight_decay": 0.9}], ids=str)
def test_each_setting_changes_the_weights(change: dict[str, Any], work: Path, tmp_path: Path) -> None:
    runs = []
    for name, more in (("run", {}), ("other", change)):
        options = CopyTrainingOptions(
            **{"data": str(work / "data"), "width": 8, "batch_size": 8, "epochs": 3, "validation_fraction": 0.3,
               "threads": 1, "device": "cpu"} | more,
        )  # fmt: skip
        train_copies(options, output=tmp_path / name)
        runs.append(last_weights(tmp_path / name))
    assert differ(*runs)


def test_it_learns_where_copies_are_right(work: Path, tmp_path: Path) -> None:
    """Copies are right after some tokens only, which acceptance rates by match length cannot express."""
    settings = CopyTrainingOptions(
        data=(str(work / "data"), str(work / "greedy")), width=8, batch_size=37, epochs=12, lr=1e-2, dropout=0.0,
        validation_fraction=0.3, threads=1, device="cpu",
    )  # fmt: skip
    result = train_copies(settings, output=tmp_path / "run")
    assert result.metrics["kl"] < 0.9 * result.metrics["kl_rates"]
    assert result.metrics["auroc"] > result.metrics["auroc_rates"]
    folder = export(tmp_path / "run", tmp_path / "head")
    controller = load_controller(folder)
    assert controller.config.to_dict()["kind"] == "copy-head"
    assert len(controller.config.provenance.samplings) == 2
    assert 'copies="path/to/this/folder"' in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["tokens"] > 100
    for draft, length in (("ngram", {"cost": 0.2}), (f"{work / 'draft'}+ngram", {"length": 2})):
        decoder = SpeculativeDecoder.from_pretrained(work / "target", draft, copies=folder, **length)  # type: ignore[arg-type]
        (arm,) = decoder.setup.arms
        assert isinstance(arm.drafter.options.predictor, CopyPredictor)  # type: ignore[attr-defined]
        texts = decoder.generate(["one two 4 one two"] * 16, max_new_tokens=24, seed=0)  # not all repeat an n-gram
        assert sum(text.stats.n_drafted for text in texts) > 0
    other, tokenizer = load_model(str(work / "draft")), load_tokenizer(str(work / "target"))
    with pytest.raises(InputError, match=r"the controller was trained for target .*, but another target is given"):
        load_copies(folder, other, tokenizer)
    with pytest.warns(UserWarning, match="it may predict acceptance less well"):
        load_copies(folder, other, tokenizer, "tokenizer")
