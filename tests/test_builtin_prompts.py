"""The built-in prompts: the frozen files' hashes, sizes, splits and form, and what their card says."""

from __future__ import annotations

import json
import re
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


def test_every_domain_is_in_every_split_with_its_share() -> None:
    for name, least in (("builtin", 20), ("builtin-large", 150)):
        items = builtin_prompts(name)
        found = Counter((item.domain, item.split) for item in items)
        assert set(found) == {(domain, split) for domain in DOMAINS for split in SPLITS}
        assert min(found.values()) >= least
        splits = Counter(item.split for item in items)
        for split, share in zip(SPLITS, (0.7, 0.1, 0.2), strict=True):
            assert splits[split] / len(items) == pytest.approx(share, abs=0.03)


def test_the_large_set_holds_the_small_one() -> None:
    assert set(builtin_prompts("builtin")) <= set(builtin_prompts("builtin-large"))
    assert set(Counter(item.domain for item in builtin_prompts("builtin-large")).values()) == {2000}


def test_a_prefix_is_a_fair_mixture() -> None:
    items = builtin_prompts("builtin")
    whole, prefix = (Counter(item.domain for item in some) for some in (items, items[:300]))
    for domain in DOMAINS:
        assert prefix[domain] / 300 == pytest.approx(whole[domain] / len(items), abs=0.08)


def test_text_is_plain_and_of_sensible_length() -> None:
    for item in builtin_prompts("builtin"):
        assert item.prompt.isascii(), item
        assert 20 <= len(item.prompt) <= 900, item
        assert not re.search(r"\t| \n|\n\n\n", item.prompt), item


def test_formats() -> None:
    for item in of("sql"):
        assert re.fullmatch(
            r"(Table tbl\(.+\)|University database with tables:\n(.+\n)+)\nQuestion: .+\nSQL:", item.prompt
        )
    for item in of("shell"):
        assert re.fullmatch(r"Write a bash command for this task\.\nTask: .+\nCommand:", item.prompt)
    for item in of("code"):
        assert re.match(r"def \w+\(.*\) -> .+:\n    \"\"\"|Write a (python )?function to ", item.prompt)
    for item in of("dialogue"):
        if item.prompt.startswith("Functions:"):
            json.loads(item.prompt.splitlines()[1])


def test_prompts_that_invite_copying_are_about_other_texts_of_their_split() -> None:
    for split in ("test", "train"):
        sources = [source.prompt.strip() for source in builtin_prompts("builtin") if source.split == split]
        prompts = [item for item in builtin_prompts("builtin-copy") if item.split == split]
        assert Counter(item.domain for item in prompts) == {"editing": 80, "summarising": 60, "questions": 60}
        for item in prompts:
            text = next(text for text in sources if item.prompt.startswith(text))
            begun = item.prompt[len(text) :]
            assert begun.strip().split()[-1] in text or item.domain == "editing"
