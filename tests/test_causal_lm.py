"""Decoder-only models against plain transformers forwards: chunks, rollbacks, the lean path beside the general one."""

import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.infer.models import (
    CausalLM,
    Read,
    TextReader,
    TreeMask,
    ancestors_of,
    language_model,
    lean_forward,
    linear,
)
from specpilot.infer.models.causal_lm import forward_with_hidden
from specpilot.infer.models.lean_forward import FAMILIES, LeanForward
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from .architectures import MAKERS, target_of
from .tiny import ALIBI, ARCHITECTURES, ENCODER_DECODERS, make


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("lean", [True, False])
@settings(max_examples=15)
@given(steps=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=6), batch=st.integers(1, 2))
def test_chunks_and_rollbacks(architecture: str, lean: bool, steps: list[tuple[int, int]], batch: int) -> None:
    """Read n tokens, forget r, again and again: always the logits of the text that is left."""
    model = CausalLM(make(architecture))
    assert (model.lean is not None) == (architecture in ("llama", "qwen"))
    if not lean:
        model.lean = None
    generator = torch.Generator().manual_seed(len(steps))
    cache = model.new_cache()
    for row in range(batch):
        cache.add(row, 0)
    text = torch.empty(batch, 0, dtype=torch.long)
    with torch.inference_mode():
        for read, forget in steps:
            new = torch.randint(64, (batch, read), generator=generator)
            text = torch.cat([text, new], 1)
            logits, hidden = (
                part.view(batch, read, -1)
                for part in model.forward(cache, [Read(row, new[row].tolist(), read) for row in range(batch)])
            )
            expected = model.model(input_ids=text, output_hidden_states=True, use_cache=False)
            torch.testing.assert_close(logits, expected.logits[:, -read:], rtol=1e-4, atol=1e-4)
            if architecture != "opt":  # whose hidden_states come before the projection that its head reads after
                torch.testing.assert_close(hidden, expected.hidden_states[-1][:, -read:], rtol=1e-4, atol=1e-4)
            kept = max(0, text.shape[1] - forget)
            text = text[:, :kept]
            for row in range(batch):
                cache.crop_text(row, kept)
                assert cache.length(row) == kept


def read_in_chunks(model: CausalLM, text: torch.Tensor, chunks: list[int]) -> list[torch.Tensor]:
    """Logits (B, n, V) of each chunk of the rows of ``text`` (B, N), read together."""
    cache = model.new_cache()
    for row in range(len(text)):
        cache.add(row, text.shape[1])
    found = []
    for part in text.split(chunks, 1):
        logits, _ = model.forward(cache, [Read(row, tokens.tolist(), len(tokens)) for row, tokens in enumerate(part)])
        found.append(logits.view(*part.shape, -1))
    return found


def logits_after(model: PreTrainedModel, prompt: list[int], text: list[int]) -> torch.Tensor:
    """(V,) by transformers alone; an encoder-decoder reads ``text`` token by token with its own cache."""
    if not model.config.is_encoder_decoder:
        return model(input_ids=torch.tensor([text])).logits[0, -1]
    encoded = model.get_encoder()(input_ids=torch.tensor([prompt]))
    cache = None
    for token in text:
        output = model(
            encoder_outputs=encoded, decoder_input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
    return output.logits[0, -1]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *ALIBI, *ENCODER_DECODERS])
