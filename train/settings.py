"""Settings of training, importable without torch: their names and docstrings are the command line's flags."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..controllers.errors import InputError


@dataclass(frozen=True)
class AcceptanceTrainingOptions:
    """Training of an acceptance head. Defaults are those of SpecDec++ (Huang et al. 2024, §4.1 and Appendix C.1).

    Attributes:
        data: folder written by ``specpilot data acceptance``.
        draft: name, folder or hub id of the draft model; by default the one the data was made with.
        dtype: precision of the frozen draft; the head is always float32.
        depth: residual blocks D of the head; 0 is a linear head.
        w_acc: loss weight of acceptance.
        w_rej: loss weight of rejection.
        mixing: share r of target tokens in the training sequences, drawn anew every epoch; the others are the
            draft's, and only they are learnt from. At 1 all of the draft's tokens are learnt from, each after the
            target's own text; that takes cache_features. By default by how often the draft agrees in the dataset:
            0.15, the paper's, and 0.5 where its mean acceptance is below one half.
        epochs: passes over the data.
        batch_size: rollouts per step.
        lr: initial learning rate of Adam; it falls to 0 along a cosine over all steps.
        weight_decay: decoupled weight decay; 0 is plain Adam.
        seed: decides initial weights, order of the data and mixing.
        max_length: tokens of prompt and response together; longer responses are cut.
        validation_fraction: share of prompts held out, by a hash of their id.
        cache_features: compute the draft's hidden states once and keep them in the run folder (float32; the size is
            printed first) instead of computing them in every step.
        cache_epochs: with cache_features, how many epochs' mixings are kept and then used in turn; by default all.
        checkpoint_every: steps between two checkpoints to resume from; the end of an epoch is always one.
        log_every: steps between two rows of metrics.csv.
        wandb: project on Weights & Biases to log to as well; offline if WANDB_API_KEY is not set.
        threads: CPU threads; by default PyTorch's choice.
        device: auto, cpu, cuda, cuda:1, …
    """

    data: str
    draft: str | None = None
    dtype: str = "float32"
    depth: int = 3
    w_acc: float = 1.0
    w_rej: float = 6.0
    mixing: float | None = None
    epochs: int = 3
    batch_size: int = 32
    lr: float = 5e-5
    weight_decay: float = 0.0
    seed: int = 0
    max_length: int = 2048
    validation_fraction: float = 0.1
    cache_features: bool = False
    cache_epochs: int | None = None
    checkpoint_every: int = 100
    log_every: int = 10
    wandb: str | None = None
    threads: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        values = vars(self)
        for name in ("epochs", "batch_size", "checkpoint_every", "log_every", "cache_epochs", "threads"):
            _require(values[name] is None or values[name] >= 1, name, values[name], "must be at least 1")
        for name in ("w_acc", "w_rej", "lr"):
            _require(values[name] > 0 and math.isfinite(values[name]), name, values[name], "must be a positive number")
        decay = self.weight_decay
        _require(decay >= 0 and math.isfinite(decay), "weight_decay", decay, "must be a number, 0 or more")
        _require(self.depth >= 0, "depth", self.depth, "must be 0 (a linear head) or more")
        _require(self.mixing is None or 0 <= self.mixing <= 1, "mixing", self.mixing, "must be in [0, 1]")
        afresh = self.mixing == 1 and not self.cache_features
        _require(not afresh, "mixing", self.mixing, "takes cache_features; set that too, or a share below 1")
        fraction = self.validation_fraction
        _require(0 < fraction < 1, "validation_fraction", fraction, "must be between 0 and 1")
        _require(self.seed >= 0, "seed", self.seed, "must be 0 or more")
        _require(
            self.max_length >= 2, "max_length", self.max_length, "must be at least 2: a prompt and a response token"
        )
        uncached = self.cache_epochs is not None and not self.cache_features
        _require(not uncached, "cache_epochs", self.cache_epochs, "has no effect without cache_features; set that too")


@dataclass(frozen=True)
class LagFreeTrainingOptions:
    """Training of a lag-free head.

    Attributes:
        data: folders written by 'specpilot data acceptance' or 'data on-policy', all of one pair and sampling.
        texts: take only the first so many texts of each folder that are not held out.
        cost: file of 'specpilot bench cost', or t_draft / t_verify: epochs are compared by simulated tokens/s at these
            costs. By default 0.21, as in SpecDec++.
        width: hidden units of the head.
        epochs: passes over the data.
        batch_size: drafted tokens per step.
        lr: highest learning rate of AdamW, on a one-cycle schedule.
        weight_decay: decoupled weight decay.
        dropout: share of the entries of the draft's state and of the token's embedding that a step leaves out: text of
            another kind than that trained on is judged better for it.
        use_ngrams: judge by what the text says too: what followed its last tokens where they stood before.
        traced: held-out texts to simulate on.
        seed: decides initial weights and the order of the data.
        validation_fraction: share of prompts held out, by a hash of their id.
        device: auto, cpu, cuda, …: where the models read the texts; the head is trained on the CPU.
    """

    data: list[str]
    texts: int | None = None
    cost: str | float | None = None
    width: int = 128
    epochs: int = 4
    batch_size: int = 512
    lr: float = 2e-3
    weight_decay: float = 0.05
    dropout: float = 0.3
    use_ngrams: bool = True
    traced: int = 100
    seed: int = 0
    validation_fraction: float = 0.1
    device: str = "auto"

    def __post_init__(self) -> None:
        _require(bool(self.data), "data", self.data, "give at least one dataset")
        for name in ("texts", "width", "epochs", "batch_size", "traced"):
            _require(vars(self)[name] is None or vars(self)[name] >= 1, name, vars(self)[name], "must be at least 1")
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "must be a positive number")
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "must be at least 0 and below 1")
        fraction = self.validation_fraction
        _require(0 < fraction < 1, "validation_fraction", fraction, "must be between 0 and 1")


@dataclass(frozen=True)
class RouterTrainingOptions:
    """Training of a router. Defaults are those of assistant selection (Huang et al. 2024, §3.1 and Table 9).

    Attributes:
        data: folder written by ``specpilot data router``.
        reward: rouge (the paper's proxy, eq. 2), or throughput: tokens per second that the cost model expects of an
            arm from how much of its drafts the target keeps along its own text, over the target's own.
        alpha: with rouge: weight of alignment; the cost has the rest. 1 looks at alignment alone.
        cost: with rouge: parameters (A.5: c = 1 - e^P / e^P_max, P in billions) or time (c = 1 - t / t_max, measured).
        length: with throughput: tokens a draft; null: each prompt's best for each arm.
        gradient: sampled (REINFORCE, the paper's) or exact: every arm's reward is known offline.
        baseline: what is taken off the reward: none (the paper's), batch (mean of the others' in the batch) or query
            (mean over the query's arms).
        entropy: weight of the policy's entropy in nats, to keep it from settling early.
        standardize: divide every entry of the embedding by its standard deviation over the training data; the
            exported policy has it in its first layer.
        width: hidden size of the MLP.
        epochs: passes over the data.
        batch_size: queries per step.
        lr: learning rate of AdamW.
        weight_decay: decoupled weight decay.
        examples: train on the first so many queries only.
        seed: decides initial weights, order of the data and sampled actions.
        validation_fraction: share of prompts held out, by a hash of their id.
        checkpoint_every: steps between two checkpoints to resume from; the end of an epoch is always one.
        log_every: steps between two rows of metrics.csv.
        wandb: project on Weights & Biases to log to as well; offline if WANDB_API_KEY is not set.
        threads: CPU threads; by default PyTorch's choice.
        device: auto, cpu, cuda, cuda:1, …
    """

    data: str
    reward: Literal["rouge", "throughput"] = "rouge"
    alpha: float = 0.5
    cost: Literal["parameters", "time"] = "parameters"
    length: int | None = None
    gradient: Literal["sampled", "exact"] = "sampled"
    baseline: Literal["none", "batch", "query"] = "none"
    entropy: float = 0.0
    standardize: bool = False
    width: int = 512
    epochs: int = 3
    batch_size: int = 64
    lr: float = 1e-3
    weight_decay: float = 1e-2
    examples: int | None = None
    seed: int = 0
    validation_fraction: float = 0.1
    checkpoint_every: int = 100
    log_every: int = 10
    wandb: str | None = None
    threads: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        values = vars(self)
        for name, choices in (
            ("reward", ("rouge", "throughput")), ("cost", ("parameters", "time")), ("gradient", ("sampled", "exact")),
            ("baseline", ("none", "batch", "query")),
        ):  # fmt: skip
            _require(values[name] in choices, name, values[name], f"choose one of {', '.join(choices)}")
        for name in ("epochs", "batch_size", "width", "checkpoint_every", "log_every", "threads", "examples"):
            _require(values[name] is None or values[name] >= 1, name, values[name], "must be at least 1")
        _require(self.lr > 0 and math.isfinite(self.lr), "lr", self.lr, "must be a positive number")
        for name in ("weight_decay", "entropy"):
            value = values[name]
            _require(value >= 0 and math.isfinite(value), name, value, "must be a number, 0 or more")
        _require(0 <= self.alpha <= 1, "alpha", self.alpha, "must be in [0, 1]")
        within = self.length is None or 1 <= self.length <= MAX_LENGTH
        _require(within, "length", self.length, f"must be from 1 to {MAX_LENGTH}, or left out")
        fraction = self.validation_fraction
        _require(0 < fraction < 1, "validation_fraction", fraction, "must be between 0 and 1")
        _require(self.seed >= 0, "seed", self.seed, "must be 0 or more")


MAX_LENGTH = 20  # no draft is longer


def _require(fine: bool, name: str, value: object, remedy: str) -> None:
    if not fine:
        raise InputError(f"{name}={value}: {remedy}")
