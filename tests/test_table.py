"""Tables of results in a terminal."""

from __future__ import annotations

import io

from rich.console import Console
from specpilot.compare.table import Table

ROW = {
    "decoder": "[bold]confidence-0.2[/bold]", "tokens/s": "473", "speed-up": "1.35", "discard": "0.458",
    "verification": "0.479", "acceptance": "0.536", "block eff.": "2.09", "eq. 2.3 tok/s": "525",
}  # fmt: skip


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(Table("Decoders", [ROW], "a note"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_wide_terminal_has_each_header_in_one_line() -> None:
    assert any("block eff. eq. 2.3 tok/s" in line for line in printed(120))


def test_eighty_columns_are_enough_for_whole_words() -> None:
    lines = printed(80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for word in ("confidence-0.2", "verification", "acceptance", "tokens/s", "block"):
        assert word in text
    assert "block eff." not in text


def test_the_first_column_stays_whole_where_others_are_broken() -> None:
    lines = printed(60)
    assert any("confidence-0.2" in line for line in lines)
    assert not any("verification" in line for line in lines)
