"""Builds the parser of a command from option dataclasses with jsonargparse. Fields become flags and keys.

A field `max_new_tokens` is the flag `--max-new-tokens` and the YAML key `max_new_tokens`; a bool, also one that may be
"auto", is `--chat/--no-chat`. Flags override `--config` in any order. Fields that are not keyword-only may be
positional arguments.
"""

from __future__ import annotations

import inspect
import json
import re
from argparse import Action, ArgumentError, BooleanOptionalAction
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields
from functools import cache
from itertools import accumulate
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from docstring_parser import Docstring
from docstring_parser import parse as parse_docstring
from jsonargparse import ArgumentParser, DefaultHelpFormatter, _loaders_dumpers

from ..common.errors import InputError, did_you_mean
from ..common.json_file import check_characters, naming_file, parse_object, parse_yaml, read_object, use_plain_values

Command: TypeAlias = Callable[..., None]
Commands: TypeAlias = Mapping[str, Union[Command, "Commands"]]

DEEPEST = 5_000  # levels of a value; jsonargparse's C parser of YAML crashes at about 20,000 levels


@cache
def read_plain_values() -> None:
    """Make jsonargparse read values of flags and files as :func:`.parse_yaml` reads files.

    jsonargparse has a setting for the reader of files, but another class finds numbers in text.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # untyped
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.text = text

        def get_single_data(self) -> Any:
            node = self.get_single_node()
            return self.text if node is None else self.construct_document(node)  # None for text that begins with "#"

    use_plain_values(Loader)
    _loaders_dumpers.yaml_default_loader = Loader  # type: ignore[assignment]  # None until the first use


# Plain words for types of options: for a single value, and for several values in a list.
TYPES = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    Path: ("a path", "paths"),
    bool: ("true or false", "switches"),
    NoneType: ("null", "null"),
}


def plain_type(hint: Any) -> str:
    """Return the type ``hint`` in plain words: ``int | None`` is "a whole number or null"."""
    words = _alternatives(hint, several=False)
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _alternatives(hint: Any, several: bool) -> list[str]:
    """Return the alternatives of the type ``hint`` in plain words, in the plural for ``several`` values of a list."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return [words for part in parts for words in _alternatives(part, several)]
    if kind is Literal:
        return [repr(value) for value in parts]
    if kind is tuple:
        return [f"a list of {' or '.join(_alternatives(parts[0], several=True))}"]
    if kind is dict:
        return ["keys and values"]
    return [TYPES[hint][several]]


class HelpFormatter(DefaultHelpFormatter):
    """Shows the types of options in plain words."""

    def _get_type_str(self, action: Action) -> str | None:
        hint = getattr(action, "_typehint", None)
        return None if hint is None else plain_type(hint)


