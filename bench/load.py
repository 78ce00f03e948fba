"""A workload's models and prompts, ready to run."""

from __future__ import annotations

from ..data_gen.prompts import load_prompts
from ..infer.decoder import SpeculativeDecoder
from ..infer.prompting import encode_prompt
from .workload import Workload


def load(work: Workload) -> tuple[SpeculativeDecoder, list[list[int]]]:
    """The pair in a decoder, and the prompts' token ids."""
    decoder = SpeculativeDecoder.from_pretrained(
        work.target, work.draft, dtype=work.dtype, compile=work.compile, device=work.device
    )
    rows = load_prompts(work.prompts, column=work.column, split=work.split, limit=work.limit)
    return decoder, [encode_prompt(decoder.tokenizer, row.prompt, chat=work.chat) for row in rows]
