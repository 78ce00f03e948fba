"""A draft for SmolLM2-135M-Instruct, which has none, predictors, and a router: prompts → answers → training.

The draft begins as layers of the target, and is trained in stages, each on answers of its own: to other prompts as long
as there are any, then to the first ones again, drawn anew.

Every stage is a command of specpilot that continues what it finds, so that an interrupted run continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specpilot.cli.main import run
from specpilot.common.console import quiet

from .. import FolderOptions
from .fetch import fetch
from .prompts import HELD_OUT_PER_KIND, PER_KIND, PROMPTS, write_prompts

KINDS = 5
PART = 300  # prompts answered for one dataset
STAGES = ((12, 6, 1.5e-3), (11, 3, 7e-4), (12, 4, 1e-3))  # of the draft: datasets, passes over them, learning rate
SPARED = 100  # prompts after those of the first stage: earlier versions measured on them
PREDICTED = {1.0: 900, 0.0: 450}  # prompts after those, for the predictor, by temperature; the router has some of them
TRACED = 60  # texts on which the predictor's epochs are compared
ROUTED = ("ngram", "exit:6", "autoregressive")  # arms of the router beside the draft
TEMPERATURES = (1.0, 0.5)  # in turn: T = 1 is what the draft is trained for, at 0.5 the answers make more sense


@dataclass(frozen=True, kw_only=True)
class RealDraftOptions:
    """Options of the training of a draft for SmolLM2-135M-Instruct.

    Attributes:
        data: Folder of JSON Lines files that the prompts are taken from: mbpp, nl2bash, python_functions, gsm8k, svamp,
            aqua, math500, books and self_instruct.
        parts: Number of datasets in the first stage of the draft's training. A dataset has 300 answers of the target.
        stages: Number of stages, at most 3. The second stage trains the draft on 11 further datasets, the third on 12.
    """

    data: Path
    parts: int = 12
    stages: int = 3


def train_draft(settings: RealDraftOptions, output: Path) -> Path:
    """Make ``draft``, ``head``, ``copies`` and ``router`` in ``output``, and return the path of the draft.

    Raises:
        InputError: a source of prompts is missing, or the target cannot be fetched.
    """
    target = fetch(output)[1]
    write_prompts(settings.data, output, PER_KIND, HELD_OUT_PER_KIND)
    first = settings.parts * PART
    unseen = first + SPARED
    later = range(unseen + max(PREDICTED.values()), PER_KIND * KINDS - PART + 1, PART)
    draft = train_stages(settings, target, output, [*range(0, first, PART), *later])
    data = [str(output / f"acceptance-{temperature:g}") for temperature in PREDICTED]
    for folder, (temperature, count) in zip(data, PREDICTED.items(), strict=True):
        _run(
            f"data acceptance --target {target} --draft {draft} --prompts {output / PROMPTS} --skip {unseen} "
            f"--limit {count} --max-new-tokens 80 --temperature {temperature} --top-k null --top-p 0.95 "
            f"--dtype bfloat16 --batch-size 50 --output {folder}"
        )
    _train(f"acceptance --predictor lag-free --data [{','.join(data)}] --epochs 6 --traced {TRACED}", output / "head")
    texts = [*sorted(map(str, output.glob("answers-*"))), *data]
    _train(f"copies --data [{','.join(texts)}]", output / "copies")
    train_router(target, draft, output, unseen + PART)
    return draft


def _run(words: str) -> None:
    """Run a command of specpilot."""
    run(words.split())


def _train(words: str, output: Path) -> None:
    """Train in ``output``-run, and export the result to ``output``."""
    folder = output.with_name(f"{output.name}-run")
    _run(f"train {words} --output {folder} --resume")
    _run(f"export {folder} {output} --overwrite")


def train_stages(settings: RealDraftOptions, target: Path, output: Path, begins: list[int]) -> Path:
    """Train the draft, and return it; ``begins`` are the numbers of the first prompts of the datasets."""
    stages = [(settings.parts, *STAGES[0][1:]), *STAGES[1 : settings.stages]]
    initial = "--layers 3 --vocabulary 8192"
    number, draft = 0, output / "draft"
    for stage, (count, epochs, rate) in enumerate(stages, 1):
        datasets = [answer(target, output, n, begins[n % len(begins)]) for n in range(number, number + count)]
        draft = output / ("draft" if stage == len(stages) else f"draft-{stage}")
        _train(
            f"draft --target {target} --data [{','.join(datasets)}] {initial} --epochs {epochs} --lr {rate} "
            "--batch-size 2 --validation-fraction 0.02 --dtype bfloat16 --precision bf16-mixed --cache-states",
            draft,
        )
        initial, number = f"--initial {draft}", number + count
    return draft


def answer(target: Path, output: Path, number: int, skip: int) -> str:
    """Make the dataset ``number`` of the target's answers, to the prompts after the first ``skip``."""
    folder = str(output / f"answers-{number}")
    temperature = TEMPERATURES[number % len(TEMPERATURES)]
    _run(
        f"data answers --target {target} --prompts {output / PROMPTS} --skip {skip} --limit {PART} "
        f"--max-new-tokens 160 --top-k null --temperature {temperature} --seed {number} --batch-size 64 "
        f"--dtype bfloat16 --output {folder}"
    )
    return folder


def train_router(target: Path, draft: Path, output: Path, skip: int) -> None:
    """Make ``output/router`` from prompts after the first ``skip``."""
    _run(
        f"data router --target {target} --arms [{draft},{','.join(ROUTED)}] --prompts {output / PROMPTS} --skip {skip} "
        f"--limit {PART} --max-new-tokens 64 --temperature 1 --top-k null --top-p 0.95 --dtype bfloat16 "
        f"--batch-size 50 --output {output / 'router-data'}"
    )
    _train(
        f"router --config train/configs/router-tiny.yaml --data {output / 'router-data'} --length null --width 64 "
        "--epochs 10",
        output / "router",
    )


def main(options: RealDraftOptions, folder: FolderOptions) -> None:
    """Train a draft for SmolLM2-135M-Instruct on its own answers."""
    quiet()
    print(train_draft(options, folder.output))
