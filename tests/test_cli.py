"""The command line from outside: what it prints, where, and how it ends."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from specpilot import main as cli
from specpilot.controllers.errors import InputError
from specpilot.parser import one_line


def specpilot(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "specpilot.main", *words]
    done = subprocess.run(call, input=stdin, capture_output=True, check=False, timeout=120)
    return subprocess.CompletedProcess(call, done.returncode, done.stdout.decode(), done.stderr.decode())


def in_process(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that a refused call prints."""
    assert cli.main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("specpilot: error: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.parametrize(
    "words", [["--help"], *([*name.split(), "--help"] for name, _ in cli._leaves("", cli.COMMANDS))]
)
def test_help_stays_light(words: list[str]) -> None:
    """Help within a second means: no torch. Import time is not measured, machines differ."""
    program = (
        "import sys\nfrom specpilot import main as cli\n"
        f"try:\n    cli.main({words!r})\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'pytorch_lightning', 'pyarrow', 'datasets', 'sklearn', 'numpy'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: specpilot")


def test_importing_the_package_stays_light() -> None:
    program = "import sys, specpilot; dir(specpilot); assert specpilot.__version__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_public_names() -> None:
    import specpilot

    for name in specpilot.__all__:
        assert getattr(specpilot, name) is not None
        assert name in dir(specpilot)
    with pytest.raises(AttributeError, match="nonsense"):
        specpilot.nonsense  # noqa: B018


def test_version_help_and_no_arguments() -> None:
    version, help_, nothing = specpilot("--version"), specpilot("--help"), specpilot()
    assert version.stdout.startswith("specpilot 0.")
    assert help_.stdout == nothing.stdout
    assert "generate" in nothing.stdout
    assert (version.returncode, help_.returncode, nothing.returncode) == (0, 0, 0)


def test_env_as_json() -> None:
    report = json.loads(specpilot("env", "--json").stdout)
    assert report["versions"]["python"].startswith("3.")
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["threads"] >= 1


def test_refusals_reach_the_shell() -> None:
    done = specpilot("generate", "--top-k", "many", "hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "specpilot: error: top_k: expected int or 'auto' or null, got 'many' (see specpilot generate --help)\n"
    )
    done = specpilot("generate", stdin=b" \n")
    assert done.returncode == 2
    assert done.stderr.startswith("specpilot: error: prompt: it is empty")
    done = specpilot("generate", "-", stdin=b"\xff")
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["dream"], "'dream': choose from"),
        (["--dream"], "'--dream': choose from"),
        (["env", "--dream"], "--dream"),
        (["env", "extra"], "extra"),
        (["generate", "one", "two"], "two"),
        (["generate", "--seed", "1.5", "x"], "seed: expected int, got '1.5'"),
        (["generate", "--seed"], "--seed: expected one argument"),
        (
            ["generate", "--dtype", "float8", "x"],
            "dtype: expected 'float32' or 'bfloat16' or 'float16' or 'float64' or 'auto', got 'float8'",
        ),
        (["generate", "--chat=maybe", "x"], "--chat/--no-chat: takes no value, got 'maybe'"),
        (["generate", "--max-new", "3", "x"], "--max-new"),
        (["generate", "--config", "missing.yaml", "x"], "missing.yaml'"),
    ],
)
def test_bad_words(capsys: pytest.CaptureFixture[str], words: list[str], named: str) -> None:
    assert named in in_process(capsys, *words)


@pytest.mark.parametrize(
    ("yaml", "named"),
    [
        ("max_new_token: 3", "unknown key 'max_new_token'"),
        ("max_new_tokens: many", "max_new_tokens: expected int or 'auto', got 'many'"),
        ("chat: 3", "chat: expected bool, got '3'"),
        ("target: 3", "target: expected str, got '3'"),
        ("- a list", "config: expected a mapping"),
        ("", "config: expected a mapping"),
        ("target: [", "Problems parsing config"),
    ],
)
def test_bad_yaml(capsys: pytest.CaptureFixture[str], tmp_path: Path, yaml: str, named: str) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(yaml)
    assert named in in_process(capsys, "generate", "--config", str(config), "hello")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Record.

    Attributes:
        name: A name.
        size_of_it: A size.
        loud: A switch.
    """

    name: str = field(default="-", kw_only=False)
    size_of_it: int = 1
    loud: bool = True


def recorder(seen: list[tuple[str, int, bool]]) -> Callable[..., None]:
    def record(options: Recorded) -> None:
        """Record."""
        seen.append((options.name, options.size_of_it, options.loud))

    return record


@pytest.mark.parametrize("flags_first", [True, False])
def test_flags_win_over_yaml_over_defaults(tmp_path: Path, flags_first: bool) -> None:
    seen: list[tuple[str, int, bool]] = []
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("size_of_it: 2\nname: yaml\nloud: false")
    second.write_text("size_of_it: 3")
    configs, flags = ["--config", str(first), f"--config={second}"], ["--name", "flag"]
    words = [*flags, *configs] if flags_first else [*configs, *flags]
    cli.run(["a", "b", *words], {"a": {"b": recorder(seen)}})
    assert seen == [("flag", 3, False)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["word"], ("word", 1, True)),
        (["-"], ("-", 1, True)),
        (["--no-loud", "word", "--size-of-it", "-2"], ("word", -2, False)),
        (["--size-of-it=4", "--loud", "a: b [null"], ("a: b [null", 4, True)),
        (["--name", "- a dash"], ("- a dash", 1, True)),
        (["--size-of-it", "2", "--", "--odd"], ("--odd", 2, True)),
        (["null"], ("null", 1, True)),
    ],
)
def test_words(words: list[str], expected: tuple[str, int, bool]) -> None:
    seen: list[tuple[str, int, bool]] = []
    cli.run(["a", *words], {"a": recorder(seen)})
    assert seen == [expected]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("temperature=-1:\n  must be at least 0"), 2, "temperature=-1: must be at least 0"),
        (OSError(28, "No space left on device", "runs/x"), 2, "No space left on device: runs/x"),
        (OSError("no such\nmodel"), 2, "no such model"),
        (FileNotFoundError(2, "No such file or directory", "p.txt"), 2, "No such file or directory: p.txt"),
        (PermissionError(13, "Permission denied", "p.txt"), 2, "Permission denied: p.txt"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_one_line_for_the_user(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "COMMANDS", {"fail": fail})
    assert cli.main(["fail"]) == code
    assert capsys.readouterr().err == f"specpilot: error: {line}\n"


def test_our_defects_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(cli, "COMMANDS", {"fail": fail})
    with pytest.raises(ValueError, match="a defect"):
        cli.main(["fail"])


def test_a_reader_that_leaves_is_no_error() -> None:
    shell = f"'{sys.executable}' -m specpilot.main generate --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}  # 0 where the pipe took it all before the reader left


def test_a_value_that_looks_like_the_message() -> None:
    message = "Parser key \"x\":\n  Expected a <class 'int'>. Got value: a\n  b"
    assert one_line(message) == "x: expected int, got 'a b'"
