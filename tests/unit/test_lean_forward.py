"""The lean forward compared with that of transformers, and models without a lean forward."""

import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.models import CausalLM, Read, lean_forward, linear
from specpilot.models.causal_lm import forward_with_hidden
from specpilot.models.forwards import Lean, Padded
from specpilot.models.lean_forward import FAMILIES, LeanForward
from transformers import MambaConfig, MambaForCausalLM

from ..helpers.architectures import target_of
from ..helpers.tiny import make


def read_in_chunks(model: CausalLM, text: torch.Tensor, chunks: list[int]) -> list[torch.Tensor]:
    """Return logits (B, n, V) of each chunk of the rows of ``text`` (B, N), which are read together."""
    cache = model.new_cache()
    for row in range(len(text)):
        cache.add(row, text.shape[1])
    parts = []
    for part in text.split(chunks, 1):
        logits, _ = model.forward(cache, [Read(row, tokens.tolist(), len(tokens)) for row, tokens in enumerate(part)])
        parts.append(logits.view(*part.shape, -1))
    return parts


SCALED = {"rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 16}
ROPES: dict[str, dict[str, float | str]] = {
    "default": {"rope_type": "default", "rope_theta": 100.0},
    "linear": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
    "llama3": {"rope_type": "llama3", **SCALED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", **SCALED},
}


@pytest.mark.parametrize(("few", "chunks"), [(0, [40]), (linear.FEW, [7, 1, 20, 12])])
@pytest.mark.parametrize(("rope", "kv_heads"), [("default", 2), ("linear", 1), ("llama3", 4), ("yarn", 2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_lean_forward_rounds_no_worse_than_transformers(
    family: str, rope: str, kv_heads: int, few: int, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are compared with the float64 model: packed or not, in float32 and bfloat16, for one row or several."""
    monkeypatch.setattr(linear, "FEW", few)
    sizes = {"num_key_value_heads": kv_heads, "head_dim": 16, "hidden_size": 64}
    target = target_of(family if family == "llama" else f"{family}-full", rope_parameters=ROPES[rope], **sizes)
    exact = target.to(torch.bfloat16).double()  # weights that all precisions hold
    text = torch.randint(50, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        truth = exact(input_ids=text).logits
        for dtype in (torch.float32, torch.bfloat16):
            model = CausalLM(deepcopy(exact).to(dtype=dtype))
            assert isinstance(model.strategy, Lean)
            errors = []
            for strategy in (model.strategy, Padded("a test asks for it")):
                model.strategy = strategy
                logits = torch.cat(read_in_chunks(model, text, chunks), 1)
                errors.append(float((logits - truth).square().mean().sqrt()))
            assert errors[0] < 1.5 * errors[1]


def test_lean_forward_is_for_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    for model, fits in (
        (make("llama"), True),
        (target_of("qwen3", sliding_window=None, use_sliding_window=False), True),
        (target_of("qwen3"), False),  # with windows
        (target_of("mistral"), False),
        (make("gpt2"), False),
        (target_of("llama", mlp_bias=True), False),
        (target_of("qwen2-full", hidden_act="gelu"), False),
        (target_of("llama", rope_parameters=dynamic), False),
        (make("llama").to(dtype=torch.float16), False),
        (make("llama").to(device="meta"), False),
    ):
        assert LeanForward.fits(model) == fits
    monkeypatch.setattr(lean_forward, "LARGEST", 1000)
    assert not LeanForward.fits(make("llama"))


def test_models_that_cannot_be_rolled_back_are_refused() -> None:
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1}
    with pytest.raises(InputError, match="mamba: its recurrent state cannot be rolled back"):
        CausalLM(MambaForCausalLM(MambaConfig(**sizes)))


def test_hidden_states_are_those_of_the_thread_that_asked() -> None:
    """Another thread's forward of the same model comes between this one's output embedding and its return."""
    model, recorded = make("gpt2"), list[torch.Tensor]()
    texts = torch.tensor([[1, 2, 3]]), torch.tensor([[9, 8, 7]])
    expected = [forward_with_hidden(model, input_ids=text)[1] for text in texts]
    first = threading.get_ident()

    def interrupt(*unused: object) -> None:
        if threading.get_ident() == first:
            recorded.append(pool.submit(forward_with_hidden, model, input_ids=texts[1]).result(timeout=60)[1])

    with ThreadPoolExecutor(1) as pool:
        model.get_output_embeddings().register_forward_hook(interrupt)
        recorded.append(forward_with_hidden(model, input_ids=texts[0])[1])
    torch.testing.assert_close(recorded, expected[::-1])
