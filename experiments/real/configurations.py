"""What is timed on a real pair: transformers, llama.cpp, and the decoder with every kind of draft and rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specpilot.compare.engines.assisted import Assistance, Transformers, generate, sampling_options
from specpilot.compare.engines.llama_loops import LlamaLoops
from specpilot.controllers.length import Fixed, OnlineConfidence, RateOptimal, parse_rule
from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.costs import quick_costs
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.drafters.tree import AUTO_TREE
from specpilot.infer.models import GgufModel

AUTOREGRESSIVE = "specpilot-autoregressive"
OURS = "specpilot-ours"  # trees grown by the trained predictor at measured costs, and copies by the trained copy head
PREDICTOR = "specpilot-predictor"  # chains by the same, without copies
PREDICTOR_NGRAM = "specpilot-predictor+copies"  # and with them
COPIES = "specpilot-copies"  # copies by the trained head, without a draft model
ROUTER = "specpilot-router"  # chooses the draft, copies, an early exit or nothing for each prompt
ROUTED_LENGTH = "cumulative-confidence:0.4"  # of the arms that have a model
NGRAM = "specpilot-ngram"
RULES = ("1", "2", "3", "cumulative-confidence:0.4", "online-confidence")
MIXED = ("2", "3", "cumulative-confidence:0.4", "online-confidence")
TREES = ("3", "3x1")  # fixed ones; at temperature 0 they are chains
GROWN = "specpilot-tree-online-confidence+ngram"  # as ours, without training
LOOKUP = (10,)  # tokens that transformers' prompt lookup copies
ASSISTED = {"transformers-assisted-2": Assistance(2)}

Generate = Callable[[list[int], int], int]  # (prompt, seed) → number of new tokens


def of_torch(
    pair: SpeculativeDecoder,
    controller: str | None,
    copies: str | None,
    routed: SpeculativeDecoder | None,
    sampling: SamplingParams,
    max_new_tokens: int,
) -> dict[str, Generate]:
    """Configurations of a pair in PyTorch, with transformers' own on the same weights.

    Args:
        controller: name of a trained acceptance predictor of the pair; None leaves it out.
        copies: name of a trained copy head of the target; None copies by the text's own rates.
        routed: the target with a router; None leaves it out.
    """
    (draft,), options = pair.drafts, sampling_options(sampling) | {"max_new_tokens": max_new_tokens}
    target, assistant = pair.target.model, draft.model
    assert not isinstance(target, GgufModel)
    assert not isinstance(assistant, GgufModel)
    theirs = Transformers(target, assistant, sampling, max_new_tokens)
    theirs.states = {name: vars(assistance).copy() for name, assistance in ASSISTED.items()}

    def assisted(name: str | None) -> Generate:
        return lambda prompt, seed: len(theirs.generate(prompt, name))

    def looking_up(count: int) -> Generate:
        return lambda prompt, seed: len(generate(target, prompt, **options, prompt_lookup_num_tokens=count))

    runs = {"transformers-generate": assisted(None)}
    runs |= {f"transformers-prompt-lookup-{count}": looking_up(count) for count in LOOKUP}
    if draft.vocab_size == pair.target.vocab_size and not draft.reads_states:
        runs |= {name: assisted(name) for name in ASSISTED}
    cost = quick_costs(pair.target, draft)
    by_rates = Ngram(cost=cost, adapt=True)
    trained_copies = by_rates if copies is None else replace(by_rates, predictor=pair.load_copies(copies))

    def ours(draft: Any, length: Any = None, ngram: Ngram | None = None, tree: str | None = None) -> Generate:
        decoder = SpeculativeDecoder(pair.target, draft, pair.tokenizer, length=length, ngram=ngram, tree=tree)
        return _decoding(decoder, sampling, max_new_tokens)

    runs[AUTOREGRESSIVE] = ours(None, Fixed(0))
    runs[NGRAM] = ours(None, None, by_rates)
    runs |= {f"specpilot-{rule}": ours(draft, parse_rule(rule, cost)) for rule in RULES}
    runs |= {f"specpilot-{rule}+ngram": ours(draft, parse_rule(rule, cost), by_rates) for rule in MIXED}
    if sampling.temperature:
        for tree in TREES:
            fixed = SpeculativeDecoder(pair.target, draft, pair.tokenizer, tree=tree, verifier="mcss")
            runs[f"specpilot-tree-{tree}"] = _decoding(fixed, sampling, max_new_tokens)
    runs[GROWN] = ours(draft, OnlineConfidence(cost=cost, adapt=True), by_rates, AUTO_TREE)
    if copies is not None:
        runs[COPIES] = ours(None, None, trained_copies)
    if controller is not None:
        trained = pair.load_length(controller, cost=cost)
        assert isinstance(trained, RateOptimal), "given costs, it goes by them"
        runs[PREDICTOR] = ours(draft, RateOptimal(trained.predictor, cost, adapt=True))
        runs[PREDICTOR_NGRAM] = ours(draft, RateOptimal(trained.predictor, cost, adapt=True), trained_copies)
        runs[OURS] = ours(draft, RateOptimal(trained.predictor, cost, adapt=True), trained_copies, AUTO_TREE)
    if routed is not None:
        runs[ROUTER] = _decoding(routed, sampling, max_new_tokens)
    return runs


def of_llama_cpp(
    alone: SpeculativeDecoder, copies: str | None, sampling: SamplingParams, max_new_tokens: int
) -> dict[str, Generate]:
    """Configurations of a GGUF file without a draft model: llama.cpp's own loop, autoregressive steps, and copies."""
    model = alone.target.model
    assert isinstance(model, GgufModel)
    loops = LlamaLoops(model, None, sampling, max_new_tokens, alone.stop_tokens)
    by_rates = Ngram(cost=quick_costs(alone.target, None), adapt=True)

    def copying(ngram: Ngram) -> Generate:
        decoder = SpeculativeDecoder(alone.target, None, alone.tokenizer, ngram=ngram)
        return _decoding(decoder, sampling, max_new_tokens)

    return {
        "llama.cpp-autoregressive": lambda prompt, seed: len(loops.generate(prompt, None, seed)),
        AUTOREGRESSIVE: _decoding(alone, sampling, max_new_tokens),
        NGRAM: copying(by_rates),
        OURS: copying(by_rates if copies is None else replace(by_rates, predictor=alone.load_copies(copies))),
    }


def _decoding(decoder: SpeculativeDecoder, sampling: SamplingParams, max_new_tokens: int) -> Generate:
    options: dict[str, Any] = {**sampling.as_dict(), "max_new_tokens": max_new_tokens}
    return lambda prompt, seed: len(decoder.generate(prompt, seed=seed, **options).tokens)
