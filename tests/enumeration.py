"""All outcomes of a random procedure with their exact probabilities: losslessness is counted, not sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from specpilot.controllers.sampling import SamplingParams
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.generation import Generation
from specpilot.infer.random_source import RandomSource
from torch import Tensor

T = TypeVar("T")


class Script(RandomSource):
    """A random source that follows a list of choices, and takes the first possible outcome after its end."""

    def __init__(self, choices: list[int]) -> None:
        self.choices = choices
        self.options: list[int] = []  # how many outcomes each draw had
        self.probability = 1.0

    def _draw(self, probabilities: list[float]) -> int:
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        turn = len(self.options)
        choice = self.choices[turn] if turn < len(self.choices) else 0
        if turn >= len(self.choices):
            self.choices.append(0)
        self.options.append(len(possible))
        self.probability *= probabilities[possible[choice]]
        return possible[choice]

    def pick(self, weights: list[float]) -> int:
        return self._draw([w / sum(weights) for w in weights])

    def sample(self, weights: Tensor) -> int:
        return self.pick(weights.tolist())

    def accept(self, probabilities: list[float]) -> list[bool]:
        return [self._draw([1 - min(1, p), min(1, p)]) == 1 for p in probabilities]


def outcomes(procedure: Callable[[RandomSource], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) of ``procedure`` for every sequence of draws."""
    choices: list[int] = []
    while True:
        script = Script(choices)
        result = procedure(script)
        yield script.probability, result
        choices = script.choices
        while choices and choices[-1] + 1 == script.options[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1


def output_distribution(procedure: Callable[[RandomSource], T]) -> dict[T, float]:
    """The distribution of ``procedure``'s result."""
    total: dict[T, float] = {}
    for probability, result in outcomes(procedure):
        total[result] = total.get(result, 0.0) + probability
    return total


def rounds(
    decoder: SpeculativeDecoder, prompt: list[int], sampling: SamplingParams, budget: int, rng: RandomSource
) -> tuple[Generation, Iterator[list[int]]]:
    """The decoder's own loop for one prompt: its output, filled while the new tokens of each round are iterated."""
    request = decoder.new_request(list(prompt), sampling, budget, rng)
    return request.output, decoder.scheduler.tokens(request)
