"""Traced texts of small models."""

from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.random_source import RandomSource
from specpilot.models import CausalLM
from specpilot.simulate.trace import Trace, trace

from .tiny import make

PROMPT = [1, 0, 2]


def traced_text(
    seed: int = 0, budget: int = 24, verifier: str = "token-wise"
) -> tuple[CausalLM, CausalLM, list[int], Trace]:
    sizes = {"layers": 2, "hidden": 16, "vocab": 40, "context": 128}
    target, draft = (CausalLM(make(seed=seed + i, sharpness=3.0, **sizes).double()) for i in range(2))
    rng = RandomSource(seed)
    text = [rng.pick([1.0] * 40) for _ in range(budget)]
    sampling = SamplingParams(1.0, 8)
    traced = trace(target, draft, PROMPT, text, budget, sampling, rng, frozenset(), verifier=verifier)
    return target, draft, text, traced
