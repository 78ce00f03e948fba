"""Models that somebody has changed, before or after a decoder was made of them: the right text, or an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.models import linear
from torch import nn
from torch.nn.utils import parametrize, prune
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .test_architectures import transformers_greedy
from .tiny import make

PROMPT = [5, 9, 2, 44, 17, 3, 30]


@pytest.fixture(autouse=True)
def _every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights are packed as well."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    monkeypatch.setattr(linear, "PLAIN_ROWS", 0)


def layer(model: Any) -> Any:
    """A layer in the middle."""
    return model.model.layers[0] if model.config.model_type == "llama" else model.transformer.h[0]


def inner(model: Any) -> Any:
    """A linear layer of it."""
    return layer(model).mlp.down_proj if model.config.model_type == "llama" else layer(model).mlp.c_proj


class Rolled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.roll(1, 0)


class Doubled(nn.Module):
    """An adapter of a layer."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) * -2  # type: ignore[no-any-return]


def negated(*_: Any) -> Any:
    return -_[-1][0] if isinstance(_[-1], tuple) else -_[-1]


def replaces_forward(module: Any, plain: Callable[..., Any] | None = None) -> None:
    old = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        out = old(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return -out
        if isinstance(out, tuple):
            return (-out[0], *out[1:])
        out.logits = -out.logits
        return out

    module.forward = forward


def set_all(model: PreTrainedModel, value: float, *names: str) -> None:
    for module in model.modules():
        for name in names:
            if name in vars(module):
                setattr(module, name, value)


def fewer_layers(model: Any) -> None:
    body = model.base_model
    body.register_module("layers" if hasattr(body, "layers") else "h", nn.ModuleList([layer(model)]))


def own_attention(model: PreTrainedModel) -> None:
    AttentionMaskInterface.register("reversed", sdpa_mask)
    AttentionInterface.register("reversed", lambda *args, **more: (-sdpa_attention_forward(*args, **more)[0], None))
    model.config._attn_implementation = "reversed"


def fresh_linear(model: Any) -> None:
    head = model.get_output_embeddings()
    other = nn.Linear(head.in_features, head.out_features, bias=False)
    nn.init.normal_(other.weight, generator=torch.Generator().manual_seed(3))
    model.set_output_embeddings(other.requires_grad_(False))


def another_class(model: Any) -> None:
    class Mine(type(layer(model).mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return -super().forward(x)

    layer(model).mlp.__class__ = Mine


@torch.no_grad()
def edited(model: Any) -> None:
    inner(model).weight.neg_()


def loaded(model: Any) -> None:
    model.load_state_dict(make(model.config.model_type, seed=9).state_dict())


def edited_row(model: Any) -> None:
    model.get_output_embeddings().weight.data[7] += 5.0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a hook of the model": lambda m: m.register_forward_hook(lambda _, __, out: setattr(out, "logits", -out.logits)),
    "a hook of a layer": lambda m: layer(m).mlp.register_forward_hook(negated),
    "a hook of a linear layer": lambda m: inner(m).register_forward_hook(negated),
    "a hook before": lambda m: inner(m).register_forward_pre_hook(negated),
    "a hook with keywords": lambda m: layer(m).mlp.register_forward_hook(lambda *a: -a[-1], with_kwargs=True),
    "a forward": replaces_forward,
    "a layer's forward": lambda m: replaces_forward(layer(m).mlp),
    "a linear layer's forward": lambda m: replaces_forward(inner(m)),
    "an adapter": lambda m: setattr(layer(m), "mlp", Doubled(layer(m).mlp)),
    "another class": another_class,
    "another head": fresh_linear,
    "an identity": lambda m: setattr(layer(m), "mlp", nn.Identity()),
    "an activation": lambda m: setattr(layer(m).mlp, "act_fn" if hasattr(layer(m).mlp, "act_fn") else "act", nn.Tanh()),
    "another attention": own_attention,
    "parametrized": lambda m: parametrize.register_parametrization(inner(m), "weight", Rolled()),
    "pruned": lambda m: prune.l1_unstructured(inner(m), "weight", amount=0.7),
    "edited": edited,
    "edited data": lambda m: inner(m).weight.data.neg_(),
    "an edited row": edited_row,
    "other data": lambda m: setattr(inner(m).weight, "data", -inner(m).weight.data),
    "another weight": lambda m: setattr(inner(m), "weight", nn.Parameter(-inner(m).weight, requires_grad=False)),
    "loaded": loaded,
    "another epsilon": lambda m: set_all(m, 3.0, "variance_epsilon", "eps"),
    "another scaling": lambda m: set_all(m, 3.0, "scaling"),
    "in float64": lambda m: m.to(torch.float64),
    "in bfloat16": lambda m: m.to(torch.bfloat16),
    "more tokens": lambda m: m.resize_token_embeddings(72, mean_resizing=False),
    "fewer tokens": lambda m: m.resize_token_embeddings(50),
    "fewer layers": fewer_layers,
    "a quantised layer": lambda m: torch.ao.quantization.quantize_dynamic(layer(m).mlp, {nn.Linear}, inplace=True),
    "quantised": lambda m: torch.ao.quantization.quantize_dynamic(m, {nn.Linear}, inplace=True),
    "a compiled layer": lambda m: setattr(layer(m), "mlp", torch.compile(layer(m).mlp, backend="eager")),
    "compiled in place": lambda m: m.compile(backend="eager"),
    "a compiled forward": lambda m: setattr(m, "forward", torch.compile(m.forward, backend="eager")),
    "dropout": lambda m: setattr(inner(m).train(), "dropout", 0.5),
}  # fmt: skip


def outcome(ask: Callable[[], list[int]]) -> list[int] | str:
    try:
        return ask()
    except InputError as error:
        return str(error)


def greedy(decoder: SpeculativeDecoder) -> list[int]:
    return decoder.generate(PROMPT, max_new_tokens=16, temperature=0).tokens  # type: ignore[no-any-return]


def by_transformers(decoder: SpeculativeDecoder) -> list[int]:
    ids = torch.tensor([PROMPT])
    model: Any = decoder.target.model
    return model.generate(ids, max_new_tokens=16, do_sample=False, custom_generate=decoder)[0, 7:].tolist()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])  # the lean forward, and packed weights
