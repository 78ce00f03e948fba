"""Without the extra ``bench``: what needs it is refused at once, everything else works."""

import sys
from pathlib import Path

import pytest
import pytorch_lightning  # noqa: F401 - before matplotlib is hidden, which it looks for
from specpilot import main as cli
from specpilot.common.errors import InputError, optional_import
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.options import AcceptanceDataOptions, WorkerOptions
from specpilot.infer.loading.names import load_any_model
from specpilot.infer.models.llama_context import library
from specpilot.train.figure import check_matplotlib

from experiments.__main__ import EXPERIMENTS
from experiments.__main__ import main as experiments
from experiments.papers import quality
from experiments.studies.sweep_tables import plot_sweep

from .tiny import save_pair


@pytest.fixture(autouse=True)
def plain_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which none of the extra's packages can be imported."""
    packages = ("matplotlib", "rouge_score")
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        monkeypatch.delitem(sys.modules, name)
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)
    quality._scorer.cache_clear()


def missing(package: str) -> str:
    return rf"^{package} is not installed: pip install 'specpilot\[bench\]'$"


def test_what_needs_a_package_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=missing("matplotlib")):
        plot_sweep({}, tmp_path / "p.png", "title")
    with pytest.raises(InputError, match=missing("matplotlib")):
        check_matplotlib()
    with pytest.raises(InputError, match=missing("rouge_score")):
        quality.rouge_l("a", "a")
    assert not (tmp_path / "p.png").exists()
    with pytest.raises(ImportError, match="cannot import name 'nothing'"), optional_import("bench"):
        from specpilot.compare import nothing  # type: ignore[attr-defined] # noqa: F401


def test_gguf_files_need_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "llama_cpp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    library.cache_clear()
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(InputError, match=r"^llama_cpp is not installed: pip install 'specpilot\[gguf\]'$"):
        load_any_model(file)
    library.cache_clear()


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
        ["calibrate", "tiny-head", "--data", "d", "--output", str(tmp_path / "c"), "--plot", str(tmp_path / "c.png")],
    ):
        assert (experiments if words[0] in EXPERIMENTS else cli.main)(words) == 2, words
        assert "is not installed: pip install 'specpilot[bench]'" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_several_workers_need_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^ray is not installed: pip install 'specpilot\[ray\]'$"):
        make_acceptance_data(AcceptanceDataOptions(limit=1), tmp_path / "data", workers=WorkerOptions(workers=2))
    assert not (tmp_path / "data").exists()
    with pytest.raises(InputError, match="needs the number of workers; add --workers"):
        WorkerOptions(ray="10.0.0.1:6379")
