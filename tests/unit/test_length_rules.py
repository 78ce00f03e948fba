"""Rules without training, and rules of users: formulas, learned values, and exact distributions."""

import math
import sys
from collections.abc import Callable
from copy import copy, deepcopy
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.cli.main import main
from specpilot.common.errors import InputError
from specpilot.controllers.length import (
    MAX_DRAFT,
    AcceptanceLength,
    AdaptiveLength,
    Confidence,
    CumulativeConfidence,
    Entropy,
    Fallback,
    Heuristic,
    LengthController,
    OnlineConfidence,
    Oracle,
    RateOptimal,
    load_rule,
    names_rule,
    parse_rule,
    takes_cost,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.online_confidence import AcceptanceFit, Evidence, refit
from specpilot.controllers.length.online_confidence_tree import OnlineConfidenceTree
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.controllers import length_digest
from specpilot.infer.random_source import RandomSource

from ..helpers.drafts import small
from ..helpers.enumeration import DEPTH, PROMPT, assert_same, output_distribution, target_distribution
from ..helpers.refusals import refused
from ..helpers.steps import TablePredictor, step
from ..helpers.tiny import make

probabilities = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6)


@settings(max_examples=100)
@given(weights=probabilities, threshold=st.floats(0, 1))
def test_confidence_and_entropy(weights: list[float], threshold: float) -> None:
    share = [w / sum(weights) for w in weights]
    entropy = -sum(s * math.log(s) for s in share)
    assert Confidence(threshold).observe(step(weights)) == (share[0] >= threshold) or share[0] == pytest.approx(
        threshold
    )
    bound = 1 - math.sqrt(0.2 * entropy)
    assert Entropy(threshold).observe(step(weights)) == (bound >= threshold) or bound == pytest.approx(threshold)


def test_greedy_rules_read_the_distribution_at_temperature_1() -> None:
    """The one at temperature 0 is a point mass."""
    greedy = step([3.0, 1.0], sampling=SamplingParams(0.0, None))
    assert greedy.probability == 1
    assert greedy.confidence() == pytest.approx(0.75)
    assert greedy.entropy() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert step([1.0, 0.0]).entropy() == 0


def test_fallback_reads_the_most_probable_token() -> None:
    flat, peaked = [1.0, 1.0, 1.0], [1.0, 8.0, 1.0]
    assert [Fallback(0.6).observe(step(w)) for w in (flat, peaked)] == [False, True]
    assert [Fallback(0.6).observe(step(w, token=1, sampling=SamplingParams(0.0))) for w in (flat, peaked)] == [
        False,
        True,
    ]
    assert not Fallback(0.0).observe(step(peaked, index=10))


def test_cumulative_confidence_multiplies_and_forgets() -> None:
    rule = CumulativeConfidence(0.2)
    for _ in range(2):
        assert rule.start_round()
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in (1, 2, 3)] == [True, True, False]


def test_heuristic_follows_what_was_accepted() -> None:
    rule = Heuristic(3)
    drafted = []
    for accepted_whole in [True, True, False, False, False, False, False, False, False] + [True] * 12:
        drafted.append(rule.k)
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in range(1, rule.k + 1)] == [True] * (rule.k - 1) + [
            False
        ]
        rule.end_round(rule.k, rule.k if accepted_whole else rule.k - 1)
    assert drafted[:10] == [3, 5, 7, 6, 5, 4, 3, 2, 1, 1]
    assert drafted[-1] == MAX_DRAFT
    rule.start_text()
    assert rule.k == 3


@pytest.mark.parametrize("lag", [0, 1])
def test_a_threshold_bounds_the_predicted_rejection_of_all_tokens(lag: int) -> None:
    """Up to the last token that has a prediction; each round begins anew, and the threshold itself still drafts on."""
    table = [0.5, 0.5, 0.5, 0.5]
    for threshold, drafts in ((0.4, 0), (0.5, 1), (0.75, 2), (0.8, 2), (1.0, 4)):
        rule = AcceptanceLength(TablePredictor(table, lag=lag), threshold)
        for _ in range(2):
            assert rule.start_round() is True
            answers = [rule.observe(step(index=index)) for index in range(1, 5)]
            assert answers == [index <= drafts + lag for index in range(1, 5)]
    for threshold in (-0.1, 1.1, math.nan):
        with pytest.raises(InputError, match=f"^threshold={threshold}:"):
            AcceptanceLength(TablePredictor(table), threshold)


