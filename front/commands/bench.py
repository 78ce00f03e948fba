"""`specpilot bench …`: measurements, one JSON document as the last line of standard output."""

from __future__ import annotations

from pathlib import Path

from ..data_gen.settings import AcceptanceData


def rollouts(settings: AcceptanceData, *, repeats: int = 3) -> None:
    """Time batched data generation against a batch-1 loop of transformers' generate.

    Args:
        repeats: How often both are timed, in turn; medians are reported.
    """
    import json

    from rich.console import Console

    from ..bench.rollouts import bench_rollouts
    from ..controllers.errors import InputError
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    if repeats < 1:
        raise InputError(f"repeats={repeats}: must be at least 1")
    quiet()
    result = bench_rollouts(settings, repeats, Console(stderr=True))
    print(json.dumps(result | {"machine": machine(), "versions": versions()}))


def forward(*, target: str = "tiny", draft: str = "tiny-draft", repeats: int = 50) -> None:
    """Time one forward of target and draft by how many tokens it reads, on both paths.

    Args:
        target: Target model.
        draft: Draft model.
        repeats: Forwards timed for each figure; medians are reported.
    """
    import json

    from ..bench.forward import bench_forward
    from ..controllers.errors import InputError
    from ..infer.machine import machine, versions
    from ..infer.quiet import quiet

    if repeats < 1:
        raise InputError(f"repeats={repeats}: must be at least 1")
    quiet()
    print(json.dumps(bench_forward(target, draft, repeats) | {"machine": machine(), "versions": versions()}))


def decode(
    *,
    target: str = "tiny",
    draft: str = "tiny-draft",
    controller: str | None = None,
    prompts: str = "builtin",
    column: str = "prompt",
    split: str = "test",
    limit: int = 20,
    chat: bool = True,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = 50,
    top_p: float = 1.0,
    repeats: int = 3,
    dtype: str = "float32",
    compile: bool = False,
    device: str = "auto",
) -> None:
    """Time the decoder against transformers' generate and assisted generation: same prompts, same pair, one process.

    Args:
        target: Target model.
        draft: Draft model.
        controller: Trained acceptance head for this pair (folder or hub id); the shipped pair has its own.
        prompts: 'builtin', a JSON Lines/Parquet/text file, or a hub dataset id.
        column: Column that holds the prompt.
        split: Split of the built-in bank or of a hub dataset.
        limit: How many prompts.
        chat: Put prompts into the chat template.
        max_new_tokens: Longest continuation.
        temperature: Warp of both models; 0 is greedy.
        top_k: Keep the k most probable tokens; null keeps all.
        top_p: Keep the most probable tokens up to this mass.
        repeats: Passes over all prompts; medians are reported.
        dtype: float32, bfloat16 or float16.
        compile: Compile the decoder's models; transformers keeps its own way.
        device: auto, cpu, cuda, …
    """
    import json

    from rich.console import Console

    from ..bench.decode import as_table, bench_decode
    from ..controllers.errors import InputError
    from ..controllers.warp import Warp
    from ..data_gen.prompts import load_prompts
    from ..infer.decoder import SpeculativeDecoder
    from ..infer.machine import machine, versions
    from ..infer.prompting import encode_prompt
    from ..infer.quiet import quiet

    for name, value in (("repeats", repeats), ("limit", limit)):
        if value < 1:
            raise InputError(f"{name}={value}: must be at least 1")
    quiet()
    warp = Warp(temperature, top_k, top_p)
    decoder = SpeculativeDecoder.from_pretrained(target, draft, dtype=dtype, device=device, compile=compile)
    rows = load_prompts(prompts, column=column, split=split, limit=limit)
    console = Console(stderr=True)
    if controller is None and (target, draft) == ("tiny", "tiny-draft"):
        controller = "tiny-head"
    result = bench_decode(
        decoder,
        [encode_prompt(decoder.tokenizer, row.prompt, chat=chat) for row in rows],
        warp,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        controller=controller,
        console=console,
    )
    settings = {
        "target": target, "draft": draft, "prompts": len(rows), "max_new_tokens": max_new_tokens, "dtype": dtype,
        "compile": compile,
        "repeats": repeats, **warp.as_dict(),
    }  # fmt: skip
    console.print(as_table(result))
    print(json.dumps(result | {"settings": settings, "machine": machine(), "versions": versions()}))


