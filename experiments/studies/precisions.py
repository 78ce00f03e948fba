"""``python -m experiments precisions``: how often the texts of a seed differ between precisions, and with drafts.

The texts of one decoding are compared with those of another, token for token. Both have the same prompts and seeds, and
the verification rule ``invariant``, so they differ only by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from specpilot.cli.commands.measuring import begin, finish
from specpilot.common.options import Count, DType, OutputFileOptions, SeedOptions, Several
from specpilot.compare.decoders import encoded_prompts
from specpilot.compare.options import WorkloadOptions
from specpilot.compare.table import Row, Table
from specpilot.controllers.training_options import DraftLength
from specpilot.infer.decoder import SpeculativeDecoder

NO_DRAFTS, DRAFTS = "no drafts", "drafts"


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(WorkloadOptions, SeedOptions, OutputFileOptions):
    """Study.

    Options of ``python -m experiments precisions``.

    Attributes:
        precisions: Precisions of target and draft. The texts of each precision are compared with those of the first
            precision. Texts with drafts are also compared with texts without drafts.
        length: Number of drafted tokens.
        limit: Number of prompts.
    """

    precisions: Annotated[tuple[DType, ...], Several()] = ("float32", "bfloat16")
    length: DraftLength = 3
    limit: Count = 100
    max_new_tokens: Count = 64


def decode(options: PrecisionOptions, precision: DType) -> dict[str, list[list[int]]]:
    """Return the texts in one precision, with drafts and without."""
    base = replace(options.base, dtype=precision, length=options.length)
    decoder = SpeculativeDecoder.from_options(base)
    prompts = encoded_prompts(options, decoder.tokenizer)
    texts = {}
    for name, length in ((NO_DRAFTS, "none"), (DRAFTS, options.length)):
        generations = decoder.generate(prompts, seed=options.seed, length=length, **options.sampling)
        texts[name] = [generation.tokens for generation in generations]
    return texts


def compared(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> dict[str, float]:
    """Compare texts in pairs.

    Returns:
        ``texts``: their number; ``same``: the number of pairs that are equal; ``tokens``: the number of tokens before
        the first difference, over all pairs; and ``per_thousand``: first differences per 1,000 compared tokens.
    """
    tokens = 0
    for first_text, second_text in zip(first, second, strict=True):
        pairs = zip(first_text, second_text, strict=False)
        tokens += next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first_text), len(second_text)))
    same = sum([*first_text] == [*second_text] for first_text, second_text in zip(first, second, strict=True))
    differences = len(first) - same
    rate = 1000 * differences / (tokens + differences)
    return {"texts": len(first), "same": same, "tokens": tokens, "per_thousand": rate}


def run_precisions(options: PrecisionOptions) -> dict[str, Any]:
    """Decode in all precisions, and compare the texts.

    Returns:
        ``pairs``: results of :func:`compared` with the names of both decodings, ``first`` and ``second``.
    """
    texts = {precision: decode(options, precision) for precision in options.precisions}
    reference, *lower_precisions = options.precisions
    pairs = [((precision, NO_DRAFTS), (precision, DRAFTS)) for precision in options.precisions]
    pairs += [((reference, NO_DRAFTS), (precision, NO_DRAFTS)) for precision in lower_precisions]
    return {
        "pairs": [
            {"first": ", ".join(a), "second": ", ".join(b), **compared(texts[a[0]][a[1]], texts[b[0]][b[1]])}
            for a, b in pairs
        ]
    }


def as_table(result: dict[str, Any]) -> Table:
    """Return the table of a result, with a row for each pair of decodings."""
    rows: list[Row] = [
        {
            "texts": pair["first"],
            "compared with": pair["second"],
            "same": f"{pair['same']} of {pair['texts']}",
            "differences per 1,000 tokens": f"{pair['per_thousand']:.2f}",
        }
        for pair in result["pairs"]
    ]
    return Table("", rows)


def main(options: PrecisionOptions) -> None:
    """Compare the texts of a seed in several precisions, with drafts and without."""
    console = begin()
    result = run_precisions(options)
    console.print(as_table(result))
    finish(result, options, options.output)
