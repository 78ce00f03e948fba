"""Ten thousand requests of all kinds through one decoder and one server: right texts, and memory that stays flat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from rich.console import Console
from specpilot.common.errors import InputError
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.options import SoakOptions

from .cases import Outcome
from .memory import live_tensors, resident
from .soak import bench_soak

GROWTH = 0.2  # of the resident memory, from the first fifth of the requests to the last
THREADS = 4  # that use the decoder at once
ROUND = 500  # requests between two readings of memory
MOST = 8  # prompts in a list
PAIR = "tiny", "tiny-draft"
PROMPTS = (
    "What is 12 plus 30?", "Write a line about rain.", "List the files of a folder.", "a", "Select all rows.",
    "Ana has 3 apples and buys 4 more. How many has she?",
)  # fmt: skip
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 16}
SETTINGS: tuple[dict[str, Any], ...] = (
    GREEDY,
    {"temperature": 1.0, "max_new_tokens": 12},
    {"temperature": 0.7, "top_k": 20, "max_new_tokens": 24},
    {"temperature": 1.3, "top_k": None, "top_p": 0.9, "max_new_tokens": 5},
    {"temperature": 1.0, "max_new_tokens": 12, "verifier": "block"},
    {"temperature": 1.0, "max_new_tokens": 12, "length": "confidence:0.4"},
    GREEDY | {"length": 1},
)
BAD: tuple[dict[str, Any], ...] = (
    {"prompt": ""}, {"prompt": [10**9]}, {"prompt": "a " * 5000}, {"temperature": -1.0}, {"top_p": 2.0}, {"top_k": 0},
    {"max_new_tokens": 0}, {"seed": "one"}, {"verifier": "no rule"}, {"length": "no controller"},
)  # fmt: skip


@dataclass(frozen=True)
class Requests:
    """A decoder and the texts of every prompt under every setting, each decoded alone."""

    decoder: SpeculativeDecoder
    texts: dict[tuple[int, int], str]

    @classmethod
    def begin(cls) -> Requests:
        alone = SpeculativeDecoder.from_pretrained(*PAIR)
        texts = {
            (prompt, setting): alone.generate(PROMPTS[prompt], seed=prompt, **SETTINGS[setting]).text
            for prompt in range(len(PROMPTS))
            for setting in range(len(SETTINGS))
        }
        return cls(SpeculativeDecoder.from_pretrained(*PAIR), texts)

    def one(self, random: Random, setting: int) -> tuple[int, str | None]:
        """A single prompt."""
        prompt = random.randrange(len(PROMPTS))
        text = self.decoder.generate(PROMPTS[prompt], seed=prompt, **SETTINGS[setting]).text
        return 1, self._wrong(text, prompt, setting)

    def several(self, random: Random, setting: int) -> tuple[int, str | None]:
        """A list of prompts."""
        chosen = random.choices(range(len(PROMPTS)), k=random.randint(2, MOST))
        found = self.decoder.generate([PROMPTS[prompt] for prompt in chosen], seed=chosen, **SETTINGS[setting])
        wrong = [self._wrong(one.text, prompt, setting) for one, prompt in zip(found, chosen, strict=True)]
        return len(chosen), next((problem for problem in wrong if problem), None)

    def stream(self, random: Random, setting: int) -> tuple[int, str | None]:
        """A stream that is read to its end."""
        prompt = random.randrange(len(PROMPTS))
        text = "".join(self.decoder.stream(PROMPTS[prompt], seed=prompt, **SETTINGS[setting]))
        return 1, self._wrong(text, prompt, setting)

    def cancelled(self, random: Random, setting: int) -> tuple[int, str | None]:
        """A stream that is given up after a piece."""
        prompt = random.randrange(len(PROMPTS))
        pieces = self.decoder.stream(PROMPTS[prompt], seed=prompt, **SETTINGS[setting])
        piece = next(pieces)
        pieces.close()  # type: ignore[attr-defined]
        return 1, None if self.texts[prompt, setting].startswith(piece) else f"prompt {prompt}: begins with {piece!r}"

    def bad(self, random: Random, setting: int) -> tuple[int, str | None]:
        """A request that is refused."""
        wrong = random.choice(BAD)
        try:
            self.decoder.generate(**{"prompt": PROMPTS[0]} | SETTINGS[setting] | wrong)
        except InputError:
            return 1, None
        return 1, f"{wrong}: not refused"

    def _wrong(self, text: str, prompt: int, setting: int) -> str | None:
        expected = self.texts[prompt, setting]
        return None if text == expected else f"prompt {prompt}, {SETTINGS[setting]}: {text!r}, not {expected!r}"


Kind = Callable[[Requests, Random, int], tuple[int, str | None]]
KINDS: dict[str, Kind] = {
    "one": Requests.one, "list": Requests.several, "stream": Requests.stream, "cancelled stream": Requests.cancelled,
    "bad input": Requests.bad,
}  # fmt: skip


def through_a_decoder(count: int, seed: int) -> Outcome:
    """``count`` requests by several threads at once: each text is as if it were decoded alone."""
    requests, outcome = Requests.begin(), Outcome()
    random, kinds, readings = Random(seed), Counter[str](), []
    with ThreadPoolExecutor(THREADS) as pool:
        while outcome.attempts < count:
            begun, jobs = outcome.attempts, []
            for _ in range(min(ROUND, count - begun)):
                kind = random.choice([*KINDS])
                job = pool.submit(KINDS[kind], requests, Random(random.random()), random.randrange(len(SETTINGS)))
                jobs.append((kind, job))
            for kind, job in jobs:
                texts, problem = job.result()
                kinds[kind] += texts
                outcome.attempts += texts
                outcome.note(problem)
            readings.append((resident(), live_tensors()))
    outcome.finished = outcome.attempts - kinds["cancelled stream"] - kinds["bad input"]
    early, late = readings[len(readings) // 5], readings[-1]
    outcome.note_growth(late[0] / early[0] - 1, GROWTH)
    outcome.means = f"{', '.join(f'{kinds[kind]} {kind}' for kind in KINDS)}; {outcome.means}"
    if late[1] > early[1]:
        outcome.note(f"{late[1] - early[1]} more tensors are alive")
    return outcome


def through_a_server(count: int) -> Outcome:
    """``bench soak``: no good request is lost and no text is wrong, whatever the other clients do."""
    found = bench_soak(SoakOptions(requests=count, cost=0.2), Console(quiet=True))
    outcome = Outcome(attempts=count, finished=found["clients"]["good"] + found["clients"]["slow"])
    for name in ("lost", "garbled", "exit_code"):
        if found[name]:
            outcome.note(f"{name}: {found[name]}")
    outcome.note_growth(found["rss_growth"], GROWTH)
    outcome.means = f"{', '.join(f'{n} {kind}' for kind, n in found['clients'].items())}; {outcome.means}"
    return outcome
