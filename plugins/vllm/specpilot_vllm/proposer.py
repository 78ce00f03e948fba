"""The drafter of a vLLM engine with a length controller for each request, whose drafts have different lengths.

It replaces a step of vLLM's ``DraftModelProposer``. The draft model reads the unread tokens of all texts that draft in
this step, then one drafted token after another until every controller has stopped. A text without a draft costs
nothing; the draft model reads it when it drafts again.
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

REJECTED = -1  # marks rejected tokens in vLLM's sampled tokens


@dataclass(frozen=True)
class Read:
    """Tokens of a request that the draft model reads.

    Attributes:
        engine_row: row of the request in the engine's batch.
        request: the request.
        start: position of the first token.
        tokens: the tokens.
        longest: maximum number of tokens to draft.
    """

    engine_row: int
    request: DraftedRequest
    start: int
    tokens: list[int]
    longest: int

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)


class ControlledProposer(DraftModelProposer):  # type: ignore[misc]
    """vLLM's drafter with a draft model, in which length controllers end the drafts.

    Args:
        runner: the engine's model runner.
        settings: the plugin's settings.
        sampling_works: whether vLLM verifies sampled drafts correctly; otherwise only greedy requests draft.

    Attributes:
        length: the length controller from which those of requests are made; None before the models are loaded.
        log: log of the rounds; None without one.
        requests: the engine's requests by id, from their first step until vLLM releases them.
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
        """Load the draft model and the length controller, and open the log."""
        super().load_model(target_model)
        pair = self.vllm_config.model_config.model, self.draft_model_config.model
        self.length = load_length(self.settings, *pair, self.device)
        if self.settings.log_rounds is not None:
            folder = Path(self.settings.log_rounds).expanduser()
            self.log = VllmRoundLog(folder, *pair, pair_fingerprint(*pair), self.max_model_len)

    def release(self, scheduler_output: Any) -> None:
        """Remove finished requests, and restart preempted ones, whose cache is gone."""
        for name in scheduler_output.finished_req_ids:
            request = self.requests.pop(name, None)
            if request is not None and self.log is not None:
                self.log.add(request)
        for name in scheduler_output.scheduled_cached_reqs.resumed_req_ids:
            if name in self.requests:
                self.requests[name].restart()

    def observe(self, metadata: Any, logits: Tensor) -> None:
        """Pass the target's logits for the drafts of this step to the log of rounds."""
        if self.log is not None:
            requests = [self.requests.get(name) for name in self.engine.input_batch.req_ids]
            logged = [request if request is not None and request.logged else None for request in requests]
            self.log.observe(logged, metadata, logits)

    def close(self) -> None:
        """Log the remaining texts that have ended, and close the log."""
        if self.log is not None:
            for request in self.requests.values():
                self.log.add(request)
            self.log.close()
            self.log = None

    def draft_probabilities(self, metadata: Any) -> Tensor | None:
        """Return the distributions (N, V) of the N drafted tokens of this step; None if all requests are greedy.

        A row of zeros rejects its token, and a token is drawn from the target's distribution instead. Tokens that vLLM
        adds to keep its batches even have such rows.
        """
        batch = self.engine.input_batch
        if batch.sampling_metadata.all_greedy:
            return None
        metadata.draft_token_ids.clamp_(min=0)
        rows: list[Tensor] = []
        for name, count in zip(batch.req_ids, metadata.num_draft_tokens, strict=False):
            drawn = self.requests[name].rows[:count] if name in self.requests else []
            missing = count - len(drawn)
            rows += drawn
            if missing:
                rows.append(torch.zeros(missing, batch.vocab_size, device=self.device))
        return torch.cat(rows).contiguous() if rows else None

    def drafts(self, scheduler_output: Any, sampled: Tensor, metadata: Any, attention: Any) -> list[list[int]]:
        """Return the drafts of all requests of a step, by row; empty for requests without a draft.

        Args:
            scheduler_output: vLLM's ``SchedulerOutput`` of the step.
            sampled: tokens that the target accepted or drew (B, K + 1), and -1 after them.
            metadata: vLLM's ``SpecDecodeMetadata`` of the step; None if nothing was verified.
            attention: vLLM's ``CommonAttentionMetadata`` of the step.
        """
        names = self.engine.input_batch.req_ids
        drafting = self._verified(sampled.tolist(), metadata)
        reads = self._first_reads(drafting, scheduler_output.num_spec_tokens_to_schedule)
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
                Read(read.engine_row, read.request, read.end, [token.token], read.longest)
                for read, token in zip(reads, drawn, strict=True)
                if read.request.add(token, read.longest)
            ]
        return [list(self.requests[name].tokens) if name in self.requests else [] for name in names]

    def _verified(self, sampled: list[list[int]], metadata: Any) -> list[tuple[int, DraftedRequest]]:
        """Pass the sampled tokens to each request.

        Args:
            sampled: the tokens that the target accepted or drew for each row.
            metadata: vLLM's ``SpecDecodeMetadata`` of the step; None if nothing was verified.

        Returns:
            Rows and states of the requests whose prompts have been read.
        """
        batch, discarded = self.engine.input_batch, self.engine.discard_request_mask.np
        counts = [0] * len(sampled) if metadata is None else metadata.num_draft_tokens
        drafting = []
        for engine_row, (name, sampled_tokens) in enumerate(zip(batch.req_ids, sampled, strict=False)):
            request = self._request(name)
            if request is None:
                continue
            tokens = (
                []
                if discarded[engine_row]
                else [token for token in sampled_tokens if REJECTED < token < batch.vocab_size]
            )
            request.verified(counts[engine_row], tokens)
            if tokens:
                drafting.append((engine_row, request))
        return drafting

    def _request(self, name: str) -> DraftedRequest | None:
        """Return the state of the request ``name``; None if vLLM has no tokens of its prompt."""
        engine_request = self.engine.requests[name]
        request = self.requests.get(name)
        if request is not None and len(request.text) == engine_request.num_tokens:
            return request
        params = engine_request.sampling_params
        if engine_request.prompt_token_ids is None or params is None:
            return None
        assert self.length is not None, "the model is loaded"
        text = [*engine_request.prompt_token_ids, *engine_request.output_token_ids]
        budget = min(self.max_model_len, engine_request.num_prompt_tokens + (params.max_tokens or self.max_model_len))
        stop_tokens = {*(params.stop_token_ids or ()), *(() if params.eos_token_id is None else (params.eos_token_id,))}
        sampling = SamplingParams(params.temperature, params.top_k if params.top_k > 0 else None, params.top_p)
        if self.settings.drafts == "vllm":
            budget, stop_tokens = self.max_model_len, set()
        prompt, logged = engine_request.num_prompt_tokens, self.log is not None and is_plain(engine_request)
        request = DraftedRequest(
            text, self.length, sampling, budget, frozenset(stop_tokens), prompt=prompt, logged=logged
        )
        self.requests[name] = request
        return request

    def _first_reads(self, drafting: Sequence[tuple[int, DraftedRequest]], limit: int) -> list[Read]:
        """Return the first reads of the draft model: the unread texts of requests that draft."""
        reads, remaining = [], self.max_num_tokens
        for engine_row, request in drafting:
            longest = min(limit, request.budget - len(request.text) - 1)
            if longest < 1 or request.ended or not (self.sampling_works or request.sampling.temperature == 0):
                continue
            if remaining and request.start_round(len(drafting)):
                tokens = request.text[request.read : request.read + remaining]
                remaining -= len(tokens)
                reads.append(Read(engine_row, request, request.read, tokens, longest))
        return reads

    def _draw(self, reads: Sequence[Read], hidden: Tensor) -> list[Drawn]:
        """Return a drawn token for each read, after the states ``hidden`` (B, d)."""
        logits = self.model.compute_logits(hidden)  # (B, V)
        metadata = self.engine.input_batch.sampling_metadata
        engine_rows = [read.engine_row for read in reads]
        if self.settings.drafts == "vllm":
            return draw_as_vllm(logits, hidden, torch.tensor(engine_rows, device=self.device), metadata)
        generators = {
            row: metadata.generators[engine_row]
            for row, engine_row in enumerate(engine_rows)
            if engine_row in metadata.generators
        }
        return draw_as_requests(logits, hidden, [read.request.sampling for read in reads], generators)

    def _forward(self, reads: Sequence[Read], attention: Any) -> Tensor:
        """Return the draft model's last hidden states (B, d) after ``reads``."""
        self.steps += 1
        engine_rows = np.array([read.engine_row for read in reads])
        counts = np.array([len(read.tokens) for read in reads])
        starts = np.zeros(len(reads) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        total = int(starts[-1])
        ends = np.array([read.end for read in reads], dtype=np.int32)
        positions = np.arange(total) + np.repeat(ends - starts[1:], counts)
        blocks = self.engine.input_batch.block_table[self.kv_cache_gid].get_numpy_array()
        slots = blocks[np.repeat(engine_rows, counts), positions // self.block_size].astype(np.int64)
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
            block_table_tensor=attention.block_table_tensor[torch.from_numpy(engine_rows).to(self.device)],
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
    """Replace the drafter of ``runner``, a V1 model runner, and its methods that expect drafts of equal length."""
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
        return sample(
            logits, spec_decode_metadata if drafted else None
        )  # without drafted tokens as without speculation

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
    runner._input_fits_in_drafter = lambda metadata: metadata is not None  # drafts end where the cache ends


def close(worker: Any) -> None:
    """Close the drafter of a worker that shuts down, if it has one."""
    drafter = getattr(getattr(worker, "model_runner", None), "drafter", None)
    if isinstance(drafter, ControlledProposer):
        drafter.close()
