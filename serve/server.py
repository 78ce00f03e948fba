"""A decoder, its worker, and what is kept beside them: metrics, logged rounds, the router's state."""

from __future__ import annotations

import sys
import threading

from ..common.errors import InputError
from ..common.json_file import JsonObject
from ..controllers.length import LengthController
from ..controllers.length.priced import PricedController
from ..infer.core import Request
from ..infer.decoder import SpeculativeDecoder
from .errors import ApiError
from .metrics import Metrics
from .options import ServeOptions
from .round_log import RoundLog
from .service import Service
from .worker import Worker

WARM_UP = 32  # tokens decoded before the first request


class Server:
    """Everything of the server but HTTP."""

    def __init__(self, decoder: SpeculativeDecoder, options: ServeOptions, log: RoundLog | None = None) -> None:
        self.decoder, self.options, self.log = decoder, options, log
        self.metrics = Metrics()
        self.worker = Worker(decoder.scheduler, options.max_queue)
        self.service = Service(decoder, options.name, self.worker, self.metrics, options.time_limit, self._finished)
        self.reloads = 0
        self._reloading = threading.Lock()

    def warm_up(self) -> None:
        """Decode a little, so that the first request does not wait for what is made on first use."""
        self.decoder.generate([0] * 8, max_new_tokens=WARM_UP, temperature=1.0, top_k=50, top_p=1.0)

    def print_plan(self) -> None:
        """Write how requests are decoded to standard error."""
        for line in self.decoder.plan.describe().splitlines():
            print(f"specpilot: {line}", file=sys.stderr)

    def stop(self) -> None:
        """Finish what was accepted, then write what is not yet written."""
        self.worker.stop()
        if self.log is not None:
            self.log.close()

    def _finished(self, request: Request) -> None:
        """In the event loop, after every text."""
        if self.log is not None and self.log.add(request):
            self.metrics.logged.inc()

    def model_card(self) -> JsonObject:
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

    def controller_card(self) -> JsonObject:
        """The controller that new requests get."""
        length = self.decoder.length
        card: JsonObject = {
            "object": "controller",
            "name": self.options.controller,
            "kind": type(length).__name__,
            "reloads": self.reloads,
        }
        if isinstance(length, PricedController) and length.cost is not None:
            card["cost"] = length.cost.to_dict()
        return card

    def reload(self) -> JsonObject:
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
            self.decoder.use_length(length)
            self.reloads += 1
        return self.controller_card()

    def _load(self, name: str) -> LengthController:
        current, threshold = self.decoder.length, self.options.threshold
        if not isinstance(current, PricedController):
            return self.decoder.load_length(name, threshold=threshold)
        length = self.decoder.load_length(name, threshold=threshold, cost=current.cost)
        return length.repriced(adapt=current.running is not None)

    def reload_and_report(self) -> None:
        """For a signal: what came of it goes to standard error."""
        try:
            card = self.reload()
            print(f"specpilot: controller {card['name']!r} loaded again", file=sys.stderr)
        except ApiError as error:
            print("specpilot: error:", error.message, file=sys.stderr)
