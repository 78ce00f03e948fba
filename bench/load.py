"""A workload's models and prompts, ready to run."""

from __future__ import annotations

from ..controllers.errors import InputError
from ..data_gen.prompts import load_prompts
from ..infer.decoder import SpeculativeDecoder
from ..infer.prompting import encode_prompt
from .workload import WorkloadOptions


def load(
    work: WorkloadOptions, decoder: SpeculativeDecoder | None = None
) -> tuple[SpeculativeDecoder, list[list[int]]]:
    """The pair in a decoder, this one if it is loaded already, and the prompts' token ids.

    Raises:
        InputError: the prompts end before any is left.
    """
    decoder = decoder or SpeculativeDecoder.from_pretrained(
        work.target, work.draft, dtype=work.dtype, compile=work.compile, device=work.device
    )
    rows = load_prompts(work.prompts, column=work.column, split=work.split, limit=work.skip + work.limit)
    if len(rows) <= work.skip:
        raise InputError(f"{work.prompts}: {len(rows)} prompts, but the first {work.skip} are left out; give more")
    return decoder, [encode_prompt(decoder.tokenizer, row.prompt, chat=work.chat) for row in rows[work.skip :]]
