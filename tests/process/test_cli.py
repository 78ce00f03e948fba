"""The command line as users see it: output, standard error, and exit codes."""

import ast
import errno
import inspect
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from specpilot.cli import main as cli
from specpilot.cli.commands import train
from specpilot.cli.parser import CommandParser, described
from specpilot.common import options
from specpilot.common.errors import InputError
from specpilot.common.json_file import build
from specpilot.controllers.acceptance import feature_model, lag_free_head, specdec_head
from specpilot.controllers.length import RULES as LENGTH_RULES
from specpilot.data_gen.options import BatchOptions
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.verify import RULES as VERIFIERS

from ..helpers.refusals import refused


def test_help_stays_light() -> None:
    """Help takes less than a second.

    Help, `import specpilot` and all options only load the parser and standard modules.
    """
    commands = [[], *([*name.split()] for name, _ in cli._leaves("", cli.COMMANDS))]
    program = (
        "import sys\n"
        "def tops():\n    return {name.partition('.')[0] for name in sys.modules}\n"
        "before = tops() | set(sys.stdlib_module_names)\n"
        "import specpilot\nfrom specpilot.cli import main as cli\ndir(specpilot)\n"
        f"for words in {commands!r}:\n"
        "    try:\n        cli.main([*words, '--help'])\n"
        "    except SystemExit as stop:\n        assert stop.code == 0\n"
        "print([name for name in tops() - before if 'cython' not in name], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.count("usage: specpilot") == len(commands)
    parser = {"jsonargparse", "docstring_parser", "yaml", "attr", "attrs", "typing_extensions"}
    assert {*ast.literal_eval(done.stderr)} <= {"specpilot", *parser}


def test_public_names() -> None:
    import specpilot

    for name in specpilot.__all__:
        assert getattr(specpilot, name) is not None
        assert name in dir(specpilot)
    with pytest.raises(AttributeError, match="nonsense"):
        specpilot.nonsense  # noqa: B018


def test_version_and_help_on_a_screen_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for words in (["--version"], ["--help"], []):
        assert cli.main(words) == 0
        printed.append(capsys.readouterr().out)
    version, help_, nothing = printed
    assert version.startswith("specpilot 0.")
    assert help_ == nothing
    assert max(map(len, help_.splitlines())) <= 80
    assert len(help_.splitlines()) <= 25


def test_env_as_json() -> None:
    """Threads and, on Linux, cores are those that the process may use, not those of the machine."""
    program = (
        "import os, sys\n"
        "if sys.platform == 'linux':\n    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from specpilot.cli.main import main\nmain(['env', '--json'])\n"
    )
    call = [sys.executable, "-c", program]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    report = json.loads(subprocess.run(call, env=environment, capture_output=True, check=True, timeout=120).stdout)
    assert report["versions"]["python"] == platform.python_version()
    assert report["versions"]["torch"] == version("torch")
    assert report["machine"]["threads"] == 1
    assert sys.platform != "linux" or report["machine"]["cores"] == 1


def test_env_names_the_forward_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the forward, the reason for it, the precision and the device."""
    assert cli.main(["env", "--json", "--target", "tiny", "--draft", "tiny-draft", "--device", "cpu"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    for role, line in zip(("target: tiny", "draft: tiny-draft"), plan, strict=False):
        assert line.startswith(role)
        assert {"float32", "on cpu"} <= {part.strip() for part in line.split(",")}
        assert "lean forward, because" in line
    words = ["env", "--json", "--target", "tiny", "--device", "cpu", "--dtype", "bfloat16"]
    for graphs in ("on", "off"):
        assert cli.main([*words, "--graphs", graphs]) == 0
        line, *_ = json.loads(capsys.readouterr().out)["plan"]
        assert "bfloat16" in line
    assert cli.main(["env", "--draft", "tiny-draft"]) == 2
    assert "draft='tiny-draft': needs a target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "specpilot generate --top-k many hello",
            "top_k: expected a whole number, 'auto' or null, got 'many' (see specpilot generate --help)",
        ),
        (
            "specpilot generate <<< ' '",
            "prompt: is empty; pass text as an argument, with --prompt or on standard input",
        ),
        (
            "specpilot generate - <<< $'\\xff'",
            "prompt: standard input is not UTF-8 text (invalid start byte at byte 0); convert it to UTF-8",
        ),
        ("specpilot generate <&-", "prompt: standard input is closed; pass the prompt as an argument or with --prompt"),
        ("specpilot --version >&-", None),
        ("PYTHONIOENCODING=ascii specpilot --help", None),  # characters that the terminal lacks
        ("specpilot generate --help | true", None),  # a reader that leaves
    ],
)
def test_exit_codes_and_messages_in_a_shell(line: str, error: str | None) -> None:
    program = f"specpilot() {{ '{sys.executable}' -m specpilot.cli.main \"$@\"; }}; {line}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == ((0, "") if error is None else (2, f"specpilot: error: {error}\n"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--n", "a\n b"], r"^n: expected a whole number, got 'a b' \("),
        (["--n", "null"], r"^n: expected a whole number, got null \("),
        (["--n", "1.5"], r"^n: expected a whole number, got 1\.5 \("),
        (["--dtype", "half"], r"^dtype: expected 'float32', 'bfloat16', 'float16', 'float64' or 'auto', got 'half' \("),
        (["--config={system: [a]}"], r"^config: system: expected text or null, got \['a'\]; put text in quotes \("),
        (["--config={system: true}"], r"^config: system: expected text or null, got true; put text in quotes \("),
        (["--config={draft: {a: b}}"], r"expected text, a list of texts or null, got \{'a': 'b'\}; put text in quotes"),
    ],
)
def test_a_value_of_another_type_is_refused_in_plain_words(words: list[str], expected: str) -> None:
    with refused(expected):
        CommandParser(COMMANDS["generate"], "x").read(words)


def test_types_are_shown_in_plain_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Help of all commands and completions of the shell show plain words instead of ``Optional[int]``."""
    monkeypatch.setenv("COLUMNS", "1000")
    helps = ""
    for name, _ in cli._leaves("", cli.COMMANDS):
        with suppress(SystemExit):
            cli.main([*name.split(), "--help"])
        helps += capsys.readouterr().out
    for shell in ("bash", "fish"):
        cli.main(["--completion", shell])
        helps += capsys.readouterr().out
    assert not re.findall(r"Optional|Union|Literal\[|<class|NoneType|type: (?:int|str|float|tuple|dict)\b", helps)
    assert "Maximum number of prompts. (type: a whole number or null, default: null)" in helps
    assert "(required, type: text or a list of texts)" in helps
    assert "(required, type: a path)" in helps


@pytest.mark.parametrize("name", ["generate", "train acceptance", "data router"])
def test_a_printed_configuration_is_one(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = [*flags(COMMANDS[name]), "--seed", "7"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*name.split(), *arguments, "--print-config"])
    assert stop.value.code == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    command = train.of_predictor([]) if name == "train acceptance" else COMMANDS[name]
    printed = CommandParser(command, "x").read(["--config", str(tmp_path / "printed.yaml")])
    assert printed == CommandParser(command, "x").read(arguments)


@pytest.mark.parametrize(
    "text", ["4:4", "1:30", "no", "on", "Off", "1_000", "0x10", "0o17", "2020-01-01", "# a comment", "=", "<<"]
)
def test_text_is_not_read_as_a_number_or_a_switch(text: str, tmp_path: Path) -> None:
    """YAML 1.1 would read these texts as numbers in base 60 or 16, dates or switches, and drop a comment."""
    file = tmp_path / "options.yaml"
    file.write_text("\n".join(f"{name}: {json.dumps(text)}" for name in ("length", "system")))
    written = [["--config", str(file)], ["--length", text, "--system", text]]
    if "#" not in text:
        file.with_name("plain.yaml").write_text(f"length: {text}\nsystem: {text}\n")
        written.append(["--config", str(file.with_name("plain.yaml"))])
    for words in written:
        options = CommandParser(COMMANDS["generate"], "x").read(words)["options"]
        assert (options.length, options.system) == (text, text)
    for option in ("--max-new-tokens", "--seed", "--temperature"):
        with refused(rf"^{option[2:].replace('-', '_')}: expected"):
            CommandParser(COMMANDS["generate"], "x").read([option, text])


@pytest.mark.parametrize(("text", "number"), [("1e-3", 0.001), ("2E3", 2000.0), (".5", 0.5), ("4.", 4.0), ("+4", 4.0)])
def test_decimal_numbers_are_read(text: str, number: float, tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text(f"temperature: {text}\n")
    for words in (["--temperature", text], ["--config", str(tmp_path / "options.yaml")]):
        assert CommandParser(COMMANDS["generate"], "x").read(words)["options"].temperature == number


def test_a_switch_in_a_file_is_true_or_false(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text("chat: off\n")
    with refused("chat='off'"):
        read("--config", str(tmp_path / "options.yaml"))


def read(*words: str) -> tuple[str, int, bool | str]:
    """Return three options of ``specpilot generate`` with these arguments."""
    options = next(iter(CommandParser(COMMANDS["generate"], "x").read(words).values()))
    return options.prompt, options.n, options.chat


def test_help_names_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["generate", "--help"])
    words = re.sub(r"-\n\s+", "-", capsys.readouterr().out)  # hyphenated words are broken at the end of a line
    for name, rule in LENGTH_RULES.items():
        assert (name if rule.example is None else f'"{name}:{rule.example}"') in words
    for name in VERIFIERS:
        assert re.search(rf"\b{name}\b", words)
    assert "%%" not in words
    assert "10 to 18" in words


def test_a_command_ends_without_a_search_for_cycles() -> None:
    """A search for cycles would take a second. Handlers of atexit run in reverse order."""
    program = (
        "import atexit, gc\natexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "from specpilot.cli.main import main\nmain(['--version'])\nprint(gc.get_freeze_count())"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines()[1:] == ["0", "True"]


def test_flags_win_over_yaml_over_defaults(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("n: 2\nprompt: yaml\nchat: false")
    second.write_text("n: 3")
    configs, flags = ["--config", str(first), f"--config={second}"], ["--prompt", "flag"]
    assert read(*flags, *configs) == read(*configs, *flags) == ("flag", 3, False)
    second.write_text("temperature: hot")
    with refused(r"^temperature: expected a number or 'auto', got 'hot'"):  # no file is blamed
        read(*configs, "--temperature=hot")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["word"], ("word", 1, "auto")),
        (["-"], ("-", 1, "auto")),
        (["--no-chat", "word", "--n", "2"], ("word", 2, False)),
        (["--n=4", "--chat", "a: b [null"], ("a: b [null", 4, True)),
        (["--prompt", "- a dash"], ("- a dash", 1, "auto")),
        (["--n", "2", "--", "--odd"], ("--odd", 2, "auto")),
        (["null"], ("null", 1, "auto")),
    ],
)
def test_prompts_and_flags_among_the_arguments(words: list[str], expected: tuple[str, int, bool | str]) -> None:
    assert read(*words) == expected


@pytest.mark.parametrize("words", ["train --data x --help", "generate --bogus --top-k many --help", "serve --help x"])
def test_help_after_other_arguments(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        cli.main(words.split())
    assert capsys.readouterr().out.startswith(f"usage: specpilot {words.partition(' ')[0]}")


REPOSITORY = Path(__file__).parents[2]
COMPLETED = {
    "": {"train", "generate", "trim-vocabulary"},
    "tra": {"train"},
    "--co": {"--completion"},
    "train ": {"acceptance", "copies", "router", "draft"},
    "train acceptance --wid": {"--width"},  # of one predictor
    "train acceptance --predictor s": {"specdec"},
    "generate hi --top-": {"--top-k", "--top-p"},
    "generate --generation-config ": {"follow", "ignore"},
    "export run --ov": {"--overwrite"},
    "serve --config pyproj": {"pyproject.toml"},
}
COMPLETE = r"""
while IFS= read -r COMP_LINE; do
    read -ra COMP_WORDS <<< "$COMP_LINE"
    [[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_POINT=${#COMP_LINE} COMPREPLY=()
    _shtab_specpilot
    echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--completion", "bash"]) == 0
    program = f"{capsys.readouterr().out}\ncomplete -p specpilot\n{COMPLETE}"
    done = subprocess.run(
        ["bash", "-c", program], input="".join(f"specpilot {line}\n" for line in COMPLETED), cwd=REPOSITORY,
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    registered, *offers = done.stdout.splitlines()
    assert registered.endswith("_shtab_specpilot specpilot"), done.stderr
    for (line, expected), offered in zip(COMPLETED.items(), offers, strict=True):
        assert set(offered.split()) >= expected if line == "" else set(offered.split()) == expected, line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_options_of_predictors(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([f"--completion={shell}"]) == 0
    assert {"zsh": "--width", "fish": "train acceptance' -l width"}[shell] in capsys.readouterr().out


# Options

COMMANDS = dict(cli._leaves("", cli.COMMANDS))
KINDS = sorted(
    {
        kind
        for command in [*COMMANDS.values(), *(train.of_predictor(["--predictor", name]) for name in train.PREDICTORS)]
        for kind in CommandParser(command, "x").kinds.values()
    },
    key=lambda kind: kind.__name__,
)
EXAMPLES = {"tuple": ("1=b",), "path": Path("a"), "str": "a"}  # of options without a default, by type


def required(kind: type) -> dict[str, Any]:
    """Return values for the options of ``kind`` that have no default."""
    hints = get_type_hints(kind)
    missing = [entry.name for entry in fields(kind) if entry.default is MISSING]
    return {name: next(v for t, v in EXAMPLES.items() if t in str(hints[name]).lower()) for name in missing}


def flags(command: Callable[..., None]) -> list[str]:
    """Return arguments for the options of a command that have no default."""
    values = {k: v for kind in CommandParser(command, "x").kinds.values() for k, v in required(kind).items()}
    return [f"--{k.replace('_', '-')}={'[1=b]' if isinstance(v, tuple) else v}" for k, v in values.items()]


def limited(kind: type, limit: type) -> Iterator[tuple[str, Any]]:
    """Return the options of ``kind`` whose values have this kind of limit, with the limit."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        yield from ((name, entry) for entry in limits_of(hint) if isinstance(entry, limit))


def limits_of(hint: Any) -> Iterator[Any]:
    """Return all limits in a type, such as ``Count | None`` or ``tuple[Count, ...]``."""
    yield from getattr(hint, "__metadata__", ())
    for part in get_args(hint):
        yield from limits_of(part)


@pytest.mark.parametrize("kind", KINDS)
def test_options_are_described_once_and_inherit_their_defaults(kind: type) -> None:
    for entry in fields(kind):
        homes = [base for base in kind.__mro__ if entry.name in inspect.get_annotations(base)]
        assert entry.default == homes[0].__dict__.get(entry.name, MISSING), entry.name  # not that of another base
        if entry.default is not MISSING:
            assert build(get_type_hints(kind, include_extras=True)[entry.name], entry.default) == entry.default
        documents = [base for base in homes if f" {entry.name}: " in (base.__doc__ or "").partition("Attributes:")[2]]
        assert described(kind, entry.name)[0] == kind.__mro__.index(documents[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_null_is_an_error_where_a_key_cannot_be_null(name: str) -> None:
    arguments, parser = flags(COMMANDS[name]), CommandParser(COMMANDS[name], "x")
    for kind in parser.kinds.values():
        hints = get_type_hints(kind)
        for key, hint in ((entry.name, hints[entry.name]) for entry in fields(kind)):
            words = [*[word for word in arguments if not word.startswith(f"--{key}=")], "--config", f"{{{key}: null}}"]
            if type(None) in get_args(hint):
                parser.read(words)
                continue
            with refused(rf"{key}: expected .*, got null|{key}=None: true or false.* is expected|required: {key}"):
                parser.read(words)


@pytest.mark.parametrize("piece", ["[", "{", "- ", "? ", "[a, ", "- ["])
def test_values_nested_too_deep_are_refused(piece: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Such values would crash the C parser of YAML."""
    assert cli.main(["bench", "cost", f"--limit={piece * 30_000}"]) == 2
    problem = "--limit: brackets or dashes are nested more than 5,000 deep; give plain text"
    assert capsys.readouterr().err == f"specpilot: error: {problem}\n"


@pytest.mark.parametrize("text", ["[1] - {} ? " * 5000, "[[\n" * 2000 + "x" * 4000])
def test_long_texts_are_not_nested(text: str) -> None:
    assert read(text)[0] == text


@pytest.mark.parametrize("kind", KINDS)
def test_values_outside_their_limits_are_errors(kind: type) -> None:
    def check(message: str, **values: Any) -> None:
        with pytest.raises(InputError, match=message):
            kind(**required(kind) | values)

    for name, limit in limited(kind, options.Range):
        several = isinstance(kind.__dataclass_fields__[name].default, tuple)  # type: ignore[attr-defined]
        for wrong in (limit.low - 1, math.nan, math.inf, 10**400, 10**31 if limit.high < math.inf else -math.inf):
            check(
                rf"^{name}(\[0\])?=\S+: (must be |a whole number|a finite number)",
                **{name: (wrong,) if several else wrong},
            )
    for name in get_type_hints(kind).keys() - dict(limited(kind, options.Objects)):
        check(rf"^{name}=<object.*: .* expected", **{name: object()})
    for name, _ in limited(kind, options.Pattern):
        for wrong in ("meta", "out.xyz", "cuda:-1"):
            check(rf"^{name}='{wrong}': .* (give|choose|end it in) ", **{name: wrong})
    for name, limit in limited(kind, options.Several):
        check(rf"^{name}=\[\]: give at least", **{name: []})
        if limit.distinct:
            twice = [1, 1] if "int" in str(get_type_hints(kind)[name]) else ["a=b", "a=b"]
            check(rf"^{name}=\[.*\]: give at least", **{name: twice})


@pytest.mark.parametrize("kind", KINDS)
def test_places_that_cannot_be_written_are_errors(kind: type, tmp_path: Path) -> None:
    file = tmp_path / "file.png"
    file.write_text("")
    (tmp_path / "folder.png").mkdir()
    for name, limit in limited(kind, options.Place):
        for wrong in (file / "x.png", file if limit.folder else tmp_path / "folder.png"):
            with pytest.raises(InputError, match=rf"^{name}='.*': .*; choose a(nother)? (place|file)"):
                kind(**required(kind) | {name: wrong})
        prompts = {"prompts": "builtin"} if kind is BatchOptions else {}  # whose file is that of their texts
        kind(**required(kind) | prompts | {name: tmp_path / "folder.png" if limit.folder else file})


def test_every_device_count_and_seed_has_a_limit() -> None:
    limits = {"device": options.Pattern, "seed": options.Range, "threads": options.Range}
    for kind in KINDS:
        for name in get_type_hints(kind):
            if name in limits:
                assert name in dict(limited(kind, limits[name])), (kind, name)
            elif int in (get_type_hints(kind)[name], *get_args(get_type_hints(kind)[name])) and "length" not in name:
                assert name in dict(limited(kind, options.Range)), (kind, name)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("temperature=-1:\n  must be at least 0"), 2, "temperature=-1: must be at least 0"),
        (OSError(errno.ENOSPC, "Full", "runs/x"), 2, "runs/x: Full; free space or choose another place"),
        (OSError(errno.EACCES, "Denied", "x"), 2, "x: Denied; choose another place, or change who may write there"),
        (OSError(errno.EIO, "Input/output error", "x"), 2, "x: Input/output error"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),  # a reader that leaves is no error
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("a defect"), None, None),  # it keeps its traceback
    ],
)
def test_error_messages_and_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: Any, line: Any
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "COMMANDS", {"fail": fail})
    if line is None:
        with pytest.raises(type(error), match=str(error)):
            cli.main(["fail"])
        return
    assert cli.main(["fail"]) == code
    assert capsys.readouterr().err == (f"specpilot: error: {line}\n" if line else "")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["--width", "8"], lag_free_head.TrainingOptions),
        (["--predictor=specdec", "--w-rej", "2"], specdec_head.TrainingOptions),
        (["--config", "features.yaml"], feature_model.TrainingOptions),
        (["--config", "features.yaml", "--predictor", "specdec"], specdec_head.TrainingOptions),  # the flag wins
        (["--predictor", "lag-free", "--config", "features.yaml"], lag_free_head.TrainingOptions),
    ],
)
def test_each_predictor_has_options_of_its_own(
    words: list[str], kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("features.yaml").write_text("predictor: features\n")
    trained: list[object] = []
    monkeypatch.setattr("specpilot.cli.commands.train._train", lambda train, options, run: trained.append(options))
    cli.run(["train", "acceptance", "--data", "a", "--output", "b", *words])
    assert [type(options) for options in trained] == [kind]
    with pytest.raises(InputError, match=r"predictor='other': .*choose one of lag-free, specdec, features"):
        cli.run(["train", "acceptance", "--data", "a", "--output", "b", "--predictor", "other"])
    with pytest.raises(InputError, match=r"predictor='features': .* --predictor features"):
        CommandParser(train.of_predictor(["--predictor=specdec"]), "x").read(
            ["--data", "a", "--output", "b", "--config", "features.yaml"]
        )


# `specpilot generate` on the shipped pair: what the options mean, and what is printed where


PROMPT = "What is 3 and 4?"
WORDS = ["generate", PROMPT, "--target", "tiny", "--draft", "tiny-draft", "--max-new-tokens", "24", "--seed", "5"]


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length=4)


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_generate_prints_the_text(decoder: SpeculativeDecoder, capsys: pytest.CaptureFixture[str], stream: str) -> None:
    assert cli.main([*WORDS, stream, "--length", "4", "--top-k", "null", "--no-chat"]) == 0
    expected = decoder.generate(PROMPT, max_new_tokens=24, seed=5, top_k=None, chat=False)
    assert capsys.readouterr().out == expected.text + "\n"


@pytest.mark.parametrize("length", ["4", "none", "cumulative-confidence:0.4", "tiny-head"])
def test_json_and_stats(decoder: SpeculativeDecoder, capsys: pytest.CaptureFixture[str], length: str) -> None:
    assert cli.main([*WORDS, "--length", length, "--temperature", "0.7", "--chat", "--json", "--stats"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    expected = decoder.generate(PROMPT, max_new_tokens=24, seed=5, temperature=0.7, chat=True, length=length)
    stats = expected.stats
    assert (report["text"], report["tokens"]) == (expected.text, expected.tokens)
    assert report["finish_reason"] == expected.finish_reason
    assert [r["emitted"] for r in report["rounds"]] == [r.emitted for r in expected.rounds]
    assert [r["drafted"] for r in report["rounds"]] == [r.drafted for r in expected.rounds]
    assert report["stats"]["tokens_per_forward"] == stats.tokens_per_forward == stats.n_generated / len(expected.rounds)
    line = next(line for line in printed.err.splitlines() if line.startswith(f"{stats.n_generated} tokens in"))
    assert "verification: invariant" in printed.err  # the plan
    seconds, rate = re.findall(rf"^{stats.n_generated} tokens in ([\d.]+) s \(([\d.]+) tokens/s\)", line)[0]
    assert float(seconds) * float(rate) == pytest.approx(
        stats.n_generated, abs=0.01 * float(rate) + 0.1 * float(seconds)
    )  # both are rounded
    assert f"{stats.n_draft_forwards} draft and {stats.n_target_forwards} target forwards" in line
    assert f"{stats.n_accepted} of {stats.n_drafted} drafted tokens accepted" in line
    assert f"{stats.tokens_per_forward:.2f} tokens per target forward" in line


def test_colour(decoder: SpeculativeDecoder, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the rejected tokens and without styles, the output is the text."""
    assert cli.main([*WORDS, "--length", "4", "--no-chat", "--color"]) == 0
    expected = decoder.generate(PROMPT, max_new_tokens=24, seed=5, chat=False)
    assert 0 < expected.stats.n_accepted < expected.stats.n_drafted
    text, legend = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    unstruck = re.sub(r"\x1b\[9;31m.*?\x1b\[0m", "", text)
    assert len(unstruck) < len(text)
    assert re.sub(r"\x1b\[[\d;]*m", "", unstruck) == expected.text
    assert re.sub(r"\x1b\[[\d;]*m", "", legend) == "accepted draft  token of the target  rejected draft"
