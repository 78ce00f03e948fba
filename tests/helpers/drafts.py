"""Kinds of drafts, small enough to count every outcome or large enough for real texts, and ways to draft with them."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import torch
from specpilot.controllers.acceptance.copy_head import CopyHead, CopyPredictor
from specpilot.controllers.acceptance.feature_model import FeatureModel
from specpilot.controllers.acceptance.specdec_head import AcceptanceHead
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.controllers.length import (
    AcceptanceLength,
    Confidence,
    CumulativeConfidence,
    Entropy,
    FeaturePredictor,
    Fixed,
    HeadPredictor,
    Heuristic,
    LengthController,
    OnlineConfidence,
    RateOptimal,
    Step,
)
from specpilot.controllers.length.cost_model import CostModel
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.models import language_model
from specpilot.models.loading.draft_folder import SharedTarget, save_draft
from specpilot.models.loading.names import load_model
from specpilot.models.trimmed_head import spread_logits, trim_head
from specpilot.train.draft_model import new_draft, new_eagle3
from torch import nn
from transformers import PreTrainedModel

from experiments.rivals.block_pilot import LengthHead, PlannedLength

from .architectures import HIDDEN, VOCAB, pair, target_of
from .eagle3 import write_draft
from .enumeration import Remembering
from .tiny import byte_tokenizer, make

TEXT = [5, 9, 2, 33, 41, 7, 60, 12, 3, 80]
PROMPTS = [TEXT, [3, 1], [8, 8, 2, 40, 8, 8], [*range(40, 50), 3, *range(40, 50)]]
REPEATING = [1, 0, 2, 0, 1, 2, 1, 0, 2, 0]  # its last four tokens stood before
M = TypeVar("M", bound=nn.Module)
KEPT = [*range(0, VOCAB, 3)]
FREE = CostModel(0.0, 1.0, 0.0)  # everything is drafted that can be
CHEAP = CostModel(0.05, 0.98, 0.02)
EXPENSIVE = CostModel(5.0, 1.0, 0.1)  # the model drafts hardly ever
EVEN = CostModel(0.2, 1.0, 0.1)
STEPPED = CostModel(0.05, 0.98, 0.02, 0.0, ((1, 1.0), (4, 1.0), (5, 25.0), (8, 25.0)))  # flat up to four tokens


def predictor(bias: float = 1.0, mean: float = 0.6) -> FeaturePredictor:
    return FeaturePredictor(FeatureModel(bias, 1.0, -0.3, -0.3), mean)


def head(seed: int = 7) -> HeadPredictor:
    """Return a head for drafts of :func:`small` that stops at some prefixes and continues at others."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = AcceptanceHead(8, depth=1).double()
    with torch.no_grad():
        module.out.weight *= 4
    return HeadPredictor(module, mean=0.7)


def seeded(make: Callable[[], M], seed: int = 7) -> M:
    """Return a module with enlarged weights, so that its decisions differ between prefixes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(3)
    return module.eval().requires_grad_(False)


def copy_head(seed: int, hidden: int = 8, width: int = 5) -> CopyHead:
    """Return a copy head whose predictions differ much between tokens, with means and scales other than 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    head = CopyHead(hidden, width).requires_grad_(False)
    for tensor in (*head.parameters(), head.mean):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    head.scale.copy_(0.5 + torch.rand(head.scale.shape, generator=generator))
    return head


def copy_predictor(vocab: int, seed: int = 0) -> CopyPredictor:
    head = copy_head(seed)
    return CopyPredictor(head, torch.randn(vocab, head.hidden_size, generator=torch.Generator().manual_seed(seed + 1)))


class Sometimes(LengthController):
    """Drafts two tokens in every third round."""

    def __init__(self) -> None:
        self.round = 0

    def start_round(self) -> bool:
        self.round += 1
        return self.round % 3 == 0

    def observe(self, step: Step) -> bool:
        return step.index < 2


