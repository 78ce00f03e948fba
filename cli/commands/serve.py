"""`specpilot serve`: an OpenAI-compatible server over one decoder."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...common.errors import InputError, optional_import
from ...serve.options import ServeOptions

if TYPE_CHECKING:
    from ...infer.decoder import SpeculativeDecoder
    from ...serve.round_log import RoundLog
    from ...serve.server import Server


def serve(options: ServeOptions) -> None:
    """Serve a pair over OpenAI's API, with metrics and a page."""
    options.resolve_key()  # refused before seconds of loading
    listener = _listen(options.host, options.port)
    with optional_import("serve"):
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    from ...common.machine import limit_memory

    limit_memory()
    from ...serve.run import answering, run_server
    from ...serve.worker import in_own_thread

    with answering(listener) as say:
        server = in_own_thread(lambda: _prepared(options, say))
    run_server(server, listener)


def _prepared(options: ServeOptions, say: Callable[[str], None]) -> Server:
    """A server with its models loaded; ``say`` is told what takes time."""
    from ...common.console import quiet, said_at_the_end
    from ...infer.decoder import SpeculativeDecoder
    from ...infer.plan import with_models
    from ...serve.server import Server

    quiet(detailed=True)  # how costs were decided on, too
    options = with_models(options)
    with said_at_the_end():
        decoder = SpeculativeDecoder.from_options(options)
        log = _round_log(options, decoder)
    say("a first text is decoded to warm up")
    server = Server(decoder, options, log)
    server.warm_up()
    gc.collect()
    gc.freeze()  # what is loaded stays; looking through it takes a quarter of a second
    return server


def _round_log(options: ServeOptions, decoder: SpeculativeDecoder) -> RoundLog | None:
    if options.log_rounds is None:
        return None
    from ...serve.round_log import RoundLog

    if not isinstance(options.draft, str):
        raise InputError("log_rounds: needs one draft model; leave it out")
    return RoundLog(options.log_rounds, decoder, str(options.target), options.draft)


def _listen(host: str, port: int) -> socket.socket:
    """The socket to serve on.

    Raises:
        InputError: the port is taken, or the address is not one of this machine.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        raise InputError(f"port={port}, host={host!r}: {error.strerror}; choose another") from None
    return listener
