"""The parts of a server besides HTTP: decoder, worker, service, metrics and logged rounds."""

from __future__ import annotations

import sys
import threading

from ..common.errors import InputError
from ..common.json_file import JsonObject
from ..controllers.length import LengthController
from ..controllers.length.cost_based import CostBasedController
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
    """A server without HTTP: it decodes requests in a thread, logs their rounds, and reloads the controller.

    Args:
        decoder: the decoder.
        options: the options of the server.
        log: the log of rounds; None without one.
    """

    def __init__(self, decoder: SpeculativeDecoder, options: ServeOptions, log: RoundLog | None = None) -> None:
        self.decoder, self.options, self.log = decoder, options, log
        self.metrics = Metrics()
        self.worker = Worker(decoder.scheduler, options.max_queue)
        self.service = Service(decoder, options.name, self.worker, self.metrics, options.time_limit, self._finished)
        self.reloads = 0
        self._reloading = threading.Lock()

    def warm_up(self) -> None:
        """Decode a short text, so that the first request does not wait for objects that are created on first use."""
        self.decoder.generate([0] * 8, max_new_tokens=WARM_UP, temperature=1.0, top_k=50, top_p=1.0)

    def print_plan(self) -> None:
        """Print the plan of the decoder to standard error."""
        for line in self.decoder.plan.describe().splitlines():
            print(f"specpilot: {line}", file=sys.stderr)

    def stop(self) -> None:
        """Finish accepted requests, then write the remaining rounds."""
        self.worker.stop()
        if self.log is not None:
            self.log.close()

    def _finished(self, request: Request) -> None:
        """Log a finished text; called in the event loop."""
        if self.log is not None and self.log.add(request):
            self.metrics.logged.inc()

    def model_card(self) -> JsonObject:
        """Return the entry of the model at ``/v1/models``."""
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
        """Return a description of the controller of new requests."""
        length = self.decoder.length
        card: JsonObject = {
            "object": "controller",
            "name": self.options.controller,
            "kind": type(length).__name__,
            "reloads": self.reloads,
        }
        if isinstance(length, CostBasedController) and length.cost is not None:
            card["cost"] = length.cost.to_dict()
        return card

    def reload(self) -> JsonObject:
        """Reload the controller by its name. Running requests keep their controller.

        Returns:
            The description of the new controller.

        Raises:
            ApiError: 409 if no controller is named, or the controller cannot be loaded or is of another pair.
        """
        name = self.options.controller
        if name is None or self.decoder.routing is not None:
            raise ApiError(
                409,
                "controller: the server was started without a controller in --length, so there is nothing to reload",
            )
        with self._reloading:
            try:
                length = self._load(name)
            except InputError as error:
                raise ApiError(409, f"{error}; the server keeps its controller") from None
            self.decoder.use_length(length)
            self.reloads += 1
        return self.controller_card()

    def _load(self, name: str) -> LengthController:
        """Return the controller ``name`` with the threshold and the costs of the current controller."""
        current, threshold = self.decoder.length, self.options.threshold
        if not isinstance(current, CostBasedController):
            return self.decoder.load_length(name, threshold=threshold)
        length = self.decoder.load_length(name, threshold=threshold, cost=current.cost)
        return length.with_costs(adapt=current.running is not None)

    def reload_and_report(self) -> None:
        """Reload the controller after a signal, and print the result to standard error."""
        try:
            card = self.reload()
            print(f"specpilot: controller {card['name']!r} reloaded", file=sys.stderr)
        except ApiError as error:
            print("specpilot: error:", error.message, file=sys.stderr)