GROWN: dict[str, Any] = {"length": RateOptimal(predictor(2.0), CHEAP), "tree": "auto"}
LENGTHS: dict[str, dict[str, Any]] = {
    "1": {"length": Fixed(1)},
    "2": {"length": Fixed(2)},
    "3": {"length": Fixed(3)},
    "confidence": {"length": Confidence(0.05)},
    "cumulative confidence": {"length": CumulativeConfidence(0.35)},
    "entropy": {"length": Entropy(0.1)},
    "heuristic": {"length": Heuristic(2)},
    "some rounds": {"length": Sometimes()},
}
SMALL: dict[str, dict[str, Any]] = {  # with heads for drafts of 8 hidden units and 3 tokens
    "head": {"length": AcceptanceLength(head(), 0.55)},
    "rate": {"length": RateOptimal(head(), CostModel(0.5, 1.0, 0.05))},  # expensive: some rounds draft nothing
    "planned": {"length": PlannedLength(seeded(lambda: LengthHead(8, 16)), "round", 0.6, EVEN)},
    "planned once": {"length": PlannedLength(seeded(lambda: LengthHead(8, 16), 3), "prompt", 0.6, EVEN)},
    "copies or planned": {
        "length": PlannedLength(seeded(lambda: LengthHead(8, 16)), "round", 0.6, EVEN),
        "ngram": Ngram(2, EVEN),
    },
    "copies or 1, by a head": {"length": Fixed(1), "ngram": Ngram(3, CHEAP, predictor=copy_predictor(3))},
    "auto or copies, by a head": GROWN | {"ngram": Ngram(2, CHEAP, predictor=copy_predictor(3))},
    "copies or head": {"length": AcceptanceLength(head(), 0.55), "ngram": Ngram(2, EVEN)},
    "copies or rate": {"length": RateOptimal(head(), CostModel(0.5, 1.0, 0.05)), "ngram": Ngram(2, EVEN)},
}
VERIFIED: dict[str, dict[str, Any]] = {
    f"{name} {tree}": {"verifier": name} | shape
    for name in ("spec-infer", "mcss", "k-seq", "otm")
    for tree, shape in {
        "chain": {"length": Fixed(2)},
        "2": {"tree": (2,)},
        "3": {"tree": (3,)},
        "2x1": {"tree": (2, 1)},
        "2x2": {"tree": (2, 2)},
        "2x2x1": {"tree": (2, 2, 1)},
        "3x2x1": {"tree": (3, 2, 1)},
    }.items()
} | {name: {"verifier": name, "length": Fixed(2)} for name in ("block", "typical", "bild")}
AUTO: dict[str, dict[str, Any]] = {
    "auto": GROWN,
    "auto, wary": {"length": RateOptimal(predictor(0.0), CHEAP), "tree": "auto"},
    "auto, adapting": {"length": RateOptimal(predictor(2.0), CHEAP, adapt=True), "tree": "auto"},
    "auto by confidence": {"length": OnlineConfidence(cost=CHEAP), "tree": "auto"},
}
COPIES: dict[str, dict[str, Any]] = {
    "copies": {"ngram": Ngram(2, EVEN)},
    "copies, free": {"ngram": Ngram(4, FREE)},
    "copies, two tokens": {"ngram": Ngram(3), "length": Fixed(2)},
    "copies or 2": {"length": Fixed(2), "ngram": Ngram(2, EVEN)},
    "copies or 1": {"length": Fixed(1), "ngram": Ngram(3, CHEAP)},
    "copies or 3": {"length": Fixed(3), "ngram": Ngram(cost=CHEAP)},
    "copies or expensive": {"ngram": Ngram(3, EXPENSIVE)},
    "copies or cumulative confidence": {"length": CumulativeConfidence(0.35), "ngram": Ngram(3, FREE)},
    "auto or copies": GROWN | {"ngram": Ngram(2, CHEAP)},
    "auto or copies, adapting": {
        "length": RateOptimal(predictor(2.0), CHEAP, adapt=True),
        "tree": "auto",
        "ngram": Ngram(adapt=True),
    },
    **{
        f"{verifier} {name}": {"verifier": verifier} | options
        for verifier in ("block", "spec-infer", "mcss", "k-seq", "otm")
        for name, options in {
            "copies, free": {"ngram": Ngram(4, FREE)},
            "copies or 1": {"length": Fixed(1), "ngram": Ngram(3, CHEAP)},
        }.items()
    },
}
WAYS = LENGTHS | SMALL | VERIFIED | AUTO | COPIES
WAYS |= {"auto, stepped": {"length": RateOptimal(predictor(2.0), STEPPED), "tree": "auto"}}
STATE_WAYS = [  # for drafts that read the target's states
    "3", "confidence", "some rounds", "spec-infer 2x2x1", "mcss 2x1", *AUTO, "copies or 3", "auto or copies",
]  # fmt: skip


def options_of(way: str) -> dict[str, Any]:
    """Return the options of a decoder, with new objects for rules that learn from one text to the next."""
    options = {"verifier": "token-wise"} | WAYS[way]
    if "length" in options:
        options["length"] = deepcopy(options["length"])
    return options


