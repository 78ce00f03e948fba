"""A causal language model with its KV cache: feed tokens, read logits and hidden states, roll back.

The only place, with :mod:`.cache` and :mod:`.encoder_decoder`, that knows how transformers keeps its caches.
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
from .cache import PreallocatedCache
from .hidden import forward_with_hidden
from .lean_llama import LeanLlama
from .tree_mask import TreeMask


class CachedModel:
    """A decoder-only model and the keys and values of the tokens it has read.

    Attributes:
        takes_trees: the model is told each token's position and may be told by a mask which columns it sees, so that a
            tree's nodes can be read side by side. Where it counts positions itself, each path of the tree is a row.
        takes_holes: the model is told each token's position, or counts it off the padding mask, so that masked columns
            may stand between a row's tokens. Others (MPT, the T5 family) count the cache's columns.
        context: the longest text, in tokens; None where there is no limit.

    Raises:
        InputError: the model is an encoder-decoder, or keeps a recurrent state that cannot be rolled back.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._check(model)
        self.model = model
        self.device: torch.device = model.device
        config = model.config.get_text_config(decoder=True)
        self.layers: int = config.num_hidden_layers
        # Absent where positions are not embedded (ALiBi): then there is no limit, but for MPT's own.
        self.context: int | None = getattr(config, "max_position_embeddings", getattr(config, "max_seq_len", None))
        embedding = model.get_output_embeddings().weight  # (V, d)
        self.vocab_size, self.hidden_size = int(embedding.shape[0]), int(embedding.shape[1])
        accepted = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepted
        self._takes_positions = "position_ids" in accepted
        # Theirs is counted off the padding mask, which then cannot tell one token's ancestors from another's.
        alibi = config.model_type == "bloom" or (config.model_type == "falcon" and config.alibi)
        self.takes_trees = self._takes_positions and not alibi
        self.takes_holes = self._takes_positions or alibi
        self.lean = LeanLlama(model) if LeanLlama.fits(model) else None
        self.cache = PreallocatedCache(self.layers, 0)
        self.call: Callable[..., Any] | None = None  # the compiled form

    @torch.inference_mode()
    def compile(self) -> None:
        """Pass the model's forward through ``torch.compile``; where that fails or gains nothing, a warning says why."""
        name = self.model.config.model_type
        if self.lean is not None:
            warnings.warn(f"compile: {name} has a lean forward here, which compiling does not beat", stacklevel=4)
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
            warnings.warn(f"compile: {name} could not be compiled and is not ({reason})", stacklevel=4)

    @staticmethod
    def _check(model: PreTrainedModel) -> None:
        kind = model.config.model_type
        if model.config.is_encoder_decoder:
            raise InputError(f"{kind}: an encoder-decoder model; a causal (decoder-only) language model is needed")
        if model._is_stateful:
            raise InputError(f"{kind}: its recurrent state cannot be rolled back after a rejection")

    def begin(self, prompt: list[int]) -> list[int]:
        """Make ready for the text that follows ``prompt``; the tokens that :meth:`forward` is to read first."""
        return list(prompt)

    def embed(self, hidden: Tensor) -> Tensor:
        """What a router knows of a prompt: (d,), of the prompt's last ``hidden`` states (1, n, d) just read.

        The last token's (Huang et al. 2024, §3.1: a sentence embedding from the target); the prefill gives it anyway.
        """
        return hidden[0, -1]

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
        branches: TreeMask | None = None,
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
        if branches is not None and not self.takes_trees:
            logits, hidden = self._read_paths(tokens, branches)
            return logits[:, -keep:], hidden[:, -keep:]
        seen: Tensor | None = None  # (n, length + n)
        if branches is not None:
            seen = branches.seen(self.length + tokens.shape[1], self.device)
            positions = branches.positions(self.device)
        if self.lean is not None:
            return self.lean.forward(tokens, self.cache, keep, padding, positions, seen)
        mask = padding
        if seen is not None:
            lowest = torch.finfo(self.model.dtype).min
            mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=self.device).masked_fill_(~seen, lowest)
            mask = mask[None, None]  # (1, 1, n, length + n)
        return self._run(tokens, self.cache, keep, mask, positions)

    def _run(
        self, tokens: Tensor, cache: PreallocatedCache, keep: int, mask: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Transformers' own forward."""
        inputs: dict[str, Any] = {"input_ids": tokens, "past_key_values": cache, "use_cache": True}
        if self._keeps_logits:
            inputs["logits_to_keep"] = keep
        if mask is not None:
            inputs["attention_mask"] = mask
        if positions is not None and self._takes_positions:
            inputs["position_ids"] = positions
        if self.call is None or cache.length == 0:  # a prompt is read once, and is no small work
            logits, hidden = forward_with_hidden(self.model, **inputs)
        else:
            cache.mark_dynamic()
            logits, hidden = forward_with_hidden(self.model, self.call, **inputs)
        return logits[:, -keep:], hidden[:, -keep:]

    def _read_paths(self, tokens: Tensor, branches: TreeMask) -> tuple[Tensor, Tensor]:
        """The batch form of a tree: each path down to a leaf is a row, with a copy of what it sees of the cache."""
        first = self.length
        paths = branches.paths(first)
        cached = [[*range(branches.trunk), *(c for c in path if c < first)] for path in paths]
        new = [[column - first for column in path if column >= first] for path in paths]
        past, width = len(cached[0]), max(map(len, new))
        assert all(len(row) == past for row in cached), "new tokens at different depths below the cached ones"
        # What fills a shorter row up comes after its leaf, where nobody looks.
        read = torch.tensor([row + row[-1:] * (width - len(row)) for row in new], device=self.device)
        cache = self.cache.spread(torch.tensor(cached, device=self.device), past + width)
        logits, hidden = self._run(tokens[0, read], cache, width, None, None)

        # Tokens that several paths share were read in each of them, alike: any will do.
        places = {node: (row, place) for row, nodes in enumerate(new) for place, node in enumerate(nodes)}
        rows, columns = torch.tensor([places[node] for node in range(len(places))], device=self.device).unbind(1)
        self.cache.append(cache, rows, past + columns)
        return logits[rows, columns].unsqueeze(0), hidden[rows, columns].unsqueeze(0)
