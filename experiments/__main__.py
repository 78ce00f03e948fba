"""``python -m experiments NAME``: papers' tables, studies, and how the included models were made.

An experiment is a function ``main`` whose parameters are dataclasses of options, as for the commands of ``specpilot``;
only the module of the chosen one is imported.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NamedTuple

from specpilot.cli.main import Command, Commands
from specpilot.cli.main import main as run


class Experiment(NamedTuple):
    """An experiment: the module that has its ``main``, and the first line of its help."""

    module: str
    summary: str


EXPERIMENTS = {
    "papers": Experiment("papers.command", "Make the papers' tables with the papers' figures beside ours."),
    "otm": Experiment("otm", "Compute acceptance of one of k proposals (SpecTr's figures)."),
    "sweep": Experiment("studies.sweep", "Train SpecDec++'s grid of heads (Tables 1 to 3, Figure 4)."),
    "mixing": Experiment("studies.mixing", "Train heads on several shares of target tokens (SpecDec++)."),
    "reachable": Experiment("studies.reachable", "Bound the speed-up that predictors of acceptance can reach."),
    "controllers": Experiment("studies.controllers", "Compare the speeds of trained controllers in pairs, by replay."),
    "router": Experiment("router.benchmark", "Compare routers with single drafts (assistant selection)."),
    "draft-curve": Experiment("studies.draft_curve", "Compute acceptance of drafts by the amount of training data."),
    "adaptive-length": Experiment("studies.adaptive_length", "Compare adaptive draft lengths in vLLM with fixed ones."),
    "noise": Experiment("studies.noise_cost", "Time the noise of the rule invariant beside a decoding step."),
    "precisions": Experiment("studies.precisions", "Compare the texts of a seed in several precisions."),
    "serve": Experiment("studies.serve_load", "Time servers under concurrent requests."),
    "settings-sweep": Experiment("studies.settings_sweep", "Sweep another engine's draft length beside the advice."),
    "llama-loops": Experiment("studies.llama_loops", "Time llama.cpp's own loops beside specpilot."),
    "tiny": Experiment("tiny.recipe", "Train the tiny models that ship with specpilot."),
    "tiny-t5": Experiment("tiny_t5.recipe", "Train the encoder-decoders that ship with specpilot."),
    "rounding": Experiment("rounding", "Round and pack a model's weights as those that ship are."),
    "gguf": Experiment("gguf", "Write a model as a GGUF file, for llama.cpp."),
    "real": Experiment("real.fetch", "Fetch SmolLM2-135M-Instruct with what was trained for it."),
    "real-prompts": Experiment("real.prompts", "Write the prompts for the draft of SmolLM2-135M-Instruct."),
    "real-draft": Experiment("real.draft", "Train a draft for SmolLM2-135M-Instruct on its own answers."),
    "synthetic-pair": Experiment("synthetic_pair", "Write a random pair of any size with a chosen acceptance."),
    "gpu": Experiment("gpu.command", "Measure costs and speeds on a GPU."),
    "mutants": Experiment("mutants", "Put small faults into the code, which the tests must notice."),
    "results": Experiment("results", "Measure results of the documentation anew, in hours."),
}


def command(name: str) -> Command:
    """Return the function of the experiment ``name``."""
    entry_point: Command = import_module(f"{__package__}.{EXPERIMENTS[name].module}").main
    return entry_point


def _summary(experiment: Experiment) -> Command:
    def described() -> None: ...

    described.__doc__ = experiment.summary
    return described


def main(words: list[str]) -> int:
    """Run the experiment that ``words`` begin with; returns the exit code."""
    commands: Commands = {name: _summary(experiment) for name, experiment in EXPERIMENTS.items()}
    if words and words[0] in EXPERIMENTS:
        commands = {words[0]: command(words[0])}
    return run(words, commands, prog="python -m experiments")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
