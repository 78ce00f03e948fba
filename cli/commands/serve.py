"""`specpilot serve`: an OpenAI-compatible server for a decoder."""

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
    options.resolve_key()  # refuses a wrong key before the models are loaded
    listener = _listen(options.host, options.port)
    with optional_import("serve"):
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    from ...common.machine import limit_memory

    limit_memory()
    from ...serve.run import answering, run_server
    from ...serve.worker import in_own_thread

    with answering(listener) as set_reason:
        server = in_own_thread(lambda: _prepared(options, set_reason))
    run_server(server, listener)


def _prepared(options: ServeOptions, set_reason: Callable[[str], None]) -> Server:
    """Return a server with loaded models.

    Args:
        set_reason: sets the reason why the server is not ready yet.
    """
    from ...common.console import log_at_end, quiet
    from ...infer.decoder import SpeculativeDecoder
    from ...infer.plan import with_models
    from ...serve.server import Server

    quiet(detailed=True)  # also show decisions about costs
    options = with_models(options)
    with log_at_end():
        decoder = SpeculativeDecoder.from_options(options)
        log = _round_log(options, decoder)
    set_reason("a first text is decoded to warm up")
    server = Server(decoder, options, log)
    server.warm_up()
    gc.collect()
    gc.freeze()  # loaded objects stay; a collection that visits them takes a quarter of a second
    return server


def _round_log(options: ServeOptions, decoder: SpeculativeDecoder) -> RoundLog | None:
    """Return the log of rounds that the options name; None without one.

    Raises:
        InputError: the decoder has no draft model.
    """
    if options.log_rounds is None:
        return None
    from ...serve.round_log import RoundLog

    if not isinstance(options.draft, str):
        raise InputError("log_rounds: needs one draft model; leave it out, or name a draft model")
    return RoundLog(options.log_rounds, decoder, str(options.target), options.draft)


def _listen(host: str, port: int) -> socket.socket:
    """Return the socket to serve on.

    Raises:
        InputError: the port is taken, or this machine does not have the address.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        raise InputError(f"port={port}, host={host!r}: {error.strerror}; choose another port or host") from None
    return listener
