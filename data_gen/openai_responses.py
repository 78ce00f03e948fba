"""Texts from a server with OpenAI's completions API (vLLM, SGLang, llama.cpp, ``specpilot serve``).

A prompt is sent as token ids, with the chat template applied here. Servers that understand ``return_token_ids`` (vLLM,
``specpilot serve``) return the sampled tokens; the texts of others are tokenised again.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

from ..common.errors import InputError
from ..infer.loading.names import load_tokenizer
from .builder import Item, ResponseMaker
from .kinds import ResponseRow
from .options import AcceptanceDataOptions, ResponseOptions
from .workers import OnDone

TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504}  # statuses after which a request is sent again
LONGEST_PAUSE = 30.0  # seconds between two attempts


class OpenAIResponses(ResponseMaker):
    """Asks one server for texts, ``batch_size`` requests at a time."""

    def __init__(self, settings: AcceptanceDataOptions, responses: ResponseOptions) -> None:
        assert responses.base_url is not None, "ResponseOptions asks for it"
        super().__init__(settings, responses)
        self.tokenizer = load_tokenizer(settings.target, trust_remote_code=settings.trust_remote_code)
        self.url = responses.base_url.rstrip("/")
        self.model = responses.model or settings.target
        self.source = {"source": "openai", "base_url": self.url, "model": self.model}

    def rows(self, items: list[Item], on_done: OnDone) -> list[ResponseRow]:
        with ThreadPoolExecutor(self.settings.batch_size) as pool:
            rows = []
            for row in pool.map(self._row, items):
                on_done(len(row.tokens))
                rows.append(row)
        return rows

    def _row(self, item: Item) -> ResponseRow:
        answer = self._ask(item)
        try:
            (choice,) = answer["choices"]
            text, finish, given = str(choice["text"]), str(choice["finish_reason"]), choice.get("token_ids")
            tokens = self._tokens(text, finish) if given is None else [int(token) for token in given]
            reported = int(answer["usage"]["completion_tokens"])
            if not all(0 <= token < len(self.tokenizer) for token in tokens):
                raise ValueError("a token is outside the vocabulary")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"base_url={self.url!r}: sent no completion; give the address of a completions API, ending in /v1: "
                f"{str(answer)[:200]}"
            ) from error
        return ResponseRow(item.id, text, tokens, finish, reported, given is not None)

    def _tokens(self, text: str, finish: str) -> list[int]:
        """The tokens of ``text``, with the end token if it ended by itself."""
        tokens: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        end = self.tokenizer.eos_token_id
        return [*tokens, end] if finish == "stop" and end is not None else tokens

    def _ask(self, item: Item) -> Any:
        s = self.settings
        body = {
            "model": self.model, "prompt": item.ids, "max_tokens": item.budget, "temperature": s.temperature,
            "top_p": s.top_p, "seed": self.seed_of(item), "return_token_ids": True,
        }  # fmt: skip
        if s.top_k is not None:
            body["top_k"] = s.top_k
        problem = ""
        for attempt in range(self.responses.retries + 1):
            if attempt:
                time.sleep(min(2.0 ** (attempt - 2), LONGEST_PAUSE))
            try:
                return self._send(body)
            except urllib.error.HTTPError as error:
                problem = f"{error.code} {HTTPStatus(error.code).phrase}: {error.read(300).decode(errors='replace')}"
                if error.code not in TRANSIENT:
                    break
            except (OSError, json.JSONDecodeError) as error:  # no connection, or one that broke
                problem = str(error)
        raise InputError(
            f"base_url={self.url!r}: no text for prompt {item.id} ({' '.join(problem.split())}); the texts of finished "
            "shards are kept: run the command again"
        )

    def _send(self, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=self.responses.timeout) as response:
            return json.load(response)
