"""Installed files: the wheel has all files, packed files are unpacked, and functions that need an extra name it."""

import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import pytorch_lightning  # noqa: F401 - before matplotlib is hidden, which it looks for
from specpilot import checkpoints
from specpilot.cli import main as cli
from specpilot.common.errors import InputError, optional_import
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.options import AcceptanceDataOptions, WorkerOptions
from specpilot.models.llama_context import library
from specpilot.models.loading.names import load_any_model

from experiments.__main__ import EXPERIMENTS
from experiments.__main__ import main as experiments
from experiments.papers import quality

from ..helpers.tiny import save_pair

ROOT = Path(__file__).parents[2]
FOLDERS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the checkout, called specpilot, without the folders of earlier builds."""
    copy = tmp_path / "above" / "specpilot"
    for folder in {folder.partition("/")[0] for folder in FOLDERS.values()}:
        shutil.copytree(ROOT / folder, copy / folder, ignore=NOT_SHIPPED)
    for name in ("pyproject.toml", "build_backend.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def output_of(command: Sequence[str | Path], folder: Path) -> str:
    """Return the output of ``command`` in ``folder``."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(kind: str, source: Path, target: Path) -> Path:
    """Build the ``wheel``, the ``editable`` wheel or the ``sdist`` of ``source`` in ``target``, and return it."""
    target.mkdir()
    output_of([sys.executable, "-c", f"import build_backend; build_backend.build_{kind}({str(target)!r})"], source)
    (path,) = target.iterdir()
    return path


def test_the_wheel_of_a_source_distribution_is_complete(checkout: Path, tmp_path: Path) -> None:
    """The wheel has all files of the package folders: source, typing marker, configurations and weights."""
    with tarfile.open(build("sdist", checkout, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    with zipfile.ZipFile(build("wheel", source, tmp_path / "wheel")) as archive:
        wheel = set(archive.namelist())
    expected = set()
    for package, folder in FOLDERS.items():
        inside = package.replace(".", "/")
        kinds = ("*.py", "*.yaml", "*.jsonl.xz", "py.typed", "static/*", "page.*")
        expected |= {
            f"{inside}/{path.relative_to(ROOT / folder)}" for kind in kinds for path in (ROOT / folder).glob(kind)
        }
    weights = (path for path in (ROOT / "checkpoints").rglob("*") if path.is_file())
    weights = (path for path in weights if not path.with_name(f"{path.name}.xz").exists())
    expected |= {
        f"specpilot/{path.relative_to(ROOT).as_posix()}"
        for path in weights
        if not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
    }
    assert "specpilot/py.typed" in expected
    assert {name for name in wheel if ".dist-info/" not in name} == expected
    for name in ("licenses/LICENSE", "entry_points.txt"):
        assert any(path.endswith(f".dist-info/{name}") for path in wheel)


def test_the_development_install_is_found_from_the_folder_above(checkout: Path, tmp_path: Path) -> None:
    """The checkout is called specpilot, as the package is. New files are importable at once."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(output_of([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).strip())
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(dependencies))  # the .pth files in these folders are not read
    with zipfile.ZipFile(build("editable", checkout, tmp_path / "wheel")) as archive:
        archive.extractall(site)
    (checkout / "infer" / "added_later.py").write_text("from ..common.errors import InputError\n")
    program = "import specpilot.infer.added_later as new; from specpilot import SpeculativeDecoder; print(new.__file__)"
    printed = output_of([python, "-c", program], checkout.parent)
    assert Path(printed.strip()).resolve() == checkout.resolve() / "infer" / "added_later.py"
    assert output_of([python, "-m", "specpilot", "--version"], checkout.parent).startswith("specpilot ")


# Packed files that ship are unpacked when they are first asked for


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package with one model."""
    monkeypatch.setattr(checkpoints, "FOLDER", tmp_path)
    model = tmp_path / "tiny-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors.xz").write_bytes(lzma.compress(b"weights"))
    return model


def test_unpacked_once_and_again_when_it_has_changed(folder: Path) -> None:
    assert checkpoints.shipped("tiny-model") == folder
    unpacked = folder / "model.safetensors"
    assert unpacked.read_bytes() == b"weights"
    before = unpacked.stat().st_ino
    checkpoints.shipped("tiny-model")
    assert unpacked.stat().st_ino == before
    (folder / "model.safetensors.xz").write_bytes(lzma.compress(b"others"))
    os.utime(folder / "model.safetensors.xz", ns=(0, 10**18))
    checkpoints.shipped("tiny-model")
    assert unpacked.read_bytes() == b"others"
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "model.safetensors.xz"}


def test_elsewhere_if_the_package_cannot_be_written_to(folder: Path) -> None:
    (folder / "model.safetensors").mkdir()  # nobody can replace it by a file
    (folder / "model.safetensors" / "full").touch()
    model_folder = checkpoints.shipped("tiny-model")
    assert model_folder != folder
    assert {path.name: path.read_bytes() for path in model_folder.iterdir()} == {
        "config.json": b"{}", "model.safetensors": b"weights"
    }  # fmt: skip
    assert checkpoints.shipped("tiny-model") == model_folder


# Without an extra what needs it is refused at once


@pytest.fixture
def plain_install(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set up an environment in which the packages of extras cannot be imported."""
    packages = ("matplotlib", "rouge_score", "llama_cpp", "ray")
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    quality._scorer.cache_clear()
    library.cache_clear()
    yield
    library.cache_clear()


@pytest.mark.usefixtures("plain_install")
def test_commands_refuse_before_they_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
    before = sorted(tmp_path.rglob("*"))
    pair = ["--target", target, "--prompts", str(tmp_path / "p.txt"), "--no-chat", "--limit", "1"]
    for words in (
        ["data", "router", *pair, "--arms", f"[{draft},autoregressive]", "--output", str(tmp_path / "data")],
        ["papers", "spectr", *pair, "--draft", draft, "--output", str(tmp_path / "papers")],
        ["sweep", "--folder", str(tmp_path / "sweep")],
        ["otm", "--output", str(tmp_path / "otm.png")],
    ):
        assert (experiments if words[0] in EXPERIMENTS else cli.main)(words) == 2, words
        assert "is not installed: pip install 'specpilot[bench]'" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("plain_install")
def test_llama_cpp_and_ray_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"^llama_cpp is not installed: pip install 'specpilot\[gguf\]'$"):
        load_any_model(tmp_path / "model.gguf")
    with pytest.raises(InputError, match=r"^ray is not installed: pip install 'specpilot\[ray\]'$"):
        make_acceptance_data(AcceptanceDataOptions(limit=1), tmp_path / "data", workers=WorkerOptions(workers=2))
    assert not (tmp_path / "data").exists()
    with pytest.raises(ImportError, match="cannot import name 'nothing'"), optional_import("bench"):
        from specpilot.compare import nothing  # type: ignore[attr-defined] # noqa: F401