class CommandParser:
    """The parser of one command: a function whose parameters are dataclasses.

    Every field is an option. Its description is in the docstring of the class that introduces it, under "Attributes";
    the first line of that docstring is the title of its group in --help.
    """

    def __init__(self, command: Callable[..., None], prog: str) -> None:
        read_plain_values()
        self.kinds: dict[str, type] = {name: kind for name, kind in get_type_hints(command).items() if name != "return"}
        self.parser = ArgumentParser(
            prog=prog, description=inspect.getdoc(command), exit_on_error=False, allow_abbrev=False,
            print_config="--print-config", formatter_class=HelpFormatter,
        )  # fmt: skip
        self.parser.add_argument(
            "--config", action="config", help="YAML file with any of the options below; flags win over it."
        )
        self.with_value = {"--config"}
        self.bare: list[str] = []
        self.types: dict[str, Any] = {}
        groups: dict[str, Any] = {}
        for kind in self.kinds.values():
            hints = get_type_hints(kind)  # without the limits, which the class checks
            self.types |= hints
            documented = [(*described(kind, entry.name), entry) for entry in fields(kind)]
            for _, title, text, entry in sorted(
                documented, key=lambda entry: entry[0]
            ):  # options of the command itself first
                if title not in groups:
                    groups[title] = self.parser.add_argument_group(title)
                self._add(groups[title], entry, hints[entry.name], text)

    def _add(self, group: Any, entry: Field[Any], hint: Any, text: str) -> None:
        """Add the option of a field to a group of --help."""
        flag = f"--{entry.name.replace('_', '-')}"
        settings: dict[str, Any] = {"help": text}
        if entry.default is not MISSING:
            settings["default"] = entry.default
        else:
            settings["required"] = True
        if hint is bool or hint == bool | Literal["auto"]:
            group.add_argument(flag, action=BooleanOptionalAction, **settings)
        else:
            group.add_argument(flag, type=hint, **settings)
            self.with_value.add(flag)
        if not entry.kw_only:
            self.bare.append(flag)

    def read(self, words: list[str]) -> dict[str, object]:
        """Return the command's arguments in `words`: an options object for each parameter.

        Raises:
            InputError: a flag, key or value is invalid.
        """
        configs: dict[str, dict[str, Any]] = {}
        options = words[: words.index("--")] if "--" in words else words
        words = ["--help"] if "--help" in options else self.arrange(words)
        for word in words:
            name, _, value = word.partition("=") if word.startswith("--") else ("a value", "", word)
            check_characters(value, name.lstrip("-"))  # bytes that are not UTF-8 become surrogates
            if nesting(word) > DEEPEST:
                raise InputError(f"{name}: brackets or dashes are nested more than {DEEPEST:,} deep; give plain text")
            file = word.removeprefix("--config=")
            if file != word:
                inline = file.startswith("{")
                remedy = f"give a YAML file of options, see {self.parser.prog} --help"
                with naming_file("config", remedy) if inline else nullcontext():
                    config = parse_object(file, parse_yaml) if inline else read_object(file, remedy, parse_yaml)
                configs["config" if inline else file] = config
                self.check_keys(config, "config" if inline else file)
        try:
            values = self.parser.parse_args(words)
            del values["config"]
            self.parser.validate(values, skip_unset=False)  # refuses null for keys that may not be null
        # LookupError, AttributeError, OverflowError: YAML values that cannot be converted, such as !!int ''
        except (ArgumentError, TypeError, LookupError, AttributeError, OverflowError) as error:
            line = one_line(str(error))
            key = line.partition(":")[0]
            flags = {
                name.lstrip("-").replace("-", "_"): text for name, _, text in (word.partition("=") for word in words)
            }
            file = next((file for file in reversed(configs) if key in configs[file] and key not in flags), "")
            if key in self.types and OF_ANOTHER_TYPE.search(line):
                invalid_value: Any = read_value(flags[key]) if key in flags else configs.get(file, {}).get(key)
                line = f"{key}: {mismatch(self.types[key], invalid_value)}"
            raise InputError(f"{file}{': ' * bool(file)}{line} (see {self.parser.prog} --help)") from None
        except RecursionError:
            raise InputError(
                "config: a value contains itself or is nested too deep; give plain keys and values"
            ) from None
        arguments = vars(self.parser.instantiate(values))
        return {
            name: kind(**{entry.name: arguments[entry.name] for entry in fields(kind)})
            for name, kind in self.kinds.items()
        }

    def check_keys(self, config: dict[Any, Any], file: str) -> None:
        """Raise InputError for a key of a configuration that is not an option of the command."""
        names = [action.dest for action in self.parser._actions if action.dest not in ("help", "print_config")]
        for key in config:
            if str(key).partition(".")[0] not in names:
                suggestion = did_you_mean(str(key), names)
                raise InputError(f"{file}: unknown key {str(key)!r}{suggestion} (see {self.parser.prog} --help)")

    def check_option(self, name: str) -> None:
        """Raise InputError if the command has no option ``name``."""
        flags = self.parser._option_string_actions
        if name not in flags and name.partition(".")[0] not in flags:
            suggestion = did_you_mean(name, flags)
            if name.endswith("revision") and not suggestion:
                suggestion = "; a revision is part of the model's name, as in owner/name@v1"
            if self.bare and not name.startswith("--") and not suggestion:
                suggestion = f"; text that begins with a dash is passed as {self.bare[0]}={name}"
            raise InputError(f"unknown option {name}{suggestion} (see {self.parser.prog} --help)")

    def arrange(self, words: list[str]) -> list[str]:
        """Return `words` with configuration files first, which flags override, and positional arguments as flags."""
        configs: list[str] = []
        arguments: list[str] = []
        bare, waiting = list(self.bare), list(words)
        while waiting:
            word = waiting.pop(0)
            if word == "--":
                arguments += [f"{bare.pop(0)}={value}" if bare else value for value in waiting]
                break
            if word == "-" or not word.startswith("-"):
                arguments.append(f"{bare.pop(0)}={word}" if bare else word)
                continue
            self.check_option(word.partition("=")[0])
            if word in self.with_value and waiting and not waiting[0].startswith("--"):
                word = f"{word}={waiting.pop(0)}"  # joined by "=", because the value may begin with a dash
            (configs if word.startswith("--config=") else arguments).append(word)
        return configs + arguments


