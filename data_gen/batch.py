"""``specpilot generate --prompts``: a text for each prompt of a file, in its order, in a JSON Lines file.

A text is added when it is finished, so an interrupted run keeps all of them; in the end they are put in order. What the
texts depend on is kept beside the file, in the folder ``<file>.run``. Without a length drafts have a fixed one, so that
a run that was killed ends with the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ..common.console import progress_bar, stderr_console
from ..common.errors import InputError, counted
from ..common.files import FolderLock, replacing
from ..common.json_file import blaming, parse_object, read_object
from ..controllers.checkpoints.fingerprint import model_fingerprint
from ..infer.config import LENGTH, leaves_drafts_open
from ..infer.decoder import SpeculativeDecoder
from ..infer.generation import Generation
from ..infer.loading.controllers import length_digests
from ..infer.options import AUTO, GenerateOptions
from ..infer.prompting import day_of
from ..infer.random_source import RandomSource, seeds_of
from .options import BatchOptions
from .prompts import read_prompts

SETTINGS = "settings.json"
UNRELATED = ("prompt", "stream", "color", "stats", "json", "max_running", "device", "device_map", "offload_folder")
ANOTHER = "give another --output"


def write_texts(options: GenerateOptions, batch: BatchOptions, console: Console | None = None) -> None:
    """Write a text for every prompt, or those that are missing in the file ``batch.output``.

    Raises:
        InputError: a prompt, model or controller is missing or does not fit, or the file holds other texts.
    """
    console = console or stderr_console()
    assert batch.prompts is not None
    assert batch.output is not None
    rows = read_prompts(batch.prompts, column=batch.column, split=batch.split)[: batch.limit]
    output, state = batch.output, batch.output.with_name(f"{batch.output.name}.run")
    with FolderLock(state, f"is writing {output.name}"):
        steady = replace(options, length=LENGTH) if leaves_drafts_open(options) else options
        decoder = SpeculativeDecoder.from_options(steady)
        assert decoder.tokenizer is not None, "decoder was not loaded by name"
        sampling = decoder.defaults.sampling_params(
            temperature=options.temperature, top_k=options.top_k, top_p=options.top_p
        )
        begun = output.exists() and output.stat().st_size > 0
        before = read_object(state / SETTINGS, ANOTHER) if begun and (state / SETTINGS).exists() else {}
        settings = _settings(options, batch, decoder) | sampling.as_dict()
        settings["day"] = day_of(decoder.tokenizer, before.get("day"))
        heads, requests = [], []
        for number, seed in enumerate(seeds_of(options.seed, options.n * len(rows))):
            row, sample = rows[number // options.n], {} if options.n == 1 else {"sample": number % options.n}
            try:
                ids = row.encode(decoder.tokenizer, chat=options.chat, system=options.system, day=settings["day"])
                budget = decoder.defaults.budget(options.max_new_tokens, len(ids))
                requests.append(decoder.new_request(ids, sampling, budget, RandomSource(seed)))
            except InputError as error:
                where = f"{batch.prompts}: row {number // options.n + 1}: " if str(error).startswith("prompt") else ""
                raise InputError(f"{where}{error}") from error
            heads.append({"id": row.id, "prompt": row.prompt, **sample, "seed": seed})
        found: dict[int, bytes] = {}
        if begun:
            _check(output, settings, before)
            found = _read(output, heads)
            console.print(f"{output}: {counted(len(found), 'text')} found", soft_wrap=True)
        numbers = {id(request): number for number, request in enumerate(requests)}
        missing = [request for number, request in enumerate(requests) if number not in found]
        with progress_bar(console, "texts", len(missing)) as advance:
            for request in decoder.scheduler.as_finished(missing):
                if not begun:
                    _replace(state / SETTINGS, json.dumps(settings, indent=1).encode())
                    begun = True
                line = heads[numbers[id(request)]] | _answer(decoder.finish(request), batch.trace)
                with output.open("ab") as file:
                    file.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())
                advance()
        found = _read(output, heads)
        if list(found) != sorted(found):
            _replace(output, b"".join(found[number] for number in sorted(found)))
    console.print(f"{output}: {counted(len(heads), 'text')}", soft_wrap=True)


def _settings(options: GenerateOptions, batch: BatchOptions, decoder: SpeculativeDecoder) -> dict[str, Any]:
    """What the texts depend on besides their prompts."""
    given = {name: value for name, value in asdict(options).items() if name not in UNRELATED}
    made_by = {"model": model_fingerprint(decoder.target.model), "controllers": length_digests(options.length)}
    if options.draft_dtype == AUTO:
        made_by["draft_dtype"] = [draft.precision for draft in decoder.drafts]
    found = given | made_by | {"trace": batch.trace}
    settings: dict[str, Any] = json.loads(json.dumps(found))
    return settings


def _answer(text: Generation, trace: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"completion": text.text, "finish_reason": text.finish_reason}
    found |= {} if text.arm is None else {"arm": text.arm}
    return found | ({"tokens": text.tokens, "rounds": [one.as_dict() for one in text.rounds]} if trace else {})


def _check(output: Path, settings: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Refuse to go on with other settings than ``output`` was begun with, or with a file of another origin."""
    if not before:
        raise InputError(f"{output}: exists, and was not written by 'specpilot generate --prompts'; {ANOTHER}")
    for name, value in settings.items():
        if before.get(name) != value:
            raise InputError(
                f"{output}: was begun with {name}={before.get(name)!r}, and now it is {value!r}; give what it was "
                "begun with, or another --output"
            )


def _read(output: Path, heads: Sequence[Mapping[str, Any]]) -> dict[int, bytes]:
    """The lines of ``output`` by the number of their text; half a line at its end is cut off.

    Raises:
        InputError: a line is damaged, or of another prompt.
    """
    numbers = {head["seed"]: number for number, head in enumerate(heads)}
    lines: dict[int, bytes] = {}
    with output.open("rb+") as file:
        for place, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                file.truncate(sum(map(len, lines.values())))
                break
            with blaming(f"{output}:{place}", ANOTHER):
                row = parse_object(line.decode(errors="replace"))
                number = numbers.get(row.get("seed"), -1)
                if number in lines or number < 0 or any(row.get(name) != heads[number][name] for name in heads[number]):
                    raise InputError("is not the text of a prompt that is given")
            lines[number] = line
    return lines


def _replace(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write_bytes(content)
