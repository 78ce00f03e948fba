"""A causal language model with its KV cache: feed tokens, read logits and hidden states, roll back.

The only place, with :mod:`.cache`, that knows how transformers keeps its caches.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..controllers.errors import InputError
from .branches import Branches
from .cache import PreallocatedCache
from .hidden import forward_with_hidden
from .lean_llama import LeanLlama


class CachedModel:
    """A decoder-only model and the keys and values of the tokens it has read.

    Args:
        model: the model.
        compile: pass its forward through ``torch.compile``; where that fails or gains nothing, a warning says why.

    Raises:
        InputError: the model is an encoder-decoder, or keeps a recurrent state that cannot be rolled back.
    """

    def __init__(self, model: PreTrainedModel, *, compile: bool = False) -> None:
        if model.config.is_encoder_decoder:
            raise InputError(f"{model.config.model_type}: encoder-decoder models are not supported; use a causal LM")
        if model._is_stateful:
            raise InputError(f"{model.config.model_type}: its recurrent state cannot be rolled back after a rejection")
        self.model = model
        self.device: torch.device = model.device
        config = model.config.get_text_config(decoder=True)
        self.layers: int = config.num_hidden_layers
        # Absent where positions are not embedded (ALiBi): then there is no limit.
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        embedding = model.get_output_embeddings().weight  # (V, d)
        self.vocab_size, self.hidden_size = int(embedding.shape[0]), int(embedding.shape[1])
        accepted = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepted
        self._takes_positions = "position_ids" in accepted
        self.lean = LeanLlama(model) if LeanLlama.fits(model) else None
        self.cache = PreallocatedCache(self.layers, 0)
        self.call: Callable[..., Any] | None = None
        if compile:
            self._compile()

    @torch.inference_mode()
    def _compile(self) -> None:
        name = self.model.config.model_type
        if self.lean is not None:
            warnings.warn(f"compile: {name} has a lean forward here, which compiling does not beat", stacklevel=3)
            return
        # Shapes as they come: a graph for every length of the text would never stop compiling.
        self.call = torch.compile(self.model, dynamic=True)
        try:
            self.start(8)  # tried now, not in the middle of a text; the prompt, then one token, then several
            for n in (2, 1, 2):
                self.forward(torch.zeros(1, n, dtype=torch.long, device=self.device))
        except RuntimeError as error:  # which all of the compiler's own errors are
            self.call = None
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"compile: {name} could not be compiled and is not ({reason})", stacklevel=3)

    def start(self, capacity: int) -> None:
        """Forget everything; make room for ``capacity`` tokens a row."""
        self.cache = PreallocatedCache(self.layers, capacity)
        self.reserve(capacity)

    def reserve(self, capacity: int) -> None:
        """Be ready for positions up to ``capacity``: a cache put in from outside may be longer than the started one."""
        if self.lean is not None:
            self.lean.reserve(capacity)

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self.cache.length

    def crop(self, length: int) -> None:
        """Roll back to the first ``length`` tokens."""
        self.cache.crop_to(length)

    def keep(self, length: int, columns: list[int]) -> None:
        """Roll back to the first ``length`` tokens and the cached ``columns``, a path of the tree read after them."""
        self.cache.keep(length, columns)

    def forward(
        self,
        tokens: Tensor,
        *,
        keep: int | None = None,
        padding: Tensor | None = None,
        positions: Tensor | None = None,
        branches: Branches | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Read ``tokens`` (B, n) after what was read before.

        Args:
            tokens: (B, n) token ids.
            keep: give results for the last ``keep`` positions only (all by default).
            padding: (B, length + n) true where a cached or new token is real; None when all are.
            positions: (B, n) position of each token in its row; None when no row is padded.
            branches: where the tokens stand in a draft tree; None when each follows the one before. Batches of one.

        Returns:
            logits (B, keep, V) and the hidden states (B, keep, d) they come from.
        """
        keep = tokens.shape[1] if keep is None else keep
        seen: Tensor | None = None  # (n, length + n)
        if branches is not None:
            seen = branches.seen(self.length + tokens.shape[1], self.device)
            positions = branches.positions(self.device)
        if self.lean is not None:
            return self.lean.forward(tokens, self.cache, keep, padding, positions, seen)
        inputs: dict[str, Any] = {"input_ids": tokens, "past_key_values": self.cache, "use_cache": True}
        if self._keeps_logits:
            inputs["logits_to_keep"] = keep
        if padding is not None:
            inputs["attention_mask"] = padding
        if seen is not None:
            lowest = torch.finfo(self.model.dtype).min
            mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=self.device).masked_fill_(~seen, lowest)
            inputs["attention_mask"] = mask[None, None]  # (1, 1, n, length + n)
        if positions is not None and self._takes_positions:
            inputs["position_ids"] = positions
        if self.call is None or self.length == 0:  # a prompt is read once, and is no small work
            logits, hidden = forward_with_hidden(self.model, **inputs)
        else:
            self.cache.mark_dynamic()
            logits, hidden = forward_with_hidden(self.model, self.call, **inputs)
        return logits[:, -keep:], hidden[:, -keep:]
