"""Progress without a terminal: a line every few seconds."""

import io
import re
import threading

import pytest
from rich.console import Console
from specpilot.common import console
from specpilot.common.console import duration, progress_bar, stderr_console


class Watched(io.StringIO):
    """A stream that sets an event when a line is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count

    def next_line(self) -> str:
        self.written.clear()
        assert self.written.wait(20)
        return self.getvalue().splitlines()[-1]


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "EVERY", 0.02)
    stream = Watched()
    with progress_bar(Console(file=stream, width=20), "texts", 2_000, 1_000) as advance:
        assert re.fullmatch(r"texts: 1,000 of 2,000, no step finished after \d+ s", stream.next_line())
        for _ in range(500):
            advance("[bold] 7 tokens/s")  # as it stands
        assert re.fullmatch(
            r"texts: 1,500 of 2,000, \[bold\] 7 tokens/s, [\d,.]+(/s| s each), \d+ (s|min) left", stream.next_line()
        )


def test_messages_are_shown_as_they_are_and_durations_in_their_unit(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_console().print("runs/a[x]/b[/c]/:bug:")
    assert capsys.readouterr().err == "runs/a[x]/b[/c]/:bug:\n"
    durations = {0: "0 s", 99.4: "99 s", 100: "2 min", 5_999: "100 min", 6_000: "1.7 h"}
    assert {seconds: duration(seconds) for seconds in durations} == durations