class Settings(TablePredictor):
    """Records the settings that it checks."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.checked: list[object] = []

    def check_sampling(self, sampling: SamplingParams) -> None:
        self.checked.append(sampling)

    def check_verifier(self, verifier: str) -> None:
        self.checked.append(verifier)

    def state_values(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * hidden


def test_predictors_check_the_settings_of_a_generation() -> None:
    """Those with a threshold also the rule of verification; those with costs correct themselves by what is accepted."""
    sampling, hidden = SamplingParams(0.3), torch.ones(2, 3)
    by_threshold, by_costs = Settings(), Settings()
    for rule in (AcceptanceLength(by_threshold, 0.5), RateOptimal(by_costs, COST)):
        rule.check_sampling(sampling)
        rule.check_verifier("block")
        assert torch.equal(rule.state_values(hidden), 2 * hidden)  # type: ignore[arg-type]
    assert by_threshold.checked == [sampling, "block"]
    assert by_costs.checked == [sampling]


def test_the_oracle_stops_before_the_first_token_that_would_be_rejected() -> None:
    rule = Oracle()
    rule.agrees = [True, False, True, True, False, False, *[True] * 40]
    rule.start_text()
    drafted = []
    while rule.position < 40:
        if not rule.start_round():
            drafted.append(0)
            continue
        count = 1
        while rule.observe(step(index=count)):
            count += 1
        drafted.append(count)
        rule.end_round(count, count)
    assert drafted == [0, 2, 0, MAX_DRAFT, 46 - 7 - MAX_DRAFT]
    assert not rule.start_round()
    rule.check_sampling(SamplingParams(0.0))
    with pytest.raises(InputError, match="temperature 1"):
        rule.check_sampling(SamplingParams(1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Confidence(1.5), r"^length='confidence:1\.5':"),
        (lambda: Entropy(math.nan), "^length='entropy:nan':"),
        (lambda: Entropy(0.5, -1), r"gamma=-1:"),
        (lambda: Heuristic(0), "^length='heuristic:0':"),
        (lambda: Heuristic(math.inf), "^length='heuristic:inf':"),
        *(
            (partial(parse_rule, spec), message)
            for spec, message in (
                ("online-confidence", "length='online-confidence':"),
                ("online-confidence:2", "^length='online-confidence:2':"),
                ("adaptive-length:2.5", "^length='adaptive-length:2.5':"),
                ("adaptive-length:x", "give the rule's number, as in 'adaptive-length:4'"),
            )
        ),
    ],
)
def test_rule_numbers_out_of_range(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


# Rules that learn while decoding: formulas, what they share, exact distributions


COST = CostModel(0.2, 1.0, 0.05)


def test_adaptive_length_by_its_formula() -> None:
    rule = AdaptiveLength(3)
    rule.start_text()
    mean, drafted = 2.0, []
    for accepted in [3, 3, 4, 5, 5, *[0] * 12]:
        assert rule.k == math.floor(mean + 0.5) + 1
        assert [rule.observe(step([1.0, 1.0], index=i)) for i in (rule.k - 1, rule.k)] == [True, False]
        drafted.append(rule.k)
        rule.end_round(rule.k, min(rule.k, accepted))
        mean += 0.2 * (min(drafted[-1], accepted) - mean)
    assert max(drafted) > 3
    assert rule.k == 1
    for _ in range(200):
        rule.end_round(rule.k, rule.k)
    assert rule.k == MAX_DRAFT
    rule.start_text()
    assert rule.k == 3


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100), slope=st.floats(0.0, 2.0), shift=st.floats(-2.0, 2.0), certain=st.floats(0.0, 1.0))
def test_the_fit_is_the_minimum_of_its_objective(seed: int, slope: float, shift: float, certain: float) -> None:
    """Also where many confidences are near 1 and mean little, as at temperature 1: a whole Newton step overshoots."""
    rng = Random(seed)
    observations: list[tuple[int, Evidence, bool]] = []
    for _ in range(500):
        position, logit = rng.randint(1, 3), 9.2 if rng.random() < certain else rng.gauss(0.5, 1.5)
        agrees, matches, share = rng.randint(0, 4), 4, rng.random()
        probability = 1 / (1 + math.exp(-slope * logit - share - shift * (position == 2)))
        observations.append((position, (logit, agrees, matches, share), rng.random() < probability))
    prior = AcceptanceFit().parameters  # predicts the confidence itself
    coefficients = torch.tensor(refit(refit(prior, observations), observations), dtype=torch.float64)

    def objective(parameters: torch.Tensor) -> torch.Tensor:
        omega, beta = parameters[:4], parameters[3:]
        x = torch.tensor([evidence for _, evidence, _ in observations], dtype=torch.float64)
        z = x @ omega + beta[[position for position, *_ in observations]]
        labels = torch.tensor([float(kept) for *_, kept in observations], dtype=torch.float64)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, labels, reduction="sum")
        return loss + 0.5 * (parameters - torch.tensor(prior, dtype=torch.float64)).square().sum()

    coefficients.requires_grad_(True)
    (gradient,) = torch.autograd.grad(objective(coefficients), coefficients)
    assert float(gradient.abs().max()) < 1e-5
    assert not coefficients[7:].any()  # nothing was seen there


def test_a_fit_comes_every_hundred_tokens_and_is_bounded() -> None:
    fit = AcceptanceFit()
    assert fit.probability(1, (0.7, 2, 3, 0.5)) == pytest.approx(1 / (1 + math.exp(-0.7)))
    for n in range(1, 201):
        before = fit.parameters
        fit.add(1 + n % 12, (2.0, 0, 0, 0.0), False)
        assert (fit.parameters is before) == (n % 100 != 0)
    assert fit.probability(1, (2.0, 0, 0, 0.0)) < 0.2
    assert fit.mean(30) == fit.mean(12) < 0.5  # late positions share a mean
    for n in range(2000):
        fit.add(1, (9.0, n % 3, 3, 0.5), n % 2 == 0)
    assert fit.probability(1, (9.0, 1, 3, 0.5)) == pytest.approx(0.5, abs=0.05)


def test_confident_drafts_go_on_until_they_are_rejected() -> None:
    rule = OnlineConfidence(cost=COST)
    sure, unsure = [9.0, 1.0], [1.1, 1.0]
    rule.start_text()
    assert rule.start_round()
    assert rule.observe(step(sure))
    assert not rule.observe(step(unsure, index=2))
    for _ in range(200):  # confidence turns out to mean nothing
        if rule.start_round():
            rule.observe(step(sure))
            rule.end_round(1, 0)
    rule.start_text()
    started = [rule.start_round() for _ in range(20)]
    assert not started[0]
    assert started.count(True) == 1  # a probe
    other = copy(rule)
    other.start_text()
    assert other.fit is rule.fit
    assert other.rate is not rule.rate
    assert OnlineConfidence(0.3).observe(step(sure))
    assert not OnlineConfidence(0.95).observe(step(sure))


def test_trees_teach_the_confidence_of_first_children() -> None:
    chain = OnlineConfidence(cost=COST)
    tree = OnlineConfidenceTree(chain)
    tree.start_text()
    first, second = tree.visit(step([3.0, 1.0])), tree.visit(step([2.0, 1.0], index=2))
    assert first.accept == pytest.approx(0.75)
    first.accepted_child, second.accepted_child = 0, 1  # a sibling
    tree.end_tree([-1, 0, 0], [first, second])
    observations = [(position, evidence[0], kept) for position, evidence, kept in chain.fit.verified_tokens]
    assert observations == [(1, pytest.approx(math.log(3)), True), (2, pytest.approx(math.log(2)), False)]


def rule_after_texts(make_rule: Callable[[], LengthController], tree: str | None = None) -> LengthController:
    """Return a rule after some texts, so that its fit, rewards and averages have changed."""
    rule = make_rule()
    decoder = SpeculativeDecoder(make(seed=0), make(seed=0, layers=1), length=rule, tree=tree)
    for seed in range(3):
        decoder.generate([1, 2, 3], max_new_tokens=60, seed=seed)
    return rule


RULES: dict[str, Callable[[], LengthController]] = {
    "adaptive-length": AdaptiveLength,
    "online-confidence": lambda: OnlineConfidence(cost=COST),
    "online-confidence:0.4": lambda: OnlineConfidence(0.4),
}


models_of = cache(small)  # what they remember is computed once


@pytest.mark.parametrize(("name", "tree"), [*((name, None) for name in RULES), ("online-confidence", "auto")])
@pytest.mark.parametrize("sampling", [SamplingParams(1.0, 2), SamplingParams(0.0)])
def test_output_distribution(name: str, tree: str | None, sampling: SamplingParams) -> None:
    """The rule is new or has learned from texts, and decodes alone or beside a text from which it learns."""
    target, draft = models_of("model", 4, Path())
    expected = target_distribution(target, sampling)
    for first in (RULES[name](), rule_after_texts(RULES[name], tree)):

        def run(rng: RandomSource, first: LengthController = first) -> tuple[int, ...]:
            # What a text leaves behind must not reach the next outcome.
            decoder = SpeculativeDecoder(target, draft, length=deepcopy(first), tree=tree)
            scheduler = decoder.scheduler
            other = decoder.new_request([2, 1], sampling, 9, RandomSource(5))
            request = decoder.new_request(list(PROMPT), sampling, 5, rng)
            scheduler.submit([other])
            scheduler.step()
            scheduler.submit([request])
            while not request.finished and len(request.output.tokens) < DEPTH:
                scheduler.step()
            scheduler.cancel([other, request])
            return tuple(request.output.tokens[:DEPTH])

        assert_same(output_distribution(run), expected)


def test_rule_names() -> None:
    assert parse_rule("adaptive-length:7").k == 7  # type: ignore[union-attr]
    assert vars(parse_rule("online-confidence:0.3"))["stop_below"] == 0.3
    assert vars(parse_rule("online-confidence", COST))["cost"] == COST
    names = ["adaptive-length", "online-confidence", "online-confidence:0.3", "4", "none", "-4", "tiny-head", "4-"]
    assert [names_rule(name) for name in names] == [True, True, True, True, True, True, False, False]
    assert [takes_cost(name) for name in names[:5]] == [False, True, False, False, False]
    assert takes_cost("tiny-head")


# Rules of the user: a class by ``package.module:Class``, everywhere a length is named


MODULE = """
from specpilot.controllers.length import LengthController
from specpilot.controllers.length.cost_based import CostBasedController

