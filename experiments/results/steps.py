"""The commands whose results the documentation shows, in order: later ones read what earlier ones write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

TRAINED = '--prompts builtin-large --domains "[math,code,sql,prose]" --max-new-tokens 64'
FULL = "--width 128"  # in the results of before with another design of the head (commit 1af784b)
COSTS = '--costs "[cost.json,0.21,0.05]"'
PAPERS = ("papers.json",)
T5 = "tiny-t5-draft-shell,tiny-t5-draft-sql"


@dataclass(frozen=True)
class Step:
    """Commands that make one result.

    Attributes:
        name: a folder or file that the commands make in the working folder.
        commands: command lines of ``specpilot``, without that word.
        printed: file of docs/results that is the last line printed by the last command.
        adds: key of the result of the command before, under which that of the last one is added.
        keeps: key of the published result that another command adds and that stays.
        timed: whether the result has times, which other work on the machine would change.
        files: files of docs/results that the commands write, and where in the working folder they write them.
        threads: threads of torch.
    """

    name: str
    commands: tuple[str, ...]
    printed: str | None = None
    adds: str | None = None
    keeps: str | None = None
    timed: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1


def _timed(name: str, command: str, *, threads: int = 1) -> Step:
    return replace(_printed(name, command), timed=True, threads=threads)


def _printed(name: str, command: str) -> Step:
    return Step(name, (command,), printed=name)


def _head(name: str, train: str) -> Step:
    return Step(name, (f"train {train} --output {name}-run --resume", f"export {name}-run {name} --overwrite"))


def _rounds(name: str, length: str, seed: int, more: str = "--limit 2400") -> Step:
    return Step(name, (f"data on-policy {TRAINED} {more} --length {length} --cost 0.21 --seed {seed} --output {name}",))


STEPS = (
    # What a forward, a drafted token, and a prediction take
    _timed("forward.json", "bench forward --repeats 30", threads=2),
    _timed("cost.json", 'bench cost --limit 10 --check "[cumulative-confidence:0.5,confidence:0.4]"'),
    _timed("cost-light.json", "bench cost --limit 10 --judge tiny-lag-free"),
    *(_timed(f"profile-{n}.json", f"bench profile --limit 20 --length {n}") for n in (0, 2, 4)),
    # The decoder beside transformers, in batches, over many requests
    Step(
        "demo",
        ("demo --output demo",),
        timed=True,
        files={"demo.json": "demo/report.json", "pareto.png": "demo/pareto.png"},
    ),
    _timed("decode.json", "bench decode --limit 8 --repeats 3 --plot decode.png", threads=2),
    _timed(
        "decode-bfloat16.json", "bench decode --limit 4 --repeats 2 --dtype bfloat16 --plot bfloat16.png", threads=2
    ),
    _timed("batch.json", "bench batch --limit 32 --max-new-tokens 64 --repeats 2", threads=2),
    _timed("batch-llama.json", "bench batch --shape 30x576 --repeats 5", threads=2),
    _timed("memory.json", "bench memory --requests 10000 --limit 50 --max-new-tokens 24"),
    _timed("rollouts.json", "bench rollouts --limit 256 --max-new-tokens 64 --repeats 3", threads=2),
    Step(
        "serve.json",
        ("bench serve --requests 64 --max-new-tokens 64 --repeats 5", "bench soak --cost 0.2"),
        printed="serve.json",
        adds="soak",
        keeps="external",  # python -m experiments external
        timed=True,
        threads=2,
    ),
    # SpecDec++'s grid of heads
    _printed("sweep.json", "bench sweep --cost cost.json --folder sweep --plot sweep.png"),
    _printed(
        "mixing.json",
        'bench mixing --temperatures "[0.5,1.0]" --folder mixing --plot mixing.png',
    ),
    _printed("stopping.json", "bench stopping"),
    # Controllers for the ablation
    Step("A", (f"data acceptance {TRAINED} --output A",)),
    _head("head", "acceptance --data A --lr 1e-3 --batch-size 16"),
    Step(
        "head-cal",
        ("calibrate head --data A --output head-cal --method isotonic --overwrite",),
        printed="calibration.json",
    ),
    _head("feature-head", "features --data A"),
    Step("A-features", ("data features --data A --predictor lag-free --output A-features",)),
    _head("LF0", f"lag-free {FULL} --data A-features"),
    _head("LFp", f"lag-free {FULL} --no-use-ngrams --data A-features"),
    _head("light", "lag-free --data A-features"),
    _rounds("O1", "LF0", 100000),
    *(_head(f"LFn{n}", f'lag-free {FULL} --data "[A,O1]" --texts {n}') for n in (125, 500)),
    _head("LF1", f'lag-free {FULL} --data "[A,O1]"'),
    _rounds("O2", "LF1", 200000),
    _head("LF2", f'lag-free {FULL} --data "[A,O1,O2]"'),
    _printed(
        "ablation.json",
        (
            f"bench ablation --ours light {COSTS} --folder ablation "
            '--controllers "[paper=head,calibrated=head-cal,features=feature-head,no lookup=LFp,lag-free=LF0,'
            'light=light,on-policy 125 texts=LFn125,on-policy 500 texts=LFn500,on-policy=LF1,on-policy twice=LF2]"'
        ),
    ),
    # The same at temperature 0
    Step("A0", (f"data acceptance {TRAINED} --limit 2400 --temperature 0 --output A0",)),
    _head("LFgp", f"lag-free {FULL} --no-use-ngrams --data A0"),
    _head("LFg0", f"lag-free {FULL} --data A0"),
    _head("lightg", "lag-free --data A0"),
    _rounds("Og", "LFg0", 100000, "--limit 1200 --temperature 0"),
    _head("LFg1", f'lag-free {FULL} --data "[A0,Og]"'),
    _printed(
        "ablation-greedy.json",
        (
            f"bench ablation --ours light --temperature 0 {COSTS} --folder ablation-greedy "
            '--controllers "[no lookup=LFgp,lag-free=LFg0,light=lightg,on-policy=LFg1]"'
        ),
    ),
    # One predictor for several temperatures
    _head("lightb", 'lag-free --data "[A,A0]"'),
    *(
        _printed(
            f"temperatures-{temperature}.json",
            f'bench ablation --ours "trained at both" --temperature {temperature} --costs "[0.21,0.05]" '
            f"--per-domain 150 --folder temperatures-{temperature} "
            '--controllers "[trained at 1=light,trained at 0=lightg,trained at both=lightb]"',
        )
        for temperature in (0, 0.5, 1)
    ),
    # Controllers by the clock, trees, n-grams
    Step("M", (f"data acceptance --draft tiny-draft-math {TRAINED} --limit 1200 --output M",)),
    _head("lag-free-math", "lag-free --data M --epochs 12"),
    _timed(
        "clock.json",
        "bench clock --misfit tiny-draft-math --misfit-controller lag-free-math --per-domain 30 --repeats 6 "
        "--folder clock",
    ),
    _printed(
        "trees.json",
        'bench trees --controllers "[0=lightg,1=light]" --cost cost.json --per-domain 60 --folder trees',
    ),
    _timed(
        "ngram.json",
        'bench ngram --limit 24 --repeats 2 --max-new-tokens 64 --lengths "[2,cumulative-confidence:0.4]" '
        "--temperature 0 --cost cost.json --copies tiny-copies",
    ),
    _timed(
        "ngram-sampled.json",
        'bench ngram --limit 100 --max-new-tokens 64 --lengths "[cumulative-confidence:0.4]" --repeats 1 '
        "--temperature 1 --cost cost.json --copies tiny-copies",
    ),
    # Routers, several drafts, the papers
    _timed(
        "router.json",
        'bench router --drafts "[tiny-draft-code-prose,tiny-draft-math,tiny-draft-sql-shell]" '
        "--learned cumulative-confidence:0.5 --limit 80 --train-limit 600 --work router",
    ),
    _timed("router-general.json", "bench router --train-limit 1000 --work router-general"),
    _timed(
        "router-t5.json",
        f'bench router --target tiny-t5 --drafts "[{T5}]" --pair "[{T5}]" --pair-domains "[shell,sql]" '
        '--domains "[shell,sql]" --exits "[]" --length 2 --lengths "[4,5,7,10]" --learned cumulative-confidence:0.5 '
        "--limit 50 --train-limit 300 --work router-t5",
    ),
    _printed("spectr.json", "bench spectr --limit 40"),
    _printed("otm.json", "bench otm --output otm.png"),
    Step(
        "papers",
        ("bench papers all --output papers",),
        timed=True,
        files={name: f"papers/{name}" for name in PAPERS},
    ),
    _timed("train-scale.json", "bench train-scale --folder train-scale"),
)  # fmt: skip

AS_SHOWN = "with the options that docs/results/real-model.md shows"
# Results that are not made by these steps: they need an environment or a machine of their own.
ELSEWHERE = {
    "gguf.json": "`specpilot bench decode` with GGUF files, in the environment of `make test-gguf`",
    "cost-gguf.json": "`specpilot bench cost` with GGUF files, in the same environment",
    "smollm2.json": "`python -m experiments real-decode`, after `make real`, in the same environment",
    "smollm2-held-out.json": f"`python -m experiments real-decode` {AS_SHOWN}",
    "smollm2-held-out-bfloat16.json": f"`python -m experiments real-decode` {AS_SHOWN}",
    "smollm2-held-out-int4.json": f"`python -m experiments real-decode` {AS_SHOWN}",
    "smollm2-held-out-rules.json": f"`python -m experiments real-decode` {AS_SHOWN}",
    "smollm2-trees.json": f"`python -m experiments real-decode` {AS_SHOWN}",
    "cost-smollm2-float32.json": f"`specpilot bench cost` {AS_SHOWN}",
    "smollm2-ablation.json": f"`specpilot bench ablation` {AS_SHOWN}",
    "smollm2-ablation-greedy.json": f"`specpilot bench ablation` {AS_SHOWN}",
    "clock-states.json": "`specpilot bench clock` with a draft and a controller that docs/drafts.md trains",
    "cost-smollm2.json": "`specpilot bench cost` with SmolLM2 and its draft in bfloat16",
    "cost-q4.json": "`specpilot bench cost` with the GGUF file of SmolLM2 as target and draft",
    "vllm.json": "`specpilot bench vllm`, in the environment of `make test-vllm`",
    "ray.json": "`specpilot bench ray`, in the environment of `make test-ray`",
    "faults.json": "`specpilot bench faults`, which `make soak` runs",
    "tiny-t5.json": "`python -m experiments tiny-t5`, which trains the models that its folder lacks",
    "demo-intel.json": "version 0.1.0 on another processor",
    "decode-intel.json": "version 0.1.0 on another processor",
    "forward-intel.json": "version 0.1.0 on another processor",
    "decode-epyc.json": "version 0.1.0 on another processor",
    "forward-shapes.json": "`specpilot bench forward` with two models that docs/performance.md makes",
    "cost-judged.json": "version 0.1.0, with the head of that time",
}
