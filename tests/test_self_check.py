"""Models that cannot be decoded exactly are refused when they are loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import language_model
from transformers import (
    BertConfig,
    BertLMHeadModel,
    CpmAntConfig,
    CpmAntForCausalLM,
    ElectraConfig,
    ElectraForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
)  # fmt: skip

from .architectures import randomised

SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


class Recurrent(GPT2LMHeadModel):
    """A sum over all tokens ever read, which no cache knows of, is added to the logits."""

    total: torch.Tensor | int = 0

    def forward(self, input_ids: Any = None, past_key_values: Any = None, **kwargs: Any) -> Any:
        if past_key_values is None or past_key_values.get_seq_length() == 0:
            self.total = 0
        output = super().forward(input_ids, past_key_values, **kwargs)
        sums = self.total + self.transformer.wte(input_ids).cumsum(1)
        self.total = sums[:, -1:]
        output.logits = self.lm_head(sums)[:, -output.logits.shape[1] :]
        return output


def bert(**settings: Any) -> BertLMHeadModel:
    return randomised(BertLMHeadModel(BertConfig(**SIZES, **settings)), 0, gain=3.0, embedding=0.2)


@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_models_that_attend_to_later_tokens(gain: float) -> None:
    for model in (
        randomised(BertLMHeadModel(BertConfig(**SIZES)), 0, gain, 0.5),
        randomised(ElectraForCausalLM(ElectraConfig(**SIZES)), 0, gain, 0.5),
    ):
        with pytest.raises(InputError, match=r"reading a text in parts gives other logits .* is_decoder=True"):
            SpeculativeDecoder(model, None)


def test_the_same_as_a_decoder() -> None:
    """It says what to do, and that works: greedy text is transformers' own."""
    model, draft = bert(is_decoder=True), bert(is_decoder=True)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    prompt = [*range(5, 17)]
    ids = torch.tensor([prompt])
    expected = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, eos_token_id=-1
    )
    output = SpeculativeDecoder(model, draft, length=3).generate(prompt, max_new_tokens=24, temperature=0)
    assert output.tokens == expected[0, len(prompt) :].tolist()


def test_a_cache_used_in_another_way() -> None:
    """CPM-Ant reads its prompt's padding anew with every token."""
    config = CpmAntConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, dim_head=8, dim_ff=64,
        prompt_types=2, prompt_length=4, segment_types=4,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"^cpmant: cannot read a text in parts \(.*\); choose another model$"):
        SpeculativeDecoder(CpmAntForCausalLM(config).eval(), None)


def test_a_state_that_is_not_rolled_back() -> None:
    model = Recurrent(GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4))
    with pytest.raises(InputError, match="gpt2: reading a text in parts gives other logits"):
        language_model(randomised(model, 0, gain=1.0, embedding=0.5))


def test_models_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where costs are measured first: weights that are reordered twice would need twice the memory."""
    checked: list[str] = []
    monkeypatch.setattr("specpilot.infer.models.check_reading_in_parts", lambda model: checked.append(model.name))
    SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-lag-free", cost="auto")
    assert len(checked) == 2
