"""Scripts that complete commands and options in a shell: `specpilot --completion bash|zsh|fish`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .commands import train
from .common.errors import InputError
from .parser import CommandParser
from .train.options import PREDICTORS

# Each finds the command that the line names, and offers its words. `KNOWN` are patterns of all commands, and `OFFERS`
# an entry for each.
BASH = """\
_specpilot() {
  local here="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$here ${COMP_WORDS[i]}" in KNOWN) here="$here ${COMP_WORDS[i]}" ;; *) break ;; esac
  done
  case "$here" in
OFFERS
  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _specpilot specpilot
"""
ZSH = """\
#compdef specpilot
_specpilot() {
  local here="" offered="" i
  for ((i = 2; i < CURRENT; i++)); do
    case "$here ${words[i]}" in KNOWN) here="$here ${words[i]}" ;; *) break ;; esac
  done
  case "$here" in
OFFERS
  esac
  compadd -- ${=offered}
  [[ $PREFIX == -* ]] || _files
}
compdef _specpilot specpilot
"""
FISH = """\
function __specpilot_words
  set -l here ""
  set -l tokens (commandline -opc)
  set -e tokens[1]
  for word in $tokens
    switch "$here $word"
      case KNOWN
        set here "$here $word"
      case '*'
        break
    end
  end
  switch "$here"
OFFERS
  end
end
complete -c specpilot -a '(__specpilot_words)'
"""
# shell → its script, the separator of patterns, and an entry of OFFERS
SHELLS = {
    "bash": (BASH, " | ", '    "{path}") words="{words}" ;;'),
    "zsh": (ZSH, " | ", '    "{path}") offered="{words}" ;;'),
    "fish": (FISH, " ", "    case '{path}'\n      string split ' ' -- '{words}'"),
}


def script(shell: str, commands: Mapping[str, Any]) -> str:
    """The script that completes ``commands`` in ``shell``.

    Raises:
        InputError: there is none for this shell.
    """
    if shell not in SHELLS:
        raise InputError(f"completion={shell!r}: choose one of {', '.join(SHELLS)}; as in specpilot --completion bash")
    frame, between, entry = SHELLS[shell]
    offers = dict(_offers("", commands))
    offers[""] += ["--version", "--completion"]
    known = between.join(f'"{path}"' for path in offers if path)
    shown = "\n".join(entry.format(path=path, words=" ".join(words)) for path, words in offers.items())
    return frame.replace("KNOWN", known).replace("OFFERS", shown).rstrip("\n")


def _offers(path: str, commands: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The words that may follow each command; those of all predictors for `train acceptance`."""
    yield path, [*commands, "--help"]
    for name, entry in commands.items():
        here = f"{path} {name}"
        if isinstance(entry, Mapping):
            yield from _offers(here, entry)
            continue
        kinds = [entry]
        if entry is train.acceptance:
            kinds = [train.of_predictor(["--predictor", predictor]) for predictor in PREDICTORS]
        options = [option for kind in kinds for option in CommandParser(kind, here).parser._option_string_actions]
        yield here, sorted({option for option in options if option.startswith("--")})
