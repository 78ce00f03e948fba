"""Connections with deadlines for requests and responses, and a limit on their number."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Literal, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError
from .options import ServeOptions

SPARE = 64  # connections beyond the limit that get an error; more are closed without an answer
FILES = 128  # file descriptors for everything except connections
ACCEPTED = 32  # connections that are accepted in one turn of the event loop
QUIET = 60.0  # seconds between two lines about exhausted file descriptors

Phase = Literal["receiving", "sending"]


class HttpConfig(uvicorn.Config):
    """uvicorn's configuration for a server of ``options``.

    Args:
        app: the application.
        options: the options of the server.
        overload: the application for connections beyond the limit.
        settings: settings of uvicorn.
    """

    def __init__(self, app: ASGIApp, options: ServeOptions, overload: Any, **settings: Any) -> None:
        settings = {"backlog": ACCEPTED, "timeout_keep_alive": options.keep_alive, "server_header": False, **settings}
        super().__init__(cast(Any, app), http=Connection, **settings)
        self.options, self.overload = options, overload
        self.max_connections = connections_within_files(options.max_connections)


class Connection(H11Protocol):
    """uvicorn's connection with deadlines for the phases in which the server waits for the client.

    A client has ``receive_time`` seconds to send a request, from the connection or the first byte to the end of the
    body. A client that receives nothing of its response has as long. There is no deadline while the server decodes.
    """

    config: HttpConfig

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.phase: Phase | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        count, limit = len(self.connections), self.config.max_connections
        if count > limit + SPARE:
            transport.abort()
        elif count > limit:
            self.app = self.config.overload
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._enter(None)

    def data_received(self, data: bytes) -> None:
        if self.refused:  # the rest of a refused request
            return
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch()

    def _watch(self) -> None:
        """Start the deadline of the connection's current phase."""
        if self.refused or self.transport.is_closing() or self.flow.write_paused:
            self._enter("sending")
        else:
            idle = self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]
            waiting = self.conn.their_state in ({h11.SEND_BODY} if idle else {h11.IDLE, h11.SEND_BODY})
            self._enter("receiving" if waiting else None)

    def _enter(self, phase: Phase | None) -> None:
        """Enter a phase and start its deadline.

        A phase that continues keeps its deadline, however slowly bytes arrive.
        """
        if phase == self.phase:
            return
        if self.deadline is not None:
            self.deadline.cancel()
        self.phase, self.deadline = phase, None
        if phase is not None:
            on_timeout = self._refuse if phase == "receiving" else self.transport.abort
            self.deadline = self.loop.call_later(self.config.options.receive_time, on_timeout)

    def _refuse(self) -> None:
        """Close the connection; first answer 408 if a part of a request has arrived and no response has begun."""
        if self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0]):
            limit = self.config.options.receive_time
            self._answer(
                ApiError(
                    408,
                    f"the request did not arrive within {limit:g} s; send it faster, or start the server with a larger "
                    "--receive-time",
                    code="receive_time",
                )
            )
        else:
            self.transport.close()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, in the form of all errors."""
        self._answer(ApiError(400, "the request is not HTTP/1.1; check the client, and proxies", code="invalid_http"))

    def _answer(self, error: ApiError) -> None:
        """Close the connection; first answer with ``error`` if no response has begun.

        A connection that is closed with unread bytes is reset, and the client may lose the response. Therefore the
        server reads until the client closes the connection or the deadline ends.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(error.body).encode()
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            response = h11.Response(status_code=error.status, headers=headers)
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.refused = True
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()
        self._watch()


def connections_within_files(limit: int) -> int:
    """Return the number of connections that the process may open, at most ``limit``.

    If it is less than ``limit``, a line on standard error reports it.
    """
    try:
        import resource
    except ImportError:  # this system has no such limit
        return limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    required = limit + SPARE + ACCEPTED + FILES
    if soft != resource.RLIM_INFINITY and soft < required:
        raised = required if hard == resource.RLIM_INFINITY else min(required, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    available = limit if soft == resource.RLIM_INFINITY else max(1, soft - SPARE - ACCEPTED - FILES)
    if available < limit:
        reason = f"the process may open only {soft} files; raise `ulimit -n`"
        print(f"specpilot: at most {available} connections, because {reason}", file=sys.stderr)
    return min(limit, available)


def limit_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Report at most once a minute that connections cannot be accepted. asyncio prints a traceback each time."""
    last_line = -QUIET

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last_line
        if "socket.accept()" not in context["message"]:
            loop.default_exception_handler(context)
        elif time.monotonic() - last_line >= QUIET:
            last_line = time.monotonic()
            print(
                f"specpilot: no connection can be accepted: {context['exception']}; raise `ulimit -n`", file=sys.stderr
            )

    loop.set_exception_handler(handle)
