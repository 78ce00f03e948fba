"""The built-in prompts: the frozen files' hashes, sizes, splits and form, and what their card says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from specpilot.common.errors import InputError
from specpilot.data_gen import builtin
from specpilot.data_gen.builtin import FILES, BuiltinPrompt, builtin_prompts

DOMAINS = ("math", "sql", "shell", "code", "prose", "dialogue")
SPLITS = ("train", "validation", "test")
CARD = Path(__file__).parents[1] / "data_gen" / "builtin" / "README.md"


def of(domain: str) -> list[BuiltinPrompt]:
    return [item for item in builtin_prompts("builtin") if item.domain == domain]


@pytest.mark.parametrize("name", FILES)
def test_prompts_are_distinct_and_splits_disjoint(name: str) -> None:
    found = builtin_prompts(name)
    assert len({item.id for item in found}) == len({" ".join(item.prompt.split()) for item in found}) == len(found)


def test_a_damaged_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builtin.FILES, "builtin-copy", "0" * 64)
    builtin_prompts.cache_clear()
    with pytest.raises(InputError, match="its SHA-256 is not the expected one"):
        builtin_prompts("builtin-copy")
    builtin_prompts.cache_clear()


def test_the_card_has_their_numbers() -> None:
    card = CARD.read_text(encoding="utf-8")
    for name in FILES:
        assert f"`{name}` ({len(builtin_prompts(name)):,})" in card
    for domain in DOMAINS:
        counts = Counter(item.split for item in of(domain))
        assert f"| {domain} | {' | '.join(str(counts[split]) for split in SPLITS)} |" in card
