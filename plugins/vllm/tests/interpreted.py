"""A program: vLLM's model runner V2 on a CPU, its kernels by Triton's interpreter; prints what drafts did as JSON.

It runs in a process of its own, since vLLM looks for Triton when it is imported. Three things are mended of the
interpreter (Triton 3.9), and nothing of vLLM: it has no entry for CPUs, refuses masks that are no booleans, as ``&`` of
a vector and a number makes them, and has no ``log1p``.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

SAMPLES = 96


def interpret() -> None:
    """Make Triton's interpreter run vLLM's kernels; before vLLM is imported."""
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1", VLLM_CPU_CI_ENV="1")
    import triton.backends
    from triton import language
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import InterpreterBuilder

    triton.backends.backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    libdevice.log1p = lambda x: language.log(1.0 + x)

    def with_booleans(plain: Any, place: int) -> Any:
        def masked(self: Any, *arguments: Any) -> Any:
            arguments[place].data = arguments[place].data.astype(bool)
            return plain(self, *arguments)

        return masked

    for name, place in (("create_masked_store", 2), ("create_masked_load", 1)):
        setattr(InterpreterBuilder, name, with_booleans(getattr(InterpreterBuilder, name), place))


def main(controller: str, cost: str) -> None:
    interpret()
    from engines import engine, generate, greedy, model_runner, prompts, vllm_sampling
    from specpilot.controllers.sampling import SamplingParams

    options = {"max_num_seqs": 16, "async_scheduling": False, "per_request_spec_decode_metrics": "detailed"}
    found: dict[str, Any] = {}
    for name, settings in (("plain", None), ("planned", {"length": controller, "cost": cost})):
        llm = engine(settings, 4, **options)
        drafter, forwards = model_runner(llm).speculator, []
        run, propose = drafter._run_model, drafter.propose

        def counted(*args: Any, _run: Any = run, _forwards: list[int] = forwards, **kwargs: Any) -> Any:
            _forwards[-1] += 1
            return _run(*args, **kwargs)

        def proposed(*args: Any, _propose: Any = propose, _forwards: list[int] = forwards, **kwargs: Any) -> Any:
            _forwards.append(0)
            return _propose(*args, **kwargs)

        drafter._run_model, drafter.propose = counted, proposed
        outputs = llm.generate([{"prompt_token_ids": text} for text in prompts(3)], greedy(12), use_tqdm=False)
        texts = [output.outputs[0] for output in outputs]
        found[name] = {
            "drafter": type(drafter).__name__,
            "texts": [list(text.token_ids) for text in texts],
            "drafted": [text.spec_decode_metrics.per_step_drafted for text in texts],
            "forwards": forwards,
        }
    found["sampled"] = generate(llm, [prompts(2)[1]] * SAMPLES, vllm_sampling(SamplingParams(0.7, None), 2))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
