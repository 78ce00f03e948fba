"""Runs a server: it answers 503 while models are loaded, then serves the application by uvicorn until a signal."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

import uvicorn

from .app import Overload, create_app
from .connections import HttpConfig, limit_accept_errors
from .server import Server

PATIENCE = 1.0  # seconds that a client has to send its request
TURN = 0.1  # seconds between two checks whether the server is ready


@contextmanager
def answering(listener: socket.socket) -> Iterator[Callable[[str], None]]:
    """Answer requests on ``listener`` with 503 while the block runs.

    Yields a function that sets the reason in the answers; the reason is also printed to standard error. Clients that
    connect when the block ends are left to the server.
    """
    reason, ready = ["the models are being loaded"], Event()

    def set_reason(text: str) -> None:
        reason[0] = text
        print(f"specpilot: {text}", file=sys.stderr, flush=True)

    def answer() -> None:
        while not ready.is_set():
            with suppress(OSError):  # TimeoutError: no client connected; others: the client disconnected
                client, _ = listener.accept()
                with client:
                    client.settimeout(PATIENCE)
                    client.recv(1 << 16)
                    client.sendall(response(reason[0]))

    listener.settimeout(TURN)
    thread = Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield set_reason
    finally:
        ready.set()
        thread.join()
        listener.settimeout(None)


def response(reason: str) -> bytes:
    """Return the bytes of an HTTP response with status 503 and the reason."""
    body = json.dumps({"status": "starting", "reason": reason}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


WAITING = 1024  # connections that may wait to be accepted
SWITCH_INTERVAL = 0.001  # seconds that a thread may keep the interpreter: the decoder waits for the event loop


def http_config(server: Server, **settings: Any) -> HttpConfig:
    """Return uvicorn's configuration for the application of ``server``.

    Args:
        settings: settings of uvicorn.

    Raises:
        InputError: no client can send the key.
    """
    app = create_app(server)
    return HttpConfig(app, server.options, Overload(app, server), **settings)


def run_server(server: Server, listener: socket.socket) -> None:
    """Serve on ``listener`` until SIGINT or SIGTERM, and reload the controller on SIGHUP.

    Accepted requests are finished before the server stops.
    """
    drain = max(1, round(server.options.drain))  # seconds that running requests have to finish after the signal
    config = http_config(
        server,
        log_level="info" if server.options.log_requests else "error",
        access_log=server.options.log_requests,
        timeout_graceful_shutdown=drain,
    )
    sys.setswitchinterval(SWITCH_INTERVAL)
    host, port = listener.getsockname()[:2]
    host_text = f"[{host}]" if ":" in host else host
    _Http(config, server, f"http://{host_text}:{port}").run(sockets=[listener])


class _Http(uvicorn.Server):
    """uvicorn with other signals: SIGINT and SIGTERM end it with exit code 0, SIGHUP reloads the controller."""

    def __init__(self, config: uvicorn.Config, server: Server, address: str) -> None:
        super().__init__(config)
        self.server, self.address = server, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        limit_accept_errors(asyncio.get_running_loop())
        for listener in sockets or []:
            listener.listen(WAITING)
        self.server.print_plan()
        print(f"specpilot: serving {self.server.options.name!r} on {self.address}", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        worker = self.server.worker
        running = worker.running + worker.waiting
        print(
            f"specpilot: shutting down after {running} requests that are still running or waiting",
            file=sys.stderr,
            flush=True,
        )
        await super().shutdown(sockets)
        print("specpilot: stopped", file=sys.stderr, flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        handlers = {
            signal.SIGINT: self.handle_exit,
            signal.SIGTERM: self.handle_exit,
            signal.SIGHUP: lambda *_: threading.Thread(target=self.server.reload_and_report).start(),
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
