"""``python -m experiments reachable``: the speed-up that a predictor of acceptance can reach.

A controller that knew every acceptance probability would decode faster than any trained controller. It also knows the
tokens that have not been drafted yet, so that part of its gain cannot be predicted. This study trains a large network
on everything that is known when a controller decides, and leaves the network's time out of the costs. The network reads

* the draft's evidence of a token and its n-gram match (the inputs of the lag-free head),
* the draft's hidden state before the token, the embeddings of the token and of the n-gram match's copy,
* the target's hidden state of the last verified token,
* the token's index in the draft, the position in the text, and how many tokens of the text the draft chose as well.

It predicts the acceptance of the drafted token and that of the next token, which has not been drafted. Both are
evaluated by AUROC and by replay, beside the included predictor and the best rules without training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log1p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.options import Count, Folder, Positive
from specpilot.compare.interval import Interval, show
from specpilot.compare.recorded import (
    INFORMED,
    MakeController,
    Rule,
    Tracer,
    informed_rule,
    speed_of,
    speed_ratio_of,
)
from specpilot.compare.store import Store
from specpilot.compare.table import Table
from specpilot.controllers.acceptance.lag_free_head import (
    INPUTS,
    copied_embeddings,
    evidence_rows,
    match_copies,
)
from specpilot.controllers.acceptance.metrics import Metrics
from specpilot.controllers.acceptance.predictor import AcceptancePredictor, TrainedPredictor
from specpilot.controllers.acceptance.step import Step
from specpilot.controllers.acceptance.token_head import normalised
from specpilot.controllers.checkpoints.checkpoint import load_controller
from specpilot.controllers.checkpoints.fingerprint import weights_digest
from specpilot.controllers.checkpoints.provenance import INVARIANT
from specpilot.controllers.length import CumulativeConfidence, Fixed
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.rate_optimal import RateOptimal
from specpilot.controllers.length.trained import make_predictor
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.prompts import PromptRow
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.options import PairOptions, SamplingOptions
from specpilot.models import output_embedding
from specpilot.simulate.replay import PrecomputedPredictor, TracedStep
from specpilot.simulate.trace import END, Trace
from specpilot.train.datasets import is_validation
from torch import Tensor, nn

from .heads import HeadStudyOptions, SweepOptions, training_prompts
from .held_out import Counted, Rows, groups_of, held_out, in_domain, replay_domains

LONGEST = 10  # tokens of a draft that the network is trained on; later tokens get the prediction of the last one
RECENT = (8, 32)  # numbers of tokens of the text over which the draft's agreement is averaged
PLACES = 3  # index in the draft and its first token, position in the text
NUMBERS = INPUTS + PLACES + len(RECENT)
BATCH = 1024
LEARNING_RATE = 1e-3
LENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
CONFIDENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
FIXED, CONFIDENCE = "fixed length", "cumulative confidence"
INCLUDED, NETWORK, FORESIGHT = "included predictor", "large network", "large network, next token predicted"


@dataclass(frozen=True, kw_only=True)
class ReachableOptions(PairOptions, SamplingOptions, HeadStudyOptions):
    """Study.

    Options of ``python -m experiments reachable``.

    Attributes:
        predictor: Controller whose predictor is compared with the network.
        verifier: Rule that verifies drafts, token-wise or invariant.
        max_new_tokens: Maximum number of new tokens per text.
        ratio: Time of a draft step in units of a target forward.
        width: Hidden units of each of the network's two layers.
        dropout: Dropout of the network.
        train_prompts: Number of training prompts.
        epochs: Passes over the data; the one with the smallest validation loss is used.
    """

    predictor: str = "tiny-lag-free"
    verifier: str = INVARIANT
    max_new_tokens: Count = 64
    ratio: Positive = 0.21
    width: Count = 512
    dropout: float = 0.2
    train_prompts: Count = 1500
    epochs: Count = 8
    folder: Folder = Path("runs/reachable")


class Inputs(NamedTuple):
    """The network's inputs for N pairs of a round's start and a drafted token, as indices into vectors of one trace.

    Attributes:
        numbers: (N, NUMBERS) evidence, places and agreement.
        nodes: (N,) the token's node in the trace, the index of its draft state.
        starts: (N,) the index of the target state of the last verified token.
        tokens, copies: (N,) the drafted token, and the token that the n-gram match continues with; -1 without a match.
        accept, next_accept: (N,) acceptance probabilities of the token and of the one drafted after it; NaN if no token
            is drafted after it.
        depth: (N,) the token's index in the draft, from 1.
        states, target_states: (nodes, d) and (T, D) the vectors.
    """

    numbers: Tensor
    nodes: Tensor
    starts: Tensor
    tokens: Tensor
    copies: Tensor
    accept: Tensor
    next_accept: Tensor
    depth: Tensor
    states: Tensor
    target_states: Tensor


def inputs_of(traced: Trace) -> Inputs:
    """Return the inputs of all rounds that can start in the text of a trace, with up to ``LONGEST`` tokens each."""
    pairs = []
    for start in range(1, len(traced.text)):
        node, index = start, 1
        while node != END and index <= LONGEST:
            pairs.append((start, node, index))
            node, index = traced.after[node], index + 1
    agreement = np.array(traced.kept, dtype=float)
    evidence = evidence_rows(traced.signals, traced.ngram_matches, traced.tokens)
    places = [
        [
            index / LONGEST, float(index == 1), log1p(start) / 5.0,
            *(float(agreement[max(0, start - recent) : start].mean()) for recent in RECENT),
        ]
        for start, _, index in pairs
    ]  # fmt: skip
    nodes = torch.tensor([node for _, node, _ in pairs], dtype=torch.long)
    accept = torch.tensor([*traced.accept, torch.nan])
    after = torch.tensor(traced.after)
    return Inputs(
        torch.cat([evidence[nodes], torch.tensor(places).reshape(-1, PLACES + len(RECENT))], -1),
        nodes,
        torch.tensor([start - 1 for start, _, _ in pairs], dtype=torch.long),
        torch.tensor(traced.tokens)[nodes],
        match_copies(traced.ngram_matches)[nodes],
        accept[nodes],
        accept[torch.where(after == END, len(after), after)][nodes],
        torch.tensor([index for _, _, index in pairs], dtype=torch.long),
        traced.states.half(),
        traced.target_states.half(),
    )


class Network(nn.Module):
    """A network of two hidden layers: inputs → logits (N, 2) of the drafted token's and the next token's acceptance.

    Args:
        embedding: (V, d) the draft's output embedding.
        target_size: D, the size of the target's states.
        width: hidden units of each layer.
        dropout: dropout probability.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, embedding: Tensor, target_size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = embedding.detach().float()
        size = self.embedding.shape[1]
        self.norms = nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(target_size)])
        self.layers = nn.Sequential(
            nn.Linear(NUMBERS + 3 * size + target_size, width), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, 2),
        )  # fmt: skip
        self.register_buffer("mean", torch.zeros(NUMBERS))
        self.register_buffer("deviation", torch.ones(NUMBERS))

    def standardise(self, numbers: Tensor) -> None:
        """Set the scales of the inputs from the ``numbers`` (N, NUMBERS) of the training examples."""
        self.mean.copy_(numbers.mean(0))
        self.deviation.copy_(numbers.std(0).clamp(min=1e-3))

    def forward(self, inputs: Inputs) -> Tensor:
        state_norm, target_norm = self.norms
        vectors = [
            (inputs.numbers - self.mean) / self.deviation,
            state_norm(inputs.states[inputs.nodes].float()),
            normalised(self.embedding[inputs.tokens]),
            normalised(copied_embeddings(self.embedding, inputs.copies)),
            target_norm(inputs.target_states[inputs.starts].float()),
        ]
        return self.layers(torch.cat(vectors, -1))  # type: ignore[no-any-return]


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Return the inputs of several traces as those of one."""
    nodes = np.cumsum([0, *(len(part.states) for part in parts)])
    starts = np.cumsum([0, *(len(part.target_states) for part in parts)])
    shifted = [
        part._replace(nodes=part.nodes + int(nodes[i]), starts=part.starts + int(starts[i]))
        for i, part in enumerate(parts)
    ]
    return Inputs(*(torch.cat(column) for column in zip(*shifted, strict=True)))


def rows_of(inputs: Inputs, rows: Tensor) -> Inputs:
    """Return the pairs ``rows``, with all vectors."""
    names = [name for name in Inputs._fields if name not in ("states", "target_states")]
    return inputs._replace(**{name: getattr(inputs, name)[rows] for name in names})


def loss_of(logits: Tensor, inputs: Inputs) -> Tensor:
    """Return the mean cross entropy for the acceptance of a token plus that for the next token, in nats."""
    has_next = ~inputs.next_accept.isnan()
    now = F.binary_cross_entropy_with_logits(logits[:, 0], inputs.accept.clamp(0, 1))
    later = F.binary_cross_entropy_with_logits(logits[has_next, 1], inputs.next_accept[has_next].clamp(0, 1))
    return now + later


def train_network(settings: ReachableOptions, network: Network, training: Inputs, validation: Inputs) -> float:
    """Train ``network``, leave it with the weights of the epoch with the smallest validation loss, and return that."""
    network.standardise(training.numbers)
    steps = settings.epochs * -(-len(training.nodes) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    best, weights = torch.inf, dict(network.state_dict())
    for _ in range(settings.epochs):
        network.train()
        for rows in torch.randperm(len(training.nodes)).split(BATCH):  # type: ignore[no-untyped-call]
            batch = rows_of(training, rows)
            loss = loss_of(network(batch), batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        network.eval()
        with torch.inference_mode():
            value = float(loss_of(network(validation), validation))
        if value < best:
            best, weights = value, {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.load_state_dict(weights)
    network.eval().requires_grad_(False)
    return float(best)


class Predictions(AcceptancePredictor):
    """The network's predictions for one trace, by node and index in the draft.

    Args:
        probabilities: the predicted acceptance of the token and of the next token.
        mean: mean acceptance of the training examples.
    """

    lag = 0

    def __init__(self, probabilities: dict[tuple[int, int], tuple[float, float]], mean: float) -> None:
        self.probabilities, self.mean = probabilities, mean

    def of(self, step: Step) -> tuple[float, float]:
        """Return the predicted acceptance of the step's token and of the next token."""
        assert isinstance(step, TracedStep)
        prediction = self.probabilities.get((step.node, step.index))
        return (self.mean, self.mean) if prediction is None else prediction  # after LONGEST tokens

    def predict(self, step: Step) -> float:
        return self.of(step)[0]


