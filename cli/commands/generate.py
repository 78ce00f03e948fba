"""`specpilot generate`: a prompt in, text out, decoded speculatively."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from ..controllers.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..infer.generation import Generation


def generate(
    prompt: str = "-",
    *,
    target: str = "tiny",
    draft: str | list[str] | None = "tiny-draft",
    length: int | str | list[int | str] | None = None,
    router: str | None = None,
    sample_arm: bool = False,
    threshold: float | None = None,
    cost: str | None = None,
    adapt: bool = False,
    tree: str | None = None,
    verifier: str = "token-wise",
    beams: int | None = None,
    argmax: bool = False,
    n: int = 1,
    max_new_tokens: int | Literal["auto"] = "auto",
    temperature: float | Literal["auto"] = "auto",
    top_k: int | Literal["auto"] | None = "auto",
    top_p: float | Literal["auto"] = "auto",
    generation_config: Literal["follow", "ignore"] = "follow",
    seed: int = 0,
    chat: bool = True,
    system: str | None = None,
    stream: bool = True,
    color: bool = False,
    stats: bool = False,
    json: bool = False,
    dtype: Literal["float32", "bfloat16", "float16", "float64", "auto"] = "float32",
    compile: bool = False,
    device: str = "auto",
    device_map: str | None = None,
    offload_folder: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Continue or answer a prompt by speculative decoding.

    Args:
        prompt: The prompt, as a bare word or by flag; "-" reads it from standard input.
        target: The model whose text this is: a shipped name, a folder or a hub id.
        draft: The model that proposes tokens; it shares the target's vocabulary. Several, as "[a,b]", feed one tree.
        length: What ends a draft: a number of tokens (4 if not given), a controller checkpoint (folder or hub id), a
            rule such as "cumulative-confidence:0.4", or "none" for plain autoregressive decoding.
        router: Trained router (folder or hub id): it chooses between several drafts, "[a,b,exit:2,autoregressive]", by
            the prompt. Its own arms if the draft is left as it is; the length is then one for all, or a list.
        sample_arm: Draw the arm from the router's policy instead of taking its most likely one.
        threshold: Stopping threshold of a trained controller, in place of the one its checkpoint names.
        cost: File of `specpilot bench cost --output`, or how many verifications a draft step costs, such as 0.2: a
            trained controller then stops where drafting on no longer pays, without a threshold. "auto" measures now,
            and adapts.
        adapt: Keep correcting the cost by the rounds' wall times; the same seed may then draft otherwise.
        tree: Draft a tree instead: children at each level, such as "3x2x1"; "4x1x1" is four chains of three.
        verifier: Verification rule: token-wise or block for one chain; spec-infer, mcss (children drawn without
            replacement), k-seq or otm also for trees. These keep the target's law. Typical, bild and mtad do not; their
            threshold follows a colon, "mtad:0.5". mtjd, with no draft, chooses `length` tokens of the target jointly.
        beams: Sequences that mtad and mtjd search among; 4 if not given.
        argmax: Keep the most probable of them instead of drawing them.
        n: Independent samples of the prompt; one after another on standard output.
        max_new_tokens: The most tokens to generate; "auto" is what the target's generation_config names, else 128.
        temperature: Divides the logits; 0 is greedy. "auto" is what the target's generation_config names, else 1.
        top_k: Sample among the k most probable tokens; null keeps all. "auto" as for temperature, else 50.
        top_p: Sample among the most probable tokens of this total mass; 1 keeps all. "auto" as for temperature, else 1.
        generation_config: What is done with the target's generation_config: "follow" takes sampling settings from it
            and refuses what cannot be followed, "ignore" does not look at it.
        seed: Same seed, same text.
        chat: Put the prompt into the tokenizer's chat template, if it has one.
        system: System message of the chat.
        stream: Print the text as it comes.
        color: Print the text once it is whole, with accepted, own and rejected tokens in colour.
        stats: Print counters and rates to standard error.
        json: Print one JSON object with text, tokens, rounds and counters instead of text.
        dtype: Precision of both models; "auto" is that of each checkpoint.
        compile: Compile both models first; worth it for long texts only.
        device: "cpu", "cuda", "cuda:1"; "auto" takes an accelerator where there is one.
        device_map: Spread the target over several devices, as "auto" or "balanced" do in transformers.
        offload_folder: Folder for weights that a device map puts on disk.
        revision: Branch, tag or commit of the target on the hub.
        trust_remote_code: Run code that comes with the models. Only for sources you trust.
    """
    text = _read(prompt)

    from ..infer.decoder import SpeculativeDecoder
    from ..infer.drafters import Beams
    from ..infer.quiet import quiet
    from ..infer.text_stream import TextStream

    quiet()
    decoder = SpeculativeDecoder.from_pretrained(
        target,
        None if router is not None and draft == "tiny-draft" else draft,  # the default is no choice of arms
        length=length,
        router=router,
        sample_arm=sample_arm,
        threshold=threshold,
        cost=cost,
        adapt=adapt,
        tree=tree,
        verifier=verifier,
        beams=None if beams is None and not argmax else Beams(4 if beams is None else beams, argmax),
        dtype=dtype,
        compile=compile,
        device=device,
        device_map=device_map,
        offload_folder=offload_folder,
        revision=revision,
        trust_remote_code=trust_remote_code,
        generation_config=generation_config,
    )
    assert decoder.tokenizer is not None  # from_pretrained loads one or refuses
    live = TextStream(decoder.tokenizer) if stream and n == 1 and not color and not json else None
    found = decoder.generate(
        text,
        n=n,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        chat=chat,
        system=system,
        on_tokens=None if live is None else lambda tokens: print(live.push(tokens), end="", flush=True),
    )
    for generation in [found] if n == 1 else found:
        if json:
            print(_as_json(generation))
        elif color:
            _print_coloured(generation, decoder.tokenizer)
        else:
            print(generation.text if live is None else live.flush())
        if stats:
            if decoder.routing is not None and generation.arm is not None:
                print(f"arm: {decoder.routing.arms[generation.arm].name}", file=sys.stderr)
            _print_stats(generation)


