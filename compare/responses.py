"""Responses of a vLLM server as drafted tokens with their outcomes, for servers that do not log rounds.

With ``--per-request-spec-decode-metrics`` vLLM 0.32 and 0.33 add ``metrics.speculative_decoding`` to responses of one
choice, and to the last chunk of a stream with usage. ``detailed`` has the number of verified tokens and the number of
accepted tokens of each round. ``summary`` has the numbers of rounds that accepted 0, 1, … tokens. If all drafts have
the same length, ``summary`` lacks only the order of the rounds. If the lengths differ, a round that accepted its whole
draft cannot be distinguished from a round that rejected the next token.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..common.errors import InputError, counted
from ..common.files import MANIFEST
from ..common.json_file import build, naming_file
from ..data_gen.kinds import RoundsRow, Text
from ..data_gen.rows import KINDS, read_rows
from .drafted import UNKNOWN
from .labelled import Labelled, Source, prompt_name, read_labelled
from .options import CompareOptions

FLAG = "--per-request-spec-decode-metrics detailed"
NO_METRICS, SUMS = "they have no metrics.speculative_decoding", "they have only sums over drafts of different lengths"
SAMPLING_KEYS = ("temperature", "top_k", "top_p")
ACCEPTED, REJECTED = 0, 1  # in place of tokens, which responses do not have: the text is of the first alone


def read_data(sources: Sequence[str], options: CompareOptions) -> Labelled:
    """Read labelled datasets or saved responses of a vLLM server; all sources must be of one kind.

    Args:
        sources: names of the folders of datasets, or of files and folders of responses.
        options: options of the comparison. ``limit`` is the maximum number of texts that are read from a source.

    Returns:
        The texts with their drafted tokens and the acceptance of each token.

    Raises:
        InputError: the sources are of both kinds, or :func:`read_responses` or :func:`.read_labelled` cannot read one.
    """
    responses = [source for source in sources if are_responses(source)]
    datasets = [source for source in sources if source not in responses]
    if responses and datasets:
        raise InputError(
            f"data: {', '.join(datasets)}: is a dataset among files of responses; pass one kind with --data and the "
            "other with --against"
        )
    return read_responses(sources, options.limit) if not datasets else read_labelled(sources, options)


def are_responses(source: str) -> bool:
    """Return whether ``source`` is a file, or a folder of JSON files without a dataset or a model."""
    path = Path(source).expanduser()
    if not path.is_dir() or any(path.glob(f"*/{MANIFEST}")):
        return path.is_file()
    names = {file.name for file in path.iterdir()}
    return not names & {MANIFEST, "config.json"} and any(KINDS.get(Path(name).suffix) == "JSON" for name in names)


def read_responses(sources: Sequence[str], limit: int | None = None) -> Labelled:
    """Read files, or folders of them: responses, lines of a batch's output, or objects of ``request`` and ``response``.

    Args:
        limit: maximum number of responses of a source.

    Raises:
        InputError: a source cannot be read, or no response has the outcome of a drafted token.
    """
    name, left_out, count = ", ".join(sources), Counter[str](), 0
    data = Labelled(name, [], [], [], [])
    for source in sources:
        for number, row in enumerate(read_rows(source)[:limit], 1):
            count += 1
            request, response = _body(row.get("request")), _body(row.get("response", row))
            metrics = _object(_object(response.get("metrics")).get("speculative_decoding"))
            with naming_file(f"{source}: response {number}", f"save responses of vLLM with {FLAG}"):
                rounds = _rounds(metrics) if metrics else None
            if rounds is None:
                left_out[SUMS if metrics else NO_METRICS] += 1
                continue
            length = _object(response.get("usage")).get("completion_tokens")
            text, placed = _text(rounds, length if metrics.get("per_step_drafted") and type(length) is int else None)
            if text.tokens:
                sampling = {key: request[key] for key in SAMPLING_KEYS if isinstance(request.get(key), int | float)}
                target = str(response.get("model") or "a target")
                data.sources.append(Source(RoundsRow.kind, target, "a server's draft", sampling=sampling))
                data.texts.append(text)
                data.placed.append(placed)
                data.domains.append(UNKNOWN)
                data.prompts.append(_prompt(request, response, f"{source}:{number}"))
    for reason, omitted in left_out.items():
        data.notes.append(
            f"{omitted} of the {counted(count, 'response')} of {name} are left out, because {reason}. Start vLLM with "
            f"{FLAG}."
        )
    if not data.texts:
        reason = " ".join(data.notes).rstrip(".") or f"no token was drafted; save responses of vLLM with {FLAG}"
        raise InputError(f"{name}: {reason}")
    data.notes.append(
        f"Responses contain whether each drafted token was accepted, but not its id or probability. The report has no "
        f"confidences, domains or predictors for {name}, and does not check that its models are the same. Positions in "
        f"the text are known for {sum(data.placed)} of its {counted(len(data.texts), 'text')}."
    )
    return data


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _body(value: object) -> Mapping[str, Any]:
    """Return a request or response, without the envelope of a batch's line."""
    return _object(_object(value).get("body", value))


