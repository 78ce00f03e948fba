"""Helpers of all domains: people with pronouns, articles, and templates with slots."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Slots = Mapping[str, Sequence[object]]

_NUMBER_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_SLOT = re.compile(r"\{([a-z_]+)(\d*)\}")


def fill(template: str, slots: Slots, rng: random.Random) -> str:
    """Replace every `{slot}` by a value drawn from `slots`.

    The same slot twice is the same value; `{slot}` and `{slot2}` are different values of one list.
    """
    drawn: dict[str, dict[str, object]] = {}

    def value(match: re.Match[str]) -> str:
        name, number = match.groups()
        chosen = drawn.setdefault(name, {})
        if number not in chosen:
            chosen[number] = rng.choice([v for v in slots[name] if v not in chosen.values()])
        return str(chosen[number])

    return _SLOT.sub(value, template)


def a(noun: str) -> str:
    """The noun with its indefinite article, chosen by spelling; the word lists have no exceptions such as `hour`."""
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def count(n: int) -> str:
    """A number in words up to twelve, else in digits."""
    return _NUMBER_WORDS[n] if 0 <= n < len(_NUMBER_WORDS) else str(n)


@dataclass(frozen=True)
class Person:
    """A name and the pronouns that go with it."""

    name: str
    he: str
    He: str
    him: str
    his: str
    himself: str


_WOMEN = (
    "Amara", "Beatriz", "Clara", "Divya", "Elsie", "Farah", "Greta", "Hana", "Ingrid", "Jola", "Keiko", "Leila",
    "Marta", "Nadia", "Olive", "Priya", "Rosa", "Selma", "Tamsin", "Ursula", "Vera", "Wanda", "Yara", "Zoe",
)  # fmt: skip
_MEN = (
    "Arjun", "Bruno", "Caleb", "Dmitri", "Emeka", "Felix", "Gustavo", "Hugo", "Idris", "Jonas", "Kofi", "Luca",
    "Mateo", "Nils", "Omar", "Pedro", "Quentin", "Rafael", "Stefan", "Tobias", "Umberto", "Viktor", "Wes", "Yusuf",
)  # fmt: skip

PEOPLE = tuple(
    [Person(name, "she", "She", "her", "her", "herself") for name in _WOMEN]
    + [Person(name, "he", "He", "him", "his", "himself") for name in _MEN]
)
