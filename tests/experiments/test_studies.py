"""The studies in a small size: each runs, and its result holds what is drawn and reported of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from specpilot.checkpoints import unpack
from specpilot.cli.main import run as specpilot
from specpilot.infer.decoder import SpeculativeDecoder

from experiments.__main__ import main
from experiments.otm import coin_optimum, coins, uniforms
from experiments.papers import selection, specdecpp
from experiments.studies import precisions
from experiments.studies.draft_curve import extrapolate
from experiments.synthetic_pair import Shape, measured, synthetic_pair

from ..helpers.tiny import byte_tokenizer, make, save_pair

COSTS = {"loop": {"t_draft": 1.0, "t_target": 5.0, "r_squared": 0.99}}
TOY = [
    "--prompts", "builtin", "--train-prompts", "20", "--per-domain", "1", "--max-new-tokens", "8", "--depths", "[0,1]",
    "--weights", "[6]", "--thresholds", "[0.3,0.7]", "--lengths", "[2,4]", "--confidences", "[0.4]", "--epochs", "1",
]  # fmt: skip


def test_the_router_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With random models, the figures have no meaning, but all of them exist."""
    tokenizer = byte_tokenizer()
    for name, seed, layers in (("target", 0, 2), ("one", 1, 1), ("two", 2, 1)):
        make(seed=seed, vocab=257, layers=layers, context=1024).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    target, first_draft, second_draft = (str(tmp_path / name) for name in ("target", "one", "two"))
    drafts = f"[{first_draft},{second_draft}]"
    words = f"router --target {target} --drafts {drafts} --pair {drafts} --exits [1] --limit 8 --repeats 2"
    words += " --train-limit 40 --max-new-tokens 4 --examples [10] --seeds 1 --alphas [0.5] --lengths [5]"
    words += f" --temperatures [0.5] --work {tmp_path}/work --output {tmp_path}/router.json"
    assert main(words.split()) == 0
    result = json.loads((tmp_path / "router.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert {"mixture", "autoregressive_loss", "selection_accuracy", "throughput_vs_best_arm"} <= result.keys()
    assert {"table_1", "figure_2", "figure_3", "table_3_4", "table_6", "tables_11_12"} <= result["tables"].keys()
    report = selection.report(result)  # what `experiments papers` makes of it
    brief = {row["figure"]: row["here"] for row in report.tables[0].rows}
    assert brief["router's share of the time"] == f"{result['overhead_share']:.2%}"
    assert sum("Table 5" in table.title for table in report.tables) == len(result["tables"]["table_5"])
    report.draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")

    assert main(words.split()) == 0  # the datasets are there: nothing is made again
    assert "already complete" in " ".join(capsys.readouterr().err.split())


def test_the_sweep_over_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forward = {"t_draft": 0.5, "t_verify": 4.0, "t_verify_token": 0.5, "r_squared": 0.9}
    (tmp_path / "cost.json").write_text(json.dumps({**COSTS, "forward": forward}))
    words = ["sweep", *TOY, "--cost", str(tmp_path / "cost.json"), "--folder", str(tmp_path / "sweep")]
    assert main([*words, "--output", str(tmp_path / "new" / "o.json")]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((tmp_path / "new" / "o.json").read_text()) == result
    assert len([*(tmp_path / "sweep" / "records").glob("*.json")]) == 6 * 4
    assert (tmp_path / "sweep" / "pareto.png").read_bytes().startswith(b"\x89PNG")
    report = specdecpp.report(result)  # what `experiments papers` makes of it
    prompts_table, _, _, heads_table = report.tables
    assert [row["prompts"] for row in prompts_table.rows] == list(specdecpp.GROUPS.values())
    best = result["table_1"]["measured"]["in_domain"]["best_fixed"]
    assert prompts_table.rows[0]["best fixed K"] == f"{best['throughput']:.1f} (fixed {best['parameter']:g})"
    assert [(row["D"], row["paper's KL"]) for row in heads_table.rows] == [("0", "0.637"), ("1", "0.596")]


def test_controllers_in_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["controllers", "--prompts", "builtin", "--per-domain", "2", "--max-new-tokens", "16", "--domains"]
    words += ["[math,shell]", "--in-domain", "[math]", "--folder", str(tmp_path), "--baselines"]
    assert main([*words, "[tiny-lag-free,tiny-lag-free]", "--candidates", "[tiny-head,tiny-lag-free]"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["prompts"] == {"in_domain": 2, "left_out": 2, "math": 2, "shell": 2}
    assert set(result["ratios"]) == {"invariant", "token-wise"}
    for by_group in result["ratios"].values():
        for by_candidate in by_group.values():
            assert by_candidate["tiny-lag-free"]["ratio"] == {"value": 1.0, "low": 1.0, "high": 1.0}
            other = by_candidate["tiny-head"]
            assert other["ratio"]["value"] == other["speed"]["value"] / other["baseline_speed"]["value"]
    invariant, token_wise = (result["ratios"][rule]["in_domain"]["tiny-head"] for rule in result["ratios"])
    assert invariant["baseline_speed"] != token_wise["baseline_speed"]
    assert main([*words, "[tiny-lag-free,tiny-head]", "--candidates", "[tiny-head]"]) == 2
    assert "candidates: 1 for 2 baselines; give one for each baseline" in capsys.readouterr().err


def test_the_papers_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    output = tmp_path / "out"
    (tmp_path / "p.txt").write_text("one\ntwo\nthree\n")
    words = f"--target {target} --draft {draft} --limit 2 --validation-limit 1 --max-new-tokens 3 --no-chat"
    words += f" --output {output} --prompts {tmp_path / 'p.txt'}"
    assert main(["papers", "spectr", *words.split()]) == 0
    assert main(["papers", "mtad", *words.split()]) == 0
    result = json.loads((output / "papers.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert set(result) == {"spectr", "mtjd", "mtad", "made_by"}
    assert {"perplexity_change", "tokens_per_forward_ratio", "speed_ratio"} <= set(result["mtad"])
    assert set(result["spectr"]["tokens_per_forward"]["k-seq"]["8"]) == {"1", "2", "4", "8"}
    assert result["made_by"]["mtad"]["settings"]["limit"] == 2
    for name in ("spectr", "mtad"):
        assert (output / f"papers-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "papers-mtad.md").read_text().count("What differs:") == 5


def test_closed_forms_of_the_paper() -> None:
    for row in uniforms():
        assert row["k_seq"] == pytest.approx(row["closed_form"]), row  # Appendix D.1: optimal there
    for row in coins():
        assert row["otm"] == pytest.approx(row["closed_form"], abs=1e-6), row  # of the solver
        assert row["otm"] <= row["bound"] + 1e-6, row
        assert row["k_seq"] <= row["closed_form"] + 1e-12
    assert coin_optimum(0.25, 0.25, 3) == 1


def test_commands_of_experiments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    pair = ["--target", target, "--draft", draft]
    for words, key in (
        (["otm", *pair, f"--output={tmp_path}/a.png"], "coins"),
        (["precisions", "--limit", "2", "--max-new-tokens", "8"], "pairs"),
        (["noise", "--target", target, "--supports", "[8,5000]", "--repeats", "1"], "noise"),
    ):
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])[key]
    assert main(["rounding", f"--weights={target}/model.safetensors", f"--output={tmp_path}/rounded"]) == 0
    unpack(tmp_path / "rounded", Path(target))
    assert SpeculativeDecoder.from_pretrained(target).generate("hello", max_new_tokens=2).tokens


def test_texts_are_compared_up_to_the_first_difference() -> None:
    first, second = [[1, 2, 3], [4, 5], [6, 7, 8], [9]], [[1, 2, 3], [4, 6], [6, 7], [8]]
    counts = precisions.compared(first, second)
    assert counts == {"texts": 4, "same": 1, "tokens": 3 + 1 + 2 + 0, "per_thousand": pytest.approx(1000 * 3 / 9)}


SIZES = {
    "layers": 6, "draft_layers": 2, "hidden": 64, "intermediate": 128, "heads": 4, "kv_heads": 2, "vocabulary": 512,
}  # fmt: skip


@pytest.mark.parametrize("acceptance", [0.5, 0.8])
def test_synthetic_pairs_have_the_chosen_acceptance(acceptance: float) -> None:
    target, draft, _ = synthetic_pair(Shape(**SIZES, acceptance=acceptance), torch.device("cpu"), torch.float32)
    assert measured(target, draft)["acceptance"] == pytest.approx(acceptance, abs=0.1)
    decoder = SpeculativeDecoder(target, draft, length=1)
    outputs = decoder.generate([[i + 1] for i in range(20)], max_new_tokens=40, top_k=None)
    accepted, drafted = (sum(getattr(o.stats, name) for o in outputs) for name in ("n_accepted", "n_drafted"))
    assert accepted / drafted == pytest.approx(acceptance, abs=0.1)


def test_unsupported_studies_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synthetic-pair", "--layers", "2", "--draft-layers", "2", "--output", str(tmp_path)]) == 2
    assert "draft_layers=2:" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main(["gpu"]) == 2
        assert "torch sees no CUDA device" in capsys.readouterr().err


def test_servers_under_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--limit", "4", "--max-new-tokens", "8", "--length", "tiny-lag-free", "--cost", "0.2"]
    out = tmp_path / "serve.json"
    load = ["--loads", "[1,3]", "--requests", "3", "--repeats", "1", "--output", str(out)]
    assert main(["serve", *words, *load]) == 0
    result = json.loads(out.read_text())
    assert result["exit_codes"] == {"ours": 0, "fixed": 0, "none": 0}
    for row in result["load"].values():
        assert all(speeds["tokens_per_second"] > speeds["time_to_first_token"] for speeds in row.values())
        assert all(speeds["tokens_per_processor_second"] > 0.0 for speeds in row.values())
    capsys.readouterr()
    assert main(["serve", *words, "--dtype", "float16", "--draft", "nowhere/none"]) == 2


def test_the_curve_of_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished drafts are not trained again, and drafts with more data read more of the texts."""
    tokenizer = byte_tokenizer()
    make(seed=0, vocab=257, layers=3, context=1024).save_pretrained(tmp_path / "target")
    tokenizer.save_pretrained(tmp_path / "target")
    for name, kind, count in (("answers", "a", 12), ("held-out", "b", 4)):
        rows = [{"id": f"{kind}{number % 2}-1-{number}", "prompt": f"Count to {number}."} for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        specpilot(
            f"data answers --target {tmp_path}/target --prompts {tmp_path}/{name}.jsonl --max-new-tokens 24 "
            f"--output {tmp_path}/{name}".split()
        )
    words = f"draft-curve --target {tmp_path}/target --data [{tmp_path}/answers] --held-out {tmp_path}/held-out"
    words += f" --window 16 --batch-size 2 --minutes 0.002 --tokens [60,200] --folder {tmp_path}/work --vocabulary 64"
    words += f" --figure {tmp_path}/curve.png --references [{tmp_path}/target] --aim 0.9"
    assert main([*words.split(), "--drafts", '["0,2",target]']) == 0
    capsys.readouterr()
    assert main([*words.split(), "--drafts", '["0,2",target]']) == 0
    captured = capsys.readouterr()
    assert "steps of draft" not in captured.err  # all results are stored
    report = json.loads(captured.out)
    (itself,), rows = report["references"], report["rows"]
    # The target as its own draft; its states are stored in bfloat16.
    assert itself["acceptance"]["value"] == pytest.approx(1, abs=1e-3)
    assert report["growth"] == extrapolate(rows, 0.9)
    assert [(row["draft"], row["tokens"]) for row in rows] == [
        ("0,2", 60), ("0,2", 200), ("target", 60), ("target", 200)
    ]  # fmt: skip
    assert all(0 < row["acceptance"]["value"] <= row["coverage"] <= 1 for row in rows)
    assert all(row["kinds"].keys() == {"b0", "b1"} and row["steps"] >= 1 for row in rows)
    assert rows[0]["texts"] < rows[1]["texts"]
    assert [len(row["positions"]) for row in rows] == [1, 1, 3, 3]
    layers, eagle = rows[0], rows[2]
    assert layers["round"] == pytest.approx(sum(layers["positions"][0] ** i for i in range(4)))
    assert len(eagle["positions"]) == 3
    assert eagle["round"] == pytest.approx(1 + np.cumprod(eagle["positions"]).sum())
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")

    # A trained draft is trained further on each number of tokens. Training begins with its weights: steps of almost no
    # length keep its acceptance, and long steps make the target, a perfect draft of itself, worse. Its file is kept.
    initial = tmp_path / "target"
    weights = (initial / "model.safetensors").read_bytes()
    acceptances = []
    for rate in ("1e-12", "0.03"):
        assert main([*words.split(), "--continued", f"[{initial}]", "--lr", rate]) == 0
        continued = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
        assert [(row["draft"], row["tokens"]) for row in continued] == [(str(initial), 60), (str(initial), 200)]
        assert all(row["coverage"] == itself["coverage"] for row in continued)  # all tokens, not the 64 of a new draft
        acceptances.append([row["acceptance"] for row in continued])
    assert all(each["value"] == pytest.approx(itself["acceptance"]["value"]) for each in acceptances[0])
    assert all(each["high"] < itself["acceptance"]["low"] for each in acceptances[1])
    assert (initial / "model.safetensors").read_bytes() == weights

    # Other answers in a folder of the same name are other data.
    specpilot(
        f"data answers --target {tmp_path}/target --prompts {tmp_path}/held-out.jsonl --max-new-tokens 24 --seed 5 "
        f"--output {tmp_path}/new-held-out".split()
    )
    shutil.rmtree(tmp_path / "held-out")
    (tmp_path / "new-held-out").rename(tmp_path / "held-out")
    assert main([*words.split(), "--drafts", '["0,2",target]']) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    pairs = zip(report["rows"], rows, strict=True)
    assert all(new["acceptance"] != old["acceptance"] for new, old in pairs)


def test_extrapolation_of_the_curve() -> None:
    """The line goes through points that lie on a line; no number of tokens is given if the acceptance does not grow."""
    rows = [
        {"draft": draft, "tokens": 1000 * 2**number, "acceptance": {"value": 0.3 + number * slope}}
        for draft, slope in (("growing", 0.05), ("slow", 0.001), ("falling", -0.01))
        for number in range(3)
    ]
    growth = extrapolate([*rows, {**rows[0], "draft": "single"}], 0.55)
    assert growth.keys() == {"growing", "slow", "falling"}
    assert growth["growing"] == {"doubling": pytest.approx(0.05), "tokens": pytest.approx(1000 * 2**5)}
    assert growth["slow"] == {"doubling": pytest.approx(0.001), "tokens": None}
    assert growth["falling"] == {"doubling": pytest.approx(-0.01), "tokens": None}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("--references [nowhere/draft]", "nowhere/draft"),
        ("--continued [nowhere/draft]", "nowhere/draft"),
        ("--continued [target]", "draft 'target': is a word for a new draft; write './target' for a folder"),
        ("--references ['0,1']", "draft '0,1': is a word for a new draft"),
        ("--drafts []", "no draft: name drafts, references, or drafts to be continued"),
        ("--drafts [last]", 'drafts=\'last\': must be layers such as "0,1,29", or "target" for an EAGLE-3 draft'),
        ("--tokens [100000]", "tokens=100000: data has answers of"),
        ("--held-out {0}/answers", "is also in data; leave it out"),
    ],
)
def test_refused_options_of_the_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: str, message: str
) -> None:
    rows = [{"id": f"a-{number}", "prompt": f"Count to {number}."} for number in range(4)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = f"data answers --target tiny --prompts {tmp_path}/prompts.jsonl --max-new-tokens 8 --output"
    specpilot(f"{answers} {tmp_path}/answers".split())
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"id": "b-0", "prompt": "Say yes."}) + "\n")
    specpilot(f"{answers} {tmp_path}/held-out".split())
    words = f"draft-curve --target tiny --data [{tmp_path}/answers] --held-out {tmp_path}/held-out --tokens [8]"
    words += f" --drafts [target] --folder {tmp_path}/work {changed.format(tmp_path)}"
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert "target states" not in captured.err  # refused before the long forward of the target
