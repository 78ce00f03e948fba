"""Training of the router: rewards, gradients, metrics, exact resume, export."""

import itertools
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.utilities.rank_zero import rank_zero_only
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.sampling import SamplingParams
from specpilot.controllers.training_options import RouterTrainingOptions
from specpilot.data_gen.kinds import RouterRow
from specpilot.data_gen.router_dataset import RouterDataset, parameter_costs, rewards, round_tokens, time_costs
from specpilot.train.data_module import ResumableLoader
from specpilot.train.export import export
from specpilot.train.router import Batch, Table, policy_loss, router_metrics, table_of, train_router

from experiments.router.study import fit_policy
from experiments.tiny.optimisation import Trained
from experiments.tiny.optimisation import run as optimise

from ..helpers.launchers import JSRUN, SLURM, TORCHRUN
from ..helpers.router_rows import ARMS, TIMES, make_router_rows, write_router_dataset
from ..helpers.training import differ, last_weights, metrics_rows


def dataset(rows: list[RouterRow]) -> RouterDataset:
    return RouterDataset({}, ARMS, rows, TIMES)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> RouterTrainingOptions:
    data = write_router_dataset(tmp_path_factory.mktemp("router") / "data", make_router_rows(200))
    return RouterTrainingOptions(
        data=str(data), width=32, epochs=4, batch_size=16, checkpoint_every=2, log_every=1, threads=1, device="cpu"
    )


# Rewards


def test_costs_by_hand() -> None:
    c = parameter_costs([80_000_000, 220_000_000, 11_000_000_000])
    assert c.tolist() == pytest.approx([1 - math.exp(0.08 - 11), 1 - math.exp(0.22 - 11), 0])
    assert time_costs(TIMES).tolist() == pytest.approx([0.75, 0.75, 0])


def test_rewards_are_equation_2() -> None:
    rows = make_router_rows(3)
    fitted = rewards(dataset(rows), "rouge", alpha=0.3, cost="time")
    assert fitted[1].tolist() == pytest.approx(
        [0.3 * f + 0.7 * c for f, c in zip(rows[1].rouge, (0.75, 0.75, 0), strict=True)]
    )
    assert rewards(dataset(rows), "rouge", alpha=1) == pytest.approx(np.array([row.rouge for row in rows]))


def test_round_tokens_against_enumeration() -> None:
    """The expected tokens sum, over k, the mean probability that the first k tokens after a start are accepted."""
    a = [0.9, 0.2, 0.7, 1.0, 0.5]
    fitted = round_tokens(a, 3)
    for k in (1, 2, 3):
        survivals = [math.prod(a[t : t + k]) for t in range(len(a) - k + 1)]
        assert fitted[k] - fitted[k - 1] == pytest.approx(np.mean(survivals))
    assert fitted[0] == 1
    assert round_tokens([0.5, 0.5], 4) == pytest.approx([1, 1.5, 1.75, 1.75, 1.75])
    assert round_tokens([0.5] * 40, 10)[10] == pytest.approx(sum(0.5**k for k in range(11)))


def test_throughput_is_the_cost_models() -> None:
    rows = make_router_rows(1)
    a = rows[0].overlap[0][0]
    cost = CostModel(0.001, 0.0039, 0.0001)
    fitted = rewards(dataset(rows), "throughput", length=2)[0]
    assert fitted[0] == pytest.approx((1 + a + a * a) / cost.round(2) * cost.verification(1))
    assert fitted[2] == 1
    best = rewards(dataset(rows), "throughput")[0]
    each = [(sum(a**i for i in range(k + 1)) / cost.round(k)) * cost.verification(1) for k in range(1, 11)]
    assert best[0] == pytest.approx(max(each))


def test_a_reward_that_is_no_number_is_named() -> None:
    rows = make_router_rows(40)
    rows[7] = replace(rows[7], rouge=[0.5, math.nan, 0.5])
    with pytest.raises(InputError, match=r"^prompt 'p7', arm 'two': the reward is nan"):
        table_of(dataset(rows), RouterTrainingOptions(data="d"))
    rows[7] = replace(rows[7], rouge=[0.5, 0.5, 0.5], overlap=[[0.5], [], []])
    with pytest.raises(InputError, match=r"^prompt 'p7', arm 'two': the reward is nan"):
        table_of(dataset(rows), RouterTrainingOptions(data="d", reward="throughput"))


