"""Runs a server: 503 to every request while it loads, then the application under uvicorn until a signal ends it."""

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
from .connections import HttpConfig, quieten
from .server import Server

PATIENCE = 1.0  # seconds that a client has to send its request
TURN = 0.1  # seconds between two looks at whether the server is ready


@contextmanager
def answering(listener: socket.socket) -> Iterator[Callable[[str], None]]:
    """Answer requests on ``listener`` with 503 while the block runs; yields what is called with every new reason.

    Each reason also goes to standard error. Clients that connect at the end are left to the server.
    """
    reason, ready = ["the models are being loaded"], Event()

    def say(text: str) -> None:
        reason[0] = text
        print(f"specpilot: {text}", file=sys.stderr, flush=True)

    def answer() -> None:
        while not ready.is_set():
            with suppress(OSError):  # TimeoutError: nobody came; others: the client left
                client, _ = listener.accept()
                with client:
                    client.settimeout(PATIENCE)
                    client.recv(1 << 16)
                    client.sendall(response(reason[0]))

    listener.settimeout(TURN)
    thread = Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield say
    finally:
        ready.set()
        thread.join()
        listener.settimeout(None)


def response(reason: str) -> bytes:
    """The whole HTTP response."""
    body = json.dumps({"status": "starting", "reason": reason}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


WAITING = 1024  # connections that may wait to be accepted
SWITCH_INTERVAL = 0.001  # seconds that a thread may keep the interpreter: the decoder waits for the event loop


def http_config(server: Server, **settings: Any) -> HttpConfig:
    """uvicorn's configuration for the application of ``server``; ``settings`` are uvicorn's own.

    Raises:
        InputError: the key is one that no client can send.
    """
    app = create_app(server)
    return HttpConfig(app, server.options, Overload(app, server), **settings)


def run_server(server: Server, listener: socket.socket) -> None:
    """Serve on ``listener`` until SIGINT or SIGTERM; SIGHUP loads the controller again.

    What was accepted is finished first.
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
    shown = f"[{host}]" if ":" in host else host
    _Http(config, server, f"http://{shown}:{port}").run(sockets=[listener])


class _Http(uvicorn.Server):
    """uvicorn with signals of ours: SIGINT and SIGTERM end it with exit code 0, SIGHUP loads the controller again."""

    def __init__(self, config: uvicorn.Config, server: Server, address: str) -> None:
        super().__init__(config)
        self.server, self.address = server, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        quieten(asyncio.get_running_loop())
        for listener in sockets or []:
            listener.listen(WAITING)
        self.server.print_plan()
        print(f"specpilot: serving {self.server.options.name!r} on {self.address}", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        worker = self.server.worker
        running = worker.running + worker.waiting
        print(f"specpilot: shutting down; requests finished first: {running}", file=sys.stderr, flush=True)
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
