"""SmolLM2-135M-Instruct answers three prompts without and with drafts: the text, who wrote it, and how fast."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from specpilot.common.machine import machine
from specpilot.compare.decoders import NONE, ComparedDecoder, Loader
from specpilot.infer.options import DecodingOptions
from specpilot.infer.prompting import encode_prompt
from specpilot.infer.text_stream import TextStream
from specpilot.trace_view import show_trace

PROMPTS = (
    "Why does the sky turn red at sunset? Answer in three sentences.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Correct the mistakes in this text: Yesterday me and my sister goes to the museum of natural history, where we "
    "seen the skeleton of a whale. It were longer than a bus, and my sister say that it must have eat a lot of fishes.",
)
TOKENS = 96


def talk(target: Path, draft: Path, head: Path, copies: Path) -> str:
    """Answer every prompt without and with drafts, in turn, at temperature 0; returns the command that goes on."""
    console = Console(highlight=False)
    base = DecodingOptions(target=str(target), draft=f"{draft}+ngram", pair_check="tokenizer")
    ours = ComparedDecoder.of(
        base, "ours", length=str(head), copies=str(copies), tree="auto", cost="auto", draft_dtype="int4"
    )
    loader = Loader(base)
    console.print("Loading the model, and measuring what drafting and verifying cost here ...")
    plain, drafting = loader.decoder(ComparedDecoder.parse(NONE, base)), loader.decoder(ours)
    tokenizer = loader.target().tokenizer
    assert tokenizer is not None
    tokens, seconds, same = 0, [0.0, 0.0], 0
    for decoder in (plain, drafting):
        decoder.generate(PROMPTS[0], chat=True, max_new_tokens=8, temperature=0)  # the first call is slower
    for prompt in PROMPTS:
        ids = encode_prompt(tokenizer, prompt, chat=True, system=None)
        both = [decoder.generate(ids, max_new_tokens=TOKENS, temperature=0) for decoder in (plain, drafting)]
        tokens, same = tokens + len(both[0].tokens), same + (both[0].tokens == both[1].tokens)
        seconds = [
            total + one.stats.seconds + one.stats.prefill_seconds for total, one in zip(seconds, both, strict=True)
        ]
        console.print(Panel(prompt, title="prompt", title_align="left", style="dim"))
        show_trace(console, both[1], TextStream(tokenizer, ids), rejected=False)
        alone, drafted = (one.stats.tokens_per_second for one in both)
        console.print(f"[dim]{alone:.0f} tokens/s without drafts, {drafted:.0f} with drafts: {drafted / alone:.2f} ×\n")
    console.print(
        f"{target.name} in float32 answers {tokens / seconds[0]:.0f} tokens/s without drafts and "
        f"{tokens / seconds[1]:.0f} with drafts (its own layers in 4 bits, copies and trees): "
        f"{seconds[0] / seconds[1]:.2f} × as fast, with the same text for {same} of {len(PROMPTS)} prompts "
        f"({machine()['processor']}, {machine()['threads']} threads)."
    )
    return " ".join(["specpilot generate", *ours.words(), "'Explain rainbows.'"])
