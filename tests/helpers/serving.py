"""A server in a thread of the tests, on a port of its own."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.serve.options import ServeOptions
from specpilot.serve.round_log import RoundLog
from specpilot.serve.run import http_config
from specpilot.serve.server import Server

PATIENCE = 30.0  # seconds until something that must happen counts as missing


def wait_until(done: Callable[[], bool]) -> None:
    """Wait until ``done()`` returns true."""
    end = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.005)


@contextmanager
def serving(
    decoder: SpeculativeDecoder,
    *,
    log: RoundLog | None = None,
    **options: Any,
) -> Iterator[tuple[Server, str]]:
    """Yield a running server with ``options`` of ``specpilot serve``, and its address."""
    server = Server(decoder, ServeOptions(**{"target": "tiny", "max_body": 1 << 20, **options}), log)
    listener = socket.create_server(("127.0.0.1", 0))
    # No logging configuration: to install one closes all handlers, and that of absl closes the stream it writes to.
    settings = http_config(server, log_config=None, log_level="warning", timeout_graceful_shutdown=5)
    http = uvicorn.Server(settings)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: http.started)
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        http.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive()
