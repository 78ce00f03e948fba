"""``specpilot data acceptance --responses vllm``: texts of the target by vLLM, in the process of each worker."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from specpilot.checkpoints import shipped
from specpilot.common.errors import InputError
from specpilot.common.files import split_revision
from specpilot.data_gen.builder import Item
from specpilot.data_gen.kinds import ResponseRow
from specpilot.data_gen.options import AcceptanceDataOptions, ResponseOptions
from specpilot.data_gen.responses import ResponseMaker, vllm_source
from specpilot.data_gen.workers import OnDone

from .build import check_version, hidden_llvmlite, installed_version

GIB = 2**30


class VllmResponses(ResponseMaker):
    """A source of the target's texts that generates the texts of a shard together, ``batch_size`` at a time.

    Args:
        settings: the settings of the dataset.
        responses: the options of vLLM.

    Raises:
        InputError: vLLM is not installed, has an unsupported version, or cannot load the target.
    """

    def __init__(self, settings: AcceptanceDataOptions, responses: ResponseOptions) -> None:
        super().__init__(settings, responses)
        self.version = installed_version()
        check_version(self.version)
        self.source = vllm_source(self.version, responses)

    @cached_property
    def engine(self) -> Any:
        """The engine ``vllm.LLM`` of the target, loaded at the first use."""
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import vllm

        settings, memory = self.settings, self.responses.kv_cache_gib
        target, revision = split_revision(settings.target)
        try:
            with hidden_llvmlite():
                return vllm.LLM(
                    str(shipped(target) or target),
                    revision=revision,
                    dtype=settings.dtype,
                    trust_remote_code=settings.trust_remote_code,
                    tensor_parallel_size=self.responses.tensor_parallel,
                    max_num_seqs=settings.batch_size,
                    kv_cache_memory_bytes=None if memory is None else int(memory * GIB),
                )
        except (ValueError, RuntimeError, OSError, AssertionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"target={settings.target!r}: vLLM {self.version} cannot load the target ({reason})"
            ) from error

    def rows(self, items: list[Item], on_done: OnDone) -> list[ResponseRow]:
        """Return the texts of ``items``.

        Raises:
            InputError: a prompt fills vLLM's context.
        """
        engine = self.engine
        from vllm import SamplingParams

        s, context = self.settings, engine.model_config.max_model_len
        for item in items:
            if len(item.ids) >= context:
                raise InputError(
                    f"prompt {item.id}: {len(item.ids)} tokens, but vLLM's context holds {context}; leave such prompts "
                    f"out with --max-prompt-tokens {context - s.max_new_tokens}"
                )
        top_k = 0 if s.top_k is None or s.temperature == 0 else s.top_k
        sampling = [
            SamplingParams(
                temperature=s.temperature,
                top_k=top_k,
                top_p=s.top_p,
                max_tokens=item.budget,
                seed=self.seed_of(item),
            )
            for item in items
        ]
        outputs = engine.generate([{"prompt_token_ids": item.ids} for item in items], sampling, use_tqdm=False)
        rows = []
        for item, output in zip(items, outputs, strict=True):
            (text,) = output.outputs
            tokens = list(text.token_ids)
            rows.append(ResponseRow(item.id, text.text, tokens, text.finish_reason, len(tokens), exact=True))
            on_done(len(tokens))
        return rows
