"""Completion of commands and options: a shell asks `specpilot --complete` for the words that may follow a line.

The line is in the variable COMP_LINE, as bash sets it for the commands of `complete -C`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..common.errors import InputError
from ..controllers.registry import PREDICTORS
from .commands import train
from .parser import CommandParser

BASH = "complete -o default -C 'specpilot --complete' specpilot"
SCRIPTS = {
    "bash": BASH,
    "zsh": f"autoload -Uz compinit bashcompinit && compinit && bashcompinit\n{BASH}",
    "fish": "complete -c specpilot -a '(env COMP_LINE=(commandline -cp | string collect) specpilot --complete)'",
}


def script(shell: str) -> str:
    """What sets completion up in ``shell``.

    Raises:
        InputError: there is none for this shell.
    """
    if shell not in SCRIPTS:
        raise InputError(f"completion={shell!r}: choose one of {', '.join(SCRIPTS)}; as in specpilot --completion bash")
    return SCRIPTS[shell]


def offers(line: str, commands: Mapping[str, Any]) -> list[str]:
    """The words that ``line``, whose first word is the program's name, may go on with."""
    place = line.rfind(" ") + 1
    here: Any = commands  # or one of them
    (_, *words), begun = line[:place].split() or [""], line[place:]
    while words and isinstance(here, Mapping) and words[0] in here:
        here = here[words.pop(0)]
    if isinstance(here, Mapping):
        found = [*here, "--help", *(["--version", "--completion"] if here is commands else [])]
    else:
        kinds = [here]
        if here is train.acceptance:  # each predictor has options of its own
            kinds = [train.of_predictor(["--predictor", predictor]) for predictor in PREDICTORS]
        found = [option for kind in kinds for option in CommandParser(kind, "").parser._option_string_actions]
    return sorted({word for word in found if word.startswith(begun) and word != "-h"})
