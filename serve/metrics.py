"""Prometheus metrics with vLLM's names and the prefix ``specpilot:``, and the speculation report of a response."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..common.json_file import JsonObject
from ..controllers.length import MAX_DRAFT
from ..infer.core import Generation

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"specpilot:{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"specpilot:{name}", text, buckets=buckets, registry=self.registry)

        self.requests = counter("request_success", "Finished texts.", ("finished_reason",))
        self.refused = counter("request_refused", "Refused requests, by HTTP status.", ("status",))
        self.cancelled = counter("request_cancelled", "Texts whose client disconnected or whose time limit passed.")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = counter("generation_tokens", "Generated tokens.")
        self.drafts = counter("spec_decode_num_drafts", "Rounds with drafted tokens.")
        self.draft_tokens = counter("spec_decode_num_draft_tokens", "Drafted tokens.")
        self.accepted_tokens = counter("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
        self.accepted_per_position = counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by their position in the draft.", ("position",)
        )
        self.logged = counter("logged_texts", "Texts written to --log-rounds.")
        self.running = Gauge("specpilot:num_requests_running", "Texts that are being decoded.", registry=self.registry)
        self.waiting = Gauge("specpilot:num_requests_waiting", "Texts that wait to be decoded.", registry=self.registry)
        self.first_token = histogram("time_to_first_token_seconds", "Seconds until the first token of a text.", SECONDS)
        self.token = histogram("inter_token_latency_seconds", "Seconds between tokens of a text, on average.", SHORT)
        self.request_seconds = histogram("e2e_request_latency_seconds", "Seconds until the end of a text.", SECONDS)
        for position in range(MAX_DRAFT):
            self.accepted_per_position.labels(position=position)

    def finished(self, generation: Generation, reason: str, first: float, total: float) -> None:
        """Count a finished text.

        Args:
            generation: the text with its rounds.
            reason: the finish reason.
            first, total: seconds until the first and until the last token.
        """
        report = speculation_report([generation])
        self.requests.labels(finished_reason=reason).inc()
        self.prompt_tokens.inc(len(generation.prompt_tokens))
        self.generation_tokens.inc(len(generation.tokens))
        self.drafts.inc(report["num_drafts"])
        self.draft_tokens.inc(report["num_draft_tokens"])
        self.accepted_tokens.inc(report["num_accepted_tokens"])
        for position, count in enumerate(accepted_by_position([generation])):
            self.accepted_per_position.labels(position=position).inc(count)
        self.first_token.observe(first)
        self.request_seconds.observe(total)
        if len(generation.tokens) > 1:
            self.token.observe((total - first) / (len(generation.tokens) - 1))


def accepted_by_position(generations: Iterable[Generation]) -> list[int]:
    """Return the numbers of drafts whose first, second, … token was accepted."""
    counts: list[int] = []
    for generation in generations:
        for round in generation.rounds:
            counts += [0] * (round.accepted - len(counts))
            for position in range(round.accepted):
                counts[position] += 1
    return counts


def speculation_report(generations: list[Generation]) -> JsonObject:
    """Return ``metrics.speculative_decoding`` of a response, with vLLM's field names."""
    drafts = [round for generation in generations for round in generation.rounds if round.drafted]
    drafted, accepted = sum(len(round.drafted) for round in drafts), sum(round.accepted for round in drafts)
    return {
        "num_drafts": len(drafts),
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "mean_acceptance_length": 1.0 + accepted / len(drafts) if drafts else 1.0,
        "per_step_accepted": [round.accepted for round in drafts],
        "num_accepted_tokens_per_pos": accepted_by_position(generations),
    }