@pytest.mark.parametrize("change", CHANGES)
def test_the_text_is_the_changed_models_or_there_is_an_error(change: str, architecture: str) -> None:
    draft = make(architecture, seed=4, layers=1)
    for before in (True, False):
        target = make(architecture)
        if before:
            CHANGES[change](target)
        decoder = SpeculativeDecoder(target, draft, length=3)
        if not before:
            greedy(decoder)
            CHANGES[change](target)
        found = [outcome(lambda: ask(decoder)) for ask in (greedy, by_transformers)]  # noqa: B023
        assert found[0] == found[1]
        if isinstance(found[0], str):
            assert re.match("target: ", found[0])
        elif change != "dropout":
            assert found[0] == transformers_greedy(target, PROMPT)[:16]


@pytest.mark.filterwarnings("ignore")
def test_drafts_that_change_afterwards_are_refused() -> None:
    target, draft = make(), make(seed=4, layers=1)
    decoder = SpeculativeDecoder(target, draft, length=3)
    edited(draft)
    with pytest.raises(InputError, match=r"draft: .*mlp.down_proj has other weights than when the decoder was made"):
        greedy(decoder)


def test_hooks_of_all_modules_are_noticed_while_they_are_there() -> None:
    decoder = SpeculativeDecoder(make(), None)
    plain = greedy(decoder)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(InputError, match="target: every module has other hooks"):
            greedy(decoder)
    finally:
        handle.remove()
    assert greedy(decoder) == plain


def lora(model: PreTrainedModel, **settings: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed (extra peft)")
    config = peft.LoraConfig(
        lora_alpha=64,
        init_lora_weights=False,
        target_modules=["q_proj", "down_proj"],
        task_type="CAUSAL_LM",
        **settings,
    )
    return peft.get_peft_model(model, config).eval()


def prompt_tuned(model: PreTrainedModel) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed (extra peft)")
    return peft.get_peft_model(model, peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")).eval()


def adapted_later(model: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed (extra peft)")
    model.add_adapter(peft.LoraConfig(init_lora_weights=False, target_modules=["q_proj"]))
    model.disable_adapters()
    return model


def hook(wrapper: Any) -> Any:
    wrapper.register_forward_hook(negated)
    return wrapper


WRAPPERS: dict[str, tuple[Callable[[Any], Any], str | None]] = {  # and why it is refused
    "compiled": (lambda m: torch.compile(m, backend="eager"), None),
    "parallel": (nn.DataParallel, None),
    "both": (lambda m: nn.DataParallel(torch.compile(m, backend="eager")), None),
    "lora": (lora, None),
    "compiled lora": (lambda m: torch.compile(lora(m), backend="eager"), None),
    "disabled adapters": (adapted_later, None),
    "prompt tuning": (prompt_tuned, "PeftModelForCausalLM whose adapter changes more than the model's layers"),
    "dropping": (lambda m: lora(m, lora_dropout=0.5).train(), "training mode, so dropout is on"),
    "hooked": (lambda m: hook(nn.DataParallel(m)), "the DataParallel has hooks, which decoding would ignore"),
    "headless": (lambda m: m.model, "a LlamaModel, which has no output embedding"),
    "unknown": (nn.Sequential, "a Sequential, not a model of transformers"),
    "name": (lambda _: "tiny", "a str, not a model of transformers"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_models_in_wrappers(wrapper: str, role: str) -> None:
    wrap, refused = WRAPPERS[wrapper]
    models: dict[str, Any] = {"target": make(), "draft": make(seed=4, layers=1)}
    models[role] = wrap(models[role])
    if refused is not None:
        with pytest.raises(InputError, match=refused):
            greedy(SpeculativeDecoder(**models))
        return
    decoder = SpeculativeDecoder(**models)
    expected = transformers_greedy(decoder.target.model, PROMPT)[:16]  # type: ignore[arg-type]
    assert greedy(decoder) == expected
    assert by_transformers(decoder) == expected
    if models[role] is not decoder.target.model and role == "target":
        hook(models[role])
        with pytest.raises(InputError, match="has hooks, which decoding would ignore"):
            greedy(decoder)
