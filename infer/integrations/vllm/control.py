"""Gives the model runner of a vLLM engine the plugin's drafter."""

from __future__ import annotations

import os
from typing import Any

from vllm.platforms import current_platform

from .proposer import ControlledProposer
from .settings import settings_of


def control(runner: Any) -> None:
    """Replace the drafter of ``runner``, a V1 model runner, and the methods that expect drafts of one length."""
    settings = settings_of(runner.vllm_config.additional_config, os.environ)
    assert settings is not None, "the worker is only named where there are settings"
    works = True
    if current_platform.is_cpu():
        from .cpu_build import mend

        works = mend()
    if not works:
        print("specpilot: warning: this build of vLLM verifies sampled drafts wrongly; only greedy requests draft")
    drafter = ControlledProposer(runner, settings, sampling_works=works)
    update_states, sample = runner._update_states, runner._sample

    def update_and_release(scheduler_output: Any) -> Any:
        drafter.release(scheduler_output)
        return update_states(scheduler_output)

    def sample_tokens(logits: Any, spec_decode_metadata: Any) -> Any:
        drafted = spec_decode_metadata is not None and any(spec_decode_metadata.num_draft_tokens)
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
