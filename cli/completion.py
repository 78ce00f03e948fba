"""Shell completion of commands, options and values, by a script that shtab makes from the commands' parsers."""

from __future__ import annotations

from argparse import Action
from collections.abc import Mapping
from typing import Any

import shtab
from jsonargparse import ArgumentParser, _completions

from ..common.errors import InputError
from ..controllers.registry import PREDICTORS
from .commands import train
from .parser import CommandParser, Commands, HelpFormatter, plain_type

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, commands: Commands, prog: str) -> str:
    """Return the script that completes ``commands`` of the program ``prog`` in ``shell``.

    Raises:
        InputError: the shell is not supported.
    """
    if shell not in SHELLS:
        raise InputError(f"completion={shell!r}: choose one of {', '.join(SHELLS)}; as in {prog} --completion bash")
    parser = ArgumentParser(prog=prog, description=prog, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="store_true", help="Print the version.")
    parser.add_argument("--completion", choices=SHELLS, help="Print the completion script of a shell.")
    _add_commands(parser, commands)
    _completions.type_to_str = plain_type  # type: ignore[attr-defined]  # jsonargparse imports this name
    script: str = parser.get_completion_script(f"shtab-{shell}")
    return script


def _add_commands(parser: ArgumentParser, commands: Commands) -> None:
    """Add ``commands`` to a parser as subcommands."""
    subcommands = parser.add_subcommands()
    for name, command in commands.items():
        prog = f"{parser.prog} {name}"
        if isinstance(command, Mapping):
            group = ArgumentParser(prog=prog, description=", ".join(command))
            subcommands.add_subcommand(name, group)
            _add_commands(group, command)
        else:
            subcommands.add_subcommand(name, _parser(command, prog))


def _parser(command: Any, prog: str) -> ArgumentParser:
    """Return the parser of a command, with positional arguments, and file names as values of text options."""
    commands = CommandParser(command, prog)
    parser = commands.parser
    if command is train.acceptance:  # each predictor has further options
        for predictor in PREDICTORS:
            variant = CommandParser(train.of_predictor(["--predictor", predictor]), prog).parser
            options = parser._option_string_actions.keys()
            parser._actions += [action for action in variant._actions if not options & {*action.option_strings}]
            parser._option_string_actions = variant._option_string_actions | parser._option_string_actions
    for action in parser._actions:
        if action.dest == "predictor":
            action.choices = PREDICTORS
        elif _is_text(action):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads this attribute
    for flag in commands.bare:
        positional = parser.add_argument(f"positional-{flag[2:]}", nargs="?", type=str)
        positional.complete = shtab.FILE
    return parser


def _is_text(action: Action) -> bool:
    """Return true if an option takes any text or path."""
    hint = str(getattr(action, "_typehint", ""))
    return "Literal" not in hint and ("str" in hint or "Path" in hint)
