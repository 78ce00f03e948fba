"""``specpilot generate --prompts``: a text for each prompt of a file, in the prompts' order, in a JSON Lines file.

:func:`~.workers.write_shards` writes the texts as it writes datasets; each text is a line of a :class:`.TextFile`. If
no length is set, drafts have a fixed length, so that a killed and continued run ends with the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console

from ..common.console import stderr_console
from ..common.errors import InputError
from ..common.options import AUTO
from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..infer.core import Generation, Request
from ..infer.decoder import SpeculativeDecoder
from ..infer.loading.controllers import length_digests
from ..infer.options import GenerateOptions
from ..infer.prompting import day_of, uses_template
from ..infer.random_source import text_seeds
from .builder import context_limits
from .dataset import day_in
from .options import BatchOptions
from .prompts import read_prompts
from .text_file import TextFile, settings_file
from .workers import OnDone, ignore, write_shards

UNRELATED = ("prompt", "stream", "color", "stats", "json", "max_running", "device", "device_map", "offload_folder")

Text = dict[str, Any]  # the fields of a line that contain a text


def write_texts(options: GenerateOptions, batch: BatchOptions, console: Console | None = None) -> None:
    """Write a text for every prompt to the file ``batch.output``; texts in the file are kept.

    Raises:
        InputError: a prompt, model or controller is missing or does not fit, or the file contains other texts.
    """
    console = console or stderr_console()
    assert batch.prompts is not None
    assert batch.output is not None
    rows = read_prompts(batch.prompts, column=batch.column, split=batch.split)[: batch.limit]
    decoder = SpeculativeDecoder.steady_from_options(options)
    assert decoder.tokenizer is not None, "decoder was not loaded by name"
    sampling = decoder.defaults.sampling_params(
        temperature=options.temperature, top_k=options.top_k, top_p=options.top_p
    )
    day = day_of(decoder.tokenizer, day_in(settings_file(batch.output)))
    heads, requests = [], []
    for number, seed in enumerate(text_seeds(options.seed or 0, options.n * len(rows))):
        row, sample = rows[number // options.n], {} if options.n == 1 else {"sample": number % options.n}
        try:
            encoder = decoder.target.encodes_prompts
            ids = row.encode(decoder.tokenizer, chat=options.chat, system=options.system, day=day, encoder=encoder)
            budget = decoder.defaults.budget(options.max_new_tokens, len(ids))
            setup = decoder.setup_for(seed=seed, temperature=sampling.temperature)
            requests.append(decoder.new_request(ids, sampling, budget, seed, setup=setup))
        except InputError as error:
            prefix = f"{batch.prompts}: row {number // options.n + 1}: " if str(error).startswith("prompt") else ""
            raise InputError(f"{prefix}{error}") from error
        heads.append({"id": row.id, "prompt": row.prompt, **sample, "seed": seed})
    limits = context_limits([request.output.finish_reason == "context" for request in requests], decoder.context)
    identity = _settings(options, batch, decoder) | sampling.to_dict() | {"day": day}
    with TextFile(batch.output, identity, heads) as file:
        make = partial(_decode, decoder, batch.trace)
        write_shards(file, [1] * len(heads), requests.__getitem__, make, console)
    for line in limits:  # at the end, because an error is a single line
        console.print(f"{batch.output}: {line}", soft_wrap=True)


def _decode(
    decoder: SpeculativeDecoder,
    trace: bool,
    units: Mapping[int, Callable[[], Request]],
    on_done: OnDone = ignore,
) -> Iterator[tuple[int, Text]]:
    """Decode the requests of ``units`` together. Yields the number and the text of each request, in any order."""
    requests = [unit() for unit in units.values()]
    numbers = {id(request): number for number, request in zip(units, requests, strict=True)}
    for request in decoder.scheduler.as_finished(requests):
        text = decoder.finish(request)
        on_done(len(text.tokens))
        yield numbers[id(request)], _answer(text, trace)


def _settings(options: GenerateOptions, batch: BatchOptions, decoder: SpeculativeDecoder) -> dict[str, Any]:
    """Return the settings that the texts depend on besides their prompts."""
    values = {name: value for name, value in asdict(options).items() if name not in UNRELATED}
    values["chat"] = uses_template(decoder.tokenizer, options.chat)
    loaded = {"model": model_fingerprint(decoder.target.model), "controllers": length_digests(options.length)}
    if options.draft_dtype == AUTO:
        loaded["draft_dtype"] = [draft.precision for draft in decoder.drafts]
    settings: dict[str, Any] = json.loads(json.dumps(values | loaded | {"trace": batch.trace}))
    return settings


def _answer(text: Generation, trace: bool) -> Text:
    """Return the fields of a text, with its tokens and rounds if ``trace``."""
    answer: Text = {"completion": text.text, "finish_reason": text.finish_reason}
    answer |= {} if text.arm is None else {"arm": text.arm}
    return answer | ({"tokens": text.tokens, "rounds": [round.to_dict() for round in text.rounds]} if trace else {})
