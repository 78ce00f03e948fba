"""Unwraps models, copies their modules, and detects later changes of a model.

A forward that copies weights or replaces the modules' forwards computes the results of the model at the time of the
copy. :class:`ModelSnapshot` detects later changes of modules, forwards, hooks, settings and weights.
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
from .trimmed_head import TrimmedHead

LIBRARY_MODULES = ("torch.nn.", "transformers.")  # without adapters
PACKAGE = f"{__package__}."
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
WHOLE = 1 << 14  # weights of at most this many values are compared completely, larger ones on a diagonal
UNIMPORTANT = frozenset({"layer_idx", "training", "name_or_path", "gradient_checkpointing", "max_seq_len_cached"})
CHANGES = ("is another module or has another forward", "has other weights", "has other settings", "has other hooks")
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes; as an integer NaN equals itself


def unwrap(model: Any, role: str) -> PreTrainedModel:
    """Return the transformers model inside wrappers of torch.compile, DataParallel and PEFT.

    Args:
        model: the model, with or without wrappers.
        role: ``"target"`` or ``"draft"``, for messages.

    Raises:
        InputError: there is no transformers model inside, or a wrapper changes its results.
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
        elif adapted and "forward" not in vars(model) and _is_layers_only(model, peft):
            model = model.base_model.model
        elif adapted:
            raise InputError(
                f"{role}: a {name} whose adapter changes more than the model's layers, such as its prompt, or applies "
                "to a part of the text only, as activated LoRA does; give one with LoRA or the like"
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


def _is_layers_only(model: Any, peft: Any) -> bool:
    """Return true if a PEFT model's adapter is only in the layers of its base model and applies to all tokens."""
    tuner = peft.tuners.tuners_utils.BaseTuner
    if not isinstance(model.base_model, tuner) or type(model.base_model).forward is not tuner.forward:
        return False
    return not any(getattr(config, "alora_invocation_tokens", None) for config in model.peft_config.values())


def shell(module: nn.Module) -> Any:
    """Return a shallow copy of ``module``; :func:`copy.copy` raises an error for modules with parametrized weights."""
    copied = object.__new__(type(module))
    vars(copied).update(vars(module) | {"_modules": dict(module._modules), "_compiled_call_impl": None})
    return copied


def mirror(model: nn.Module, change: Callable[[nn.Module, nn.Module], None]) -> Any:
    """Return a copy of a model's modules with the same parameters, buffers and hooks.

    A module in a wrapper of torch.compile is copied without the wrapper.

    Args:
        model: the model.
        change: called as ``change(copy, original)`` for every module.
    """
    copies: dict[nn.Module, nn.Module] = {}

    def copied(module: nn.Module) -> nn.Module:
        """Return the copy of ``module``."""
        if isinstance(module, OptimizedModule):
            inner = module._modules["_orig_mod"]
            assert inner is not None
            return copied(inner)
        if module not in copies:
            module_copy = copies[module] = shell(module)
            module_copy._modules = {
                name: part if part is None else copied(part) for name, part in module._modules.items()
            }
            change(module_copy, module)
        return copies[module]

    return copied(model)


def uncompile(model: PreTrainedModel) -> PreTrainedModel:
    """Return ``model`` without the wrappers that torch.compile puts around modules; ``model`` itself if it has none.

    Raises:
        InputError: a wrapper has hooks.
    """

    def plain(module_copy: nn.Module, module: nn.Module) -> None:
        """Restore the forward of the class in the copy ``module_copy`` of ``module``."""
        if _compiled(module):
            vars(module_copy).pop("forward")

    if not any(isinstance(module, OptimizedModule) or _compiled(module) for module in model.modules()):
        return model
    for name, module in model.named_modules():
        if isinstance(module, OptimizedModule) and (module._forward_hooks or module._forward_pre_hooks):
            raise InputError(f"{name}: compiled, with hooks that decoding would ignore; register them before compiling")
    return mirror(model, plain)  # type: ignore[no-any-return]


def _compiled(module: nn.Module) -> bool:
    """Return true if the module's forward is the compiled forward of its class."""
    inner = getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)
    return inner is not None and getattr(inner, "__func__", None) is type(module).forward


REMEMBERED = 16
Builds = dict[str, tuple[Any, ...]]  # name of a module → its :func:`_build`
_EXPECTED: dict[tuple[type, str | None, str], Builds] = {}  # by class, attention and config; computing one is slow


def matches_config(model: PreTrainedModel) -> bool:
    """Return true if the model's modules and settings are those that its class builds from its config."""
    key = type(model), model.config._attn_implementation, model.config.to_json_string(use_diff=False)
    if key not in _EXPECTED:
        with torch.device("meta"), no_init_weights():
            fresh = type(model)(deepcopy(model.config))
        while len(_EXPECTED) >= REMEMBERED:
            _EXPECTED.pop(next(iter(_EXPECTED)))
        _EXPECTED[key] = {name: _build(module) for name, module in fresh.named_modules()}
    draft_modules = tuple(name for name, module in model.named_modules() if isinstance(module, TrimmedHead))
    expected = {name: build for name, build in _EXPECTED[key].items() if not name.startswith(draft_modules)}
    builds = {name: _build(module) for name, module in model.named_modules() if not name.startswith(draft_modules)}
    return builds == expected


