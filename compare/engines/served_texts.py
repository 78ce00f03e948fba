"""Compares the texts of a server under load with those of ``SpeculativeDecoder.generate`` for the same seeds.

How probabilities are rounded depends on the requests that share a forward, and now and then another token is drawn for
it. A text that differs is explained by rounding if the probabilities of both tokens where it begins to differ, in the
server's forward and in that of the text alone, differ by less than ``ROUNDING``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import torch

from ...common.errors import InputError
from ...controllers.length import LengthController
from ...infer.decoder import SpeculativeDecoder
from ...infer.models import TextReader
from .http_client import whole

ROUNDING = 1e-4
TOP = 20  # alternatives whose probabilities the server reports


def compare_texts(
    port: int,
    decoder: SpeculativeDecoder,
    length: LengthController,
    prompts: Sequence[list[int]],
    count: int,
    body: dict[str, Any],
) -> dict[str, Any]:
    """Ask for ``count`` texts at once, with seeds from 0, and compare each with the decoder's.

    Args:
        length: the server's controller; its drafts must not depend on the load.
        body: the requests' sampling, with the fields' names in OpenAI's API.

    Returns:
        How many are equal, of how many, and the first difference of each that is not.

    Raises:
        InputError: a request failed.
    """
    asked = [prompts[i % len(prompts)] for i in range(count)]
    served = asyncio.run(_ask(port, asked, body))
    differences = []
    for seed, (prompt, choice) in enumerate(zip(asked, served, strict=True)):
        own = decoder.generate(
            prompt, seed=seed, length=length, max_new_tokens=body["max_tokens"], temperature=body["temperature"],
            top_k=body["top_k"] or None, top_p=body["top_p"],
        ).tokens  # fmt: skip
        if choice["token_ids"] != own:
            differences.append({"seed": seed} | first_difference(decoder, prompt, choice, own))
    return {"equal": count - len(differences), "of": count, "differences": differences}


async def _ask(port: int, prompts: Sequence[list[int]], body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of all requests, sent at once."""
    more = {"logprobs": TOP, "return_token_ids": True}
    answers = await asyncio.gather(
        *(whole(port, body | more | {"prompt": prompt, "seed": seed}) for seed, prompt in enumerate(prompts))
    )
    for answer in answers:
        if "error" in answer:
            raise InputError(f"serve: a request failed ({answer['error']['message']})")
    return [answer["choices"][0] for answer in answers]


def first_difference(
    decoder: SpeculativeDecoder, prompt: list[int], choice: dict[str, Any], own: list[int]
) -> dict[str, Any]:
    """Where a served text begins to differ from the decoder's ``own``, and both tokens' probabilities there.

    Returns:
        ``position``, ``tokens`` (the served one, the own one), their probabilities ``served`` and ``alone`` (None where
        the server did not report one), and whether ``rounding`` explains it.
    """
    theirs: list[int] = choice["token_ids"]
    place = next((i for i, (a, b) in enumerate(zip(theirs, own, strict=False)) if a != b), None)
    if place is None:  # one of them goes on
        return {"position": min(len(theirs), len(own)), "rounding": False}
    tokens = [theirs[place], own[place]]
    reader, text = TextReader.begin(decoder.target, prompt)
    with torch.inference_mode():
        logits, _ = reader.read([*text, *own[:place]], keep=1)
    alone = [float(torch.softmax(logits[0].float(), -1)[token]) for token in tokens]
    report, assured = choice["logprobs"], decoder.tokenizer
    assert assured is not None
    other = report["top_logprobs"][place].get(assured.decode([tokens[1]]))
    served = [math.exp(report["token_logprobs"][place]), None if other is None else math.exp(other)]
    apart = [abs(a - b) for a, b in zip(served, alone, strict=True) if a is not None]
    return {
        "position": place,
        "tokens": tokens,
        "served": served,
        "alone": alone,
        "rounding": max(apart) < ROUNDING,
    }


def summary(texts: dict[str, dict[str, Any]], temperature: float) -> str:
    """One line for all servers."""
    parts = []
    for name, found in texts.items():
        rounding = sum(one["rounding"] for one in found["differences"])
        unexplained = len(found["differences"]) - rounding
        parts.append(f"{name} {found['equal']} of {found['of']} ({rounding} by rounding, {unexplained} otherwise)")
    return f"texts equal to those of generate at temperature {temperature:g}: {'; '.join(parts)}"