class ForesightLength(RateOptimal):
    """Stops by rate-optimal stopping, with a prediction of the next token's acceptance instead of its mean."""

    def observe(self, step: Step) -> bool:
        assert isinstance(self.predictor, Predictions)
        super().observe(step)
        return self._pays(self.survival * self.predictor.of(step)[1], step.index)


@torch.inference_mode()
def predictions(network: Network, traced: Trace, mean: float) -> Predictions:
    """Return the network's predictions for a trace."""
    inputs = inputs_of(traced)
    if not len(inputs.nodes):
        return Predictions({}, mean)
    probabilities = torch.sigmoid(network(inputs)).tolist()
    keys = zip(inputs.nodes.tolist(), inputs.depth.tolist(), strict=True)
    return Predictions({key: (now, later) for key, (now, later) in zip(keys, probabilities, strict=True)}, mean)


def rules(included: TrainedPredictor, name: str, network: Network, mean: float, cost: CostModel) -> list[Rule]:
    """Return all rules that are replayed."""

    def of_included(traces: Sequence[Trace]) -> MakeController:
        values = [included.predict_all(t.signals, t.ngram_matches, t.states, t.tokens) for t in traces]
        lengths = [RateOptimal(PrecomputedPredictor(included, value), cost) for value in values]
        return lambda index, unused: lengths[index]

    def of_network(kind: type[RateOptimal]) -> Any:
        def make(traces: Sequence[Trace]) -> MakeController:
            lengths = [kind(predictions(network, traced, mean), cost) for traced in traces]
            return lambda index, unused: lengths[index]

        return make

    identity = {"costs": cost.to_dict()}
    weights = {"weights": weights_digest(network)}
    return [
        Rule.untrained(FIXED, LENGTHS, lambda k: Fixed(int(k))),
        Rule.untrained(CONFIDENCE, CONFIDENCES, CumulativeConfidence),
        Rule(INCLUDED, (0.0,), {"rule": name, **identity}, of_included),
        Rule(NETWORK, (0.0,), {"rule": NETWORK, **identity, **weights}, of_network(RateOptimal)),
        Rule(FORESIGHT, (0.0,), {"rule": FORESIGHT, **identity, **weights}, of_network(ForesightLength)),
        informed_rule(cost),
    ]


