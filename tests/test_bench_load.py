"""Memory of the decoder over many requests, on a random pair."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from specpilot.infer.decoder import SpeculativeDecoder

<<<<<<< HEAD
from experiments.micro.profile import profile
from experiments.workloads.batch import BUDGETS, LENGTHS, SIZES, bench_batch, bench_continuous

from .clock import time_forwards
from .tiny import make, save_pair
=======
from .soak.memory import bench_memory
from .tiny import make
>>>>>>> 582cbb7 (Experiments in one place: options beside what they configure, results from a list, dropped studies go)

PROMPTS = [[1, 2, 3], [9, 8], [7] * 12]
QUIET = Console(quiet=True)
SAMPLING: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "top_k": 8, "top_p": 1.0}


<<<<<<< HEAD
def test_batches_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of a batch is one forward of the target: greedy drafts of its own are accepted to their end."""
    target, draft = CausalLM(make()), CausalLM(make())
    decoder = SpeculativeDecoder(target, draft)
    time_forwards(monkeypatch, lambda model, n: float(model is target))
    rates = bench_batch(decoder, PROMPTS, SAMPLING | {"temperature": 0.0}, 1, QUIET)["tokens_per_second"]
    for length in LENGTHS:
        rounds = 1 + math.ceil(11 / (length + 1))  # the first of 12 tokens is the prefill's
        expected = {str(size): 36 / (rounds * math.ceil(3 / size)) for size in SIZES}
        assert rates[f"fixed-{length}"] == pytest.approx(expected)


def test_continuous_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six requests, two at a time: the rounds that each way of batching makes of their budgets."""
    decoder = SpeculativeDecoder(make(context=256), None)
    time_forwards(monkeypatch, lambda model, n: 1.0)
    result = bench_continuous(
        decoder, PROMPTS, SamplingParams(1.0, 8), QUIET, requests=6, running=2, lengths=(0,), repeats=1
    )
    random = Random(0)
    budgets = [random.randint(*BUDGETS) for _ in range(6)]
    rows = [0, 0]  # when each of the two is free again
    for budget in sorted(budgets, reverse=True):  # the largest begin first
        rows[rows.index(min(rows))] += budget
    fixed = sum(budgets) / sum(max(budgets[i : i + 2]) for i in (0, 2, 4))
    continuous = sum(budgets) / max(rows)
    assert result["tokens_per_second"]["autoregressive"] == pytest.approx(
        {
            "continuous": continuous, "fixed_batches": fixed, "fixed_batches_leaving": fixed,
            "ratio": continuous / fixed, "ratio_leaving": continuous / fixed,
        }
    )  # fmt: skip


def test_profile_counts_what_was_done_and_is_taken_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward of the target takes 5 s, one of the draft 1 s, a verification 2 s, and all the rest nothing."""
    decoder = SpeculativeDecoder(make(), make(layers=1), length=Fixed(4))
    clock = time_forwards(monkeypatch, lambda model, n: 5.0 if model is decoder.target else 1.0)
    plain = VERIFIERS["token-wise"]

    def verify(*arguments: Any) -> Any:
        clock.now += 2.0
        return plain(*arguments)

    monkeypatch.setitem(VERIFIERS, "token-wise", verify)
    forward = CausalLM.forward
    result = profile(decoder, PROMPTS, SAMPLING)
    assert CausalLM.forward is forward
    assert VERIFIERS["token-wise"] is verify
    stats = sum((decoder.generate(p, seed=i, **SAMPLING).stats for i, p in enumerate(PROMPTS)), Stats())
    rounds, prompts = stats.n_target_forwards, len(PROMPTS)
    seconds = {
        "target: prompts": 5.0 * prompts, "target: forwards": 5.0 * (rounds - prompts), "verification": 2.0 * rounds,
        "draft 1: prompts": 1.0 * prompts, "draft 1: forwards": 1.0 * stats.n_draft_forwards,
    }  # fmt: skip
    parts = result["parts"]
    assert result["seconds"] == pytest.approx(sum(seconds.values()))
    assert result["rest_share"] == pytest.approx(0)
    for name, expected in seconds.items():
        share = sum(part["share"] for label, part in parts.items() if label.startswith(name))
        assert share == pytest.approx(expected / result["seconds"]), name
    assert (parts["target: prompts"]["calls"], parts["verification"]["calls"]) == (prompts, rounds)
    assert parts["verification"]["microseconds"] == pytest.approx(2e6)
    assert parts["drawing tokens"]["share"] == 0


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = save_pair(tmp_path)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\nanother\n")
    words = ["--target", target, "--draft", draft, "--limit", "2", "--max-new-tokens", "4", "--prompts", str(prompts)]
    for command, more, key in (
        ("batch", ["--repeats", "1", "--requests", "4", "--running", "2"], "tokens_per_second"),
        ("profile", ["--length", "2"], "parts"),
        ("spectr", [], "block_efficiency"),
    ):
        assert main(["bench", command, *words, *more]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result[key]
        assert result["settings"]["limit"] == 2
    assert main(["bench", "batch", "--limit", "0"]) == 2
    assert "limit=0: must be at least 1" in capsys.readouterr().err
=======
def test_requests_leave_nothing_behind() -> None:
    decoder = SpeculativeDecoder(make(), make(layers=1))
    readings = bench_memory(decoder, PROMPTS, SAMPLING, 300, QUIET)["readings"]
    assert [reading["requests"] // 100 for reading in readings] == [1, 2, 3]  # a list may pass the hundred
    assert len({reading["tensors"] for reading in readings}) == 1
>>>>>>> 582cbb7 (Experiments in one place: options beside what they configure, results from a list, dropped studies go)
