"""An exception such as that of Ctrl-C may arrive wherever the interpreter checks for signals. The next call works."""

import dis
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.demos.boring_classes import BoringModel
from specpilot.cli.main import main
from specpilot.common.errors import InputError
from specpilot.infer import engine, scheduler
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.train.fitting import ended_by_signals

from ..helpers.tiny import make

PROMPTS = [[1, 2, 3], [4, 5, 4, 5], [6]]
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"length": 2},
    "none": {"length": 0},
    "tree": {"tree": (2, 1), "verifier": "spec-infer"},
    "grown tree": {"tree": "auto", "length": "online-confidence", "cost": 0.1},
    "beams": {"verifier": "mtad:0.5", "length": 2},
}
SECONDS = 6  # after which a call hangs


CHECKED = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME")  # after these CPython looks for signals


class Interrupt:
    """Raises KeyboardInterrupt where the interpreter looks for signals for the ``number``-th time in ``files``.

    Attributes:
        count: how often it has looked.
        place: where the exception was raised; None if the call had ended before.
    """

    def __init__(self, number: int, files: set[str]) -> None:
        self.number, self.files = number, files
        self.count = 0
        self.place: tuple[str, int] | None = None
        self.before: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            self.before.pop(frame, None)
        if event != "opcode":
            return self
        last = self.before.get(frame)
        self.before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        self.count += last in CHECKED
        if last in CHECKED and self.count == self.number:
            self.place = frame.f_code.co_qualname, frame.f_lineno
            raise KeyboardInterrupt
        return self


@contextmanager
def traced(interrupt: Interrupt) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        yield
    finally:
        sys.settrace(before)


def within_time(call: Callable[[], Any], after: object = None) -> Any:
    """Return the result of ``call`` in another thread; fail if it hangs."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"the call hangs after {after}"
    assert results, f"the call failed after {after}"
    return results[0]


def decoder_of(way: str) -> SpeculativeDecoder:
    options = WAYS[way]
    return SpeculativeDecoder(make(), None if way == "none" else make(layers=1), **options)


def texts(decoder: SpeculativeDecoder) -> list[list[int]]:
    # Where drafts depend on earlier texts, so would sampled texts.
    temperature = 0.0 if decoder.options.tree == "auto" else 1.0
    return [output.tokens for output in decoder.generate(PROMPTS, max_new_tokens=7, seed=1, temperature=temperature)]


def interrupted_everywhere(decoder: SpeculativeDecoder, files: set[str], step: int) -> Counter[str]:
    """Interrupt calls at every ``step``-th possible place; return the number of interrupts by function."""
    expected, number = texts(decoder), 1
    places: Counter[str] = Counter()
    while True:
        interrupt = Interrupt(number, files)
        try:
            with traced(interrupt):
                texts(decoder)
        except (KeyboardInterrupt, RuntimeError):  # the interrupt, or what it did to another request of the call
            assert interrupt.place is not None
        if interrupt.place is None:
            return places
        places[interrupt.place[0]] += 1
        assert within_time(lambda: texts(decoder), interrupt.place) == expected, interrupt.place
        scheduler = decoder.scheduler
        assert not scheduler.running
        assert not scheduler.waiting
        assert not scheduler.engine.cache.texts  # type: ignore[attr-defined]
        number += step


def test_the_handlers_of_signals_are_those_of_before_a_training(tmp_path: Path) -> None:
    """The handlers are also restored if the setup is interrupted, after which Lightning ignores interrupts."""

    class Interrupted(BoringModel):
        def setup(self, stage: str) -> None:
            raise KeyboardInterrupt

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        pl.Trainer(accelerator="cpu", default_root_dir=tmp_path, **options).fit(Interrupted())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_interrupted_command_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specpilot.cli.main.run", interrupted)
    messages = {}
    for words in ("data acceptance --output d", "train draft --output=r", "generate hello", "compare --output c"):
        assert main(words.split()) == 130
        messages[words.split()[0]] = capsys.readouterr().err
    assert "--resume" in messages["train"]
    assert "same command again" in messages["data"]
    assert "same command again" in messages["compare"]
    assert messages["generate"] == "specpilot: error: interrupted\n"


def test_an_interrupt_within_an_import_is_not_lost(tmp_path: Path) -> None:
    """A module may suppress the interrupt, as the module of this test does."""
    (tmp_path / "slow.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    sum(range(10**6))\n"
        "except BaseException:\n    pass\nfrom specpilot.controllers.length import Fixed\n"
        "class Length(Fixed):\n    def __init__(self) -> None:\n        super().__init__(2)\n"
    )
    words = [sys.executable, "-m", "specpilot", "generate", "hello", "--length", "slow:Length"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    # The signal is ignored where tests run in the background.
    listen = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    done = subprocess.run(words, env=environment, preexec_fn=listen, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "specpilot: error: interrupted\n")


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_place_of_the_scheduler(step: int) -> None:
    """`make test` tries every fifth place."""
    places = interrupted_everywhere(decoder_of("chain"), {str(scheduler.__file__)}, step)
    assert {"Scheduler._wait", "Scheduler._exclusively", "Scheduler._retire", "Scheduler._notify"} <= {*places}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_places_of_a_round(way: str) -> None:
    folder = os.path.dirname(str(engine.__file__))
    files = {os.path.join(above, name) for above, _, names in os.walk(folder) for name in names}
    places = interrupted_everywhere(decoder_of(way), files, 29)
    assert {"Engine.step", "Scheduler._round"} <= {*places} or len(places) > 20


@pytest.mark.slow
def test_every_place_while_other_threads_wait() -> None:
    """The calls of other threads end with their text, or with an error about the interrupt."""
    decoder, number = decoder_of("chain"), 1
    expected = texts(decoder)
    while True:
        interrupt, outcomes = Interrupt(number, {str(scheduler.__file__)}), list[Any]()

        def other(outcomes: list[Any] = outcomes) -> None:
            try:
                outcomes.append(texts(decoder))
            except RuntimeError as error:
                outcomes.append(str(error))

        waiting = [threading.Thread(target=other, daemon=True) for _ in range(3)]
        for thread in waiting:
            thread.start()
        try:
            with traced(interrupt):
                texts(decoder)
        except (KeyboardInterrupt, RuntimeError):
            pass
        for thread in waiting:
            thread.join(SECONDS)
            assert not thread.is_alive(), interrupt.place
        assert all(outcome in (expected, "decoding was interrupted") for outcome in outcomes)
        assert len(outcomes) == 3
        if interrupt.place is None:
            return
        number += 5


def test_a_call_after_a_fork_while_another_thread_decodes() -> None:
    decoder = decoder_of("chain")
    expected = texts(decoder)
    inside, leave = threading.Event(), threading.Event()
    step = decoder.scheduler.engine.step

    def slow(requests: Any) -> None:
        step(requests)
        inside.set()
        leave.wait(SECONDS)

    decoder.scheduler.engine.step = slow  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: texts(decoder), daemon=True)
    thread.start()
    assert inside.wait(SECONDS)
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS // 2)  # ends a child that hangs
        decoder.scheduler.engine.step = step  # type: ignore[method-assign]
        torch.set_num_threads(2)
        refused = ""
        try:
            texts(decoder)
        except InputError as error:
            refused = str(error)
        torch.set_num_threads(1)
        os._exit(0 if "torch.set_num_threads(1)" in refused and texts(decoder) == expected else 1)
    assert within_time(lambda: os.waitpid(child, 0)[1]) == 0
    leave.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
