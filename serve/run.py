"""Runs the application under uvicorn until a signal ends it."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from .app import create_app
from .server import Server

SWITCH_INTERVAL = 0.001  # seconds that a thread may keep the interpreter: the decoder waits for the event loop


def run_server(server: Server, listener: socket.socket) -> None:
    """Serve on ``listener`` until SIGINT or SIGTERM; SIGHUP loads the controller again.

    What was accepted is finished first.
    """
    drain = max(1, round(server.options.drain))  # seconds that running requests have to finish after the signal
    config = uvicorn.Config(
        create_app(server),
        log_level="info" if server.options.log_requests else "error",
        access_log=server.options.log_requests,
        timeout_graceful_shutdown=drain,
        server_header=False,
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
        print(f"specpilot: serving {self.server.options.name!r} on {self.address}", file=sys.stderr, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        worker = self.server.worker
        running = worker.running + worker.waiting
        print(f"specpilot: shutting down; {running} requests are finished first", file=sys.stderr, flush=True)
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
