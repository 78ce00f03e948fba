"""From a function's signature to its arguments: jsonargparse, with the habits of other command lines.

`--max-new-tokens` beside the YAML key `max_new_tokens`; `--chat/--no-chat` for a bool; a flag wins over `--config`
wherever the two stand; the parameters before the `*` of a signature may be given as bare words.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from .controllers.errors import InputError


class _Bool:
    """The type of a switch. Called for what a configuration file says; a flag has no value to convert."""

    def __call__(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"Expected a bool. Got value: {value}")
        return value

    def __repr__(self) -> str:  # what --help shows
        return "bool"


class Switch(argparse.Action):
    """`--name` and `--no-name` for a bool parameter."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        names = [*option_strings, *("--no-" + name.removeprefix("--") for name in option_strings)]
        super().__init__(names, dest, nargs=0, type=_Bool(), **settings)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        namespace[self.dest] = option_string in self.option_strings[: len(self.option_strings) // 2]


class CommandParser(ArgumentParser):
    """The parser of one command."""

    def __init__(self, command: Callable[..., None], prog: str) -> None:
        summary = inspect.cleandoc(command.__doc__ or "").partition("\nArgs:")[0].strip()
        super().__init__(
            prog=prog, description=summary, exit_on_error=False, allow_abbrev=False, print_config="--print-config"
        )
        self.add_argument(
            "--config", action="config", help="YAML file with any of the options below; flags win over it."
        )
        # Resolves postponed annotations: jsonargparse would run the module's `if TYPE_CHECKING:` imports for that.
        command.__annotations__.update(get_type_hints(command, include_extras=True))
        parameters = inspect.signature(command).parameters
        # A parameter named `settings` is a dataclass whose fields are the command's own flags and keys.
        self.settings: type | None = None
        skip: set[str | int] = {name for name in parameters if name == "settings"}
        if skip:
            self.settings = command.__annotations__["settings"]
            self.add_class_arguments(self.settings, as_group=False)
        self.add_function_arguments(command, as_group=False, sub_configs=True, skip=skip)
        self.bare = [
            p.name
            for p in parameters.values()
            if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and p.name not in skip
        ]

    # jsonargparse compiles a copy of this method's source into its argument groups: it may use `super()` and this
    # module's names, but no other method of this class.
    def add_argument(self, *names: str, **settings: Any) -> Any:
        if settings.get("type") is bool:
            del settings["type"]
            settings["action"] = Switch
        return super().add_argument(*(n.replace("_", "-") if n.startswith("-") else n for n in names), **settings)

    def read(self, words: list[str]) -> dict[str, Any]:
        """The command's keyword arguments as given by `words`.

        Raises:
            argparse.ArgumentError: a flag, key or value that the signature has no place for.
        """
        values = self.parse_args(self.arrange(words))
        for group in self.groups or ():
            if not isinstance(values.get(group), Namespace):
                raise InputError(f"{group}: expected a mapping of keys, got {values.get(group)!r}")
        arguments: dict[str, Any] = vars(self.instantiate(values))
        del arguments["config"]
        if self.settings is not None:
            arguments["settings"] = self.settings(**{f.name: arguments.pop(f.name) for f in fields(self.settings)})
        return arguments

    def arrange(self, words: list[str]) -> list[str]:
        """`words` with the configuration files first, where every flag overrides them, and bare words as flags."""
        configs: list[str] = []
        rest: list[str] = []
        bare = [f"--{name.replace('_', '-')}" for name in self.bare]
        waiting = list(words)
        while waiting:
            word = waiting.pop(0)
            if word == "--":
                rest += [f"{bare.pop(0)}={value}" if bare else value for value in waiting]
                break
            if word == "-" or not word.startswith("-"):
                rest.append(f"{bare.pop(0)}={word}" if bare else word)
                continue
            option = self._option_string_actions.get(word)
            takes_value = option is not None and option.nargs != 0 and word != "--print-config"
            if takes_value and waiting and not waiting[0].startswith("--"):
                word = f"{word}={waiting.pop(0)}"  # in one piece, so that a value may start with a dash
            (configs if word.startswith("--config=") else rest).append(word)
        return configs + rest


def one_line(message: str) -> str:
    """jsonargparse's paragraph as `name: expected this, got that`."""
    line = " ".join(message.split())
    line = re.sub(r'^Parser key "([^"]+)": ', r"\1: ", line)
    line = re.sub(r"Does not validate .*?Subtypes: \[(.*?)\] Errors: .* Given value: (.*)", _expectation, line)
    line = re.sub(r"Expected an? (.*?)\. Got value: (.*)", _expectation, line)
    for pattern, replacement in _REWORDED:
        line = re.sub(pattern, replacement, line)
    return line


def _expectation(found: re.Match[str]) -> str:
    types = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", found[1]).replace("NoneType", "null")
    types = re.sub(r"(?:typing\.)?Literal\[(.*?)\]", r"\1", types)
    return f"expected {types.replace(', ', ' or ')}, got {found[2]!r}"


_REWORDED = [
    (r"^Option '(.*)' is not accepted$", r"unknown key '\1' in the configuration"),
    (r"^Group '(.*)' does not accept option '(.*)'$", r"unknown key '\1.\2' in the configuration"),
    (r"^Unexpected config: ?(.*)$", r"config: expected a mapping of keys to values, got '\1'"),
    (r"^unrecognized arguments: ", "unknown option or extra word: "),
    (r"^argument (\S+): ignored explicit argument (.*)$", r"\1: takes no value, got \2"),
    (r"^argument (-\S+): ", r"\1: "),
]