def nesting(word: str) -> int:
    """Return an upper bound of the nesting of YAML values on a line of ``word``."""
    if len(word) <= DEEPEST:
        return len(word)
    brackets = accumulate(((character in "[{") - (character in "]}") for character in word), initial=0)
    return max(brackets) + max((len(run) // 2 for run in re.findall(r"(?:[-?]\s)+", word)), default=0)


def described(kind: type, name: str) -> tuple[int, str, str]:
    """Return the documentation of a field.

    Returns:
        The index in ``kind``'s MRO of the first class that documents the field, the title of that class, and the
        description.
    """
    for index, owner in enumerate(kind.__mro__):
        document = documentation(owner)
        for entry in document.params:
            if entry.arg_name == name:
                title = (document.short_description or owner.__name__).partition(". ")[0].rstrip(".")
                return index, title, " ".join((entry.description or "").split())
    raise LookupError(f"{kind.__name__}.{name}: no description")


@cache
def documentation(kind: type) -> Docstring:
    """Return the parsed docstring of a class."""
    return parse_docstring(inspect.cleandoc(kind.__doc__ or ""))


def one_line(message: str) -> str:
    """Return a message of jsonargparse in one line that begins with the option's name."""
    line = " ".join(message.split())
    for pattern, replacement in _REWORDED:
        line = re.sub(pattern, replacement, line)
    return line


OF_ANOTHER_TYPE = re.compile(r"^\w+: (Does not validate|Expected an? |Not of type )")

_REWORDED = [
    (r'^Parser key "([^"]+)": ', r"\1: "),
    (r"^unrecognized arguments: ", "extra word: "),
    (r"^argument (\S+): ignored explicit argument (.*)$", r"\1: takes no value, got \2"),
    (r"^argument (-\S+): ", r"\1: "),
]


def read_value(text: str) -> Any:
    """Return the YAML value of a flag's ``text``; the text itself if it is not YAML or a comment."""
    try:
        value = parse_yaml(text)
    except InputError:
        return text
    return text if value is None and text != "null" else value


def mismatch(hint: Any, value: Any) -> str:
    """Return the message that an option has a ``value`` of another type than ``hint``."""
    value_text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    remedy = ""
    if not isinstance(value, str) and {str, Path, tuple[str, ...]} & {*alternatives}:
        remedy = "; put text in quotes"
    elif isinstance(value, str) and tuple[str, ...] in alternatives:
        remedy = f'; write a list in brackets, as in "[{value}]"'
    return f"expected {plain_type(hint)}, got {value_text}{remedy}"
