"""The model that was given: out of its wrappers, and the same as when what is decoded with was made of it.

A forward that copies weights or takes the place of modules' own computes what the model computed when it was made.
:class:`Given` notices what has changed since: modules, forwards, hooks, settings, weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules import module as hooked
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from ..common.errors import InputError
from .eagle import StateInput
from .trimmed_head import TrimmedHead

OURS = (TrimmedHead, StateInput)
KNOWN_MODULES = ("torch.nn.", "transformers.")  # no adapters
PACKAGE = f"{__package__}."
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
WHOLE = 1 << 14  # values of a weight that are all compared; of larger ones a diagonal
UNIMPORTANT = frozenset({"layer_idx", "training", "name_or_path", "gradient_checkpointing", "max_seq_len_cached"})
CHANGES = ("is another module or has another forward", "has other weights", "has other settings", "has other hooks")
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes: NaN equals itself as an integer


def unwrapped(model: Any, role: str) -> PreTrainedModel:
    """The model in wrappers of torch.compile, DataParallel and PEFT, whose forward is the wrapper's.

    Raises:
        InputError: it is no model of transformers, or the wrapper computes something else.
    """
    peft: Any = sys.modules.get("peft")
    while not isinstance(model, PreTrainedModel):
        name = type(model).__name__
        adapted = peft is not None and isinstance(model, peft.PeftModel | peft.PeftMixedModel)
        if isinstance(model, nn.Module) and (model._forward_hooks or model._forward_pre_hooks):
            raise InputError(f"{role}: the {name} has hooks, which decoding would ignore; register them on its model")
        if isinstance(model, OptimizedModule):
            model = model._modules["_orig_mod"]
        elif isinstance(model, PARALLEL) and "forward" not in vars(model):
            model = model.module
        elif adapted and "forward" not in vars(model) and _only_its_layers(model, peft):
            model = model.base_model.model
        elif adapted:
            raise InputError(
                f"{role}: a {name} whose adapter changes more than the model's layers, such as its prompt; give one "
                "with LoRA or the like"
            )
        else:
            raise InputError(
                f"{role}: a {name}, not a model of transformers; give the PreTrainedModel, as AutoModelForCausalLM "
                "loads it"
            )
    if model.get_output_embeddings() is None:
        raise InputError(
            f"{role}: a {type(model).__name__}, which has no output embedding; load it by AutoModelForCausalLM"
        )
    return model


def _only_its_layers(model: Any, peft: Any) -> bool:
    """Whether the adapter of a PEFT model is all in the layers of its base model."""
    tuner = peft.tuners.tuners_utils.BaseTuner
    if not isinstance(model.base_model, tuner) or type(model.base_model).forward is not tuner.forward:
        return False
    return not any(getattr(config, "alora_invocation_tokens", None) for config in model.peft_config.values())


def shell(module: nn.Module) -> Any:
    """A copy that shares everything with ``module``: ``copy`` refuses modules whose weights are parametrized."""
    other = object.__new__(type(module))
    vars(other).update(vars(module) | {"_modules": dict(module._modules), "_compiled_call_impl": None})
    return other


def mirrored(model: nn.Module, change: Callable[[nn.Module, nn.Module], None]) -> Any:
    """Copies of a model's modules, with the same parameters, buffers and hooks, after ``change(copy, original)``."""
    done: dict[nn.Module, nn.Module] = {}

    def copied(module: nn.Module) -> nn.Module:
        if isinstance(module, OptimizedModule):
            inner = module._modules["_orig_mod"]
            assert inner is not None
            return copied(inner)
        if module not in done:
            other = done[module] = shell(module)
            other._modules = {name: part if part is None else copied(part) for name, part in module._modules.items()}
            change(other, module)
        return done[module]

    return copied(model)


def uncompiled(model: PreTrainedModel) -> PreTrainedModel:
    """``model`` without what torch.compile has put around its parts; ``model`` itself where there is nothing of it."""

    def plain(other: nn.Module, module: nn.Module) -> None:
        if _compiled(module):
            vars(other).pop("forward")

    if not any(isinstance(module, OptimizedModule) or _compiled(module) for module in model.modules()):
        return model
    for name, module in model.named_modules():
        if isinstance(module, OptimizedModule) and (module._forward_hooks or module._forward_pre_hooks):
            raise InputError(f"{name}: compiled, with hooks that decoding would ignore; register them before compiling")
    return mirrored(model, plain)  # type: ignore[no-any-return]


def _compiled(module: nn.Module) -> bool:
    """Whether the module's forward is that of its class, compiled."""
    inner = getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)
    return inner is not None and getattr(inner, "__func__", None) is type(module).forward


REMEMBERED = 16
Builds = dict[str, tuple[Any, ...]]  # name of a module → :func:`_build` of it
_EXPECTED: dict[tuple[type, str | None, str], Builds] = {}  # by class, attention and config; making one is slow


