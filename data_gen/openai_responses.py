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
from http.client import HTTPException
from typing import Any

from ..common.errors import InputError
from ..infer.loading.names import load_stop_tokens, load_tokenizer
from ..infer.prompting import turn_end
from .builder import Item, ResponseMaker
from .kinds import ResponseRow
from .options import AcceptanceDataOptions, ResponseOptions
from .workers import OnDone

TRANSIENT = {408, 409, 425, 429}  # statuses below 500 after which a request is sent again
LASTING = {501, 505}  # other statuses from 500 on are sent again, whatever their number
ENDED = {"stop", "eos", "eos_token"}  # reasons of texts that the target ended
LONGEST_PAUSE = 30.0  # seconds between two attempts


class OpenAIResponses(ResponseMaker):
    """Asks one server for texts, ``batch_size`` requests at a time."""

    def __init__(self, settings: AcceptanceDataOptions, responses: ResponseOptions) -> None:
        assert responses.base_url is not None, "ResponseOptions asks for it"
        super().__init__(settings, responses)
        trust = settings.trust_remote_code
        self.tokenizer = load_tokenizer(settings.target, trust_remote_code=trust)
        stops = load_stop_tokens(settings.target, self.tokenizer, trust_remote_code=trust)
        self.end = turn_end(self.tokenizer, stops, chat=settings.chat)
        self.url = responses.base_url.rstrip("/")
        self.model = responses.model or settings.target
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError("OPENAI_API_KEY: holds characters that no HTTP header may have; set it again")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.source = {"source": "openai", "base_url": self.url, "model": self.model}

    def rows(self, items: list[Item], on_done: OnDone) -> list[ResponseRow]:
        with ThreadPoolExecutor(self.settings.batch_size) as pool:
            rows = []
            for row in pool.map(self._row, items):
                on_done(len(row.tokens))
                rows.append(row)
        return rows

    def _row(self, item: Item) -> ResponseRow:
        s = self.settings
        body = {
            "model": self.model, "prompt": item.ids, "max_tokens": item.budget, "temperature": s.temperature,
            "top_p": s.top_p, "seed": self.seed_of(item), "return_token_ids": True,
        }  # fmt: skip
        if s.top_k is not None:
            body["top_k"] = s.top_k
        problem, answered = "", False
        for attempt in range(self.responses.retries + 1):
            if attempt:
                time.sleep(min(2.0 ** (attempt - 2), LONGEST_PAUSE))
            answered = False
            try:
                found = self._send(body)
                answered = True
                return self._read(item, found)
            except urllib.error.HTTPError as error:
                problem = f"{error.code} {error.reason}: {error.read(300).decode(errors='replace')}"
                if error.code not in TRANSIENT and (error.code < 500 or error.code in LASTING):
                    break
            # No connection, or one that broke; no JSON; or an answer that holds no text.
            except (OSError, HTTPException, LookupError, TypeError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}; the server sent {found!r:.200}" if answered else str(error)
        remedy = "give the address of a completions API, ending in /v1; " if answered else ""
        raise InputError(
            f"base_url={self.url!r}: no text for prompt {item.id} ({' '.join(problem.split())}); {remedy}the texts of "
            "finished shards are kept: run the command again"
        )

    def _read(self, item: Item, answer: Any) -> ResponseRow:
        """The row of a server's answer; raises LookupError, TypeError or ValueError if there is no text in it."""
        (choice,) = answer["choices"]
        text, finish, given = choice["text"], choice["finish_reason"], choice.get("token_ids")
        if not isinstance(text, str) or not isinstance(finish, str):
            raise TypeError(f"text={text!r:.40}, finish_reason={finish!r:.40}")
        if finish != "length" and finish not in ENDED:
            raise ValueError(f"the text was not finished: finish_reason={finish!r:.40}")
        text.encode()  # half a surrogate pair is no text
        if given is None:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            tokens = [*ids, *(self.end if finish in ENDED else ())]
        else:
            tokens = [int(token) for token in given]
        if not all(0 <= token < len(self.tokenizer) for token in tokens):
            raise ValueError("a token is outside the vocabulary")
        usage = answer.get("usage") or {}
        reported = int(usage.get("completion_tokens", len(tokens)))
        return ResponseRow(
            item.id, text, tokens, "length" if finish == "length" else "stop", reported, given is not None
        )

    def _send(self, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{self.url}/completions", json.dumps(body).encode(), self.headers)
        with urllib.request.urlopen(request, timeout=self.responses.timeout) as response:
            return json.load(response)
