"""Keywords of public functions are those of the option classes: the same names, defaults and types."""

import inspect
import pydoc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_overloads, get_type_hints

import pytest
import specpilot
from specpilot import SpeculativeDecoder
from specpilot.compare.options import CompareOptions
from specpilot.compare.run import compare
from specpilot.data_gen.options import PromptOptions
from specpilot.data_gen.prompts import load_prompts
from specpilot.infer.decoder import GenerateKeywords
from specpilot.infer.options import DecodingOptions, GenerateOptions

FUNCTIONS: list[tuple[Callable[..., Any], type, set[str]]] = [  # with fields that the function has no keyword for
    (SpeculativeDecoder.from_pretrained, DecodingOptions, set()),
    (compare, CompareOptions, set()),
    (load_prompts, PromptOptions, {"prompts", "chat", "system"}),  # a source; and what encodes prompts
]
OWN_DEFAULT = {"target": inspect.Parameter.empty, "draft": None}  # of from_pretrained


def keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in ("self", "source", "misspelt")}


def members(hint: Any) -> Iterator[Any]:
    """Yield the types of a union, the values of a literal, or the type itself; sequences and tuples as ``Sequence``."""
    if get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from members(member)
    elif get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        yield Sequence if get_origin(hint) in (tuple, Sequence) else hint


@pytest.mark.parametrize(("function", "kind", "without"), FUNCTIONS, ids=["from_pretrained", "compare", "load_prompts"])
def test_keywords_are_those_of_the_options(function: Callable[..., Any], kind: type, without: set[str]) -> None:
    keyword_types, types, of_fields = keywords(function), get_type_hints(function), get_type_hints(kind)
    assert {*keyword_types} == {entry.name for entry in fields(kind)} - without
    for entry in fields(kind):
        if entry.name in without:
            continue
        own_defaults = OWN_DEFAULT if function == SpeculativeDecoder.from_pretrained else {}
        expected = own_defaults.get(entry.name, inspect.Parameter.empty if entry.default is MISSING else entry.default)
        assert keyword_types[entry.name].default == expected, entry.name
        accepted_types = {*members(types[entry.name])}
        assert {*members(of_fields[entry.name])} <= accepted_types, entry.name


def test_generate_and_stream_have_the_keywords_of_the_command() -> None:
    generate, stream = keywords(SpeculativeDecoder.generate), keywords(SpeculativeDecoder.stream)
    types = [get_type_hints(function) for function in (SpeculativeDecoder.generate, SpeculativeDecoder.stream)]
    assert {*generate} - {*stream} == {"n", "on_tokens"}
    assert {name: parameter.default for name, parameter in stream.items()}.items() <= {
        name: parameter.default for name, parameter in generate.items()
    }.items()
    assert {name: types[0][name] for name in {*generate} - {"prompt", "n"}} == get_type_hints(GenerateKeywords)
    assert all({*members(types[1][name])} <= {*members(types[0][name])} for name in stream)
    options = {entry.name: entry.default for entry in fields(GenerateOptions)}
    for name in ("n", "max_new_tokens", "temperature", "top_k", "top_p", "chat", "system", "seed"):
        assert generate[name].default == options[name], name
    for overload in get_overloads(SpeculativeDecoder.generate):
        assert {*inspect.signature(overload).parameters} == {"self", "prompt", "n", "options"}


def test_help_shows_names_types_and_defaults() -> None:
    page = pydoc.plain(pydoc.render_doc(SpeculativeDecoder.from_pretrained))
    for words in ("threshold: 'float | None' = None", "verifier: 'str' = 'auto'", "max_running: 'int' = 64"):
        assert words in page
    assert inspect.signature(specpilot.compare) == inspect.signature(compare)
    assert "minutes: 'float' = 2.0" in str(inspect.signature(specpilot.compare))
    assert "resume: 'bool' = False" in str(inspect.signature(specpilot.train))