def _build(module: nn.Module) -> tuple[Any, ...]:
    """Return the class of a module, its settings, the shapes of its parameters, and the names of its buffers."""
    shapes = {name: value.shape for name, value in module._parameters.items() if value is not None}
    return type(module), _settings(module), shapes, {*module._buffers}


def _settings(module: nn.Module) -> dict[str, bool | int | float | str]:
    """Return the public attributes of a module that are booleans, numbers or strings, except unimportant ones."""
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key not in UNIMPORTANT and isinstance(value, bool | int | float | str)
    }


class State(NamedTuple):
    """The state of a module, for comparison with a later state.

    Attributes:
        parts: its class, its forwards and its submodules.
        weights: identity, dtype, address and version of its parameters.
        settings: its attributes that are booleans, numbers or strings.
        hooks: its forward hooks.
    """

    parts: tuple[Any, ...]
    weights: tuple[Any, ...]
    settings: dict[str, bool | int | float | str]
    hooks: tuple[Any, ...]

    @classmethod
    def of(cls, module: nn.Module) -> State:
        """Return the current state of ``module``."""
        attributes = vars(module)
        return cls(
            (type(module), type(module).forward, attributes.get("forward"), *attributes["_modules"].values()),
            tuple(
                (id(t), t.dtype, t.data_ptr(), 0 if t.is_inference() else t._version)
                for t in attributes["_parameters"].values()
                if t is not None
            ),
            _settings(module),
            # A copy, because another thread's forward may add hooks meanwhile.
            tuple(
                h
                for h in (*attributes["_forward_hooks"].values(), *attributes["_forward_pre_hooks"].values())
                if not _is_internal_hook(h)
            ),
        )


def _is_internal_hook(hook: Any) -> bool:
    """Return true for hooks of this package, and for those with which transformers collects outputs of layers."""
    return str(getattr(hook, "__module__", "")).startswith((PACKAGE, "transformers.utils."))


def is_library_module(module: nn.Module, origins: tuple[str, ...] = LIBRARY_MODULES) -> bool:
    """Return true for trimmed heads, and for modules of classes in ``origins`` with a library's forward."""
    kind = type(module)
    return kind is TrimmedHead or (
        kind.__module__.startswith(origins) and kind.forward.__module__.startswith(LIBRARY_MODULES)
    )


def has_active_dropout(module: nn.Module) -> bool:
    """Return true if the module is in training mode and applies dropout."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.training and module.p > 0
    return module.training and any(
        "dropout" in key and isinstance(rate, float) and rate > 0 for key, rate in _settings(module).items()
    )


class ModelSnapshot:
    """The state of a model when its weights were copied.

    Args:
        model: the model.
        hooks: whether the forward ignores hooks that are registered later, so that these count as changes.
    """

    def __init__(self, model: PreTrainedModel, *, hooks: bool) -> None:
        self.hooks = hooks
        self.modules = [(name, module, State.of(module)) for name, module in model.named_modules()]
        self.config, self.attention = model.config, model.config._attn_implementation
        # References, so that no other tensor gets the same identity.
        self.tensors = [*model.parameters(), *(model.buffers() if hooks else ())]  # rope may replace its buffers
        self.views: dict[int, list[Any]] = {}  # by bytes of a value
        for tensor in self.tensors:
            if tensor.is_contiguous() and tensor.device.type == "cpu":
                self.views.setdefault(tensor.element_size(), []).append(_sampled(tensor))
        self.samples = {size: np.concatenate(views) for size, views in self.views.items()}

    def change(self) -> str | None:
        """Return a description of the first change of the model, a module's name and a predicate; None if unchanged.

        Edits that autograd does not count (``weight.data[…] = …``) are found by comparing values. Of large weights only
        the values on a diagonal are compared.
        """
        for name, module, before in self.modules:
            state = State.of(module)
            if state != before:
                index = next(
                    i for i, (current, previous) in enumerate(zip(state, before, strict=True)) if current != previous
                )
                if index < len(CHANGES) - 1 or self.hooks:
                    return f"{name or 'the model'} {CHANGES[index]}"
        if self.hooks and self.config._attn_implementation != self.attention:
            return f"the model {CHANGES[2]}"
        if self.hooks and (hooked._global_forward_hooks or hooked._global_forward_pre_hooks):
            return f"every module {CHANGES[3]}"
        same = all(np.array_equal(np.concatenate(views), self.samples[size]) for size, views in self.views.items())
        return None if same else f"the model {CHANGES[1]}"


def _sampled(tensor: Tensor) -> Any:
    """Return a numpy view (n,) of a tensor's values as integers: of all values of a small tensor, else of a diagonal.

    For many small arrays numpy is several times as fast as torch.
    """
    values = tensor.detach().view(-1).view(INTEGERS[tensor.element_size()]).numpy()
    return values if len(values) <= WHOLE or tensor.shape[-1] < 3 else values[:: tensor.shape[-1] - 1]
