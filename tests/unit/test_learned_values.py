"""Values that are learned while decoding, after random rounds: those of their definitions, written out again here."""

import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from specpilot.controllers.length import RateOptimal
from specpilot.controllers.length.cost_based import Probes
from specpilot.controllers.length.cost_model import CostModel, tree_cost
from specpilot.controllers.length.draft_sources import DraftSources, Plan
from specpilot.controllers.length.rate import RunningRatio, drafting_pays, steady_rate
from specpilot.controllers.length.rate_optimal_tree import RateOptimalTree, Visit
from specpilot.controllers.length.running_cost import RoundSums, RunningCost, fit_rounds
from specpilot.infer.drafters.prompt_lookup import PRIOR, RUNS, CopyRates

from ..helpers.steps import TablePredictor, step

COST = CostModel(0.2, 0.9, 0.03, 0.1)
OTHER_COST = CostModel(0.5, 1.9, 0.02, 0.3)


def decayed(first: float, weight: float, memory: float, pairs: Sequence[tuple[float, float]]) -> float:
    """Return the ratio of two sums over ``pairs``; each term loses 1/memory with each later one."""
    keep = 1.0 - 1.0 / memory
    weights = [keep**n for n in range(len(pairs), -1, -1)]
    terms = [(first * weight, weight), *pairs]
    above, below = (sum(w * term[side] for w, term in zip(weights, terms, strict=True)) for side in (0, 1))
    return above / below


def test_running_ratios() -> None:
    rng = Random(0)
    ratio, pairs = RunningRatio(0.7, 3.0, 5.0), list[tuple[float, float]]()
    assert ratio.value == pytest.approx(0.7)
    for _ in range(20):
        pairs.append((rng.random(), rng.random()))
        ratio.add(*pairs[-1])
        assert ratio.value == pytest.approx(decayed(0.7, 3.0, 5.0, pairs))


def test_rates_of_copies_by_the_length_of_the_match() -> None:
    """Each group learns from matches of its lengths alone, all from the latest ten."""
    rng = Random(1)
    rates = CopyRates()
    assert [rates.after(run) for run in RUNS] == pytest.approx(PRIOR)
    observations: list[tuple[int, bool]] = []
    for _ in range(200):
        observations.append((rng.randint(1, 16), rng.random() < 0.7))
        rates.add(*observations[-1])
    bounds = [*RUNS, 17]
    for run in range(1, 17):
        group = max(i for i in range(len(RUNS)) if RUNS[i] <= run)
        group_observations = [
            (float(k), 1.0) for length, k in observations if bounds[group] <= length < bounds[group + 1]
        ]
        assert rates.after(run) == pytest.approx(decayed(PRIOR[group], 8.0, 64.0, group_observations))
    assert rates.recent.value == pytest.approx(decayed(0.3, 10.0, 10.0, [(float(k), 1.0) for _, k in observations]))


# Tokens and time of rounds


def test_sources_of_drafts() -> None:
    """The rate of tokens, and length, forwards and accepted tokens of the model's drafts have their definitions."""
    rng = Random(2)
    sources = DraftSources(COST, model=True)
    rate = steady_rate(0.6, COST)
    length = sum(0.6**k >= rate * COST.per_token for k in range(1, 21))
    gain = sum(0.6**k for k in range(1, length + 1))
    earned: list[tuple[float, float]] = []
    drafts: list[tuple[int, int]] = []
    model_accepted: list[float] = []
    idle = 0
    for _ in range(100):
        copies, drafted = rng.choice([0, 0, 2, 5]), rng.choice([0, 1, 4])
        accepted = rng.randint(0, copies + drafted)
        forwards = rng.choice([None, drafted and drafted - 1])
        sources.end_round(copies, drafted, accepted, forwards)
        draft_forwards = drafted if forwards is None else forwards
        earned.append((accepted + 1.0, COST.round(copies + drafted, draft_forwards)))
        idle = 0 if drafted else idle + 1
        if drafted:
            drafts.append((drafted, draft_forwards))
            model_accepted += [float(accepted - copies)] * (accepted >= copies)
        assert sources.idle == idle
        assert sources.rate.value == pytest.approx(decayed(rate, 8.0 * COST.round(0), 64.0, earned))
        for ratio, first, values in (
            (sources.drafted, length, [n for n, _ in drafts]),
            (sources.forwards, length, [m for _, m in drafts]),
            (sources.accepted, gain, model_accepted),
        ):
            assert ratio.value == pytest.approx(decayed(first, 4.0, 64.0, [(value, 1.0) for value in values]))


