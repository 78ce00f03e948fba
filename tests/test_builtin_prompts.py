"""The built-in prompts: size, splits, form, and the truth of the examples in its Python tasks."""

import ast
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from experiments.prompts import DOMAINS, BuiltinPrompt, builtin
from experiments.prompts.code import TASKS
from experiments.prompts.words import fill

SPLITS = ("train", "validation", "test")


def of(domain: str) -> list[BuiltinPrompt]:
    return [item for item in builtin() if item.domain == domain]


def assertions(prompt: str) -> list[str]:
    return [line for line in prompt.splitlines() if line.startswith("assert ")]


def test_prompts_are_many_and_distinct() -> None:
    normalised = {" ".join(item.prompt.split()) for item in builtin()}
    assert len(normalised) == len(builtin()) >= 2600
    assert len({item.id for item in builtin()}) == len(builtin())


def test_every_domain_is_in_every_split() -> None:
    found = Counter((item.domain, item.split) for item in builtin())
    assert set(found) == {(domain, split) for domain in DOMAINS for split in SPLITS}
    assert min(found.values()) >= 20


def test_splits_are_disjoint_and_of_the_promised_size() -> None:
    by_split = {split: {item.prompt for item in builtin() if item.split == split} for split in SPLITS}
    assert sum(len(prompts) for prompts in by_split.values()) == len(set().union(*by_split.values())) == len(builtin())
    for split, share in zip(SPLITS, (0.7, 0.1, 0.2), strict=True):
        assert len(by_split[split]) / len(builtin()) == pytest.approx(share, abs=0.03)


def test_a_prefix_is_a_fair_mixture() -> None:
    whole, prefix = (Counter(item.domain for item in items) for items in (builtin(), builtin()[:300]))
    for domain in DOMAINS:
        assert prefix[domain] / 300 == pytest.approx(whole[domain] / len(builtin()), abs=0.08)


def test_text_is_plain_and_of_sensible_length() -> None:
    for item in builtin():
        assert item.prompt.isascii(), item
        assert 20 <= len(item.prompt) <= 900, item
        assert not re.search(r"\t| \n|\n\n\n", item.prompt), item


@pytest.mark.parametrize("domain", ["math", "sql", "shell", "prose"])
def test_no_slot_is_left_open(domain: str) -> None:
    assert not [item for item in of(domain) if re.search(r"[{}]|\b(None|True|False)\b", item.prompt)]


def test_articles_agree() -> None:
    for item in builtin():
        assert not re.search(r"\b[Aa] [aeio][a-z]{2,}", item.prompt), item


def test_prompts_is_the_same_in_every_process() -> None:
    program = (
        "import hashlib; from experiments.prompts import builtin; "
        "print(hashlib.sha256(repr(builtin()).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_prompts_leaves_the_global_generator_alone() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    for draw in DOMAINS.values():
        list(draw(random.Random(0)))
    assert random.random() == expected


def test_prompts_hands_out_a_list_of_its_own() -> None:
    builtin().clear()
    assert builtin()


def test_formats() -> None:
    for item in of("sql"):
        assert re.fullmatch(
            r"(Table tbl\(.+\)|University database with tables:\n(.+\n)+)\nQuestion: .+\nSQL:", item.prompt
        )
    for item in of("shell"):
        assert re.fullmatch(r"Write a bash command for this task\.\nTask: .+\nCommand:", item.prompt)
    for item in of("code"):
        assert re.match(r"def \w+\(.*\) -> .+:\n    \"\"\"|Write a (python )?function to ", item.prompt)


def test_dialogues_and_function_calls_hold_json() -> None:
    short = [item.prompt for item in of("dialogue") if item.prompt.startswith("Functions:")]
    assert len(short) >= 80
    for prompt in short:
        assert len(prompt) < 700
        assert prompt.endswith("\nCalls (JSON):")
        json.loads(prompt.splitlines()[1])
    for item in of("dialogue"):
        for line in re.findall(r"^(?:CALL|RESULT) \w+ (.*)$", item.prompt, re.MULTILINE):
            json.loads(line)


def test_assertions_parse_and_hold() -> None:
    solutions = {name: task.solve for task in TASKS for name in task.names.split()}
    assert len(solutions) == sum(len(task.names.split()) for task in TASKS), "two tasks share a name"
    wishes = [item.prompt for item in of("code") if item.prompt.startswith("Write a ")]
    assert len(wishes) >= 150
    for prompt in wishes:
        assert assertions(prompt), prompt
        for line in assertions(prompt):
            assert isinstance(ast.parse(line).body[0], ast.Assert)
            exec(line, dict(solutions))


def test_docstring_examples_parse_and_hold() -> None:
    solutions = {name: task.solve for task in TASKS for name in task.names.split()}
    stubs = [item.prompt for item in of("code") if item.prompt.startswith("def ")]
    assert len(stubs) >= 150
    for prompt in stubs:
        ast.parse(prompt)  # a docstring is body enough
        examples = re.findall(r">>> (.*)\n    (.*)\n", prompt)
        assert examples, prompt
        for call, value in examples:
            assert repr(eval(call, dict(solutions))) == value


def test_fill_repeats_a_slot_and_separates_numbered_ones() -> None:
    slots = {"x": ["a", "b"]}
    for seed in range(10):
        one, same, other = fill("{x} {x} {x2}", slots, random.Random(seed)).split()
        assert one == same != other