def trimmed(model: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """Return ``model`` with a trimmed head, as after loading."""
    trim_head(model, list(kept))
    model.register_forward_hook(spread_logits)
    return model


def state_draft(target: PreTrainedModel, kept: Sequence[int] | None = None, seed: int = 0) -> PreTrainedModel:
    """Return an EAGLE-3 draft that reads the output of the target's first layer, with large random weights."""
    draft = new_eagle3(target, [1], kept, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in draft.named_parameters():
        if parameter.ndim == 2 and not name.endswith(("embed_tokens.weight", "lm_head.weight")):
            noise = torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5
            parameter.add_(noise.to(parameter.device))
    return draft.to(target.dtype)


SIZES: dict[str, Any] = {"layers": 1, "hidden": 8, "context": 32, "sharpness": 6.0}


def double(seed: int, vocab: int = 3, **sizes: int) -> PreTrainedModel:
    return make(seed=seed, vocab=vocab, **SIZES | sizes).double()


def reading(seed: int, vocab: int = 3, kept: Sequence[int] | None = None) -> Remembering:
    model = double(seed, vocab)
    return Remembering(model if kept is None else trimmed(model, kept))


def reader_of_states(seed: int, kept: Sequence[int] | None) -> tuple[Any, Any]:
    target = double(seed)
    return target, state_draft(target, kept)


def eagle(seed: int, folder: Path, kept: list[int] | None) -> tuple[Any, Any]:
    sizes: dict[str, Any] = {"vocab": 3, "target": 8, "layers": [1], "width": 8, "dtype": torch.float64}
    written = write_draft(folder / f"draft-{seed}", **sizes, kept=kept, seed=seed + 2)
    return double(seed, layers=2), load_model(written, device="cpu", dtype="float64")


def rounded(seed: int, quantization: Any) -> tuple[Any, Any]:
    draft = double(seed + 1000, hidden=32).to(torch.bfloat16)
    return reading(seed), language_model(draft, quantization=quantization)


def small(kind: str, seed: int, folder: Path) -> tuple[Any, Any]:
    """Return a target with 3 tokens (4 or 5 for some kinds) in double precision, and its drafts of the kind."""
    other = seed + 1000
    makers: dict[str, Callable[[], tuple[Any, Any]]] = {
        "none": lambda: (reading(seed), None),
        "model": lambda: (reading(seed), reading(other)),
        "model, 5 tokens": lambda: (reading(seed, 5), reading(other, 5)),
        "model, real caches": lambda: (double(seed), double(other)),
        "fewer tokens": lambda: (reading(seed, 4), reading(other)),
        "more tokens": lambda: (reading(seed), reading(other, 5)),
        "trimmed to 1": lambda: (reading(seed, 4), reading(other, 4, [3])),
        "trimmed to 2": lambda: (reading(seed, 4), reading(other, 4, [1, 2])),
        "trimmed to 3": lambda: (reading(seed, 4), reading(other, 4, [0, 1, 2])),
        "states": lambda: reader_of_states(seed, None),
        "states, trimmed": lambda: reader_of_states(seed, [1, 2]),
        "eagle3": lambda: eagle(seed, folder, None),
        "eagle3, trimmed": lambda: eagle(seed, folder, [1, 2]),
        "bfloat16": lambda: (reading(seed), double(other).to(torch.bfloat16)),
        "int8": lambda: rounded(seed, "int8"),
        "int4": lambda: rounded(seed, "int4"),
        "t5": lambda: tuple(make("t5", seed=s, vocab=3, layers=1, hidden=8).double() for s in (seed, other)),
    }
    return makers[kind]()


def real(kind: str, architecture: str, folder: Path) -> tuple[PreTrainedModel, Any]:
    """Return a target of :mod:`.architectures`, and a draft of which many tokens are accepted and many rejected."""
    target, draft = pair(architecture)
    kept = [token for token in range(draft.get_output_embeddings().weight.shape[0]) if token % 4 != 1]

    def eagle() -> PreTrainedModel:
        written = write_draft(folder / "draft", vocab=VOCAB, kept=KEPT, target=HIDDEN, layers=[1])
        return load_model(written, device="cpu")

    def half(model: PreTrainedModel) -> PreTrainedModel:
        return deepcopy(model).to(torch.bfloat16)  # the embedding of one that reads states is shared

    makers: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "model": lambda: draft,
        "trimmed": lambda: trimmed(draft, kept),
        "states": lambda: state_draft(target),
        "eagle3": eagle,
        "bfloat16": lambda: half(draft),
        "int8": lambda: language_model(half(draft), quantization="int8"),
        "int4": lambda: language_model(half(draft), quantization="int4"),
        "states, bfloat16": lambda: half(state_draft(target, KEPT)),
        "states, int8": lambda: language_model(half(state_draft(target, KEPT)), quantization="int8"),
    }
    return target, makers[kind]()


def shared_pair(folder: Path, architecture: str = "llama", kept: list[int] | None = KEPT) -> PreTrainedModel:
    """Save a target as ``folder/target``, and a draft of its second layer and its embedding as ``folder/draft``."""
    target = target_of(architecture)
    target.save_pretrained(folder / "target")
    byte_tokenizer().save_pretrained(folder / "target")
    draft = new_draft(target, [1], kept)
    shared = SharedTarget("its-target", model_fingerprint(target), ["input", "output"])
    save_draft(draft, folder / "draft", byte_tokenizer(), target=shared, dtype=torch.float32)
    return draft


def assert_seeded_texts_are_the_targets(
    target: PreTrainedModel, draft: PreTrainedModel, prompts: Sequence[list[int]]
) -> None:
    """Assert that sampled texts with drafts are those without drafts, and that some drafted tokens are accepted."""
    decoder, plain = SpeculativeDecoder(target, draft, length=3), SpeculativeDecoder(target, None)
    accepted = 0
    for seed, prompt in enumerate(prompts):
        output, expected = (
            each.generate(prompt, max_new_tokens=24, top_k=None, seed=seed, verifier="invariant")
            for each in (decoder, plain)
        )
        assert output.tokens == expected.tokens
        accepted += output.stats.n_accepted
    assert accepted
