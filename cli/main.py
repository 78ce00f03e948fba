"""The command line: `specpilot <verb> …`.

A command is a function in `commands/` whose parameters are dataclasses of a stage's `options.py`. Their fields define
its flags, YAML keys and --help. `COMMANDS` lists the commands. To keep --help fast, a parser is built only for the
chosen command, and commands import slow modules in their bodies.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper

from ..common.errors import InputError, did_you_mean, disk_error
from ..common.options import Options, name_option
from .commands import (
    bench,
    compare,
    data,
    demo,
    env,
    export,
    generate,
    serve,
    train,
)
from .parser import Command, CommandParser, Commands

__all__ = ["COMMANDS", "Command", "Commands", "main", "overview", "run"]

COMMANDS: Commands = {
    "data": {
        "acceptance": data.acceptance,
        "answers": data.answers,
        "on-policy": data.on_policy,
        "features": data.features,
        "router": data.router,
    },
    "train": {
        "acceptance": train.acceptance,
        "copies": train.copies,
        "router": train.router,
        "draft": train.draft,
    },
    "trim-vocabulary": export.trim_vocabulary,
    "export": export.export,
    "calibrate": export.calibrate,
    "generate": generate.generate,
    "serve": serve.serve,
    "compare": compare.compare,
    "bench": {"cost": bench.cost},
    "demo": demo.demo,
    "env": env.env,
}


def main(argv: Sequence[str] | None = None, commands: Commands | None = None, prog: str = "specpilot") -> int:
    """Run a command of ``commands`` (by default ``COMMANDS``), and return the exit code.

    Bad input and errors of the operating system are reported in one line. Other errors keep their traceback.
    """
    # At exit, Python searches all objects for cycles, which takes a second after a command that imports PyTorch and
    # transformers. The end of the process frees the objects anyway.
    atexit.register(gc.freeze)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for characters outside its encoding
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            run(words, commands, prog)
        finally:
            if sys.stdout is not None:  # None if standard output is closed
                _flush()
    except BrokenPipeError:
        return 141  # 128 + SIGPIPE, as the shell reports it
    except KeyboardInterrupt:
        return _fail(f"interrupted{_resume_hint(words, commands)}", 130)
    except InputError as error:
        return _fail(str(error), 2)
    except OSError as error:
        return _fail(disk_error(error), 2)
    return 0


def run(words: list[str], commands: Commands | None = None, prog: str = "specpilot") -> None:
    """Call the command at the beginning of `words` in `commands` (by default `COMMANDS`) with the other words."""
    selected: Commands | Command = COMMANDS if commands is None else commands
    path = [prog]
    while isinstance(selected, Mapping):
        if not words or words[0] == "-h" or (words[0].startswith("-") and "--help" in words):
            print(overview(path, selected))
            return
        word, *words = words
        if len(path) == 1 and word.partition("=")[0] in ("--version", "--completion"):
            print(_version_or_completion(word, words, selected, prog))
            return
        if word not in selected:
            raise InputError(_unknown(path[1:], word, selected))
        path.append(word)
        selected = selected[word]
    if selected is train.acceptance:
        selected = train.of_predictor(words)

    arguments = CommandParser(selected, prog=" ".join(path)).read(words)
    options = [value for value in arguments.values() if isinstance(value, Options)]
    try:
        selected(**arguments)
    except InputError as error:
        raise type(error)(name_option(str(error), options)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(name_option(disk_error(error), options)) from error


CONTINUED_BY = {
    "data": "run the same command again",
    "compare": "run the same command again",
    "generate": "run the same command again",
    "train": "run the same command with --resume",
}


def _resume_hint(words: Sequence[str], commands: Commands | None) -> str:
    """Return the end of the message that a command was interrupted: the way to continue."""
    has_output = any(word.startswith("--output") for word in words)
    if commands is not None or not has_output or words[0] not in CONTINUED_BY:
        return ""
    return f"; to continue, {CONTINUED_BY[words[0]]}"


def _version_or_completion(word: str, words: list[str], commands: Commands, prog: str) -> str:
    """Return the output of ``--version`` or ``--completion SHELL``."""
    option, equals, shell = word.partition("=")
    if option == "--version":
        from importlib.metadata import version

        return f"specpilot {version('specpilot')}"
    from .completion import completion_script

    return completion_script(shell if equals else "".join(words[:1]), commands, prog)


def _unknown(above: list[str], word: str, commands: Commands) -> str:
    """Return the message for an unknown ``word``, with similar commands."""
    leaves = [name for name, _ in _leaves("", commands)]
    full_name = " ".join([*above, word])
    subcommands = [name for name in leaves if name.rpartition(" ")[2] == word]  # a subcommand without its group
    hyphenated = [name for name in leaves if name.replace(" ", "-") == word]
    if word.startswith("-"):
        suggestion = did_you_mean(word, ("--help", "--version", "--completion"))
        return f"unknown option {word}{suggestion or ';'} options follow a command: {', '.join(commands)}"
    if hyphenated or subcommands:
        suggestion = f", did you mean {' or '.join(map(repr, hyphenated or subcommands))}?"
    else:
        suggestion = did_you_mean(full_name, [" ".join([*above, name]) for name in commands])
    return f"unknown command {full_name!r}{suggestion or ':'} choose from {', '.join(commands)}"


def overview(path: list[str], commands: Commands) -> str:
    """Return the help of a group of commands: each command with the first line of its docstring."""
    rows = list(_leaves("", commands))
    width = max(len(name) for name, _ in rows)
    shells = f", or {path[0]} --completion bash|zsh|fish" if len(path) == 1 else ""
    lines = [f"usage: {' '.join(path)} <command> [options]{shells}", "", "commands:"]
    for name, command in rows:
        summary = (inspect.getdoc(command) or "").partition("\n")[0]
        lines.append(f"  {name:<{width}}  {summary}")
    lines += ["", f"`{' '.join(path)} <command> --help` shows its options, also keys of --config."]
    return "\n".join(lines)


def _leaves(prefix: str, commands: Commands) -> Iterator[tuple[str, Command]]:
    """Yield every command with its words after ``prefix``."""
    for name, entry in commands.items():
        if isinstance(entry, Mapping):
            yield from _leaves(f"{prefix}{name} ", entry)
        else:
            yield prefix + name, entry


def _flush() -> None:
    """Flush standard output before the interpreter's shutdown, so that errors can be reported.

    Raises:
        BrokenPipeError: the reader closed the pipe.
        InputError: standard output cannot be written.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(f"standard output: {error.strerror}; free space or choose another place") from error


def _fail(message: str, code: int) -> int:
    """Print an error in one line, and return the exit code."""
    print("specpilot: error:", " ".join(message.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
