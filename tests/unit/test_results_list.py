"""The list of results, the files in docs/results and the pages agree.

Every file has an entry, every entry its files and pages, and every link to a result leads to a file. Tables and sources
in the pages are those of the files.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from experiments.result_blocks import filled_in, source
from experiments.results import RESULTS, ROOT, Step, read_steps

STEPS = read_steps()
FILES = {name: step for step in STEPS for name in (*step.sources, *step.fitted)}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?:docs/)?(?:results/)?([\w.-]+\.json)\)")
COMMAND = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def of_checkout(page: Path) -> str:
    return str(page.relative_to(ROOT))


LINKS = {of_checkout(page): set(LINK.findall(page.read_text(encoding="utf-8"))) for page in PAGES}


def test_every_file_has_an_entry() -> None:
    assert {file.name for file in (ROOT / RESULTS).glob("*.json")} == {
        name for name, step in FILES.items() if step.measured
    }


@pytest.mark.parametrize("name", FILES)
def test_every_entry_is_shown_on_its_pages(name: str) -> None:
    """A result is shown on one of the pages of its entry; a result that is not measured is on no page."""
    step = FILES[name]
    pages = {page for page, links in LINKS.items() if name in links}
    assert bool(pages) == bool(pages & set(step.pages)) == step.measured


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_every_page_of_an_entry_links_one_of_its_files(step: Step) -> None:
    for page in step.pages:
        assert LINKS[page] & {*step.sources, *step.fitted}, page


@pytest.mark.parametrize("page", LINKS)
def test_every_link_leads_to_a_file_with_an_entry(page: str) -> None:
    assert LINKS[page] <= FILES.keys()


@pytest.mark.parametrize("name", sorted(name for name, step in FILES.items() if step.measured))
def test_every_file_names_its_commit_and_machine(name: str) -> None:
    text = source(json.loads((ROOT / RESULTS / name).read_text(encoding="utf-8")))
    assert re.fullmatch(r"commits? [0-9a-f]{7,8}(, [0-9a-f]{7,8})*, .+, \d+ threads?", text)


@pytest.mark.parametrize("page", PAGES, ids=of_checkout)
def test_blocks_are_those_of_the_files(page: Path) -> None:
    """The blocks are those that `python -m experiments results --pages` writes."""
    text = page.read_text(encoding="utf-8")
    assert filled_in(text, ROOT / RESULTS) == text


@pytest.mark.parametrize("page", sorted((ROOT / RESULTS).glob("*.md")), ids=of_checkout)
def test_commands_of_results_pages_are_in_the_list(page: Path) -> None:
    listed = [shlex.split(line) for step in STEPS for line in step.commands]
    for block in COMMAND.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[:4] == ["python", "-m", "experiments", "results"]:
                names = re.findall(r"[\w.-]+", words[words.index("--only") + 1])
                assert set(names) <= {step.name for step in STEPS}, line
            else:
                assert words in listed, line


def test_a_block_follows_its_file(tmp_path: Path) -> None:
    machine = {"processor": "AMD EPYC", "cores": 2, "threads": 1, "devices": []}
    speed = {"value": 1.5, "low": 1.25, "high": 1.75}
    decoders = {"none": {"clock": None, "replay": speed}, "two": {"clock": speed, "replay": None}}
    report = {"commit": "0123456789ab", "machine": machine, "decoders": decoders, "informed": None}
    (tmp_path / "a.json").write_text(json.dumps(report))
    page = "<!-- results: {} -->\nold\n<!-- end -->\nrest"
    table = filled_in(page.format("speeds a.json=T = 1"), tmp_path)
    assert "| decoder | T = 1 |\n|---|---|\n| two | 1.50 (1.25–1.75) |" in table
    assert "old" not in table
    assert table.endswith("<!-- end -->\nrest")
    assert filled_in(table, tmp_path) == table
    text = "* [a.json](a.json): commit 01234567, 2 cores of an AMD EPYC, 1 thread\n"
    assert text in filled_in(page.format("source a.json"), tmp_path)


def test_counts_have_intervals_over_prompts(tmp_path: Path) -> None:
    def run(accepted: int) -> dict[str, float]:
        return {
            "generated": accepted + 5, "drafted": 10, "accepted": accepted, "target_forwards": 5, "seconds": 1.0,
            "processor_seconds": 1.0,
        }  # fmt: skip

    speed = {"value": 1.5, "low": 1.25, "high": 1.75}
    figures = {"clock": speed, "replay": None, "tokens_per_forward": 2.0, "accepted": 0.5}
    report: dict[str, object] = {"decoders": {"none": figures, "three": figures}}
    (tmp_path / "a.json").write_text(json.dumps(report))
    page = "<!-- results: counts a.json -->\n<!-- end -->\n"
    assert "| three | 1.50 (1.25–1.75) | 2.00 | 50 % |" in filled_in(page, tmp_path)
    report["timed"] = {"three": [run(accepted) for accepted in (3, 7) * 50]}
    (tmp_path / "a.json").write_text(json.dumps(report))
    assert "| three | 1.50 (1.25–1.75) | 2.00 (1.92–2.08) | 50 % (46–54) |" in filled_in(page, tmp_path)


def test_compared_speeds_are_of_the_same_prompts(tmp_path: Path) -> None:
    """The ratio is exact on every prompt, so that its interval has no width beside the wide ones of the speeds."""

    def run(seconds: float) -> dict[str, float]:
        return {
            "generated": 10, "drafted": 0, "accepted": 0, "target_forwards": 10, "seconds": seconds,
            "processor_seconds": 1.0,
        }  # fmt: skip

    times = (1.0, 2.0, 9.0) * 5
    timed = {"two": [run(seconds) for seconds in times], "one": [run(1.25 * seconds) for seconds in times]}
    (tmp_path / "a.json").write_text(json.dumps({"temperatures": {"0": {"timed": timed}}}))
    columns = "a.json@0=T = 0; a.json@0:forwards=forwards; two over one"
    page = f"<!-- results: compared {columns} -->\n<!-- end -->\n"
    assert "| compared | T = 0 | forwards |\n|---|---|---|\n| two over one | 1.25 (1.25–1.25) | 1.00 |\n" in filled_in(
        page, tmp_path
    )
    timed["two"] = timed["two"][::-1]
    (tmp_path / "a.json").write_text(json.dumps({"temperatures": {"0": {"timed": timed}}}))
    assert re.search(r"\| two over one \| 1\.25 \(0\.\d\d–\d\.\d\d\) \|", filled_in(page, tmp_path))


def test_settings_of_sweeps_are_named_in_words(tmp_path: Path) -> None:
    even = {"value": 1.0, "low": 1.0, "high": 1.0}
    speeds = {"none": even, "copies 8": even, "sampled draft model 1": {"value": 1.5, "low": 1.25, "high": 1.75}}
    share = {"value": 0.8, "low": 0.75, "high": 0.85}
    advice = {"compare": {"setting": "none", "share": share}, "the sweep": {"setting": "copies 8", "share": share}}
    result = {"speedup": speeds, "best": "sampled draft model 1", "advice": advice}
    (tmp_path / "a.json").write_text(json.dumps(result))
    page = filled_in("<!-- results: sweeps a.json=vLLM -->\n<!-- end -->\n", tmp_path)
    fastest = "1 token of the draft model, sampled | 1.50 (1.25–1.75)"
    assert f"| vLLM | compare | no drafts | 0.80 (0.75–0.85) | {fastest} |" in page
    assert f"| vLLM | the sweep | 8 tokens copied | 0.80 (0.75–0.85) | {fastest} |" in page


def test_ratios_of_controllers(tmp_path: Path) -> None:
    entry = {"baseline": "old", "ratio": {"value": 1.0125, "low": 0.9994, "high": 1.0251}}
    groups = {"in_domain": {"new": entry}, "left_out": {"new": entry}, "math": {"new": entry}}
    result = {"ratios": {"invariant": groups}, "prompts": {"in_domain": 8, "left_out": 4}}
    (tmp_path / "a.json").write_text(json.dumps(result))
    page = filled_in("<!-- results: ratios a.json -->\n<!-- end -->\n", tmp_path)
    assert "| rule | prompts | `new` over `old` |\n|---|---|---|\n| `invariant` | 8 of the domains" in page
    assert "| `invariant` | 4 of other domains | 1.012 (0.999–1.025) |\n\n<!-- end -->" in page


def test_texts_of_two_precisions(tmp_path: Path) -> None:
    pair = {"first": "float32, drafts", "second": "bfloat16, drafts", "texts": 8, "same": 6, "per_thousand": 1.26}
    (tmp_path / "a.json").write_text(json.dumps({"pairs": [pair]}))
    page = filled_in("<!-- results: texts a.json=the pair -->\n<!-- end -->\n", tmp_path)
    assert "| the pair | float32, drafts | bfloat16, drafts | 6 of 8 | 1.3 |" in page
