"""Options of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ..common.options import Count, File, Folder, Names, Natural, Positive, Range, Several, Share
from ..infer.options import DraftPrecisionOptions, LoadingOptions, PlacementOptions, TargetOptions


@dataclass(frozen=True, kw_only=True)
class ServeOptions(TargetOptions, PlacementOptions, LoadingOptions, DraftPrecisionOptions):
    """Server.

    Attributes:
        draft: The model that proposes tokens; as for `specpilot generate`.
        length: What ends a draft: a number of tokens, a controller checkpoint, or a rule; as for `specpilot generate`.
        router: Trained router, which chooses between several drafts; as for `specpilot generate`.
        sample_arm: Draw the arm from the router's policy instead of taking its most likely one.
        router_state: File that keeps what the router learns while it serves; without it a router does not learn.
        threshold: Stopping threshold of a trained controller.
        cost: What a token costs: as for `specpilot generate`. A file of `specpilot bench cost --batch` has the costs by
            the number of requests; "auto" measures them when the server starts.
        copies: Trained copy head for n-gram drafts; as for `specpilot generate`.
        verifier: Verification rule of chains: token-wise, block, typical or bild.
        generation_config: What is done with the target's generation_config: follow or ignore.
        revision: Branch, tag or commit of the target on the hub.
        host: Address to listen on; 0.0.0.0 accepts connections from other machines.
        port: Port to listen on; 0 takes a free one.
        api_key: Key that clients must send for everything but /health; by default that of the environment variable
            SPECPILOT_API_KEY, if it is set.
        allow_origins: Origins of web pages that may call the server from a browser, such as https://example.org.
        served_model_name: Name of the model in the API; the target's if not given.
        max_running: Texts decoded together.
        max_queue: Texts that may wait for a place; beyond it clients get 429.
        time_limit: Seconds a request may take.
        max_body: Bytes of a request's body.
        drain: Seconds that running requests have to finish after SIGTERM.
        log_rounds: Folder that gets served rounds as a dataset for `specpilot train acceptance`. It contains prompts
            and texts.
    """

    draft: Annotated[str | tuple[str, ...], Several()] | None = "auto"
    length: Annotated[int | str | tuple[int | str, ...], Several(distinct=False)] | None = None
    router: str | None = None
    sample_arm: bool = False
    router_state: File | None = None
    threshold: Share | None = None
    cost: str | float | None = None
    copies: str | None = None
    verifier: str = "token-wise"
    generation_config: Literal["follow", "ignore"] = "follow"
    revision: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65535)] = 8000
    api_key: str | None = None
    allow_origins: Names | None = None
    served_model_name: str | None = None
    max_running: Annotated[int, Range(1, 4096)] = 64
    max_queue: Natural = 256
    time_limit: Positive = 600.0
    max_body: Count = 4 << 20
    drain: Positive = 60.0
    log_rounds: Folder | None = None

    @property
    def drafts(self) -> str | tuple[str, ...] | None:
        """The names to load; None where there are none, or a router brings its own."""
        return self.draft if self.draft != "auto" else None if self.router is not None else "tiny-draft"
