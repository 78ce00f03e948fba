"""A draft for SmolLM2-135M-Instruct, which has none, predictors, and a router: prompts → answers → training.

The draft begins as layers of the target, and is trained in stages, each on answers of its own: to other prompts as long
as there are any, then to the first ones again, drawn anew.

Every stage is a command of specpilot that continues what it finds, so that an interrupted run continues.
"""

from __future__ import annotations

from pathlib import Path

from specpilot.common.console import quiet
from specpilot.main import run

from .. import FolderOptions
from .fetch import fetch
from .prompts import PROMPTS, write_prompts
from .settings import RealDraftOptions

PER_KIND = 1600  # prompts of each of five kinds
KINDS = 5
PART = 300  # prompts answered for one dataset
STAGES = ((12, 6, 1.5e-3), (11, 3, 7e-4), (12, 4, 1e-3))  # of the draft: datasets, passes over them, learning rate
HELD_OUT = 60  # other prompts of each kind, for measuring
SPARED = 100  # prompts after those of the first stage: earlier versions measured on them
PREDICTED = {1.0: 900, 0.0: 450}  # prompts after those, for the predictor, by temperature; the router has some of them
TRACED = 60  # texts on which the predictor's epochs are compared
ROUTED = ("ngram", "exit:6", "autoregressive")  # arms of the router beside the draft
TEMPERATURES = (1.0, 0.5)  # in turn: T = 1 is what the draft is trained for, at 0.5 the answers make more sense


def train_draft(settings: RealDraftOptions, output: Path) -> Path:
    """Make ``draft``, ``head``, ``copies`` and ``router`` in ``output``, and return the path of the draft.

    Raises:
        InputError: a source of prompts is missing, or the target cannot be fetched.
    """
    target = fetch(output)[1]
    write_prompts(settings.data, output, PER_KIND, HELD_OUT)
    first = settings.parts * PART
    unseen = first + SPARED
    later = range(unseen + max(PREDICTED.values()), PER_KIND * KINDS - PART + 1, PART)
    draft = train_stages(settings, target, output, [*range(0, first, PART), *later])
    data = [str(output / f"acceptance-{temperature:g}") for temperature in PREDICTED]
    for folder, (temperature, count) in zip(data, PREDICTED.items(), strict=True):
        run(
            [
                *("data", "acceptance", "--target", str(target), "--draft", str(draft)),
                *("--prompts", str(output / PROMPTS), "--skip", str(unseen), "--limit", str(count)),
                *("--max-new-tokens", "80", "--temperature", str(temperature), "--top-k", "null", "--top-p", "0.95"),
                *("--dtype", "bfloat16", "--batch-size", "50", "--output", folder),
            ]
        )
    run(
        [
            *("train", "lag-free", "--data", f"[{','.join(data)}]", "--epochs", "6", "--traced", str(TRACED)),
            *("--output", str(output / "head-run"), "--resume"),
        ]
    )
    run(["export", str(output / "head-run"), str(output / "head"), "--overwrite"])
    texts = [*sorted(map(str, output.glob("answers-*"))), *data]
    run(["train", "copies", "--data", f"[{','.join(texts)}]", "--output", str(output / "copies-run"), "--resume"])
    run(["export", str(output / "copies-run"), str(output / "copies"), "--overwrite"])
    train_router(target, draft, output, unseen + PART)
    return draft


def train_stages(settings: RealDraftOptions, target: Path, output: Path, begins: list[int]) -> Path:
    """Train the draft, and return it; ``begins`` are the numbers of the first prompts of the datasets."""
    stages = [(settings.parts, *STAGES[0][1:]), *STAGES[1 : settings.stages]]
    initial = ["--layers", "3", "--vocabulary", "8192"]
    number, draft = 0, output / "draft"
    for stage, (count, epochs, rate) in enumerate(stages, 1):
        datasets = [answer(target, output, n, begins[n % len(begins)]) for n in range(number, number + count)]
        draft = output / ("draft" if stage == len(stages) else f"draft-{stage}")
        distil(target, datasets, draft, *initial, "--epochs", str(epochs), "--lr", str(rate))
        initial, number = ["--initial", str(draft)], number + count
    return draft


def answer(target: Path, output: Path, number: int, skip: int) -> str:
    """Make the dataset ``number`` of the target's answers, to the prompts after the first ``skip``."""
    folder = str(output / f"answers-{number}")
    temperature = TEMPERATURES[number % len(TEMPERATURES)]
    run(
        [
            *("data", "answers", "--target", str(target), "--prompts", str(output / PROMPTS)),
            *("--skip", str(skip), "--limit", str(PART), "--max-new-tokens", "160", "--top-k", "null"),
            *("--temperature", str(temperature), "--seed", str(number), "--batch-size", "64"),
            *("--dtype", "bfloat16", "--output", folder),
        ]
    )
    return folder


def distil(target: Path, answers: list[str], draft: Path, *words: str) -> None:
    """Train ``draft`` on ``answers``; ``words`` say what it begins with, and how long it is trained."""
    output = draft.with_name(f"{draft.name}-run")
    run(
        [
            *("train", "draft", "--target", str(target), "--data", f"[{','.join(answers)}]", *words),
            *("--batch-size", "2", "--validation-fraction", "0.02", "--dtype", "bfloat16"),
            *("--precision", "bf16-mixed", "--cache-states", "--output", str(output), "--resume"),
        ]
    )
    run(["export", str(output), str(draft), "--overwrite"])


def train_router(target: Path, draft: Path, output: Path, skip: int) -> None:
    """Make ``output/router`` from prompts after the first ``skip``."""
    run(
        [
            *("data", "router", "--target", str(target), "--arms", f"[{draft},{','.join(ROUTED)}]"),
            *("--prompts", str(output / PROMPTS), "--skip", str(skip), "--limit", str(PART)),
            *("--max-new-tokens", "64", "--temperature", "1", "--top-k", "null", "--top-p", "0.95"),
            *("--dtype", "bfloat16", "--batch-size", "50", "--output", str(output / "router-data")),
        ]
    )
    run(
        [
            *("train", "router", "--config", "train/configs/router-tiny.yaml", "--data", str(output / "router-data")),
            *("--length", "null", "--width", "64", "--epochs", "10"),
            *("--output", str(output / "router-run"), "--resume"),
        ]
    )
    run(["export", str(output / "router-run"), str(output / "router"), "--overwrite"])


def main(options: RealDraftOptions, folder: FolderOptions) -> None:
    """Train a draft for SmolLM2-135M-Instruct on its own answers."""
    quiet()
    print(train_draft(options, folder.output))