class Two(LengthController):
    def __init__(self, most=2, word=""):
        self.most, self.word = most, word
        if word:
            raise ValueError("two\\nlines")
    def observe(self, step):
        return step.index < self.most

class Priced(CostBasedController):
    cost = None
    def with_costs(self, cost=None, **unused):
        self.cost = cost
        return self
    def observe(self, step):
        return False

class Half(LengthController):
    pass

number = 3
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a working folder with modules."""
    for name, text in {
        "rules": MODULE,
        "exits": "raise SystemExit(0)",
        "needs": "import missing",
        "cut": "def",
    }.items():
        (tmp_path / f"own_{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])  # naming a class appends the working folder
    monkeypatch.chdir(tmp_path)
    for name in ("rules", "exits", "needs", "cut"):
        sys.modules.pop(f"own_{name}", None)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_nothing.at.all:Two", "there is no module 'own_nothing'; install it"),
        ("own_rules.more:Two", r"there is no module 'own_rules\.more'"),
        ("own_exits:Two", "importing 'own_exits' fails with SystemExit: 0"),
        ("own_needs:Two", "importing 'own_needs' fails with ModuleNotFoundError: No module named 'missing'"),
        ("own_cut:Two", "importing 'own_cut' fails with SyntaxError"),
        ("own_rules:Three", r"'Three' in 'own_rules' \(.*own_rules.py\) is missing; name a subclass of specpilot"),
        ("own_rules:number", "'number' .* is of another kind"),
        ("pathlib:Path", "'Path' in 'pathlib' .* is of another kind"),
        ("own_rules:Half", "Half() fails with TypeError: .*abstract".replace("()", r"\(\)")),
        ("own_rules:Two:1:2:3", r"Two\(1, 2, 3\) fails with TypeError"),
        ("own_rules:Two:1:x", r"Two\(1, x\) fails with ValueError: two lines; correct the class"),
    ],
)
def test_rules_of_users_that_are_refused(user_module: Path, spec: str, message: str) -> None:
    with refused(message, f"length={spec!r}:"):
        load_rule(spec)


def test_names_of_user_rules(user_module: Path) -> None:
    """A name of the form of a class is a rule, and is imported when the rule is made."""
    names = ("own_rules:Two:3", "oracle", "runs/own:Two", "own-three", "own-three:0.4")
    assert [names_rule(name) for name in names] == [True, True, False, False, False]
    assert parse_rule("own_rules:Two") is None
    assert "own_rules" not in sys.modules
    assert [vars(load_rule(name))["most"] for name in ("own_rules:Two", "own_rules:Two:3")] == [2, 3]
    assert type(load_rule("oracle")).__name__ == "Oracle"


def test_costs_and_digest(user_module: Path) -> None:
    """A class that uses costs gets them. The digest of a class changes with its file."""
    assert [takes_cost(f"own_rules:{name}") for name in ("Two", "Priced")] == [False, True]
    cost = CostModel(0.2, 1.0, 0.0)
    assert vars(load_rule("own_rules:Priced", cost))["cost"] == cost
    before = length_digest("own_rules:Two")
    assert before == length_digest("own_rules:Two:3") != length_digest("4")
    with (user_module / "own_rules.py").open("a") as file:
        file.write("# another\n")
    assert length_digest("own_rules:Two") != before


def test_user_rules_on_the_command_line(user_module: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The class decides the number of drafted tokens. Bad input gives one line."""
    words = ["generate", "What is 12 plus 30?", "--max-new-tokens", "8", "--seed", "1", "--stats", "--length"]
    assert main([*words, "own_rules:Two:1"]) == main([*words, "1"]) == 0
    with_user_rule, plain = [line for line in capfd.readouterr().err.splitlines() if "draft and" in line]
    assert with_user_rule.partition("), ")[2] == plain.partition("), ")[2]
    assert main([*words, "own_rules:Two", "--cost", "0.2"]) == 2
    assert "the rule 'own_rules:Two' does not use costs" in capfd.readouterr().err