def test_sources_follow_new_costs() -> None:
    """A rate in units of the old costs is converted to the new costs by the last round."""
    sources = DraftSources(COST, model=True)
    before = sources.rate.value
    sources.follow(COST, 4, 3)
    assert sources.rate.value == before
    sources.follow(OTHER_COST, 4, 3)
    assert sources.cost is OTHER_COST
    assert sources.rate.value == pytest.approx(before * COST.round(4, 3) / OTHER_COST.round(4, 3))


def test_the_model_drafts_when_its_costs_are_measured() -> None:
    expensive = DraftSources(CostModel(0.9, 1.0, 0.05), model=True)
    for _ in range(3):
        expensive.end_round(0, 2, 0)
    assert expensive.plan([1.0, 0.9], 5) != Plan(0, True) == expensive.plan([1.0, 0.9], 5, measure=True)
    assert expensive.plan([1.0, 0.9], 0, measure=True) == Plan(1, False)
    assert DraftSources(COST, model=False).plan([1.0], 5, measure=True) == Plan(0, False)


def test_patience_of_sources_doubles_up_to_a_bound_and_begins_anew() -> None:
    sources = DraftSources(CostModel(0.3, 1.0, 0.05), model=True)
    for _ in range(60):
        sources.end_round(0, 4, 0)
    pauses = []
    for _ in range(8):
        pause = 0
        while not sources.plan([1.0]).model:
            sources.end_round(0, 0, 0)
            pause += 1
        pauses.append(pause)
        sources.end_round(0, 4, 0)
    assert pauses == [16, 32, 64, 128, 256, 512, 512, 512]
    for _ in range(60):
        sources.end_round(0, 4, 4)
    assert sources.plan([1.0]) == Plan(0, True)
    assert sources.patience == 16


def test_probes() -> None:
    """A probe that pays is followed by a draft, and halves the pause. If drafting pays, the pause is reset."""
    probes = Probes()

    def pause(pays: bool = False, may_pay: bool = True) -> int:
        rounds = 0
        while rounds < 1000 and not probes.start_round(pays=pays, may_pay=may_pay):
            rounds += 1
        return rounds

    pauses = []
    for _ in range(7):
        pauses.append(pause())
        assert probes.probing
        probes.end_round(False)
    assert pauses == [16, 32, 64, 128, 256, 512, 512]
    assert pause() == 512
    probes.end_round(True)
    assert (probes.patience, pause()) == (256, 0)  # the next round drafts at once
    probes.end_round(True)
    assert (probes.patience, pause()) == (128, 0)
    probes.end_round(False)
    assert pause() == 128
    probes.end_round(False)
    assert (probes.patience, pause(pays=True), probes.patience, probes.probing) == (256, 0, 16, False)
    probes.end_round(True)  # no probe
    assert (probes.patience, probes.succeeded, pause(), pause(may_pay=False)) == (16, False, 16, 1000)


