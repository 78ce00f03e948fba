"""The operators of a forward, counted on a CPU: about as many as the kernels that a GPU launches.

The forwards of models with two and with three layers are counted. The difference is the number of operators of a layer.
Views launch no kernel and do not count. Norms, softmax and attention count once each, although a CPU may run several
operators for them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from specpilot.compare.table import Table
from specpilot.models import Read
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from .subject import reader

SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 64},
    "gpt2": {"model_type": "gpt2"},
}
LAYERS = (2, 3)
TOKENS = (1, 8)
WAYS = ("transformers, eager", "ours")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
# Without alias annotations, but views, or memory without a kernel.
FREE = {
    "promote_types",
    "_unsafe_view",
    "_reshape_alias",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
SINGLE_KERNEL = {
    torch.nn.functional.rms_norm, torch.rms_norm, torch.nn.functional.layer_norm, torch.layer_norm,
    torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax,
    torch.nn.functional.scaled_dot_product_attention,
}  # fmt: skip


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that counts operators by name.

    Attributes:
        counts: number of operators so far, by name.
        inside: whether an operation that counts once is being computed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not self.inside and not _is_view(func) and name not in FREE:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


class _Wholes(TorchFunctionMode):
    """Counts each operation of ``ONE`` once."""

    def __init__(self, operators: Operators) -> None:
        super().__init__()
        self.operators = operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in SINGLE_KERNEL or self.operators.inside:
            return func(*args, **(kwargs or {}))
        self.operators.counts[func.__name__] += 1
        self.operators.inside = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.operators.inside = False


def _is_view(func: Any) -> bool:
    """Return true if an operator only views its arguments' memory in another way."""
    infos = [argument.alias_info for argument in func._schema.arguments if argument.alias_info is not None]
    return bool(infos) and not any(info.is_write for info in infos)


def counted(call: Callable[[], Any]) -> Counter[str]:
    """Call ``call``, and return the number of its operators by name."""
    # With inference mode operators would be counted before they are taken apart.
    with torch.no_grad(), Operators() as operators, _Wholes(operators):
        call()
    counts: Counter[str] = operators.counts
    return counts


def model_of(architecture: str, layers: int) -> PreTrainedModel:
    """Return a small random model of ``architecture`` with ``layers`` layers, in bfloat16."""
    settings = dict(SIZES) | ARCHITECTURES[architecture] | {"num_hidden_layers": layers}
    if architecture == "gemma3":
        settings["layer_types"] = ["full_attention", *["sliding_attention"] * (layers - 1)]
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.eval().requires_grad_(False)
    return model


@torch.no_grad()
def of_transformers(model: PreTrainedModel, tokens: int) -> Counter[str]:
    """Return the operators, by name, of transformers' eager forward over ``tokens`` tokens after a prompt."""
    cache, called = DynamicCache(config=model.config), model
    called(input_ids=torch.tensor([PROMPT]), past_key_values=cache)
    ids = torch.tensor([PROMPT[:tokens]])
    return counted(lambda: called(input_ids=ids, past_key_values=cache))


@torch.no_grad()
def of_specpilot(model: PreTrainedModel, tokens: int) -> Counter[str]:
    """Return the operators, by name, of specpilot's forward of fixed shape over ``tokens`` tokens after a prompt.

    Copies of inputs to the forward and of results from it count.
    """
    wrapped = reader(deepcopy(model), "on")
    cache = wrapped.new_cache()
    wrapped.begin(cache, 0, PROMPT, 64)
    wrapped.forward(cache, [Read(0, PROMPT)])
    reads = [Read(0, PROMPT[:tokens], tokens)]
    for _ in range(2):
        wrapped.forward(cache, reads)
        cache.crop_text(0, len(PROMPT))
    return counted(lambda: wrapped.forward(cache, reads))


def count(architecture: str, tokens: int) -> dict[str, Any]:
    """Return the numbers of operators of a layer and of the rest of a forward, for transformers and specpilot.

    The operators of a layer are also listed by name.
    """
    result: dict[str, Any] = {}
    for way, call in zip(WAYS, (of_transformers, of_specpilot), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fewer, more = (call(model_of(architecture, layers), tokens) for layers in LAYERS)
        layer = {name: more[name] - fewer[name] for name in more if more[name] != fewer[name]}
        each = more.total() - fewer.total()
        result[way] = {"a layer": each, "the rest": fewer.total() - LAYERS[0] * each, "of a layer": layer}
    return result


def as_table(results: dict[str, dict[str, Any]]) -> Table:
    """Return the table of :func:`count`, with a row for each architecture, number of tokens and library.

    Args:
        results: results of :func:`count` by name.
    """
    rows = [
        {"forward": name, "way": way, "a layer": str(counts["a layer"]), "the rest": str(counts["the rest"])}
        for name, by_way in results.items()
        for way, counts in by_way.items()
    ]
    return Table("operators of a forward, without views", rows)