# Gradients


def gradient(logits: torch.Tensor, batch: Batch, *options: Any) -> torch.Tensor:
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad(policy_loss(logits, batch, *options), logits)[0] / len(logits)


@pytest.mark.parametrize("baseline", ["none", "batch", "query"])
@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_the_sampled_gradient_is_the_exact_one_on_average(baseline: str, entropy: float) -> None:
    """All pairs of actions of two queries are weighted by their probability. No baseline biases the gradient."""
    logits, r = torch.tensor([[0.3, -1.0, 0.8], [0.0, 2.0, -0.5]]), torch.tensor([[0.9, 0.1, 0.4], [0.2, 0.6, 0.7]])
    policy = logits.softmax(-1)
    mean = torch.zeros(2, 3)
    for actions in itertools.product(range(3), repeat=2):
        before = torch.stack([policy[i, :a].sum() for i, a in enumerate(actions)])
        chosen_probabilities = torch.stack([policy[i, a] for i, a in enumerate(actions)])
        batch = Batch(torch.zeros(2, 1), r, before + chosen_probabilities / 2)  # a uniform that draws this action
        mean += chosen_probabilities.prod() * gradient(logits, batch, "sampled", baseline, entropy)
    exact = gradient(logits, Batch(torch.zeros(2, 1), r, torch.zeros(2)), "exact", "none", entropy)
    torch.testing.assert_close(mean, exact, rtol=1e-4, atol=1e-6)
    if not entropy:
        by_hand = -policy * (r - (policy * r).sum(-1, keepdim=True)) / 2  # -∂/∂z Σ π r, mean of two queries
        torch.testing.assert_close(exact, by_hand, rtol=1e-4, atol=1e-6)


def test_metrics_by_hand() -> None:
    p = np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    r = np.array([[1.0, 0.0], [0.2, 0.4], [0.5, 0.5]])
    m = router_metrics(p, r, ["a", "a", "b"])
    assert m["expected_reward"] == pytest.approx((0.8 + 0.28 + 0.5) / 3)
    assert m["greedy_reward"] == pytest.approx((1 + 0.2 + 0.5) / 3)
    assert m["regret"] == pytest.approx(0.2 / 3)
    assert m["selection_accuracy"] == pytest.approx(2 / 3)  # a tie is no mistake
    assert m["domain_accuracy"] == pytest.approx(2 / 3)
    assert (m["best_single"], m["oracle"]) == (pytest.approx(1.7 / 3), pytest.approx(1.9 / 3))


# Runs


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient": "exact"}, {"baseline": "batch", "standardize": True}, {"reward": "throughput", "entropy": 0.01}],
)
def test_it_learns_which_draft_is_good_where(settings: RouterTrainingOptions, options: dict[str, Any]) -> None:
    config = replace(settings, epochs=20, lr=1e-2, alpha=1.0, **options)
    table = table_of(dataset(make_router_rows(200)), config)
    policy = fit_policy(table, config)
    other = table_of(dataset(make_router_rows(60, seed=1)), config)
    probabilities = policy(other.x).softmax(-1).double().numpy()
    metrics = router_metrics(probabilities, other.rewards.double().numpy(), other.domains)
    assert metrics["domain_accuracy"] == 1.0
    assert metrics["regret"] < 0.01 < metrics["oracle"] - metrics["best_single"]