@pytest.mark.parametrize("lag", [0, 1])
def test_rounds_of_rate_optimal_chains(lag: int) -> None:
    """The rate, the mean acceptance of first and of later tokens, and the shift of the predictions."""
    rng = Random(3)
    table = [0.9, 0.8, 0.95, 0.7, 0.99, *[0.6] * 20]
    rule = RateOptimal(TablePredictor(table, mean=0.8, lag=lag), COST)
    rate = steady_rate(0.8, COST)
    earned: list[tuple[float, float]] = []
    firsts: list[tuple[float, float]] = []
    later: list[tuple[float, float]] = []
    shift = 0.0

    def shifted(probability: float) -> float:
        return 1 / (1 + math.exp(-math.log(probability / (1 - probability)) - shift))

    for _ in range(60):
        first_mean, later_mean = decayed(0.8, 6.0, 256.0, firsts), decayed(0.8, 16.0, 256.0, later)
        rate_now = decayed(rate, 16.0 * COST.round(0), 128.0, earned)
        assert (rule.first.value, rule.later.value, rule.rate.value) == pytest.approx(
            (first_mean, later_mean, rate_now)
        )
        pays = drafting_pays(first_mean, later_mean, rate_now, COST)
        started = rule.start_round()
        assert started == pays
        if not started:
            earned.append((1.0, COST.round(0)))
            continue
        count = 0
        go_on = True
        while go_on and count < 8:
            count += 1
            go_on = rule.observe(step(index=count))
            predicted = [shifted(probability) for probability in table[: count - lag]]
            ahead = later_mean if lag == 0 else later_mean * (first_mean if count == 1 else later_mean)
            assert go_on == (math.prod(predicted) * ahead >= rate_now * COST.per_token)
        accepted = min(count, rng.choice([0, 1, 2, 3, 8, 8]))
        rule.end_round(count, accepted)
        earned.append((accepted + 1.0, COST.round(count)))
        firsts.append((float(accepted > 0), 1.0))
        later += [(float(place <= accepted), 1.0) for place in range(2, min(count, accepted + 1) + 1)]
        shift += sum(0.1 * ((place < accepted) - p) for place, p in enumerate(predicted[: accepted + 1]))
        assert rule.shift == pytest.approx(shift)
    assert len(firsts) > 10


PRIORS = [(0.7, 6.0), (0.7, 16.0), (0.25, 16.0)]  # of first, later and further children: value and weight


def test_verified_trees() -> None:
    """Trees learn like chains, and also the acceptance rate of further children and the shift of their predictions."""
    rng = Random(4)
    rule = RateOptimalTree(TablePredictor(0.6, mean=0.7), COST)
    earned: list[tuple[float, float]] = []
    firsts: list[tuple[float, float]] = []
    later: list[tuple[float, float]] = []
    rescues: list[tuple[float, float]] = []
    shift = sibling_shift = 0.0
    for _ in range(50):
        parents = [-1, -1, -1, 0, 0, 1, 3]
        visits = []
        for _ in range(rng.randint(1, 3)):
            visits.append(Visit(rng.random(), [rng.random() for _ in range(rng.randint(0, 2))], accepted_child=None))
            choices = [None, *range(1 + len(visits[-1].siblings))]
            visits[-1].accepted_child = rng.choice(choices)
            if visits[-1].accepted_child is None:
                break
        rule.end_tree(parents, visits)
        accepted = sum(visit.accepted_child is not None for visit in visits)
        earned.append((accepted + 1.0, tree_cost(COST, parents)))
        firsts.append((float(accepted > 0), 1.0))
        for depth, visit in enumerate(visits):
            shift += 0.1 * ((visit.accepted_child == 0) - visit.accept)
            later += [(float(visit.accepted_child == 0), 1.0)] * (depth > 0)
            if visit.siblings and visit.accepted_child != 0:
                rescues.append((float(visit.accepted_child is not None), 1.0))
                sibling_shift -= 0.1 * sum(visit.siblings[: visit.accepted_child])
                sibling_shift += 0.1 * (visit.accepted_child is not None)
        learned = rule.first.value, rule.later.value, rule.siblings.rescue.value, rule.rate.value
        rate = decayed(steady_rate(0.7, COST), 16.0 * COST.round(0), 128.0, earned)
        means = [decayed(*prior, 256.0, pairs) for prior, pairs in zip(PRIORS, (firsts, later, rescues), strict=True)]
        assert learned == pytest.approx((*means, rate))
        assert (rule.shift, rule.siblings.shift) == pytest.approx((shift, sibling_shift))
        assert rule.node_price(1) == pytest.approx(max(rate * COST.t_verify_token, 0.02))
        assert rule.sibling(0.3) == pytest.approx(1 / (1 + math.exp(-0.3 - sibling_shift)))


# Times of rounds


Weighted = tuple[float, int, int, float]  # weight, tokens, forwards, seconds
POINTS = ((0, 0), (2, 0), (6, 0), (4, 4))


