"""`specpilot generate`: generate text by speculative decoding."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ...common.errors import InputError, counted
from ...data_gen.options import BatchOptions
from ...infer.options import GenerateOptions

if TYPE_CHECKING:
    from ...infer.core import Generation
    from ...infer.text_stream import TextStream


def generate(options: GenerateOptions, batch: BatchOptions) -> None:
    """Continue or answer a prompt, or the prompts of a file."""
    from ...common.console import log_at_end, quiet, warn_at_end

    if batch.prompts is not None:
        options.refuse_ignored(("prompt", "stream", "color", "stats", "json"), "--prompts names a file of prompts")
        from ...data_gen.batch import write_texts

        quiet()
        write_texts(options, batch)
        return
    text = _read(options.prompt)

    from ...infer.decoder import SpeculativeDecoder
    from ...infer.prompting import encode_prompt

    quiet()
    with log_at_end(), warn_at_end():
        decoder = SpeculativeDecoder.from_options(options)
        assert decoder.tokenizer is not None  # from_pretrained always loads one
        at_once = options.n > 1 or options.color or options.json or not options.stream
        encoder = decoder.target.encodes_prompts
        prompt = encode_prompt(decoder.tokenizer, text, chat=options.chat, system=options.system, encoder=encoder)
        live = None if at_once else decoder.text_stream(prompt)
        generated = decoder.generate(
            prompt,
            n=options.n,
            **options.sampling,
            seed=options.seed,
            on_tokens=None if live is None else lambda tokens: print(live.push(tokens), end="", flush=True),
        )
        generations = generated if isinstance(generated, list) else [generated]
        for generation in generations:
            if options.json:
                print(_as_json(generation))
            elif options.color:
                _print_coloured(generation, decoder.text_stream(prompt))
            else:
                print(generation.text if live is None else live.flush())
            if options.stats:
                if decoder.routing is not None and generation.arm is not None:
                    print(f"arm: {decoder.routing.arms[generation.arm].name}", file=sys.stderr)
                _print_stats(generation)
        if options.stats:
            sampling = decoder.defaults.sampling_params(
                temperature=options.temperature, top_k=options.top_k, top_p=options.top_p
            )
            setup = decoder.setup_for(seed=options.seed, temperature=sampling.temperature)
            print(setup.plan.describe(), file=sys.stderr)


def _read(prompt: str) -> str:
    """Return the prompt, read from standard input for ``-``.

    Raises:
        InputError: the prompt is empty or not UTF-8.
    """
    if prompt == "-":
        if sys.stdin is None:  # closed
            raise InputError("prompt: standard input is closed; pass the prompt as an argument or with --prompt")
        try:
            prompt = sys.stdin.buffer.read().decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"prompt: standard input is not UTF-8 text ({error.reason} at byte {error.start}); convert it to UTF-8"
            ) from None
    if not prompt.strip():
        raise InputError("prompt: is empty; pass text as an argument, with --prompt or on standard input")
    return prompt


def _as_json(generation: Generation) -> str:
    """Return a generation with its counters and rounds as a line of JSON."""
    from dataclasses import asdict

    from ...common.json_file import json_line

    stats = generation.stats
    rates = ("tokens_per_second", "acceptance_rate", "discard_rate", "verification_rate", "tokens_per_forward")
    report = {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "arm": generation.arm,
        "seed": generation.seed,
        "verifier": generation.verifier,
        "stats": asdict(stats) | {name: getattr(stats, name) for name in rates},
        "rounds": [round.to_dict() for round in generation.rounds],
    }
    return json_line(report)


def _print_coloured(generation: Generation, stream: TextStream) -> None:
    """Print a generation with the tokens of drafts in colour."""
    from rich.console import Console

    from ..trace_view import legend, render

    # Styles are also printed to files and pipes, because rejected text would look like output without them.
    console = Console(force_terminal=True, highlight=False, soft_wrap=True)
    console.print(render(generation, stream))
    console.print(legend())


def _print_stats(generation: Generation) -> None:
    """Print the counters of a generation to standard error."""
    stats = generation.stats
    print(
        f"{counted(stats.n_generated, 'token')} in {stats.seconds + stats.prefill_seconds:.2f} s "
        f"({stats.tokens_per_second:.1f} tokens/s), "
        f"{stats.n_draft_forwards} draft and {stats.n_target_forwards} target forwards, "
        f"{stats.n_accepted} of {stats.n_drafted} drafted tokens accepted; "
        f"acceptance rate {stats.acceptance_rate:.3f}, discard rate {stats.discard_rate:.3f}, "
        f"verification rate {stats.verification_rate:.3f}, {stats.tokens_per_forward:.2f} tokens per target forward; "
        f"ended by {generation.finish_reason}; seed {generation.seed}",
        file=sys.stderr,
    )
