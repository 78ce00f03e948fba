"""The model protocol: the interface of language models to the engine, and to uses other than the decoding loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from copy import copy
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..common.errors import InputError
from .gguf_model import GgufModel
from .read import Read, TreeMask
from .sampled import DraftedTokens, Sampled
from .text_cache import TextCache
from .trimmed_head import TrimmedHead

LoadedModel: TypeAlias = PreTrainedModel | GgufModel  # what a model is before it is behind the protocol


class LanguageModel(ABC):
    """A target or a draft.

    Attributes:
        model: the wrapped model.
        outer: the wrappers of other libraries that it was given in, such as DataParallel; None if there are none.
        name: architecture, for messages.
        precision: of the weights in its forwards: ``float32``, ``int8``, …
        device: device of the logits.
        vocab_size: V, the number of rows of the output embedding.
        kept_tokens: (M,) the only tokens with finite logits, ascending, where the vocabulary is trimmed; None for all.
        hidden_size: d, the size of the states that logits are computed from.
        context: maximum number of tokens of a text; None for no limit.
        longest: number of tokens that buffers of fixed sizes have room for at once; None to let them grow.
        reads_states: whether it is a draft that reads the target's hidden states, ``Read.states``.
        reads_drawn: whether it reads tokens that the host has not read, ``Read.drawn``.
        encodes_prompts: whether an encoder reads the prompt, which its tokenizer ends; elsewhere the text goes on.
        decodes_trees: whether a target of this kind verifies trees of drafted tokens.
        state_layers: the layers whose outputs follow the last states in what :meth:`forward` returns: 1 is the first.
    """

    model: LoadedModel
    outer: nn.Module | None = None
    name: str
    precision: str
    device: torch.device
    vocab_size: int
    hidden_size: int
    context: int | None
    longest: int | None = None
    kept_tokens: Tensor | None = None
    reads_states: bool = False
    reads_drawn: bool = False
    encodes_prompts: bool = False
    decodes_trees: bool = True
    state_layers: tuple[int, ...] = ()

    @property
    def on_accelerator(self) -> bool:
        """True if the host waits for the device when it reads a number of the results."""
        return self.reads_drawn or self.device.type != "cpu"

    @property
    def forward_description(self) -> str:
        """Which forward runs and why, for people."""
        return self.name

    def limited(self, tokens: int) -> Self:
        """The same model for texts of at most ``tokens`` tokens, whose buffers of fixed sizes never grow."""
        other = copy(self)
        other.context = tokens if self.context is None else min(self.context, tokens)
        other.longest = other.context
        return other

    @abstractmethod
    def new_cache(self) -> TextCache:
        """An empty cache for this model."""

    def begin(self, cache: TextCache, text: Hashable, prompt: Sequence[int], reserve: int) -> list[int]:
        """Add a text to ``cache`` with room for ``reserve`` tokens after the prompt; returns the tokens to read."""
        cache.add(text, len(prompt) + reserve)
        return list(prompt)

    @abstractmethod
    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """Append the new tokens of each read to its text.

        Returns:
            Logits (N, V) and hidden states (N', d + L·d) in the order of the reads, the last ones first: N is the sum
            of ``keep``, N' the sum of ``kept_states``, and L the number of ``state_layers``.
        """

    def draft_unread(
        self, cache: TextCache, reads: Sequence[Read], counts: Sequence[int], numbers: Sequence[Sequence[float]],
        sampled: Sampled, steps: int,
    ) -> DraftedTokens | None:  # fmt: skip
        """Draw ``counts`` tokens after each of ``reads`` without the host, one after another.

        Args:
            numbers: what each of them is drawn with, as in :func:`~specpilot.controllers.sampling.draw_by`.
            steps: the largest number of tokens that chains of these requests have.

        Returns:
            The tokens, of which those after a text's last mean nothing; None, and nothing is read, where the model
            cannot do this.
        """
        return None

    def check_unchanged(self, role: str) -> None:  # noqa: B027 — a file's model does not change
        """Raise InputError if the model, the ``role`` of a decoder, is no longer the one that this was made of."""

    def kept_below(self, size: int) -> Tensor | None:
        """The ``kept_tokens`` below ``size``, where a draft may have more tokens than its target; None for all."""
        return None if self.kept_tokens is None else self.kept_tokens[self.kept_tokens < size]

    def require_tokens_alone(self, task: str) -> None:
        """Raise InputError if the model reads a target's states, which ``task`` does not have."""
        if self.reads_states:
            raise InputError(
                f"{task}: the draft reads the target's states, which only decoding gives it; take a draft that reads "
                "tokens alone"
            )

    def embed(self, cache: TextCache, text: Hashable, hidden: Tensor) -> Tensor:
        """The prompt's embedding (d,) for routers, from the ``hidden`` state (d,) of its last token.

        It is the target's sentence embedding of Huang et al. 2024, §3.1, a by-product of the prefill.
        """
        return hidden


class TextReader:
    """A text in a cache.

    Args:
        cache: a cache that holds the text under the key ``text``. Default: a new cache.
    """

    def __init__(self, model: LanguageModel, cache: TextCache | None = None, text: Hashable = 0) -> None:
        self.model, self.text = model, text
        self.cache = model.new_cache() if cache is None else cache

    @classmethod
    def begin(cls, model: LanguageModel, prompt: Sequence[int], reserve: int = 0) -> tuple[TextReader, list[int]]:
        """A reader of a new text with room for ``reserve`` tokens after ``prompt``, and the tokens to read first."""
        reader = cls(model)
        return reader, model.begin(reader.cache, reader.text, prompt, reserve)

    @property
    def length(self) -> int:
        """Number of tokens read so far."""
        return self.cache.length(self.text)

    def read(
        self, tokens: Sequence[int], *, keep: int | None = None, tree: TreeMask | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read ``tokens``; return logits (n, V) and hidden states (n, d) of the last ``keep`` of them. Default: all."""
        keep = len(tokens) if keep is None else keep
        return self.model.forward(self.cache, [Read(self.text, tokens, keep, tree)])

    def crop(self, length: int) -> None:
        """Roll back to the first ``length`` tokens."""
        self.cache.crop_text(self.text, length)

    def keep(self, length: int, columns: Sequence[int]) -> None:
        """Roll back to the first ``length`` tokens and then ``columns``, a path of the tree read after them."""
        self.cache.keep(self.text, length, columns)


def output_embedding(model: LoadedModel) -> Tensor:
    """(V, d) what a model computes logits with; zeros for tokens that a trimmed vocabulary leaves out."""
    if isinstance(model, GgufModel):
        return model.output_embedding
    head: Any = model.get_output_embeddings()
    if isinstance(head, TrimmedHead):
        return head.embedding()
    weight = head.weight if isinstance(head.weight, Tensor) else head.weight()  # a method in torch.ao's layers
    if weight.is_quantized or type(weight) not in (Tensor, nn.Parameter):
        weight = weight.dequantize()
    return weight.detach()


def output_size(head: Any) -> tuple[int, int]:
    """(V, d) of the output projection ``head``."""
    if isinstance(head, TrimmedHead):
        return head.size, head.in_features
    weight = head.weight
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return int(weight.shape[0]), int(weight.shape[1])
    return int(head.out_features), int(head.in_features)  # of quantised weights


def count_parameters(model: LoadedModel) -> int:
    """How many parameters a model has."""
    if isinstance(model, GgufModel):
        return model.parameters
    return sum(parameter.numel() for parameter in model.parameters())


def is_dispatched(model: nn.Module) -> bool:
    """Whether a device map distributed the model, so that accelerate's hooks move its inputs and weights.

    Weights offloaded to ``cpu`` or ``disk`` are on the ``meta`` device outside their module's forward. Results are
    available only by calling the modules, and ``model.to`` raises.
    """
    return any(_hook(module) is not None for module in model.modules())


def input_device(model: PreTrainedModel) -> torch.device:
    """The device of ``model``'s input embeddings, for token ids.

    ``model.device`` is that of the first parameter, which is ``meta`` if it is offloaded.
    """
    embeddings: Any = model.get_input_embeddings()
    hook = _hook(embeddings)
    return torch.device(embeddings.weight.device if hook is None else hook.execution_device)


def _hook(module: nn.Module) -> Any:
    """Accelerate's hook on ``module``, or None."""
    return vars(module).get("_hf_hook")