def fitted(rounds: Sequence[Weighted], prior: CostModel, weight: float, trust: float) -> CostModel:
    """Return the cost model of weighted least squares over single rounds."""
    first, span = prior.round(0), prior.round(1) - prior.round(0)
    added = [prior.round(n, m) - first for _, n, m, _ in rounds]
    equal = math.sqrt(0.5) * max(span, 0.01 * first)
    rows = [[math.sqrt(w) * first, math.sqrt(w) * a] for (w, *_), a in zip(rounds, added, strict=True)]
    values = [math.sqrt(w) * t for w, _, _, t in rounds]
    rows += [[math.sqrt(trust) * first, 0], [0, math.sqrt(trust) * span], [equal, -equal]]
    values += [math.sqrt(trust) * first, math.sqrt(trust) * span, 0]
    round_factor, draft_factor = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0].tolist()
    round_factor = max(round_factor, 0.01)
    draft_factor = min(max(draft_factor, 0.01), round_factor)
    whole = [
        *rounds,
        *((weight, n, m, round_factor * first + draft_factor * (prior.round(n, m) - first)) for n, m in POINTS),
    ]
    columns = [0, 1, 2, 3]
    while True:
        table = np.array([[math.sqrt(w) * x for x in (1, n > 0, n, m)] for w, n, m, _ in whole])[:, columns]
        solution = np.linalg.lstsq(table, np.array([math.sqrt(w) * t for w, *_, t in whole]), rcond=None)[0]
        if min(solution[1:], default=0.0) >= 0:
            break
        columns.pop(1 + int(solution[1:].argmin()))
    costs = dict(zip(columns, solution.tolist(), strict=True))
    mean = sum(w * t for w, *_, t in whole) / sum(w for w, *_ in whole)
    fixed = max(0.01 * mean, costs[0])
    per_token = min(max(costs.get(2, 0.0), 0.01 * fixed), fixed)
    return CostModel(costs.get(3, 0.0), fixed - per_token, per_token, costs.get(1, 0.0))


