"""Encoder-decoders of the T5 family: the prompt is encoded once, and the decoder's text is drafted and verified.

For the engine the text begins with the decoder's start token. Relative positions are counted by cache columns, so that
each text is read in a forward of its own, and a tree as a batch of its paths.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

from ..common.errors import InputError
from .causal_lm import CausalLM, forward_with_hidden
from .fixed_layers import FixedLayers
from .kv_cache import RaggedKVCache
from .linear import Quantization
from .text_cache import TextCache

FAMILY = ("t5", "mt5", "umt5", "longt5")


class SourceKVCache(RaggedKVCache):
    """A decoder's cache with the encoded prompt of each text.

    Attributes:
        sources: for each text the encoder's output (1, S, d), and the cross-attention keys and values of the decoder's
            layers, which the first forward computes.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.sources: dict[Hashable, tuple[Tensor, DynamicCache]] = {}

    def remove(self, text: Hashable) -> None:
        super().remove(text)
        del self.sources[text]

    def clear(self) -> None:
        super().clear()
        self.sources.clear()

    def spread(self, text: Hashable, columns: Sequence[Sequence[int]], reserve: int) -> RaggedKVCache:
        spread = super().spread(text, columns, reserve)
        assert isinstance(spread, SourceKVCache)
        spread.sources = dict.fromkeys(range(len(columns)), self.sources[text])
        return spread


class EncoderDecoder(CausalLM):
    """A model of the T5 family.

    Raises:
        InputError: the model is of another family, or has no decoder start token.
    """

    encodes_prompts = True

    def __init__(self, model: PreTrainedModel, quantization: Quantization | None = None) -> None:
        super().__init__(model, quantization, graphs="off")  # texts do not share a forward
        start = model.generation_config.decoder_start_token_id
        if start is None:
            raise InputError(f"{self.name}: generation_config.decoder_start_token_id is not set; the T5 family's is 0")
        self.start_token: int = start
        self.layers = model.config.num_decoder_layers
        self.context = None  # positions are relative: n_positions is the training length, not a limit

    @staticmethod
    def _check(model: PreTrainedModel) -> None:
        if model.config.model_type not in FAMILY:
            raise InputError(
                f"{model.config.model_type}: of the encoder-decoder models only {', '.join(FAMILY)} are supported"
            )

    def new_cache(self) -> RaggedKVCache:
        return SourceKVCache(self.layers)

    @torch.inference_mode()
    def begin(self, cache: TextCache, text: Hashable, prompt: Sequence[int], reserve: int) -> list[int]:
        """Encode ``prompt``; the text begins with the decoder's start token."""
        assert isinstance(cache, SourceKVCache)
        tokens = torch.tensor([prompt], dtype=torch.long, device=self.device)
        encoded = self.packed.get_encoder()(input_ids=tokens).last_hidden_state
        cache.add(text, 1 + reserve)
        cache.sources[text] = encoded, DynamicCache()
        return [self.start_token]

    def embed(self, cache: TextCache, text: Hashable, hidden: Tensor) -> Tensor:
        """Return the mean (d,) of the encoder's output over the prompt's tokens."""
        assert isinstance(cache, SourceKVCache)
        return cache.sources[text][0][0].mean(0)

    def run(
        self,
        cache: RaggedKVCache,
        tokens: Tensor,
        keep: int,
        kept_states: int,
        mask: Tensor | dict[str, Tensor] | None = None,
        positions: Tensor | None = None,
        states: Tensor | None = None,
        fixed: FixedLayers | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(cache, SourceKVCache)
        rows = len(tokens)
        encoded, crossed = cache.sources[cache.texts[cache.plan.low]]  # several rows are paths of one text
        logits, hidden = forward_with_hidden(
            self.packed,
            decoder_input_ids=tokens.to(self.device),
            encoder_outputs=(encoded.expand(rows, -1, -1),),
            past_key_values=EncoderDecoderCache(cache, crossed if rows == 1 else _repeated(crossed, rows)),
            use_cache=True,
        )
        return logits[:, -keep:], hidden[:, -kept_states:]


def _repeated(crossed: DynamicCache, rows: int) -> DynamicCache:
    """Return keys and values of one row as views of ``rows`` rows; empty if they are not computed yet."""
    repeated = DynamicCache()
    for index, layer in enumerate(crossed.layers):
        assert isinstance(layer, DynamicLayer)
        keys, values = layer.keys, layer.values
        assert keys is not None
        assert values is not None
        repeated.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), index)
    return repeated
