"""Prompts that invite copying, made from the built-in ones: editing, summarising or questions about a text.

Each ends with the beginning of its answer, so that models that only continue text, such as the tiny ones, answer too.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

from specpilot.data_gen.builtin import BuiltinPrompt

SHORTEST, LONGEST = 120, 600  # length of a text in characters
MANY = {"editing": 80, "summarising": 60, "questions": 60}
TAGS = {"test": "", "train": "-train"}
_SEED = "copying 1"
_NEW_WORDS = ("Marrow", "Tilden", "Orsova", "Quillon", "Brandt", "Lisbeth", "Corvan", "Asteria")


def copying(prompts: Sequence[BuiltinPrompt], split: str) -> list[BuiltinPrompt]:
    """200 prompts, shuffled, about texts from a split of ``prompts``, each of which is used once."""
    texts = [p for p in prompts if p.split == split and SHORTEST <= len(p.prompt) <= LONGEST]
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
                    found.append(BuiltinPrompt(f"{kind}-{made:03d}{TAGS[split]}", kind, prompt, split))
    rng.shuffle(found)
    return found


def editing(text: str, rng: random.Random) -> str | None:
    """Replace a word that occurs at least twice; the prompt ends with a third of the result. None without one."""
    words = Counter(re.findall(r"\b[A-Za-z_]{4,}\b", text))
    old, times = words.most_common(1)[0] if words else ("", 0)
    if times < 2:
        return None
    new = rng.choice([word for word in _NEW_WORDS if word not in text])
    edited = re.sub(rf"\b{old}\b", new, text)
    return f"{text}\n\nThe same text with {new} in place of {old}:\n\n{_cut(edited, len(edited) // 3)}"


def summarising(text: str, rng: random.Random) -> str | None:
    """Ask for a summary in the words of the text; the prompt ends with the beginning of the text."""
    return f"{text}\n\nA summary in the words of the text:\n\n{_cut(text, 40)}"


def questions(text: str, rng: random.Random) -> str | None:
    """Ask which words follow some others; the prompt ends by repeating them. None if the text has too few words."""
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
