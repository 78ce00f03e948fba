"""``specpilot bench trees``: rate-optimal trees against the best chain controller, on several machines.

Chains are replayed over traces of held-out outputs, as in ``bench ablation``; trees are decoded, at temperature 0 to
the same texts. What their rounds take is computed from their nodes and levels by each machine's cost model, by which
the controllers go as well. An *ideal* machine verifies n tokens in 1 + b·(n - 1) verifications of one, for several b,
and a draft step takes a fixed share of a verification; the *measured* machine is a file of ``bench cost``.

Speeds are relative to autoregressive decoding. The best chain controller is the fastest, on the very prompts, of fixed
lengths and confidence rules with their best parameter and of the trained controller with rate-optimal stopping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from specpilot.common.progress import progress_bar
from specpilot.compare.ablation import baselines, learned
from specpilot.compare.ablation_tables import CONFIDENCES, RATE_OPTIMAL, View, counters
from specpilot.compare.held_out import PromptBatch, Tracer, held_out, in_domain
from specpilot.compare.interval import ratio_interval, show
from specpilot.compare.replay import Array, groups_of, replay_all
from specpilot.compare.store import Store
from specpilot.compare.table import Table
from specpilot.controllers.checkpoints.content import controller_digest
from specpilot.controllers.length.cost_model import CostModel
from specpilot.controllers.length.tree_cost import tree_cost
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.drafters.tree import AUTO_TREE
from specpilot.infer.generation import Generation

from ..options import TreeStudyOptions

MEASURED, TRAINED = "measured", "trained"
TREE, NGRAMS = "tree", "chain and n-grams"
COUNTED = ("tokens", "seconds", "rounds", "nodes", "levels")  # of one output, but for its first token

Decoded = Mapping[str, Sequence[Sequence[float]]]  # by domain, ``COUNTED`` of each prompt


def bench_trees(options: TreeStudyOptions, console: Console) -> dict[str, Any]:
    """Measure every machine at every temperature; an interrupted run continues.

    Raises:
        InputError: a model, a controller or the cost is missing or does not fit, there are too few prompts, or another
            process writes to the folder.
    """
    costs = machines(options)
    result: dict[str, Any] = {"machines": {name: cost.as_dict() for name, cost in costs.items()}, "temperature": {}}
    with Store(options.folder) as store:
        decoder = SpeculativeDecoder.from_pretrained(options.target, options.draft, device=options.device)
        for temperature, path in options.by_temperature.items():
            study = Study(options, decoder, costs, temperature, path)
            result["temperature"][f"{temperature:g}"] = study.run(store, console)
    return result


def machines(options: TreeStudyOptions) -> dict[str, CostModel]:
    """Cost models by name."""
    costs = {f"{b:g}": CostModel(options.ratio, 1.0 - b, b) for b in options.slopes}
    return costs if options.cost is None else costs | {MEASURED: CostModel.load(options.cost)}


@dataclass(frozen=True)
class Study:
    """One temperature.

    Attributes:
        path: the trained controller of chains and trees.
    """

    options: TreeStudyOptions
    decoder: SpeculativeDecoder
    costs: Mapping[str, CostModel]
    temperature: float
    path: str

    def run(self, store: Store, console: Console) -> dict[str, Any]:
        """The results by machine and group of domains."""
        options = self.options
        sampling = SamplingParams(self.temperature, options.top_k, options.top_p)
        batches = held_out(options)
        tracer = Tracer(
            self.decoder, sampling, options.max_new_tokens, options.seed, chat=options.chat, system=options.system
        )
        rules = [rule for rule in baselines(greedy=self.temperature == 0) if rule.name in ("fixed", *CONFIDENCES)]
        rules += [
            rule for rule in learned(TRAINED, self.path, self.decoder, self.costs) if rule.name.endswith(RATE_OPTIMAL)
        ]
        counted = replay_all(tracer, batches, rules, store, console)
        groups = groups_of(list(next(iter(counted.values()))), in_domain(options, batches))
        found: dict[str, Any] = {}
        for which, (name, cost) in enumerate(self.costs.items()):
            decoded = {kind: self._decode(kind, cost, tracer, batches, store, console) for kind in (TREE, NGRAMS)}
            found[name] = {
                group: compare(View(counted, domains, cost, which), decoded) for group, domains in groups.items()
            }
        return found

    def _decode(
        self, kind: str, cost: CostModel, tracer: Tracer, batches: Sequence[PromptBatch], store: Store, console: Console
    ) -> Decoded:
        """Counters of decoding all prompts; those in ``store`` are taken from there."""
        decoder = self._decoder(kind, cost)
        identity = {**tracer.identity, "kind": kind, "cost": cost.as_dict(), "controller": controller_digest(self.path)}
        found: dict[str, list[Sequence[float]]] = {}
        with progress_bar(console, kind, len(batches)) as advance:
            for batch in batches:
                key = {**identity, **batch.identity}
                counts = store.compute(key, partial(decode, decoder, kind, cost, tracer, batch))
                found.setdefault(batch.domain, []).extend(counts)
                advance()
        return found

    def _decoder(self, kind: str, cost: CostModel) -> SpeculativeDecoder:
        target, (draft,), tokenizer = self.decoder.target, self.decoder.drafts, self.decoder.tokenizer
        length = self.decoder.load_length(self.path, cost=cost)
        if kind == TREE:
            return SpeculativeDecoder(target, draft, tokenizer, length=length, tree=AUTO_TREE)
        return SpeculativeDecoder(target, draft, tokenizer, length=length, ngram=Ngram(cost=cost))


def decode(
    decoder: SpeculativeDecoder, kind: str, cost: CostModel, tracer: Tracer, batch: PromptBatch
) -> list[list[float]]:
    """``COUNTED`` of each prompt of a batch."""
    sampling = tracer.sampling
    outputs: list[Generation] = decoder.generate(
        [row.prompt for row in batch.prompts],
        max_new_tokens=tracer.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=[tracer.seed_of(kind, row) for row in batch.prompts],
        chat=tracer.chat,
        system=tracer.system,
    )
    return [counts_of(output, cost) for output in outputs]


def counts_of(output: Generation, cost: CostModel) -> list[float]:
    """``COUNTED`` of an output. A chain that begins with copies takes fewer forwards of the draft than it has nodes."""
    rounds, stats = output.rounds[1:], output.stats
    nodes = sum(len(r.drafted) for r in rounds)
    if all(r.parents == list(range(-1, len(r.parents) - 1)) for r in rounds):
        copied = nodes - stats.n_draft_forwards
        seconds = sum(cost.round(len(r.drafted)) for r in rounds) - cost.t_draft * copied
    else:
        seconds = sum(tree_cost(cost, r.parents) for r in rounds)
    return [stats.n_generated - 1, seconds, len(rounds), nodes, stats.n_draft_forwards]


def compare(view: View, decoded: Mapping[str, Decoded]) -> dict[str, Any]:
    """The best chain controller, trees, and chains with n-grams on one group of domains, by one machine's costs."""
    cost = view.cost
    best = view.best("fixed", *CONFIDENCES, TRAINED + RATE_OPTIMAL)
    generated, drafted, forwards = counters(view.counted[best], view.domains)
    seconds = cost.seconds(drafted, forwards)
    tree, ngrams = (_columns(decoded[kind], view.domains) for kind in (TREE, NGRAMS))
    tokens, spent, rounds, nodes, levels = (column.sum() for column in tree)
    return {
        "chain": float(generated.sum() / seconds.sum() * cost.round(0)),
        "tree": float(tokens / spent * cost.round(0)),
        "tree_over_chain": ratio_interval(tree[0], tree[1], generated, seconds).as_dict("ratio"),
        "best_chain": {"rule": best[0]} | ({} if best[0].endswith(RATE_OPTIMAL) else {"parameter": best[1]}),
        "trained_chain": view.value(view.best(TRAINED + RATE_OPTIMAL)),
        "chain_and_ngrams": float(ngrams[0].sum() / ngrams[1].sum() * cost.round(0)),
        "tree_over_chain_and_ngrams": ratio_interval(tree[0], tree[1], ngrams[0], ngrams[1]).as_dict("ratio"),
        "tokens_per_round": float(tokens / rounds),
        "nodes_per_round": float(nodes / rounds),
        "draft_forwards_per_round": float(levels / rounds),
    }


def _columns(decoded: Decoded, domains: Sequence[str]) -> list[Array]:
    """(prompts,) each of ``COUNTED``."""
    return [*np.array([row for domain in domains for row in decoded[domain]], dtype=float).T]


def as_tables(result: Mapping[str, Any]) -> list[Table]:
    """One table for each temperature; the domains one by one are in the JSON."""
    tables = []
    for temperature, by_machine in result["temperature"].items():
        rows = [
            {
                "b": name,
                "prompts": group.replace("_", "-"),
                "best chain": f"{row['chain']:.3f} ({row['best_chain']['rule']})",
                "tree": f"{row['tree']:.3f}",
                "tree over chain": show(row["tree_over_chain"], "ratio", 3),
                "chain and n-grams": f"{row['chain_and_ngrams']:.3f}",
                "tokens / nodes / draft forwards a round": f"{row['tokens_per_round']:.2f} / "
                f"{row['nodes_per_round']:.1f} / {row['draft_forwards_per_round']:.1f}",
            }
            for name, by_group in by_machine.items()
            for group, row in by_group.items()
            if group in ("in_domain", "left_out")
        ]
        tables.append(Table(f"speed-up over autoregressive decoding, temperature {temperature}", rows))
    return tables