@pytest.fixture(scope="module")
def finished(settings: RouterTrainingOptions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of an uninterrupted training."""
    output = tmp_path_factory.mktemp("finished") / "run"
    train_router(replace(settings, epochs=1), output=output)
    return output


CHANGED: dict[str, Any] = {  # unlike the settings of the fixture
    "reward": "throughput", "alpha": 0.9, "cost": "time", "standardize": True, "width": 16, "examples": 40,
    "gradient": "exact", "baseline": "query", "entropy": 0.3, "seed": 1, "lr": 1e-2, "weight_decay": 0.5,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CHANGED, "length"])
def test_each_setting_changes_the_weights(
    name: str, settings: RouterTrainingOptions, finished: Path, tmp_path: Path
) -> None:
    change = {"reward": "throughput", "length": 2} if name == "length" else {name: CHANGED[name]}
    runs = [finished, tmp_path / "run"]
    train_router(replace(settings, epochs=1, **change), output=runs[1])
    if name == "length":  # of the throughput
        runs[0] = tmp_path / "other"
        train_router(replace(settings, epochs=1, reward="throughput"), output=runs[0])
    assert differ(*map(last_weights, runs))


def test_the_epoch_of_least_regret_is_kept(settings: RouterTrainingOptions, tmp_path: Path) -> None:
    """The learning rate is so large that later epochs are worse than earlier ones."""
    result = train_router(replace(settings, lr=0.5, epochs=8), output=tmp_path / "run")
    regrets = [float(row["val_regret"]) for row in metrics_rows(tmp_path / "run") if row["val_regret"]]
    assert len({*regrets}) > 1
    assert result.metrics["regret"] == pytest.approx(min(regrets))
    assert result.epoch == 1 + regrets.index(min(regrets))


def test_an_exported_router_takes_raw_embeddings(settings: RouterTrainingOptions, tmp_path: Path) -> None:
    run = train_router(replace(settings, standardize=True), output=tmp_path / "run")
    loaded = load_controller(export(tmp_path / "run", tmp_path / "router"))
    assert loaded.config.arms == ARMS
    assert loaded.config.provenance.sampling == SamplingParams(0.8, 20, 0.95)
    assert loaded.config.metrics["regret"] == run.metrics["regret"]
    policy = loaded.head
    best = torch.load(tmp_path / "run" / "checkpoints" / "best.ckpt", weights_only=True)
    x = torch.randn(4, 6)
    policy_raw = policy(x)
    policy.load_state_dict(best["head"])
    expected = policy(x / torch.tensor(best["scale"]))
    torch.testing.assert_close(policy_raw, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("launcher", [SLURM, TORCHRUN, JSRUN], ids=["slurm", "torchrun", "jsrun"])
def test_a_study_trains_in_a_job_of_a_cluster_as_outside(
    launcher: dict[str, str], settings: RouterTrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training runs in one process, although variables of the launcher describe several."""
    config = replace(settings, epochs=1)
    table = table_of(dataset(make_router_rows(20)), config)
    expected = fit_policy(table, config).state_dict()
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    fitted = fit_policy(table, config).state_dict()
    assert all(torch.equal(fitted[name], value) for name, value in expected.items())
    assert launcher.items() <= os.environ.items()


class Squares(Trained[torch.Tensor]):
    def _weighted_loss(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch).square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("launcher", [SLURM, JSRUN], ids=["slurm", "jsrun"])
def test_a_tiny_model_trains_in_a_job_of_a_cluster(
    launcher: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # as Lightning reads it from these variables when it is imported
    rows = ResumableLoader(8, 4, 0, lambda epoch, rows: rows[:, None].float())
    optimise(Squares(torch.nn.Linear(1, 1), 2, lr=0.1, decay=0.5), rows, rows, tmp_path)
    assert "val_loss" in (tmp_path / "metrics.csv").read_text()  # the first process writes it


def test_an_arm_that_is_always_best_is_always_chosen() -> None:
    """Two groups of prompts, a large and a small one on both sides of the mean, have the same best arm."""
    rng = np.random.default_rng(0)
    side = np.where(np.arange(200) < 160, 1.0, -4.0)
    x = torch.tensor(3 + np.outer(side, rng.normal(size=8)) + 0.1 * rng.normal(size=(200, 8)), dtype=torch.float32)
    rewards = torch.tensor([[0.55, 0.45, 0.5, 1.0]]).repeat(200, 1)
    table = Table(x, rewards, np.array(["a"] * 200), np.array([str(i) for i in range(200)]))
    settings = RouterTrainingOptions(data="none", standardize=True, baseline="query", epochs=10, device="cpu")
    policy = fit_policy(table, settings)
    assert policy(x).argmax(-1).tolist() == [3] * 200