def otm(
    *,
    target: str = "tiny",
    draft: str = "tiny-draft",
    prompt: str = "He said he also has asked prosecutors to",
    output: Path = Path("runs/otm.png"),
) -> None:
    """Acceptance of one of k proposals: optimal transport, K-SEQ, closed forms (SpecTr, Figures 1, 2, 3 and 5).

    Args:
        target: Target model of the last figure.
        draft: Draft model of the last figure.
        prompt: Text after which the two models' next tokens are compared.
        output: Where the picture goes.
    """
    import json

    import torch

    from ..bench.otm import coins, models, plot_otm, uniforms
    from ..infer.decoder import SpeculativeDecoder
    from ..infer.machine import versions
    from ..infer.prompting import encode_prompt
    from ..infer.quiet import quiet

    quiet()
    decoder = SpeculativeDecoder.from_pretrained(target, draft)
    ids = torch.tensor([encode_prompt(decoder.tokenizer, prompt)], device=decoder.target.device)
    size = min(decoder.target.vocab_size, decoder.drafts[0].vocab_size)
    with torch.inference_mode():
        p, q = (
            model.model(input_ids=ids).logits[0, -1, :size].double().softmax(-1)
            for model in (decoder.target, *decoder.drafts)
        )
    result = {"uniforms": uniforms(), "coins": coins(), "models": models(p, q), "pair": f"{target} + {draft}"}
    output.parent.mkdir(parents=True, exist_ok=True)
    plot_otm(result, output)
    print(json.dumps(result | {"prompt": prompt, "picture": str(output), "versions": versions()}))


def spectr(
    *,
    target: str = "tiny",
    draft: str = "tiny-draft",
    prompts: str = "builtin",
    column: str = "prompt",
    split: str = "test",
    limit: int = 60,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_k: int | None = 50,
    top_p: float = 1.0,
) -> None:
    """Tokens per target forward by number and length of drafts (SpecTr, Table 2).

    Args:
        target: Target model.
        draft: Draft model.
        prompts: 'builtin', a JSON Lines/Parquet/text file, or a hub dataset id.
        column: Column that holds the prompt.
        split: Split of the built-in bank or of a hub dataset.
        limit: How many prompts.
        max_new_tokens: Longest continuation.
        temperature: Warp of both models; 0 is greedy.
        top_k: Keep the k most probable tokens; null keeps all.
        top_p: Keep the most probable tokens up to this mass.
    """
    import json

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Table

    from ..bench.spectr import DRAFTS, LENGTHS, RULES, bench_spectr
    from ..controllers.errors import InputError
    from ..data_gen.prompts import load_prompts
    from ..infer.decoder import SpeculativeDecoder
    from ..infer.machine import versions
    from ..infer.prompting import encode_prompt
    from ..infer.quiet import quiet

    if limit < 1:
        raise InputError(f"limit={limit}: must be at least 1")
    quiet()
    decoder = SpeculativeDecoder.from_pretrained(target, draft)
    rows = load_prompts(prompts, column=column, split=split, limit=limit)
    texts = [encode_prompt(decoder.tokenizer, row.prompt, chat=True) for row in rows]
    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p}
    console = Console(stderr=True)
    columns = (TextColumn("generations"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(texts) * len(RULES) * len(LENGTHS) * len(DRAFTS))
        result = bench_spectr(decoder, texts, sampling, lambda: progress.advance(task))
    table = Table("rule", "L", *(f"K = {drafts}" for drafts in DRAFTS), title="tokens per target forward")
    for rule, by_length in result["block_efficiency"].items():
        for length, by_drafts in by_length.items():
            cells = [f"{x['value']:.2f} ({x['low']:.2f}-{x['high']:.2f})" for x in by_drafts.values()]
            table.add_row(rule, length, *cells)
    console.print(table)
    settings = {"target": target, "draft": draft, "prompts": len(texts), **sampling}
    print(json.dumps(result | {"settings": settings, "versions": versions()}))
