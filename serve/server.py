"""A decoder, its worker, and what is kept beside them: metrics, logged rounds, the router's state."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from ..controllers.length import LengthController
from ..controllers.length.cost_model import BatchCosts
from ..controllers.length.priced import PricedController
from ..controllers.router import OnlineRouter, PolicyRouter
from ..infer.decoder import SpeculativeDecoder
from ..infer.request import Request
from .errors import ApiError
from .metrics import Metrics
from .options import ServeOptions
from .round_log import RoundLog
from .service import Service
from .worker import Worker

WARM_UP = 32  # tokens decoded before the first request
SAVE_EVERY = 256  # finished texts between two saves of a router's state


class Server:
    """Everything of the server but HTTP."""

    def __init__(self, decoder: SpeculativeDecoder, options: ServeOptions, log: RoundLog | None = None) -> None:
        self.decoder, self.options, self.log = decoder, options, log
        self.metrics = Metrics()
        self.worker = Worker(decoder.scheduler, options.max_queue)
        self.service = Service(decoder, options.name, self.worker, self.metrics, options.time_limit, self._finished)
        self.reloads = 0
        self._reloading = threading.Lock()
        self._unsaved = 0
        if options.router_state is not None:
            learn_online(decoder, options.router_state)

    def warm_up(self) -> None:
        """Decode a little, so that the first request does not wait for what is made on first use."""
        self.decoder.generate([0] * 8, max_new_tokens=WARM_UP, temperature=1.0, top_k=50, top_p=1.0)

    def stop(self) -> None:
        """Finish what was accepted, then write what is not yet written."""
        self.worker.stop()
        if self.log is not None:
            self.log.close()
        self._save_router()

    def _finished(self, request: Request) -> None:
        """In the event loop, after every text."""
        if self.log is not None and self.log.add(request):
            self.metrics.logged.inc()
        self._unsaved += 1
        if self._unsaved >= SAVE_EVERY:
            self._save_router()

    def _save_router(self) -> None:
        routing = self.decoder.routing
        if self.options.router_state is not None and routing is not None and isinstance(routing.router, OnlineRouter):
            try:
                routing.router.save(self.options.router_state)
            except InputError as error:  # what was decoded is answered all the same
                print("specpilot: error:", error, file=sys.stderr, flush=True)
        self._unsaved = 0

    def model_card(self) -> dict[str, Any]:
        """``/v1/models``'s entry."""
        service = self.service
        return {
            "id": service.name,
            "object": "model",
            "created": service.created,
            "owned_by": "specpilot",
            "max_model_len": self.decoder.context,
            "chat_template": service.tokenizer.chat_template is not None,
        }

    def controller_card(self) -> dict[str, Any]:
        """The controller that new requests get."""
        length = self.decoder.length
        card: dict[str, Any] = {
            "object": "controller",
            "name": self.options.controller,
            "kind": type(length).__name__,
            "reloads": self.reloads,
        }
        if isinstance(length, PricedController) and length.cost is not None:
            card["cost"] = length.cost.as_dict()
            card["batch"] = None if length.batch is None else length.batch.as_dict()
        return card

    def reload(self) -> dict[str, Any]:
        """Load the controller again by its name; requests that are being decoded keep the one they began with.

        Raises:
            ApiError: 409: there is none to reload, it cannot be loaded, or it is one of another pair.
        """
        name = self.options.controller
        if name is None or self.decoder.routing is not None:
            raise ApiError(409, "controller: none was named with --length; nothing to reload")
        with self._reloading:
            try:
                length = self._load(name)
            except InputError as error:
                raise ApiError(409, f"{error}; the controller in use stays") from None
            self.decoder.config = replace(self.decoder.config, length=length)
            self.reloads += 1
        return self.controller_card()

    def _load(self, name: str) -> LengthController:
        current, threshold = self.decoder.config.length, self.options.threshold
        if not isinstance(current, PricedController):
            return self.decoder.load_length(name, threshold=threshold)
        length = self.decoder.load_length(name, threshold=threshold, cost=current.cost)
        return length.repriced(adapt=current.running is not None, batch=current.batch)

    def reload_and_report(self) -> None:
        """For a signal: what came of it goes to standard error."""
        try:
            card = self.reload()
            print(f"specpilot: controller {card['name']!r} loaded again", file=sys.stderr)
        except ApiError as error:
            print("specpilot: error:", error.message, file=sys.stderr)


def drafting_by_load(decoder: SpeculativeDecoder, cost: str | float | None) -> None:
    """Let a controller of chains go by how many requests share a round, as a file of costs by their number says.

    Costs that adapt do without one.

    Args:
        cost: such a file, of ``specpilot bench cost --batch``, or anything else.

    Raises:
        InputError: the file is damaged.
    """
    length = decoder.length
    priced = isinstance(length, PricedController) and length.cost is not None
    if not priced or decoder.config.tree is not None or not isinstance(cost, str) or not Path(cost).is_file():
        return
    batch = BatchCosts.load(cost)
    if batch is not None:
        decoder.config = replace(decoder.config, length=length.repriced(batch.at(1), batch=batch))


def learn_online(decoder: SpeculativeDecoder, state: Path) -> None:
    """Let the decoder's trained router go on learning, from ``state`` where that file exists.

    Raises:
        InputError: the file is damaged, or of another router.
    """
    routing = decoder.routing
    assert routing is not None
    if not isinstance(routing.router, PolicyRouter):
        raise InputError("router_state: only a trained router learns; leave it out")
    policy = routing.router
    routing.router = OnlineRouter.load(state, policy) if state.exists() else OnlineRouter(policy)
    decoder.scheduler.engine.router = routing.router