def traces_of(tracer: Tracer, rows: Sequence[PromptRow], console: Console, batch: int = 20) -> list[Trace]:
    """Return the traces of ``rows``, computed in batches."""
    traces: list[Trace] = []
    for start in range(0, len(rows), batch):
        traces += tracer.traces(rows[start : start + batch])
        console.print(f"traced {len(traces)} of {len(rows)} prompts")
    return traces


def quality(included: TrainedPredictor, network: Network, traces: Sequence[Trace]) -> dict[str, dict[str, float]]:
    """Return AUROC and KL divergence of all predictors on all drafted tokens of ``traces``."""
    now, later, included_logits, confidence, accept, next_accept = [], [], [], [], [], []
    for traced in traces:
        inputs = inputs_of(traced)
        with torch.inference_mode():
            logits = network(inputs)
        values = included.predict_all(traced.signals, traced.ngram_matches, traced.states, traced.tokens)
        has_next = ~inputs.next_accept.isnan()
        now.append(logits[:, 0])
        later.append(logits[has_next, 1])
        included_logits.append(torch.tensor(values)[inputs.nodes].clamp(1e-6, 1 - 1e-6).logit())
        q = torch.tensor([signals[0] for signals in traced.signals])
        confidence.append(q[inputs.nodes].clamp(1e-6, 1 - 1e-6).logit())
        accept.append(inputs.accept)
        next_accept.append(inputs.next_accept[has_next])
    predicted = {"the draft's confidence": confidence, INCLUDED: included_logits, NETWORK: now}
    results = {name: Metrics(torch.cat(logits), torch.cat(accept)).compute() for name, logits in predicted.items()}
    results["next token, by the large network"] = Metrics(torch.cat(later), torch.cat(next_accept)).compute()
    return {
        name: {metric: metrics[metric] for metric in ("auroc", "kl", "kl_constant")}
        for name, metrics in results.items()
    }


