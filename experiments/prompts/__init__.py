"""The generator of the built-in prompts.

Each of the six domains is a file of templates and word lists with its own seeded generator. `builtin()` always returns
the same prompts in the same order, and a prompt's split depends only on its text. `builtin_large()` draws more prompts
from the same templates.
"""

import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator

from specpilot.data_gen.builtin import BuiltinPrompt

from . import code, dialogue, math_problems, prose, shell, sql

DOMAINS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "math": math_problems.prompts,
    "sql": sql.prompts,
    "shell": shell.prompts,
    "code": code.prompts,
    "prose": prose.prompts,
    "dialogue": dialogue.prompts,
}

_SEED = "prompt bank 1"
LARGE = 2000  # prompts of each domain in the larger set


def builtin() -> list[BuiltinPrompt]:
    """All prompts, shuffled so that any prefix is a random sample."""
    return list(_builtin())


@functools.cache
def _builtin() -> tuple[BuiltinPrompt, ...]:
    prompts: list[BuiltinPrompt] = []
    for domain, draw in DOMAINS.items():
        # A text seed is hashed by SHA-512 instead of `hash`, so it is the same in every process.
        found = {" ".join(prompt.split()): prompt for prompt in draw(random.Random(f"{_SEED}: {domain}"))}
        prompts += [
            BuiltinPrompt(f"{domain}-{i:04d}", domain, prompt, _split(prompt))
            for i, prompt in enumerate(found.values(), 1)
        ]
    random.Random(_SEED).shuffle(prompts)
    return tuple(prompts)


def builtin_large() -> list[BuiltinPrompt]:
    """``LARGE`` prompts of every domain, shuffled, including those of `builtin()` with their ids."""
    return list(_builtin_large())


@functools.cache
def _builtin_large() -> tuple[BuiltinPrompt, ...]:
    prompts: list[BuiltinPrompt] = []
    for domain, draw in DOMAINS.items():
        own = [prompt for prompt in _builtin() if prompt.domain == domain]
        known = {" ".join(prompt.prompt.split()) for prompt in own}
        for series in itertools.count(1):
            for prompt in draw(random.Random(f"{_SEED}: {domain}: {series}")):
                text = " ".join(prompt.split())
                if text not in known and len(own) < LARGE:
                    known.add(text)
                    own.append(BuiltinPrompt(f"{domain}-{series}-{len(own) + 1:04d}", domain, prompt, _split(prompt)))
            if len(own) == LARGE:
                break
        prompts += own
    random.Random(_SEED).shuffle(prompts)
    return tuple(prompts)


def _split(prompt: str) -> str:
    """The split, from a hash of the text: 70 % train, 10 % validation, 20 % test. Adding prompts moves no other."""
    share = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") / 2**64
    return "train" if share < 0.7 else "validation" if share < 0.8 else "test"