def _rounds(metrics: Mapping[str, Any]) -> list[tuple[int, int]] | None:
    """Return (accepted, verified) tokens of each round from vLLM's ``RequestSpecDecodeMetrics``.

    Returns:
        None if the metrics only have sums over drafts of different lengths.

    Raises:
        InputError: a number is missing, or numbers contradict each other.
    """
    steps = ("per_step_accepted", "per_step_drafted")
    accepted, verified = (build(list[int], metrics.get(name) or [], name) for name in steps)
    if not accepted:
        counts = build(list[int], metrics.get("acceptance_histogram"), "acceptance_histogram")
        longest = build(int, metrics.get("num_spec_tokens"), "num_spec_tokens")
        if sum(counts) * longest != metrics.get("num_draft_tokens"):
            return None
        accepted = [j for j, count in enumerate(counts) for _ in range(count)]
        verified = [longest] * len(accepted)
    if len(accepted) != len(verified) or any(not 0 <= a <= v for a, v in zip(accepted, verified, strict=False)):
        raise InputError("a round accepted more tokens than it verified")
    return [*zip(accepted, verified, strict=True)]


def _text(rounds: Sequence[tuple[int, int]], length: int | None) -> tuple[Text, bool]:
    """Return the drafted tokens of a response up to the first rejected one of each round.

    Tokens after the end of the text are left out.

    Args:
        rounds: numbers of accepted and of verified tokens of each round.
        length: number of tokens of the text if ``rounds`` are in order; None if they are not.

    Returns:
        The text with its drafted tokens, and whether their places in the text are known. The places are known if the
        text ends within the last round, because then every round had a draft.
    """
    starts = [*accumulate((accepted + 1 for accepted, _ in rounds), initial=1)]  # the prompt's forward gives one
    placed = length is not None and len(starts) > 1 and starts[-2] < length <= starts[-1]
    drafted = [
        (start + depth, depth, depth < accepted)
        for start, (accepted, verified) in zip(starts, rounds, strict=False)
        for depth in range(min(accepted + 1, verified))
        if not placed or start + depth < (length or 0)
    ]
    places, depths, accepted_tokens = map(list, zip(*drafted, strict=True)) if drafted else ([], [], [])
    tokens = [ACCEPTED if accepted else REJECTED for accepted in accepted_tokens]
    return Text(
        "", [], [ACCEPTED] * starts[-1], places, tokens, [float(accepted) for accepted in accepted_tokens], depths
    ), placed


def _prompt(request: Mapping[str, Any], response: Mapping[str, Any], name: str) -> str:
    """Return the name of the prompt; with its tokens (``return_token_ids``) the same name as in datasets."""
    choices = response.get("choices")
    choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
    tokens = response.get("prompt_token_ids") or choice.get("prompt_token_ids")
    if isinstance(tokens, list) and all(isinstance(token, int) for token in tokens):
        return prompt_name(tokens)
    prompt = request.get("messages") or request.get("prompt") or name
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:16]
