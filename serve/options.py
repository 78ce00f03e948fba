"""Options of the server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from ..common.errors import InputError
from ..common.options import Count, Folder, Names, Natural, Positive, Range
from ..infer.options import DecodingOptions

KEY_VARIABLE = "SPECPILOT_API_KEY"
CONTROL = {*range(32), 127}  # characters that a header cannot hold


@dataclass(frozen=True, kw_only=True)
class ServeOptions(DecodingOptions):
    """Server.

    Attributes:
        host: Address to listen on; 0.0.0.0 accepts connections from other machines.
        port: Port to listen on; 0 takes a free one.
        api_key: Key that clients must send for everything but /health; by default that of the environment variable
            SPECPILOT_API_KEY, if it is set.
        allow_hosts: Names, besides localhost, this machine's and numeric addresses, by which clients may reach a server
            without a key, such as gpu1.example.org; * allows every name.
        allow_origins: Origins of web pages that may call the server from a browser, such as https://example.org; *
            allows all of them.
        served_model_name: Name of the model in the API; the target's if not given.
        max_queue: Texts that may wait for a place; beyond it clients get 429.
        time_limit: Seconds a request may take.
        max_body: Bytes of a request's body.
        keep_alive: Seconds that a connection stays open between two requests; longer than that of proxies in front.
        receive_time: Seconds that a client has to send a request, and to take any of its response.
        max_connections: Connections that may be open; beyond it clients get 503.
        drain: Seconds that running requests have to finish after SIGTERM.
        log_rounds: Folder that gets served rounds as a dataset for `specpilot train acceptance`. It contains prompts
            and texts.
        log_requests: Print a line for every request: who asked for what, and the status.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8000
    api_key: str | None = None
    allow_hosts: Names | None = None
    allow_origins: Names | None = None
    served_model_name: str | None = None
    max_queue: Natural = 256
    time_limit: Positive = 600.0
    max_body: Count = 4 << 20
    keep_alive: Count = 75
    receive_time: Positive = 60.0
    max_connections: Count = 512
    drain: Positive = 60.0
    log_rounds: Folder | None = None
    log_requests: bool = False

    def resolve_key(self) -> str | None:
        """The key that clients must send, of ``api_key`` or the environment; None: they need none.

        Raises:
            InputError: no client can send it in a header.
        """
        name, key = "api_key", self.api_key
        if key is None:
            name, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE)
        if key == "":
            raise InputError(f"{name}: it is empty, so that no client could send it; set a key, or unset the variable")
        if key is not None and (key != key.strip() or any(ord(character) in CONTROL for character in key)):
            raise InputError(
                f"{name}: has space around it or a control character, which no client could send; remove it"
            )
        return key

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.served_model_name or str(self.target)

    @property
    def controller(self) -> str | None:
        """The length controller's name, by which it is loaded again."""
        return None if self.length is None else str(self.length)
