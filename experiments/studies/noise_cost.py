"""``python -m experiments noise``: what the noise of the rule ``invariant`` costs beside a decoding step.

Times are processor seconds of this process in one thread, so that other work on the machine counts less. Steps and
draws take turns; the figures are medians.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.options import Count, File, Options
from specpilot.controllers.shared_noise import choose, scores
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.pair import Model
from specpilot.models.loading.names import load_any_model
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

TOKENS = 16  # of a text whose steps are timed
DRAWS = 8  # timed together
SPREAD = 3.0  # standard deviation of the random logits that tokens are drawn from


@dataclass(frozen=True, kw_only=True)
class NoiseCostOptions(Options):
    """Benchmark.

    Options of ``python -m experiments noise``.

    Attributes:
        target: Model whose step the noise is compared with. Default: random weights in the sizes of SmolLM2-135M,
            which take as long as trained ones.
        supports: Numbers of tokens that can be drawn.
        repeats: Number of times that everything is measured.
        output: File for the result.
    """

    target: str | None = None
    supports: tuple[Count, ...] = (50, 49_152, 150_000)
    repeats: Count = 21
    output: File | None = None


def random_model() -> PreTrainedModel:
    """Return a model with the sizes of SmolLM2-135M and random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    model: PreTrainedModel = LlamaForCausalLM(config).eval()
    return model


def seconds(function: Callable[[], object]) -> float:
    """Return the processor seconds of ``function``."""
    started = time.process_time()
    function()
    return time.process_time() - started


def measure(model: Model, supports: tuple[int, ...], repeats: int) -> dict[str, object]:
    """Return the seconds of a greedy decoding step, and of drawing a token from each number of tokens in ``supports``.

    Returns:
        ``step``, and by the number of tokens: ``draw``, its ``share`` of the step, and ``every_token``, the seconds of
        drawing with the noise of every token, as on a GPU.
    """
    decoder = SpeculativeDecoder(model, None)
    generator = torch.Generator().manual_seed(0)
    rows = [(torch.randn(1, size, generator=generator) * SPREAD).softmax(-1) for size in supports]

    def decode() -> None:
        decoder.generate([1], max_new_tokens=TOKENS, temperature=0)

    def draw(row: torch.Tensor) -> None:
        for key in range(DRAWS):
            choose(row, None, [key])

    def draw_by_every_token(row: torch.Tensor) -> None:
        for key in range(DRAWS):
            scores(row, None, torch.tensor([key])).argmax()

    steps: list[float] = []
    draws: dict[str, list[list[float]]] = {name: [[] for _ in rows] for name in ("draw", "every_token")}
    for repeat in range(repeats + 1):
        step = seconds(decode) / TOKENS
        times = [(seconds(lambda: draw(row)), seconds(lambda: draw_by_every_token(row))) for row in rows]  # noqa: B023
        if not repeat:  # the first prepares caches
            continue
        steps.append(step)
        for place, (bounded, every) in enumerate(times):
            draws["draw"][place].append(bounded / DRAWS)
            draws["every_token"][place].append(every / DRAWS)
    step = median(steps)
    noise = {
        str(size): {
            "draw": (of_draw := median(draws["draw"][place])),
            "share": of_draw / step,
            "every_token": median(draws["every_token"][place]),
        }
        for place, size in enumerate(supports)
    }
    return {"step": step, "noise": noise}


def main(options: NoiseCostOptions) -> None:
    """Measure what the noise of the rule invariant costs beside a decoding step."""
    begin()
    torch.set_num_threads(1)
    model: Model = random_model() if options.target is None else load_any_model(options.target)
    finish(measure(model, options.supports, options.repeats), options, options.output)
