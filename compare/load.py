"""Loads a workload's models and prompts."""

from __future__ import annotations

from ..common.errors import InputError
from ..controllers.checkpoints.provenance import EXACT
from ..data_gen.prompts import load_prompts
from ..infer.decoder import SpeculativeDecoder
from ..infer.drafters.ngram import split_ngram
from ..infer.options import DraftPrecisionOptions, PairCheckOptions
from ..infer.prompting import encode_prompt
from .options import WorkloadOptions


def load(
    work: WorkloadOptions, decoder: SpeculativeDecoder | None = None
) -> tuple[SpeculativeDecoder, list[list[int]]]:
    """Return a decoder for the workload's pair, or the given ``decoder``, and the prompts' token ids.

    Raises:
        InputError: a model is missing or does not fit, or no prompts are left.
    """
    rows = load_prompts(
        work.prompts, column=work.column, split=work.split, limit=work.limit, skip=work.skip, domains=work.domains
    )
    if decoder is None and split_ngram(work.draft)[1] is not None:
        raise InputError(f"draft={work.draft!r}: name a draft model alone; 'specpilot compare' times n-gram drafts")
    decoder = decoder or SpeculativeDecoder.from_pretrained(
        work.target, work.draft, dtype=work.dtype, device=work.device,
        trust_remote_code=work.trust_remote_code,
        draft_dtype=work.draft_dtype if isinstance(work, DraftPrecisionOptions) else None,
        pair_check=work.pair_check if isinstance(work, PairCheckOptions) else EXACT,
    )  # fmt: skip
    return decoder, [encode_prompt(decoder.tokenizer, row.prompt, chat=work.chat, system=work.system) for row in rows]