def random_round(rng: Random, truth: CostModel, noise: float) -> tuple[int, int, float]:
    tokens = rng.choice([0, 0, 1, 3, 6])
    forwards = rng.choice([tokens, tokens // 2, 0])
    return tokens, forwards, truth.round(tokens, forwards) * rng.uniform(1 - noise, 1 + noise)


TRUTHS = [OTHER_COST, CostModel(0.01, 0.2, 0.0), CostModel(0.2, 0.1, 0.4, 0.0), CostModel(0.0, 2.0, 0.0, 0.5)]


@pytest.mark.parametrize("truth", TRUTHS, ids=range(len(TRUTHS)))
@pytest.mark.parametrize("prior", [COST, CostModel(0.0, 1.0, 0.0), CostModel(3.0, 0.5, 0.1)], ids=range(3))
def test_costs_are_those_of_weighted_least_squares(truth: CostModel, prior: CostModel) -> None:
    for seed in range(30):
        rng = Random(seed)
        sums, rounds = RoundSums(), list[Weighted]()
        for _ in range(rng.choice([0, 1, 4, 30])):
            undrafted_factor, drafted_factor = rng.uniform(0.8, 1), rng.uniform(0.8, 1)
            sums.decay(undrafted_factor, drafted_factor)
            rounds = [(w * (drafted_factor if n else undrafted_factor), n, m, t) for w, n, m, t in rounds]
            rounds.append((rng.uniform(0.5, 2), *random_round(rng, truth, rng.choice([0.1, 0.9]))))
            sums.add(*rounds[-1][1:], rounds[-1][0])
        weight, trust = rng.uniform(0.5, 4), rng.choice([0.0, 0.01, 8.0])
        expected = fitted(rounds, prior, weight, trust)
        assert sums.fit(prior, weight, trust).to_dict() == pytest.approx(expected.to_dict(), rel=1e-6, abs=1e-7)


def test_rounds_of_one_shape_count_once() -> None:
    """With their median time; those without a draft count as much as all other shapes together."""
    rng = Random(5)
    rounds = [random_round(rng, OTHER_COST, 0.3) for _ in range(60)]
    shapes = {(n, m) for n, m, _ in rounds}
    medians = [
        (1.0 if n else len(shapes) - 1.0, n, m, float(np.median([t for a, b, t in rounds if (a, b) == (n, m)])))
        for n, m in shapes
    ]
    expected = fitted(medians, CostModel(0.2, 0.95, 0.05), 1e-6, 0.0)
    assert fit_rounds(rounds).to_dict() == pytest.approx(expected.to_dict(), rel=1e-4, abs=1e-6)
    assert fit_rounds([(0, 0, 2.0)]).round(0) == pytest.approx(2.0)


def test_running_costs() -> None:
    """Fitted after every eighth round, with weights that decay by the kind of round, and times up to four expected."""
    for seed in range(6):
        rng = Random(seed)
        running, rounds = RunningCost(COST), list[Weighted]()
        cost, beginning = COST, 4.0
        for number in range(1, 161):
            tokens, forwards, seconds = random_round(rng, OTHER_COST, 0.5)
            forwards = max(forwards, min(tokens, 1))  # no pauses, after which the initial costs may be corrected
            seconds *= 100.0 if rng.random() < 0.05 else 1.0
            running.add(tokens, forwards, seconds)
            beginning *= 127 / 128
            rounds = [(w * (127 / 128 if tokens or not n else 1023 / 1024), n, m, t) for w, n, m, t in rounds]
            rounds.append((1.0, tokens, forwards, min(seconds, 4.0 * cost.round(tokens, forwards))))
            if number % 8 == 0:
                cost = fitted(rounds, COST, 0.5 + beginning, 2.0 * beginning)
            assert running.cost.to_dict() == pytest.approx(cost.to_dict(), rel=1e-6, abs=1e-7)


def test_initial_costs_that_are_too_high_are_corrected() -> None:
    """By the median of three drafts, each after a pause of eight rounds; costs above half of the initial ones stay."""
    for factor, corrected in ((0.6, False), (0.3, True), (0.001, True)):
        running = RunningCost(CostModel(2.0, 1.0, 0.1, 0.4))
        running.patience = 64
        for draft in range(3):
            assert running.first.t_draft == 2.0
            for _ in range(8):
                running.add(0, 0, 1.1)
            round_factor = running.cost.round(0) / running.first.round(0)
            spread = (1.0, 0.8, 1.1)[draft]
            running.add(3, 2, round_factor * (1.1 + 0.3 + spread * factor * 4.4))
            assert running.patience == (64 if draft == 2 and corrected else 64 * 2 ** (draft + 1))
        share = max(factor, 0.01) if corrected else 1.0
        assert running.first.to_dict() == pytest.approx(
            CostModel(2.0 * share, 1.0, 0.1, 0.4 * share).to_dict(), rel=0.05
        )
        assert len(running.lone_drafts) == (0 if corrected else 3)


def test_costs_of_more_requests_begin_with_those_of_fewer() -> None:
    running = RunningCost(COST)
    assert [running.at(rows) is running for rows in (1, 2)] == [True, False]
    assert running.at(3) is running.at(4) is not running.at(2)
    assert running.at(5) is running.at(8) is not running.at(4)
    for _ in range(8):
        running.at(4).add(0, 0, 7.0)
    assert running.at(4).cost != COST == running.at(2).cost
    assert running.at(9).first == COST  # of 5 to 8 requests, the nearest
    for _ in range(8):
        running.at(16).add(0, 0, 9.0)
    assert running.at(64).first == running.at(16).cost != COST


def test_pauses_to_measure_rounds_with_and_without_drafts() -> None:
    """A draft is due after 64 rounds if it loses at most 0.4 % of their time, else after twice as many each time."""
    cheap, expensive = CostModel(0.1, 1.0, 0.0), CostModel(5.0, 1.0, 0.0)
    for cost, pause in ((cheap, 64), (expensive, 64)):
        running = RunningCost(cost)
        pauses = []
        for _ in range(3):
            count = 0
            while not running.draft_is_due():
                running.add(0, 0, cost.round(0))
                count += 1
            pauses.append(count)
            running.add(1, 1, cost.round(1))
        assert pauses == ([64, 64, 64] if cost is cheap else [pause, 2 * pause, 4 * pause])
    running = RunningCost(cheap)
    for _ in range(64):
        running.add(0, 0, 1.0)
    for _ in range(2):  # drafts that cannot be measured: the next round tries again, three times in all
        assert running.draft_is_due()
        running.skip()
    assert running.draft_is_due()
    running.skip()
    assert not running.draft_is_due()
    assert (running.idle, running.idle_seconds, running.tries) == (0, 0.0, 0)
