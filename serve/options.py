"""Options of the server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from ..common.errors import InputError
from ..common.options import Count, Folder, Names, Natural, Positive, Range
from ..infer.options import DecodingOptions

KEY_VARIABLE = "SPECPILOT_API_KEY"
CONTROL = {*range(32), 127}  # characters that a header cannot contain


@dataclass(frozen=True, kw_only=True)
class ServeOptions(DecodingOptions):
    """Server.

    Options of ``specpilot serve``.

    Attributes:
        host: Address to listen on; 0.0.0.0 accepts connections from other machines.
        port: Port to listen on; 0 chooses a free port.
        api_key: Key that clients must send with every request except /health. By default, the value of the environment
            variable SPECPILOT_API_KEY, if it is set.
        allow_hosts: Host names by which clients may reach a server without a key, such as gpu1.example.org, besides
            localhost, the name of this machine and numeric addresses; * allows every name.
        allow_origins: Origins of web pages that may call the server from a browser, such as https://example.org; *
            allows all origins.
        served_model_name: Name of the model in the API. By default, the name of the target.
        max_queue: Maximum number of texts that wait to be decoded; clients beyond it get status 429.
        time_limit: Maximum duration of a request in seconds; a request that takes longer is cancelled with status 408.
        max_body: Maximum size of a request's body in bytes.
        keep_alive: Seconds that a connection stays open between two requests. Set it longer than in the proxies in
            front of the server.
        receive_time: Seconds that a client has to send a request, and to receive a part of its response.
        max_connections: Maximum number of open connections; clients beyond it get status 503.
        drain: Seconds that running requests have to finish after SIGTERM or SIGINT; then they are cancelled.
        log_rounds: Folder for served rounds, as a dataset for `specpilot train acceptance`. The dataset contains
            prompts and texts.
        log_requests: Print a line for every request with the client's address, the path and the status.
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
        """Return the key that clients must send, from ``api_key`` or the environment; None if no key is needed.

        Raises:
            InputError: the key is empty, or has characters that a header cannot contain.
        """
        name, key = "api_key", self.api_key
        if key is None:
            name, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE)
        if key == "":
            raise InputError(f"{name}: is empty, and no client can send an empty key; set a key, or unset the variable")
        if key is not None and (key != key.strip() or any(ord(character) in CONTROL for character in key)):
            raise InputError(
                f"{name}: begins or ends with a space or contains a control character, which no client can send; "
                "remove it"
            )
        return key

    @property
    def name(self) -> str:
        """The model's name in the API."""
        return self.served_model_name or str(self.target)

    @property
    def controller(self) -> str | None:
        """The name of the length controller, by which it is reloaded; None without a name."""
        return None if self.length is None else str(self.length)
