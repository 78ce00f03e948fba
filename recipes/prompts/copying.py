"""Prompts that invite copying, made of the built-in ones: a text is edited, summarised or asked about.

Each ends with the beginning of its answer, so that a model that only continues text, as the tiny ones do, goes on with
it as well.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

from specpilot.data_gen.builtin import BuiltinPrompt

SHORTEST, LONGEST = 120, 600  # characters of a text
MANY = {"editing": 80, "summarising": 60, "questions": 60}
_SEED = "copying 1"
_NEW_WORDS = ("Marrow", "Tilden", "Orsova", "Quillon", "Brandt", "Lisbeth", "Corvan", "Asteria")


def copying(prompts: Sequence[BuiltinPrompt]) -> list[BuiltinPrompt]:
    """200 prompts about texts of the test split of ``prompts``, the kinds shuffled; every text is used once."""
    texts = [p for p in prompts if p.split == "test" and SHORTEST <= len(p.prompt) <= LONGEST]
    texts.sort(key=lambda p: p.id)
    rng = random.Random(_SEED)
    rng.shuffle(texts)
    by_domain = {domain: [p for p in texts if p.domain == domain] for domain in sorted({p.domain for p in texts})}
    found: list[BuiltinPrompt] = []
    for kind, many in MANY.items():
        made = 0
        while made < many:
            assert any(by_domain.values()), "too few texts"
            for of_domain in by_domain.values():
                prompt = MAKE[kind](of_domain.pop().prompt.strip(), rng) if of_domain and made < many else None
                if prompt is not None:
                    made += 1
                    found.append(BuiltinPrompt(f"{kind}-{made:03d}", kind, prompt, "test"))
    rng.shuffle(found)
    return found


def editing(text: str, rng: random.Random) -> str | None:
    """A word that occurs twice at least is replaced; a third of the new text is there. None without such a word."""
    words = Counter(re.findall(r"\b[A-Za-z_]{4,}\b", text))
    old, times = words.most_common(1)[0] if words else ("", 0)
    if times < 2:
        return None
    new = rng.choice([word for word in _NEW_WORDS if word not in text])
    edited = re.sub(rf"\b{old}\b", new, text)
    return f"{text}\n\nThe same text with {new} in place of {old}:\n\n{_cut(edited, len(edited) // 3)}"


def summarising(text: str, rng: random.Random) -> str | None:
    """A summary in the words of the text begins with its beginning."""
    return f"{text}\n\nA summary in the words of the text:\n\n{_cut(text, 40)}"


def questions(text: str, rng: random.Random) -> str | None:
    """What stands after a few words, and the answer begins by repeating them. None where the text has few words."""
    words = text.split()
    if len(words) < 16:
        return None
    start = rng.randrange(2, len(words) - 12)
    asked = " ".join(words[start : start + 4])
    return f'{text}\n\nQuestion: Which words follow "{asked}"?\nAnswer: In the text stands "{asked}'


MAKE: dict[str, Callable[[str, random.Random], str | None]] = {
    "editing": editing,
    "summarising": summarising,
    "questions": questions,
}


def _cut(text: str, length: int) -> str:
    """The beginning of ``text``, up to a space or line break at ``length`` or after it."""
    match = re.compile(r"\s").search(text, length)
    return text if match is None else text[: match.start()]