def _read(prompt: str) -> str:
    if prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"prompt: standard input is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None
    if not prompt.strip():
        raise InputError("prompt: it is empty; give some text, as a word, by --prompt or on standard input")
    return prompt


def _as_json(generation: Generation) -> str:
    from dataclasses import asdict
    from json import dumps

    stats = generation.stats
    rates = {
        "tokens_per_second": stats.tokens_per_second,
        "acceptance_rate": stats.acceptance_rate,
        "discard_rate": stats.discard_rate,
        "verification_rate": stats.verification_rate,
        "block_efficiency": stats.block_efficiency,
    }
    rounds = [
        {"drafted": r.drafted, "accepted": r.accepted, "path": r.path, "emitted": r.emitted} for r in generation.rounds
    ]
    report = {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "arm": generation.arm,
        "stats": asdict(stats) | rates,
        "rounds": rounds,
    }
    return dumps(report, ensure_ascii=False)


def _print_coloured(generation: Generation, tokenizer: PreTrainedTokenizerBase) -> None:
    from rich.console import Console

    from ..trace_view import legend, render

    # Asked for by name, so also into a file or pipe: without styles, rejected text would pass for output.
    console = Console(force_terminal=True, highlight=False, soft_wrap=True)
    console.print(render(generation, tokenizer))
    console.print(legend())


def _print_stats(generation: Generation) -> None:
    stats = generation.stats
    print(
        f"{stats.n_generated} tokens in {stats.seconds:.2f} s ({stats.tokens_per_second:.1f} tokens/s), "
        f"{stats.n_draft_forwards} draft and {stats.n_target_forwards} target forwards, "
        f"{stats.n_accepted} of {stats.n_drafted} drafted tokens accepted; "
        f"acceptance {stats.acceptance_rate:.3f}, discard {stats.discard_rate:.3f}, "
        f"verification {stats.verification_rate:.3f}, block efficiency {stats.block_efficiency:.2f}; "
        f"ended by {generation.finish_reason}",
        file=sys.stderr,
    )