def summarise(
    counted: Counted,
    domains: Sequence[str],
    trained: Sequence[str],
    cost: CostModel,
) -> dict[str, Any]:
    """Return, for each group of domains, the speed-up of every controller and the share of the possible gain."""
    results = {}
    for group, members in groups_of(domains, trained).items():
        of_group = {key: [c for domain in members for c in counts[domain]] for key, counts in counted.items()}
        best = {  # the best parameter on these prompts, which favours rules without training
            name: max((key for key in of_group if key[0] == name), key=lambda key: speed_of(of_group[key], cost).value)
            for name in dict.fromkeys(name for name, _ in of_group)
        }
        speeds = {name: speed_of(of_group[key], cost) for name, key in best.items()}
        rule = max((FIXED, CONFIDENCE), key=lambda name: speeds[name].value)
        possible = speeds[INFORMED].value - speeds[rule].value
        results[group] = {
            "speed": {name: speed.to_dict() for name, speed in speeds.items()},
            "parameters": {name: best[name][1] for name in (FIXED, CONFIDENCE)},
            "best_rule": rule,
            "relative_to_included": {
                name: speed_ratio_of(of_group[best[name]], of_group[best[INCLUDED]], cost).to_dict()
                for name in (NETWORK, FORESIGHT)
            },
            "share_of_possible_gain": {
                name: (speeds[name].value - speeds[rule].value) / possible
                for name in (INCLUDED, NETWORK, FORESIGHT)
            },
        }  # fmt: skip
    return results


