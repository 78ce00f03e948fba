"""Encoder-decoders of the T5 family: the prompt is encoded once, and it is the decoder's text that is speculated on.

For the decoding loop such a model is a cached model whose text begins with the decoder's start token. Trees are read in
the batch form: the family's relative positions are counted by the cache's columns, which no mask can mend.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import EncoderDecoderCache

from ..controllers.errors import InputError
from .cache import PreallocatedCache, as_row
from .cached_model import CachedModel
from .hidden import forward_with_hidden

FAMILY = ("t5", "mt5", "umt5", "longt5")


def cached(model: PreTrainedModel, *, compile: bool = False) -> CachedModel:
    """``model`` with its cache, whichever kind it is.

    Raises:
        InputError: it is of a kind that cannot be speculated on.
    """
    reader = EncoderDecoder(model) if model.config.is_encoder_decoder else CachedModel(model)
    if compile:
        reader.compile()
    return reader


class EncoderDecoder(CachedModel):
    """A model of the T5 family, what it has encoded, and the keys and values of the text its decoder has read.

    Attributes:
        encoded: (1, S, d) the encoder's output for the prompt of the last :meth:`begin`.

    Raises:
        InputError: the model is of another family, or names no token that its decoder starts from.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        start = model.generation_config.decoder_start_token_id
        if start is None:
            raise InputError(
                f"{model.config.model_type}: generation_config.decoder_start_token_id is not set; the T5 family's is 0"
            )
        self.start_token: int = start
        self.layers = model.config.num_decoder_layers
        self.context = None  # positions are relative: n_positions is what it was trained on, no limit
        self.encoded = torch.empty(0)
        self.crossed = PreallocatedCache(self.layers, 0)
        self.start(0)

    @staticmethod
    def _check(model: PreTrainedModel) -> None:
        if model.config.model_type not in FAMILY:
            raise InputError(
                f"{model.config.model_type}: of the encoder-decoder models only {', '.join(FAMILY)} are supported"
            )

    def compile(self) -> None:
        """Not done, and a warning says so: the compiler would make a graph of the pair of caches for every prompt."""
        warnings.warn(
            f"compile: {self.model.config.model_type} is decoded as it is: its cache is a pair of them", stacklevel=4
        )

    @torch.inference_mode()
    def begin(self, prompt: list[int]) -> list[int]:
        """Encode ``prompt``; the text begins with the decoder's start token.

        Raises:
            InputError: the model has no embedding for a token of it.
        """
        if max(prompt) >= self.vocab_size:
            raise InputError(
                f"prompt: token {max(prompt)} is beyond the {self.vocab_size} that {self.model.config.model_type} "
                "can encode; give tokens of the pair's tokenizer"
            )
        self.encoded = self.model.get_encoder()(input_ids=as_row(prompt, self.device)).last_hidden_state
        # Filled by the first forward, once for the whole text.
        self.crossed = PreallocatedCache(self.layers, len(prompt))
        return [self.start_token]

    def embed(self, hidden: Tensor) -> Tensor:
        """The mean of the encoder's output over the prompt's tokens, (d,)."""
        return self.encoded[0].mean(0)

    def _run(
        self, tokens: Tensor, cache: PreallocatedCache, keep: int, mask: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        rows = len(tokens)
        crossed = self.crossed if rows == 1 else self.crossed.expanded(rows)
        logits, hidden = forward_with_hidden(
            self.model,
            decoder_input_ids=tokens,
            decoder_attention_mask=mask,
            encoder_outputs=(self.encoded.expand(rows, -1, -1),),
            past_key_values=EncoderDecoderCache(cache, crossed),
            use_cache=True,
        )
        return logits[:, -keep:], hidden[:, -keep:]
