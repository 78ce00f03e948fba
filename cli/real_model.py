"""``specpilot demo --real``: a real model answers without and with drafts, and both speeds are printed."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from ..common.errors import InputError
from ..common.machine import BUSY, load_per_core, machine
from ..compare.decoders import NONE, ComparedDecoder, Loader
from ..infer.core import Stats
from ..infer.options import DecodingOptions
from ..infer.prompting import encode_prompt
from ..infer.text_stream import TextStream
from .trace_view import show_trace

TARGET = "SmolLM2-135M-Instruct"
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
    talk(base, drafting, max_new_tokens, Console(highlight=False))


def talk(base: DecodingOptions, drafting: ComparedDecoder, max_new_tokens: int, console: Console) -> float:
    """Answer every prompt without and with drafts, in turn, at temperature 0, and print texts and speeds.

    Returns:
        The speed with drafts over the speed without drafts.
    """
    console.print("Loading the model and measuring the costs of drafting and verifying ...")
    loader = Loader(base)
    decoders = [loader.decoder(ComparedDecoder.parse(NONE, base)), loader.decoder(drafting)]
    tokenizer = loader.tokenizer
    tokens, seconds, same = 0, [0.0, 0.0], 0
    for decoder in decoders:
        decoder.generate(PROMPTS[0], chat=True, max_new_tokens=8, temperature=0)  # the first call is slower
    for prompt in PROMPTS:
        ids = encode_prompt(tokenizer, prompt, chat=True)
        both = [decoder.generate(ids, max_new_tokens=max_new_tokens, temperature=0) for decoder in decoders]
        tokens, same = tokens + len(both[0].tokens), same + (both[0].tokens == both[1].tokens)
        times = (_seconds(generation.stats) for generation in both)
        seconds = [total + time for total, time in zip(seconds, times, strict=True)]
        console.print(Panel(prompt, title="prompt", title_align="left", style="dim"))
        show_trace(console, both[1], TextStream(tokenizer, ids), rejected=False)
        plain, fast = (generation.stats.tokens_per_second for generation in both)
        console.print(
            f"[dim]{_speed(plain)} tokens/s without drafts, {_speed(fast)} with drafts: {fast / plain:.2f} ×\n"
        )
    console.print(
        f"{Path(base.target).name} in {base.dtype} answers {_speed(tokens / seconds[0])} tokens/s without drafts and "
        f"{_speed(tokens / seconds[1])} with drafts and copies by trained predictors. That is "
        f"{seconds[0] / seconds[1]:.2f} × as fast, with the same text for {same} of {len(PROMPTS)} prompts "
        f"({machine().processor}, threads: {machine().threads})."
    )
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
    return seconds[0] / seconds[1]


def _speed(rate: float) -> str:
    """Return ``rate``, in tokens per second, with two digits or more."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"


def _seconds(stats: Stats) -> float:
    """Return the seconds of a generation, with its prefill."""
    return stats.seconds + stats.prefill_seconds
