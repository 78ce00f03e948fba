"""The drafter of a vLLM engine that length controllers steer: drafts of different lengths, one controller a request.

It replaces vLLM's ``DraftModelProposer`` in what a step does: the draft model reads what it has not read of the texts
that draft in this step, and then token after token until every controller has stopped. Texts whose controllers draft
nothing cost nothing; the draft model reads them when they draft again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from specpilot.controllers.length import LengthController
from specpilot.controllers.sampling import SamplingParams
from torch import Tensor
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.draft_model import DraftModelProposer

from .controllers import load_length, pair_fingerprint
from .drafted_request import DraftedRequest, Drawn, draw_as_requests, draw_as_vllm
from .round_log import VllmRoundLog, is_plain
from .settings import Settings, settings_of

REJECTED = -1  # in vLLM's sampled tokens


@dataclass(frozen=True)
class Read:
    """Tokens of one request that the draft model reads.

    Attributes:
        place: row of the request in the engine's batch.
        start: position of the first token.
        longest: number of tokens that may be drafted.
    """

    place: int
    request: DraftedRequest
    start: int
    tokens: list[int]
    longest: int

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class ControlledProposer(DraftModelProposer):  # type: ignore[misc]
    """vLLM's drafter with a draft model, steered by length controllers.

    Args:
        runner: the engine's model runner.
        sampling_works: whether vLLM verifies sampled drafts correctly; otherwise only greedy requests draft.

    Attributes:
        log: where rounds are logged.
        requests: the engine's requests by their ids, from their first step until vLLM releases them.
        steps: number of forwards of the draft model.
    """

    def __init__(self, runner: Any, settings: Settings, *, sampling_works: bool) -> None:
        super().__init__(runner.vllm_config, runner.device, runner)
        self.engine, self.settings, self.sampling_works = runner, settings, sampling_works
        self.requests: dict[str, DraftedRequest] = {}
        self.length: LengthController | None = None
        self.log: VllmRoundLog | None = None
        self.steps = 0

    def load_model(self, target_model: Any) -> None:
        super().load_model(target_model)
        pair = self.vllm_config.model_config.model, self.draft_model_config.model
        self.length = load_length(self.settings, *pair, self.device)
        if self.settings.log_rounds is not None:
            folder = Path(self.settings.log_rounds).expanduser()
            self.log = VllmRoundLog(folder, *pair, pair_fingerprint(*pair), self.max_model_len)

    def release(self, scheduler_output: Any) -> None:
        """Forget requests that are finished, and what was cached of those that were preempted."""
        for name in scheduler_output.finished_req_ids:
            request = self.requests.pop(name, None)
            if request is not None and self.log is not None:
                self.log.add(request)
        for name in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            if name in self.requests:
                self.requests[name].restart()

    def observe(self, metadata: Any, logits: Tensor) -> None:
        """Let the log of rounds take what the target makes of the drafts that are verified now."""
        if self.log is not None:
            found = [self.requests.get(name) for name in self.engine.input_batch.req_ids]
            self.log.observe([one if one is not None and one.logged else None for one in found], metadata, logits)

    def close(self) -> None:
        """Log the texts that have ended since vLLM last released some."""
        if self.log is not None:
            for request in self.requests.values():
                self.log.add(request)
            self.log.close()
            self.log = None

    def draft_probabilities(self, metadata: Any) -> Tensor | None:
        """(N, V) the distributions of the N drafted tokens that are verified now; None if all requests are greedy.

        A row of zeros rejects its token, and the target's own is drawn from the target's distribution: so are those
        verified that vLLM adds to keep its batches even.
        """
        batch = self.engine.input_batch
        if batch.sampling_metadata.all_greedy:
            return None
        metadata.draft_token_ids.clamp_(min=0)
        rows: list[Tensor] = []
        for name, count in zip(batch.req_ids, metadata.num_draft_tokens, strict=False):
            known = self.requests[name].rows[:count] if name in self.requests else []
            missing = count - len(known)
            rows += known
            if missing:
                rows.append(torch.zeros(missing, batch.vocab_size, device=self.device))
        return torch.cat(rows).contiguous() if rows else None

    def drafts(self, scheduler_output: Any, sampled: Tensor, metadata: Any, attention: Any) -> list[list[int]]:
        """The drafts of all requests of a step, by row; empty where nothing is drafted.

        Args:
            sampled: (B, K + 1) tokens that the target accepted or drew, -1 after them.
            metadata: vLLM's ``SpecDecodeMetadata`` of the step; None if nothing was verified.
            attention: vLLM's ``CommonAttentionMetadata`` of the step.
        """
        names = self.engine.input_batch.req_ids
        ready = self._verified(sampled.tolist(), metadata)
        reads = self._first_reads(ready, scheduler_output.num_spec_tokens_to_schedule)
        while reads:
            hidden = self._forward(reads, attention)
            for read in reads:
                read.request.read = max(read.request.read, min(read.end, len(read.request.text)))
            complete = [i for i, read in enumerate(reads) if read.end >= len(read.request.text)]
            if len(complete) < len(reads):
                reads, hidden = [reads[i] for i in complete], hidden[complete]
                if not reads:
                    break
            drawn = self._draw(reads, hidden)
            reads = [
                Read(read.place, read.request, read.end, [one.token], read.longest)
                for read, one in zip(reads, drawn, strict=True)
                if read.request.add(one, read.longest)
            ]
        return [list(self.requests[name].tokens) if name in self.requests else [] for name in names]

    def _verified(self, sampled: list[list[int]], metadata: Any) -> list[tuple[int, DraftedRequest]]:
        """Hand each request what was sampled for it; returns those whose prompts are read, and their rows."""
        batch, discarded = self.engine.input_batch, self.engine.discard_request_mask.np
        counts = [0] * len(sampled) if metadata is None else metadata.num_draft_tokens
        ready = []
        for place, (name, row) in enumerate(zip(batch.req_ids, sampled, strict=False)):
            request = self._request(name)
            if request is None:
                continue
            tokens = [] if discarded[place] else [token for token in row if REJECTED < token < batch.vocab_size]
            request.verified(counts[place], tokens)
            if tokens:
                ready.append((place, request))
        return ready

    def _request(self, name: str) -> DraftedRequest | None:
        """The state of the request ``name``; None if its text is not known as tokens."""
        known = self.engine.requests[name]
        request = self.requests.get(name)
        if request is not None and len(request.text) == known.num_tokens:
            return request
        params = known.sampling_params
        if known.prompt_token_ids is None or params is None:
            return None
        assert self.length is not None, "the model is loaded"
        text = [*known.prompt_token_ids, *known.output_token_ids]
        budget = min(self.max_model_len, known.num_prompt_tokens + (params.max_tokens or self.max_model_len))
        stop_tokens = {*(params.stop_token_ids or ()), *(() if params.eos_token_id is None else (params.eos_token_id,))}
        sampling = SamplingParams(params.temperature, params.top_k if params.top_k > 0 else None, params.top_p)
        if self.settings.drafts == "vllm":
            budget, stop_tokens = self.max_model_len, set()
        prompt, logged = known.num_prompt_tokens, self.log is not None and is_plain(known)
        request = DraftedRequest(
            text, self.length, sampling, budget, frozenset(stop_tokens), prompt=prompt, logged=logged
        )
        self.requests[name] = request
        return request

    def _first_reads(self, ready: Sequence[tuple[int, DraftedRequest]], limit: int) -> list[Read]:
        """What the draft model reads first: of requests that draft, the texts that it has not read."""
        reads, room = [], self.max_num_tokens
        for place, request in ready:
            longest = min(limit, request.budget - len(request.text) - 1)
            if longest < 1 or request.ended or not (self.sampling_works or request.sampling.temperature == 0):
                continue
            if room and request.start_round(len(ready)):
                tokens = request.text[request.read : request.read + room]
                room -= len(tokens)
                reads.append(Read(place, request, request.read, tokens, longest))
        return reads

    def _draw(self, reads: Sequence[Read], hidden: Tensor) -> list[Drawn]:
        """A token for each read, after the states ``hidden`` (B, d)."""
        logits = self.model.compute_logits(hidden)  # (B, V)
        metadata = self.engine.input_batch.sampling_metadata
        places = [read.place for read in reads]
        if self.settings.drafts == "vllm":
            return draw_as_vllm(logits, hidden, torch.tensor(places, device=self.device), metadata)
        generators = {
            row: metadata.generators[place] for row, place in enumerate(places) if place in metadata.generators
        }
        return draw_as_requests(logits, hidden, [read.request.sampling for read in reads], generators)

    def _forward(self, reads: Sequence[Read], attention: Any) -> Tensor:
        """(B, d) the draft model's last hidden states after ``reads``."""
        self.steps += 1
        places = np.array([read.place for read in reads])
        counts = np.array([len(read.tokens) for read in reads])
        starts = np.zeros(len(reads) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        total = int(starts[-1])
        ends = np.array([read.end for read in reads], dtype=np.int32)
        positions = np.arange(total) + np.repeat(ends - starts[1:], counts)
        blocks = self.engine.input_batch.block_table[self.kv_cache_gid].get_numpy_array()
        slots = blocks[np.repeat(places, counts), positions // self.block_size].astype(np.int64)
        slots = slots * self.block_size + positions % self.block_size
        mode, padded, across = self._determine_batch_execution_and_padding(total)
        self.input_ids[:total] = torch.tensor([token for read in reads for token in read.tokens], dtype=torch.int32)
        self.positions[:total] = torch.from_numpy(positions)
        query_start, lengths = torch.from_numpy(starts), torch.from_numpy(ends)
        slot_mapping = torch.from_numpy(slots).to(self.device)
        metadata = CommonAttentionMetadata(
            query_start_loc=query_start.to(self.device),
            query_start_loc_cpu=query_start,
            seq_lens=lengths.to(self.device),
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=len(reads),
            num_actual_tokens=total,
            max_query_len=int(counts.max()),
            max_seq_len=int(ends.max()),
            block_table_tensor=attention.block_table_tensor[torch.from_numpy(places).to(self.device)],
            slot_mapping=slot_mapping,
        )
        _, by_layer = self.build_per_group_and_layer_attn_metadata(metadata)
        with set_forward_context(
            by_layer,
            self.vllm_config,
            num_tokens=padded,
            num_tokens_across_dp=across,
            cudagraph_runtime_mode=mode,
            slot_mapping=self._get_slot_mapping(padded, slot_mapping),
        ):
            hidden: Tensor = self.model(
                input_ids=self.input_ids[:padded], positions=self.positions[:padded], inputs_embeds=None
            )
        last = torch.from_numpy(starts[1:] - 1).to(self.device)
        return hidden[last]


def control(runner: Any, *, sampling_works: bool = True) -> None:
    """Replace the drafter of ``runner``, a V1 model runner, and the methods that expect drafts of one length."""
    settings = settings_of(runner.vllm_config.additional_config, os.environ)
    assert settings is not None, "the worker is only named where there are settings"
    drafter = ControlledProposer(runner, settings, sampling_works=sampling_works)
    update_states, sample = runner._update_states, runner._sample

    def update_and_release(scheduler_output: Any) -> Any:
        drafter.release(scheduler_output)
        return update_states(scheduler_output)

    def sample_tokens(logits: Any, spec_decode_metadata: Any) -> Any:
        drafted = spec_decode_metadata is not None and any(spec_decode_metadata.num_draft_tokens)
        if drafted:
            drafter.observe(spec_decode_metadata, logits)
        return sample(logits, spec_decode_metadata if drafted else None)  # as without speculation

    def propose(
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> list[list[int]]:
        return drafter.drafts(scheduler_output, sampled_token_ids, spec_decode_metadata, common_attn_metadata)

    runner.drafter = drafter
    runner._update_states = update_and_release
    if settings.drafts == "request":
        runner._sample = sample_tokens
    runner.propose_draft_token_ids = propose
    runner._get_spec_decode_draft_probs = drafter.draft_probabilities
    runner._input_fits_in_drafter = lambda metadata: metadata is not None  # each draft is as long as fits


def close(worker: Any) -> None:
    """Let the drafter of a worker that shuts down, if it has one by now, write what it has to write."""
    drafter = getattr(getattr(worker, "model_runner", None), "drafter", None)
    if isinstance(drafter, ControlledProposer):
        drafter.close()