@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("reads", [[6], [2, 3, 1]])
def test_a_tree_at_once_or_by_levels(architecture: str, lean: bool, reads: list[int]) -> None:
    """Every node's logits are those of its own path, read alone; and a path that is kept is as if read alone."""
    sizes = {"encoder_layers": 1} if architecture in ENCODER_DECODERS else {}
    model = language_model(make(architecture, **sizes))
    if not lean:
        model.lean = None
    prompt, nodes, parents = [5, 9, 3], [7, 8, 7, 1, 2, 6], [-1, -1, 0, 0, 1, 3]
    above = [ancestors_of(parents, node) for node in range(len(nodes))]

    def same(logits: torch.Tensor, text: list[int]) -> None:
        torch.testing.assert_close(logits, logits_after(model.model, prompt, text), rtol=1e-4, atol=1e-4)

    with torch.inference_mode():
        reader, trunk = TextReader.begin(model, prompt)
        same(reader.read(trunk)[0][-1], trunk)
        start, logits = len(trunk), []
        for count in reads:
            own = slice(len(logits), len(logits) + count)
            columns = [[start + ancestor for ancestor in row] for row in above[own]]
            logits += reader.read(nodes[own], tree=TreeMask(start, columns))[0]
        for node in range(len(nodes)):
            same(logits[node], [*trunk, *(nodes[n] for n in above[node]), nodes[node]])
        kept = [0, 3, 5]
        reader.keep(start, [start + node for node in kept])
        assert reader.length == start + 3
        same(reader.read([4, 4])[0][-1], [*trunk, *(nodes[n] for n in kept), 4, 4])


SCALED = {"rope_theta": 100.0, "factor": 8.0, "original_max_position_embeddings": 16}
ROPES: dict[str, dict[str, float | str]] = {
    "default": {"rope_type": "default", "rope_theta": 100.0},
    "linear": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0},
    "llama3": {"rope_type": "llama3", **SCALED, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"rope_type": "yarn", **SCALED},
}


def lean_model(family: str, kv_heads: int, rope: str = "default", head_size: int = 16) -> PreTrainedModel:
    """A random model of a family that has the lean forward."""
    return MAKERS[family if family == "llama" else f"{family}-full"](
        3, 50, 1, num_key_value_heads=kv_heads, rope_parameters=ROPES[rope], head_dim=head_size,
        hidden_size=4 * head_size,
    )  # fmt: skip


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_lean_forward_equals_transformers(family: str, rope: str, kv_heads: int) -> None:
    model = CausalLM(lean_model(family, kv_heads, rope).double())
    assert model.lean is not None
    text = torch.randint(50, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        parts = read_in_chunks(model, text, [7, 1, 20, 12])
        # transformers normalises in float32 even where the model is float64: that is the difference allowed
        expected = model.model(input_ids=text).logits
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("few", [0, linear.FEW])
@pytest.mark.parametrize("chunks", [[40], [7, 1, 20, 12]])
@pytest.mark.parametrize("family", FAMILIES)
def test_lean_forward_rounds_no_worse_than_transformers(
    family: str, few: int, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the float64 model: packed or plain, in float32 and bfloat16, one row or several, prompt or pieces."""
    monkeypatch.setattr(linear, "FEW", few)
    exact = lean_model(family, 2).to(torch.bfloat16).double()  # weights that all precisions hold
    text = torch.randint(50, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        truth = exact(input_ids=text).logits
        for dtype in (torch.float32, torch.bfloat16):
            model = CausalLM(deepcopy(exact).to(dtype=dtype))
            errors = {}
            for path in (model.lean, None):
                assert path is not None or "lean" in errors
                model.lean = path
                logits = torch.cat(read_in_chunks(model, text, chunks), 1)
                errors["general" if path is None else "lean"] = float((logits - truth).square().mean().sqrt())
            assert errors["lean"] < 1.5 * errors["general"]


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
    model, found = make("gpt2"), list[torch.Tensor]()
    texts = torch.tensor([[1, 2, 3]]), torch.tensor([[9, 8, 7]])
    expected = [forward_with_hidden(model, input_ids=text)[1] for text in texts]
    first = threading.get_ident()

    def interrupt(*unused: object) -> None:
        if threading.get_ident() == first:
            found.append(pool.submit(forward_with_hidden, model, input_ids=texts[1]).result(timeout=60)[1])

    with ThreadPoolExecutor(1) as pool:
        model.get_output_embeddings().register_forward_hook(interrupt)
        found.append(forward_with_hidden(model, input_ids=texts[0])[1])
    torch.testing.assert_close(found, expected[::-1])