def as_built(model: PreTrainedModel) -> bool:
    """Whether the model's parts are what its class makes of its config: nothing is replaced or set otherwise."""
    key = type(model), model.config._attn_implementation, model.config.to_json_string(use_diff=False)
    if key not in _EXPECTED:
        with torch.device("meta"), no_init_weights():
            fresh = type(model)(deepcopy(model.config))
        while len(_EXPECTED) >= REMEMBERED:
            _EXPECTED.pop(next(iter(_EXPECTED)))
        _EXPECTED[key] = {name: _build(module) for name, module in fresh.named_modules()}
    ours = tuple(name for name, module in model.named_modules() if isinstance(module, OURS))
    expected = {name: build for name, build in _EXPECTED[key].items() if not name.startswith(ours)}
    builds = {name: _build(module) for name, module in model.named_modules() if not name.startswith(ours)}
    return builds == expected


def _build(module: nn.Module) -> tuple[Any, ...]:
    """The class of a module, its settings, and the shapes of its parameters."""
    shapes = {name: value.shape for name, value in module._parameters.items() if value is not None}
    return type(module), _settings(module), shapes, {*module._buffers}


def _settings(module: nn.Module) -> dict[str, bool | int | float | str]:
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key not in UNIMPORTANT and isinstance(value, bool | int | float | str)
    }


class State(NamedTuple):
    """What a module was, by identity."""

    parts: tuple[Any, ...]
    weights: tuple[Any, ...]
    settings: dict[str, bool | int | float | str]
    hooks: tuple[Any, ...]

    @classmethod
    def of(cls, module: nn.Module) -> State:
        own = vars(module)
        return cls(
            (type(module), type(module).forward, own.get("forward"), *own["_modules"].values()),
            tuple(
                (id(t), t.dtype, t.data_ptr(), 0 if t.is_inference() else t._version)
                for t in own["_parameters"].values()
                if t is not None
            ),
            _settings(module),
            # A copy, since another thread's forward may add its own.
            tuple(h for h in (*own["_forward_hooks"].values(), *own["_forward_pre_hooks"].values()) if not _ours(h)),
        )


def _ours(hook: Any) -> bool:
    """Whether a hook is ours, or one by which transformers keeps the outputs of layers that a call has asked for."""
    return str(getattr(hook, "__module__", "")).startswith((PACKAGE, "transformers.utils."))


def is_known(module: nn.Module, origins: tuple[str, ...] = KNOWN_MODULES) -> bool:
    """Whether ``module`` is a trimmed head, an input of EAGLE, or of a class from ``origins`` with its own forward."""
    kind = type(module)
    return kind in OURS or (kind.__module__.startswith(origins) and kind.forward.__module__.startswith(KNOWN_MODULES))


def drops(module: nn.Module) -> bool:
    """Whether the module is in training mode and drops something at random."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.training and module.p > 0
    return module.training and any(
        "dropout" in key and isinstance(rate, float) and rate > 0 for key, rate in _settings(module).items()
    )


class Given:
    """What a model was when copies of its weights were made.

    Args:
        hooks: whether hooks that are registered later would be ignored.
    """

    def __init__(self, model: PreTrainedModel, *, hooks: bool) -> None:
        self.hooks = hooks
        self.modules = [(name, module, State.of(module)) for name, module in model.named_modules()]
        self.config, self.attention = model.config, model.config._attn_implementation
        # Kept, so that no other tensor has their identity.
        self.tensors = [*model.parameters(), *(model.buffers() if hooks else ())]  # rope may replace its buffers
        self.views: dict[int, list[Any]] = {}  # by bytes of a value
        for tensor in self.tensors:
            if tensor.is_contiguous() and tensor.device.type == "cpu":
                self.views.setdefault(tensor.element_size(), []).append(_sampled(tensor))
        self.samples = {size: np.concatenate(views) for size, views in self.views.items()}

    def change(self) -> str | None:
        """What has changed of the model, as the name of a module and a predicate; None if nothing has.

        Of large weights that were edited behind autograd's back (``weight.data[…] = …``) a diagonal is compared.
        """
        for name, module, before in self.modules:
            now = State.of(module)
            if now != before:
                place = next(i for i, (one, other) in enumerate(zip(now, before, strict=True)) if one != other)
                if place < len(CHANGES) - 1 or self.hooks:
                    return f"{name or 'the model'} {CHANGES[place]}"
        if self.hooks and self.config._attn_implementation != self.attention:
            return f"the model {CHANGES[2]}"
        if self.hooks and (hooked._global_forward_hooks or hooked._global_forward_pre_hooks):
            return f"every module {CHANGES[3]}"
        same = all(np.array_equal(np.concatenate(views), self.samples[size]) for size, views in self.views.items())
        return None if same else f"the model {CHANGES[1]}"


def _sampled(tensor: Tensor) -> Any:
    """A view (n,) of some of a tensor's values, as integers: of each row, and of as many columns as there are rows.

    It is numpy's, which is several times as fast for so many small parts.
    """
    values = tensor.detach().view(-1).view(INTEGERS[tensor.element_size()]).numpy()
    return values if len(values) <= WHOLE or tensor.shape[-1] < 3 else values[:: tensor.shape[-1] - 1]
