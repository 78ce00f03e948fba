"""A scheduler for vLLM that adapts the draft length K: ``--scheduler-cls specpilot_vllm.adaptive.AdaptiveScheduler``.

vLLM's scheduler reads K from ``dynamic_sd_lookup``, a table by the number of requests in a step, which otherwise stays
as ``num_speculative_tokens_per_batch_size`` sets it. :class:`AdaptiveScheduler` sets the table before each step, from
measured times and from the acceptance that it counts after each step. The scheduler changes no model runner and reads
nothing from a device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from specpilot.common.errors import InputError
from specpilot.common.json_file import build, naming_file
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput

from .build import SCHEDULER_INTERFACE, check_interface, check_version, installed_version
from .draft_lengths import PROBE_SHARE, AdaptiveLengths
from .round_times import graph_table, load_seconds
from .settings import settings_of

KEY = "specpilot_adaptive"  # key of the settings in vLLM's additional configuration
REMEDY = 'give an object such as {"cost": "runs/vllm-times.json"}'
V1_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model", "dflash")  # follow the table in model runner V1
COPIES = ("ngram", "suffix")  # beginnings of the methods that draft without a forward


@dataclass(frozen=True)
class AdaptiveSettings:
    """Settings of the adaptive scheduler.

    Attributes:
        cost: a file of ``specpilot-vllm times`` or ``specpilot-vllm bench --cost``, or the time of a draft step divided
            by the time of a verification.
        probe_share: share of the time that probes of longer drafts may lose, from 0 to 0.1.

    Raises:
        InputError: ``probe_share`` is out of range.
    """

    cost: float | str
    probe_share: float = PROBE_SHARE

    def __post_init__(self) -> None:
        if not 0 <= self.probe_share <= 0.1:
            raise InputError(f"probe_share={self.probe_share}: must be from 0 to 0.1")


class AdaptiveScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler with a draft length that follows acceptance and the number of requests.

    Attributes:
        draft_lengths: chooses the draft length; None if the length is fixed.
        planned: by request, the number of tokens that its last step drafts.
        verified: by scheduled step (``id``), the number of drafted tokens that it verifies, by request.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version(installed_version())
        check_interface(SCHEDULER_INTERFACE)
        super().__init__(*args, **kwargs)
        check_attributes(self)
        self.dynamic_sd_lookup: list[int] | None
        self.draft_lengths = adaptive_lengths(self.vllm_config, self.dynamic_sd_lookup)
        self.planned: dict[str, int] = {}
        self.verified: dict[int, dict[str, int]] = {}

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Schedule a step with the current table of draft lengths."""
        if self.draft_lengths is None:
            return super().schedule(*args, **kwargs)
        self.dynamic_sd_lookup = self.draft_lengths.table()
        output = super().schedule(*args, **kwargs)
        for name in (*output.finished_req_ids, *(output.preempted_req_ids or ())):
            self.planned.pop(name, None)
        scheduled = output.num_scheduled_tokens
        if scheduled:
            length = output.num_spec_tokens_to_schedule
            self.verified[id(output)] = {name: self.planned.get(name, 0) for name in scheduled}
            for name in scheduled:
                self.planned[name] = 0 if self.requests[name].is_prefill_chunk else length
            self.draft_lengths.count_step(len(scheduled), length)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        """Update the acceptance by the verified drafts of a step, then update the requests.

        A draft counts with its planned length, also if the drafter found fewer tokens or a grammar forbids some,
        because the planned length is what the scheduler chooses.
        """
        verified = self.verified.pop(id(scheduler_output), None)
        sampled = model_runner_output.sampled_token_ids
        if verified is not None and self.draft_lengths is not None and sampled:
            rows = model_runner_output.req_id_to_index
            counts = [
                (length, len(sampled[rows[name]]) - 1) for name, length in verified.items() if length and name in rows
            ]
            counts = [
                (length, accepted) for length, accepted in counts if accepted >= 0
            ]  # -1: vLLM discarded the tokens
            self.draft_lengths.observe([length for length, _ in counts], [accepted for _, accepted in counts])
        return super().update_from_output(scheduler_output, model_runner_output)


