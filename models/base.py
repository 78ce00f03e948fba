"""The model protocol: the interface of language models for the engine and for uses outside the decoding loop."""

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

LoadedModel: TypeAlias = PreTrainedModel | GgufModel  # a model before `language_model` wraps it


class LanguageModel(ABC):
    """A target or a draft.

    Attributes:
        model: the wrapped model.
        outer: the model with the wrappers of other libraries, such as DataParallel, in which the caller passed it; None
            if it had no wrappers.
        name: architecture, for messages.
        precision: precision of the weights in forwards: ``float32``, ``int8``, …
        device: device of the logits.
        vocab_size: V, the number of rows of the output embedding.
        kept_tokens: (M,) the only tokens with finite logits, ascending, if the vocabulary is trimmed; None for all.
        hidden_size: d, the size of the states that logits are computed from.
        context: maximum number of tokens of a text; None for no limit.
        longest: number of tokens that buffers of fixed sizes have room for from the start; None to let them grow.
        reads_states: whether the model is a draft that reads the target's hidden states, ``Read.states``.
        reads_drawn: whether the model reads tokens that the host has not read, ``Read.drawn``.
        encodes_prompts: whether an encoder reads the prompt. Its tokenizer then ends the prompt with an end token;
            the text of a decoder-only model continues after the prompt.
        decodes_trees: whether a target of this class verifies trees of drafted tokens.
        state_layers: the layers whose outputs follow the last hidden states in the result of :meth:`forward`; 1 is
            the first layer.
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
        """Return true if the host waits for the device when it reads a number of the results."""
        return self.reads_drawn or self.device.type != "cpu"

    @property
    def forward_description(self) -> str:
        """A phrase for messages that names the forward and the reason why it runs."""
        return self.name

    def limited(self, tokens: int) -> Self:
        """Return the same model for texts of at most ``tokens`` tokens, whose buffers of fixed sizes never grow."""
        model = copy(self)
        model.context = tokens if self.context is None else min(self.context, tokens)
        model.longest = model.context
        return model

    @abstractmethod
    def new_cache(self) -> TextCache:
        """Return an empty cache for this model."""

    def begin(self, cache: TextCache, text: Hashable, prompt: Sequence[int], reserve: int) -> list[int]:
        """Add a text to ``cache``, and return the tokens that the model reads first.

        Args:
            cache: the cache.
            text: the text's key.
            prompt: token ids of the prompt.
            reserve: number of tokens after the prompt that the cache has room for; the text may grow longer.

        Returns:
            The prompt; for an encoder-decoder, which encodes the prompt here, the decoder's start token.
        """
        cache.add(text, len(prompt) + reserve)
        return list(prompt)

    @abstractmethod
    def forward(self, cache: TextCache, reads: Sequence[Read]) -> tuple[Tensor, Tensor]:
        """Append the new tokens of each read to its text.

        Args:
            cache: the cache, which has the texts of all reads.
            reads: the new tokens of each text.

        Returns:
            Logits (N, V) and hidden states (N', d + L·d) in the order of the reads. N is the sum of ``keep``, N' the
            sum of ``kept_states``, and L the number of ``state_layers``. The first d columns are the last hidden
            states; the outputs of ``state_layers`` follow.
        """

    def draft_unread(
        self, cache: TextCache, reads: Sequence[Read], counts: Sequence[int], numbers: Sequence[Sequence[float]],
        sampled: Sampled, steps: int,
    ) -> DraftedTokens | None:  # fmt: skip
        """Sample tokens after each of ``reads`` on the device, without waiting for the host.

        Args:
            cache: the cache of the texts.
            reads: the unread tokens of B texts.
            counts: number of tokens to sample for each text.
            numbers: the random number of each token, as in :func:`~specpilot.controllers.sampling.draw_by`.
            sampled: the sampling parameters.
            steps: maximum number of tokens of a chain of these requests; it fixes the size of buffers.

        Returns:
            The tokens; entries after the last token of a text are meaningless. None if the model cannot do this; it
            then reads nothing.
        """
        return None

    def check_unchanged(self, role: str) -> None:  # noqa: B027 — a file's model does not change
        """Check that nobody has changed the model since it was wrapped.

        Args:
            role: ``"target"`` or ``"draft"``, for messages.

        Raises:
            InputError: the model has changed.
        """

    def kept_tokens_below(self, size: int) -> Tensor | None:
        """Return the ``kept_tokens`` below ``size``, the target's vocabulary size; None if none are trimmed."""
        return None if self.kept_tokens is None else self.kept_tokens[self.kept_tokens < size]

    def require_tokens_alone(self, option: str, reason: str) -> None:
        """Check that the model does not read a target's states.

        Args:
            option: the option that names the model, with its value.
            reason: why the task has no states, as a sentence without its full stop.

        Raises:
            InputError: the model reads a target's states.
        """
        if self.reads_states:
            raise InputError(
                f"{option}: reads the target's states, which it gets only while decoding, but {reason}; choose a "
                "draft that reads tokens alone"
            )

    def embed(self, cache: TextCache, text: Hashable, hidden: Tensor) -> Tensor:
        """Return the prompt's embedding (d,) for routers.

        It is the target's sentence embedding of Huang et al. 2024, §3.1, a by-product of the prefill.

        Args:
            cache: the cache that has the text.
            text: the text's key.
            hidden: (d,) the hidden state of the prompt's last token.
        """
        return hidden


class TextReader:
    """Reads one text into a cache.

    Args:
        model: the model that reads.
        cache: a cache that holds the text under the key ``text``. Default: a new cache.
        text: the key.
    """

    def __init__(self, model: LanguageModel, cache: TextCache | None = None, text: Hashable = 0) -> None:
        self.model, self.text = model, text
        self.cache = model.new_cache() if cache is None else cache

    @classmethod
    def begin(cls, model: LanguageModel, prompt: Sequence[int], reserve: int = 0) -> tuple[TextReader, list[int]]:
        """Return a reader of a new text with room for ``reserve`` tokens after ``prompt``, and the tokens to read."""
        reader = cls(model)
        return reader, model.begin(reader.cache, reader.text, prompt, reserve)

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return self.cache.length(self.text)

    def read(
        self, tokens: Sequence[int], *, keep: int | None = None, tree: TreeMask | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read ``tokens``, and return logits (n, V) and hidden states (n, d).

        Args:
            tokens: the tokens.
            keep: n, the number of last tokens with results. Default: all.
            tree: the mask of the last tokens if they form a tree; None for a chain.
        """
        keep = len(tokens) if keep is None else keep
        return self.model.forward(self.cache, [Read(self.text, tokens, keep, tree)])

    def crop(self, length: int) -> None:
        """Roll back to the first ``length`` tokens."""
        self.cache.crop_text(self.text, length)

    def keep(self, length: int, columns: Sequence[int]) -> None:
        """Keep the first ``length`` tokens and after them ``columns``, a path of the tree; remove all other tokens."""
        self.cache.keep(self.text, length, columns)


def output_embedding(model: LoadedModel) -> Tensor:
    """Return the weights (V, d) that compute a model's logits; zeros for tokens outside a trimmed vocabulary."""
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
    """Return the sizes (V, d) of the output projection ``head``."""
    if isinstance(head, TrimmedHead):
        return head.size, head.in_features
    weight = head.weight
    if isinstance(weight, Tensor) and weight.is_floating_point():
        return int(weight.shape[0]), int(weight.shape[1])
    return int(head.out_features), int(head.in_features)  # of quantised weights


def count_parameters(model: LoadedModel) -> int:
    """Return the number of parameters of a model."""
    if isinstance(model, GgufModel):
        return model.parameters
    return sum(parameter.numel() for parameter in model.parameters())


def is_dispatched(model: nn.Module) -> bool:
    """Return true if a device map distributed the model, so that accelerate's hooks move its inputs and weights.

    Weights offloaded to ``cpu`` or ``disk`` are on the ``meta`` device outside their module's forward. Only a call of
    the modules gives results, and ``model.to`` raises an error.
    """
    return any(_hook(module) is not None for module in model.modules())


def input_device(model: PreTrainedModel) -> torch.device:
    """Return the device of the model's input embeddings, on which token ids must be.

    ``model.device`` is the device of the first parameter, which is ``meta`` if this parameter is offloaded.
    """
    embeddings: Any = model.get_input_embeddings()
    hook = _hook(embeddings)
    return torch.device(embeddings.weight.device if hook is None else hook.execution_device)


def _hook(module: nn.Module) -> Any:
    """Return accelerate's hook on ``module``, or None."""
    return vars(module).get("_hf_hook")
