"""What a server answers before it can decode: 503 to every request, with the reason."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

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