def check_attributes(scheduler: Any) -> None:
    """Raise InputError if this build of vLLM lacks an attribute that the scheduler needs."""
    names = [name for name in ("dynamic_sd_lookup", "requests") if not hasattr(scheduler, name)]
    required = {"num_spec_tokens_to_schedule", "num_scheduled_tokens", "finished_req_ids", "preempted_req_ids"}
    names += sorted(required - {field.name for field in fields(SchedulerOutput)})
    if names:
        raise InputError(
            f"vllm {installed_version()}: its scheduler has no {', '.join(names)}; leave --scheduler-cls out, or "
            "install a supported release"
        )


def adaptive_lengths(config: Any, table: list[int] | None) -> AdaptiveLengths | None:
    """Return the object that chooses the draft length of each step from load and acceptance.

    The result is None, with a printed warning, if the length stays fixed: under data parallelism, and in model runner
    V1 for methods that ignore the table.

    Args:
        config: the engine's ``VllmConfig``.
        table: vLLM's table: the draft length for n requests at index n. Index 0 is not used. None without
            ``num_speculative_tokens_per_batch_size``.

    Raises:
        InputError: a setting is missing or wrong, or the engine does not draft or has no graphs for other lengths.
    """
    settings = adaptive_settings(config.additional_config)
    speculative = config.speculative_config
    if speculative is None:
        raise InputError(
            "speculative_config: is missing, but the adaptive scheduler chooses draft lengths; set it, or leave "
            "--scheduler-cls out"
        )
    if settings_of(config.additional_config, os.environ) is not None:
        raise InputError("specpilot: per-request lengths and the adaptive scheduler exclude each other; leave one out")
    if getattr(speculative, "enable_adaptive_verification", False):
        raise InputError(
            "enable_adaptive_verification: cuts the drafts whose length the adaptive scheduler chooses; leave one out"
        )
    if config.parallel_config.data_parallel_size > 1:
        print(
            "specpilot: warning: the draft length does not adapt under data parallelism, like vLLM's own table; "
            f"{speculative.num_speculative_tokens} tokens are drafted"
        )
        return None
    if not config.use_v2_model_runner and speculative.method not in V1_METHODS:
        print(
            f"specpilot: warning: the draft length does not adapt, because the method {speculative.method!r} ignores "
            f"vLLM's table in model runner V1; {speculative.num_speculative_tokens} tokens are drafted"
        )
        return None
    longest, rows = speculative.num_speculative_tokens, config.scheduler_config.max_num_seqs
    if table is None and config.compilation_config.cudagraph_mode.has_full_cudagraphs():
        example = graph_table(longest, rows)
        raise InputError(
            "num_speculative_tokens_per_batch_size: is missing, so that only drafts of "
            f"{longest} tokens have CUDA graphs; add it to speculative_config with all lengths, such as {example}"
        )
    lengths = range(longest + 1) if table is None else sorted({*table[1:]})
    reads_text = not str(speculative.method).startswith(COPIES)
    seconds = load_seconds(settings.cost, lengths[-1], rows, reads_text=reads_text)
    return AdaptiveLengths(lengths, seconds, settings.probe_share)


def adaptive_settings(additional: Mapping[str, Any]) -> AdaptiveSettings:
    """Return the settings in vLLM's additional configuration.

    Raises:
        InputError: the settings are missing or wrong.
    """
    if KEY not in additional:
        raise InputError(
            f"{KEY}: is missing in --additional-config, but the adaptive scheduler needs times; measure them with "
            f"'specpilot-vllm times', and {REMEDY}"
        )
    with naming_file(KEY, REMEDY):
        return build(AdaptiveSettings, additional[KEY])