def run_reachable(settings: ReachableOptions, folder: Path, console: Console) -> dict[str, Any]:
    """Train the network, replay all controllers, and return the results; replays in ``folder`` are reused."""
    rows: Rows = held_out(settings)
    trained_domains = in_domain(settings, rows)
    shared = {name for name in vars(settings)} & set(SweepOptions.__dataclass_fields__)
    training_rows = training_prompts(SweepOptions(**{name: getattr(settings, name) for name in shared}), rows)
    decoder = SpeculativeDecoder.from_pretrained(settings.target, settings.draft, length=4, device=settings.device)
    sampling = SamplingParams(settings.temperature, settings.top_k, settings.top_p)
    tracer = Tracer(
        decoder, sampling, settings.max_new_tokens, settings.seed, chat=settings.chat,
        system=settings.system, verifier=settings.verifier,
    )  # fmt: skip
    model = decoder.drafts[0].model
    embedding = output_embedding(model)
    included = make_predictor(
        settings.predictor, load_controller(settings.predictor), decoder.fingerprint, model.device, embedding,
        calibrated=True,
    )  # fmt: skip
    cost = CostModel(settings.ratio, 1.0, 0.0)
    traces = traces_of(tracer, training_rows, console)
    parts: dict[bool, list[Inputs]] = {False: [], True: []}
    for row, traced in zip(training_rows, traces, strict=True):
        parts[is_validation(row.id, settings.validation_fraction)].append(inputs_of(traced))
    training, validation = joined(parts[False]), joined(parts[True])
    torch.manual_seed(settings.seed)
    network = Network(embedding, training.target_states.shape[1], settings.width, settings.dropout)
    console.print(f"training the network on {len(training.nodes):,} drafted tokens of {len(parts[False])} prompts")
    loss = train_network(settings, network, training, validation)
    mean = float(training.accept.mean())
    with Store(folder) as store:
        compared = rules(included, settings.predictor, network, mean, cost)
        counted = replay_domains(tracer, rows, compared, store, console)
    metrics = {}
    for group, members in groups_of([*rows], trained_domains).items():
        if group not in rows:  # a set of domains
            tested = traces_of(tracer, [row for domain in members for row in rows[domain]], console)
            metrics[group] = quality(included, network, tested)
    return {
        "groups": summarise(counted, [*rows], trained_domains, cost),
        "metrics": metrics,
        "validation_loss": loss,
        "training": {"prompts": len(parts[False]), "tokens": len(training.nodes), "mean_acceptance": mean},
        "network": {"parameters": sum(parameter.numel() for parameter in network.parameters())},
    }


def as_tables(result: dict[str, Any]) -> list[Table]:
    """Return a table of speed-ups by group of domains, and one of the metrics of the predictors."""
    names = (FIXED, CONFIDENCE, INCLUDED, NETWORK, FORESIGHT, INFORMED)
    speeds = [
        {
            "controller": "every acceptance probability known" if name == INFORMED else name,
            **{
                group.replace("_", " "): show(Interval(**of_group["speed"][name]))
                for group, of_group in result["groups"].items()
            },
        }
        for name in names
    ]
    metrics = [
        {"domains": group.replace("_", " "), "predictor": name, "AUROC": f"{values['auroc']:.3f}",
         "KL divergence": f"{values['kl']:.3f}", "KL of the mean": f"{values['kl_constant']:.3f}"}
        for group, of_group in result["metrics"].items()
        for name, values in of_group.items()
    ]  # fmt: skip
    return [Table("speed-up by replay", speeds), Table("quality of predictions", metrics)]


def main(options: ReachableOptions) -> None:
    """Train a large predictor of acceptance, its time ignored, to bound the speed-up that prediction can reach."""
    console = begin()
    result = run_reachable(options, options.folder, console)
    for table in as_tables(result):
        console.print(table)
    finish(result, options, options.output)
