"""``specpilot demo --real``: a real model answers without and with drafts, and both speeds are printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.panel import Panel
from transformers import PreTrainedTokenizerBase

from ..common.errors import InputError, counted
from ..common.machine import BUSY, load_per_core, machine
from ..compare.decoders import NONE, ComparedDecoder, Loader
from ..infer.core import Stats
from ..infer.decoder import SpeculativeDecoder
from ..infer.options import DecodingOptions
from ..infer.prompting import encode_prompt
from ..infer.text_stream import TextStream
from .trace_view import show_rounds

TARGET = "SmolLM2-135M-Instruct"
TEMPERATURES = 0.0, 1.0
TOP_P = 0.95  # of sampling at temperature 1
SEED = 0
PROMPTS = (
    "Why does the sky turn red at sunset? Answer in three sentences.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Correct the mistakes in this text: Yesterday me and my sister goes to the museum of natural history, where we "
    "seen the skeleton of a whale. It were longer than a bus, and my sister say that it must have eat a lot of fishes.",
)


def run_real(folder: Path, max_new_tokens: int) -> None:
    """Let the model that `make real` downloaded to ``folder`` answer without and with drafts.

    Raises:
        InputError: ``folder`` does not contain the model.
    """
    if not (folder / TARGET / "config.json").exists():
        raise InputError(f"real={folder}: does not contain {TARGET}; run 'make real' in a checkout of specpilot")
    base = DecodingOptions(target=str(folder / TARGET), draft=f"{folder / 'draft'}+ngram", pair_check="tokenizer")
    drafting = ComparedDecoder.of(
        base, "trained", length=str(folder / "head"), copies=str(folder / "copies"), cost="auto", draft_dtype="int4"
    )
    compare_answers(base, drafting, max_new_tokens, Console(highlight=False))


def compare_answers(
    base: DecodingOptions, drafting: ComparedDecoder, max_new_tokens: int, console: Console
) -> list[float]:
    """Answer every prompt without and with drafts, in turn, at each of ``TEMPERATURES``, and print texts and speeds.

    Returns:
        The speed with drafts over the speed without drafts, by temperature.
    """
    console.print("Loading the model and measuring the costs of drafting and verifying ...")
    loader = Loader(base)
    decoders = [loader.decoder(ComparedDecoder.parse(NONE, base)), loader.decoder(drafting)]
    for decoder in decoders:
        decoder.generate(PROMPTS[0], chat=True, max_new_tokens=8, temperature=0)  # the first call is slower
    results = [
        _answers(decoders, loader.tokenizer, temperature, max_new_tokens, console) for temperature in TEMPERATURES
    ]
    console.print(
        f"{Path(base.target).name} in {base.dtype} with drafts and copies by trained predictors "
        f"({machine().processor}, {counted(machine().threads, 'thread')}):"
    )
    for temperature, result in zip(TEMPERATURES, results, strict=True):
        console.print(f"  temperature {temperature:g}: {summary(result)}")
    if load_per_core() > BUSY:
        console.print(
            f"Other processes use this machine (load {load_per_core():.1f} for each core). They lower both speeds and "
            "make the ratio uncertain. Run the command again on an idle machine."
        )
    console.print(
        f"[dim]Decode your own prompt:\nspecpilot generate {' '.join(drafting.words())} --temperature 0 'Explain "
        "rainbows.'",
        soft_wrap=True,
    )
    return [total_ratio(result) for result in results]


class Answer(NamedTuple):
    """A prompt that was answered without and with drafts.

    Attributes:
        tokens: number of tokens of the answer without drafts.
        plain, drafted: seconds without and with drafts.
        same: whether both answers are the same.
    """

    tokens: int
    plain: float
    drafted: float
    same: bool

    @property
    def ratio(self) -> float:
        """The speed with drafts over the speed without drafts."""
        return self.plain / self.drafted


def total_ratio(answers: Sequence[Answer]) -> float:
    """Return the speed with drafts over the speed without drafts, on all prompts."""
    return sum(answer.plain for answer in answers) / sum(answer.drafted for answer in answers)


def summary(answers: Sequence[Answer]) -> str:
    """Return speeds, their ratio with its range over the prompts, and the number of unchanged texts in words."""
    tokens = sum(answer.tokens for answer in answers)
    plain, drafted = (tokens / sum(getattr(answer, field) for answer in answers) for field in ("plain", "drafted"))
    ratios = [answer.ratio for answer in answers]
    return (
        f"{_speed(plain)} tokens/s without drafts, {_speed(drafted)} with drafts: {total_ratio(answers):.2f} × "
        f"({min(ratios):.2f}–{max(ratios):.2f} by prompt); the same text for "
        f"{sum(answer.same for answer in answers)} of {counted(len(answers), 'prompt')}"
    )


def _answers(
    decoders: Sequence[SpeculativeDecoder],
    tokenizer: PreTrainedTokenizerBase,
    temperature: float,
    max_new_tokens: int,
    console: Console,
) -> list[Answer]:
    """Answer every prompt with both decoders at one temperature, and print the texts and speeds."""
    console.rule(f"temperature {temperature:g}", align="left")
    answers = []
    for prompt in PROMPTS:
        ids = encode_prompt(tokenizer, prompt, chat=True)
        plain, drafted = (
            decoder.generate(
                ids, max_new_tokens=max_new_tokens, temperature=temperature, top_k=None, top_p=TOP_P, seed=SEED
            )
            for decoder in decoders
        )
        answer = Answer(
            len(plain.tokens), _seconds(plain.stats), _seconds(drafted.stats), plain.tokens == drafted.tokens
        )
        answers.append(answer)
        console.print(Panel(prompt, title="prompt", title_align="left", style="dim"))
        show_rounds(console, drafted, TextStream(tokenizer, ids), rejected=False)
        console.print(
            f"[dim]{_speed(len(plain.tokens) / answer.plain)} tokens/s without drafts, "
            f"{_speed(len(drafted.tokens) / answer.drafted)} with drafts: {answer.ratio:.2f} ×\n"
        )
    return answers


def _speed(rate: float) -> str:
    """Return ``rate``, in tokens per second, with two digits or more."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _seconds(stats: Stats) -> float:
    """Return the seconds of a generation, with its prefill."""
    return stats.seconds + stats.prefill_seconds
