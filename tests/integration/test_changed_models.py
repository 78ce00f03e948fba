"""Models that were changed, or that cannot be decoded exactly, give the right text or an error."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.models import language_model, linear
from specpilot.models.causal_lm import forward_with_hidden
from specpilot.models.model_snapshot import ModelSnapshot
from torch import nn
from torch.nn.utils import parametrize
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    BertLMHeadModel,
    CpmAntForCausalLM,
    ElectraForCausalLM,
    GPT2LMHeadModel,
    PreTrainedModel,
)  # fmt: skip
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..helpers.architectures import randomised
from ..helpers.greedy import transformers_greedy
from ..helpers.tiny import NO_SPECIALS, make

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPT = [5, 9, 2, 44, 17, 3, 30]


@pytest.fixture(autouse=True)
def _every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack small weights as well."""
    monkeypatch.setattr(linear, "SMALLEST", 1)
    monkeypatch.setattr(linear, "PLAIN_ROWS", 0)


def layer(model: Any) -> Any:
    """Return a layer in the middle of the model."""
    return model.model.layers[0] if model.config.model_type == "llama" else model.transformer.h[0]


def inner(model: Any) -> Any:
    """Return a linear layer of :func:`layer`."""
    return layer(model).mlp.down_proj if model.config.model_type == "llama" else layer(model).mlp.c_proj


def negated(*arguments: Any) -> Any:
    """Return the output or the inputs of a module, the last argument of a hook, with the opposite sign."""
    value = arguments[-1]
    if hasattr(value, "logits"):
        value.logits = -value.logits
        return value
    return (-value[0], *value[1:]) if isinstance(value, tuple) else -value


def replace_forward(module: Any) -> None:
    old = module.forward
    module.forward = lambda *args, **kwargs: negated(old(*args, **kwargs))


def own_attention(model: PreTrainedModel) -> None:
    AttentionMaskInterface.register("reversed", sdpa_mask)
    AttentionInterface.register("reversed", lambda *args, **more: (-sdpa_attention_forward(*args, **more)[0], None))
    model.config._attn_implementation = "reversed"


def another_class(model: Any) -> None:
    class ChangedMLP(type(layer(model).mlp)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return -super().forward(x)

    layer(model).mlp.__class__ = ChangedMLP


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a hook of the model": lambda m: m.register_forward_hook(negated),
    "a hook of a linear layer": lambda m: inner(m).register_forward_hook(negated),
    "a hook before": lambda m: inner(m).register_forward_pre_hook(negated),
    "a forward": replace_forward,
    "a linear layer's forward": lambda m: replace_forward(inner(m)),
    "an adapter": lambda m: setattr(layer(m), "mlp", nn.Sequential(layer(m).mlp, nn.Tanh())),
    "another class": another_class,
    "another head": lambda m: m.set_output_embeddings(nn.Linear(32, 64, bias=False).requires_grad_(False)),
    "an activation": lambda m: setattr(layer(m).mlp, "act_fn" if hasattr(layer(m).mlp, "act_fn") else "act", nn.Tanh()),
    "another attention": own_attention,
    "parametrized": lambda m: parametrize.register_parametrization(inner(m), "weight", nn.Tanh()),
    "edited": lambda m: inner(m).weight.data.neg_(),
    "an edited row": lambda m: m.get_output_embeddings().weight.data[7].add_(5.0),
    "another weight": lambda m: setattr(inner(m), "weight", nn.Parameter(-inner(m).weight, requires_grad=False)),
    "loaded": lambda m: m.load_state_dict(make(m.config.model_type, seed=9).state_dict()),
    "another scaling": lambda m: setattr(next(n for n in m.modules() if hasattr(n, "scaling")), "scaling", 3.0),
    "in float64": lambda m: m.to(torch.float64),
    "in bfloat16": lambda m: m.to(torch.bfloat16),
    "quantised": lambda m: torch.ao.quantization.quantize_dynamic(m, {nn.Linear}, inplace=True),
    "compiled in place": lambda m: m.compile(backend="eager"),
    "dropout": lambda m: setattr(inner(m).train(), "dropout", 0.5),
}  # fmt: skip
ALL_CHANGES = CHANGES | {  # others count the layers that they have
    "fewer layers": lambda m: setattr(m.config, "num_hidden_layers", 1)  # as transformers' failed early exit leaves it
}


def greedy(decoder: SpeculativeDecoder) -> list[int]:
    return decoder.generate(PROMPT, max_new_tokens=16, temperature=0).tokens  # type: ignore[no-any-return]


def by_transformers(decoder: SpeculativeDecoder) -> list[int]:
    ids = torch.tensor([PROMPT])
    model: Any = decoder.target.model
    return model.generate(ids, max_new_tokens=16, do_sample=False, custom_generate=decoder)[0, 7:].tolist()  # type: ignore[no-any-return]


# The words of the message for changes since the decoder was made.
REASONS = {
    "hooks": ("a hook of the model", "a hook of a linear layer", "a hook before"),
    "another module or has another forward": (
        "a forward", "a linear layer's forward", "an adapter", "another class", "another head", "an activation",
        "parametrized", "quantised",
    ),
    "other weights": ("edited", "an edited row", "another weight", "loaded", "in float64", "in bfloat16"),
    "other settings": ("another attention", "another scaling", "dropout"),
    "number of layers": ("fewer layers",),
}  # fmt: skip
HARMLESS = ("compiled in place",)
BY_TRANSFORMERS = (*REASONS["hooks"], "another attention")  # its own forward follows them


def refusal(change: str, architecture: str, *, before: bool) -> str | None:
    """Return the reason for which a change is refused; None if the text is that of the changed model."""
    if before:  # decoders of changed models decode these, except with dropout
        return "is in training mode" if change == "dropout" else None
    if change in HARMLESS or (architecture == "gpt2" and change in BY_TRANSFORMERS):
        return None
    return next(reason for reason, changes in REASONS.items() if change in changes)


OF_WEIGHTS = (
    "a hook of a linear layer",
    "a linear layer's forward",
    "edited",
    "another weight",
    "parametrized",
    "in bfloat16",
    "quantised",
)


@pytest.mark.parametrize(
    ("change", "architecture"),
    [
        *((change, "llama") for change in CHANGES),  # the lean forward
        # Packed weights; the changes of other parts are slow tests.
        *(pytest.param(c, "gpt2", marks=[pytest.mark.slow] * (c not in OF_WEIGHTS)) for c in CHANGES),
        ("fewer layers", "llama"),
    ],
)
def test_the_text_is_the_changed_models_or_there_is_an_error(change: str, architecture: str) -> None:
    draft = make(architecture, seed=4, layers=1)
    for before in (True, False):
        target = make(architecture)
        if before:
            ALL_CHANGES[change](target)
        decoder = SpeculativeDecoder(target, draft, length=3)
        if not before:
            greedy(decoder)
            ALL_CHANGES[change](target)
        reason = refusal(change, architecture, before=before)
        if reason is None:
            assert greedy(decoder) == by_transformers(decoder) == transformers_greedy(target, PROMPT, 16)
            continue
        for decode in (greedy, by_transformers):
            with pytest.raises(InputError, match=rf"^target: .* {reason}"):
                decode(decoder)


def test_drafts_that_change_afterwards_are_refused() -> None:
    target, draft = make(), make(seed=4, layers=1)
    decoder = SpeculativeDecoder(target, draft, length=3)
    inner(draft).weight.neg_()
    with pytest.raises(InputError, match=r"draft: .*mlp.down_proj has other weights than when the decoder was made"):
        greedy(decoder)


def test_settings_of_generation_are_those_of_the_moment() -> None:
    target = make()
    decoder = SpeculativeDecoder(target, None)
    text, settings = greedy(decoder), target.generation_config
    assert settings is not None
    settings.eos_token_id, settings.do_sample, settings.max_new_tokens = text[2], False, 9
    ended = text[: text.index(text[2]) + 1][:9]
    assert decoder.generate(PROMPT).tokens == decoder.generate(PROMPT, temperature=0).tokens == ended
    settings.repetition_penalty = 1.3
    with pytest.raises(InputError, match=r"the checkpoint sets repetition_penalty=1\.3"):
        greedy(decoder)


def test_another_threads_forward_is_no_change() -> None:
    """On a GPU, the model's own forward reads prompts, with temporary hooks that capture states."""
    target, changes = make("gpt2"), []
    layer(target).register_forward_hook(lambda *_: changes.append(guarded.change()))
    guarded = ModelSnapshot(target, hooks=True)
    forward_with_hidden(target, layers=[layer(target)], input_ids=torch.tensor([PROMPT]))
    assert changes == [None]


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


def adapted(model: PreTrainedModel, kind: str = "LoraConfig", **settings: Any) -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed (extra peft)")
    if kind == "LoraConfig":
        settings |= {"lora_alpha": 64, "init_lora_weights": False, "target_modules": ["q_proj", "down_proj"]}
    return peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", **settings)).eval()


WRAPPERS: dict[str, tuple[Callable[[Any], Any], str | None]] = {  # and why it is refused
    "compiled": (lambda m: torch.compile(m, backend="eager"), None),
    "parallel": (nn.DataParallel, None),
    "lora": (adapted, None),
    "compiled lora": (lambda m: torch.compile(adapted(m), backend="eager"), None),
    "disabled": (lambda m: adapted(m).base_model.disable_adapter_layers() or m, None),
    "prompts": (lambda m: adapted(m, "PromptTuningConfig", num_virtual_tokens=4), "whose adapter changes more than"),
    "dropping": (lambda m: adapted(m, lora_dropout=0.5).train(), "training mode, so dropout is on"),
    "headless": (lambda m: m.model, "a LlamaModel, which has no output embedding"),
    "name": (lambda _: "tiny", "a str, not a model of transformers"),
}


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
    expected = transformers_greedy(decoder.target.model, PROMPT, 16)  # type: ignore[arg-type]
    assert greedy(decoder) == expected
    assert by_transformers(decoder) == expected
    if models[role] is not decoder.target.model and role == "target":
        models[role].register_forward_hook(negated)
        with pytest.raises(InputError, match="has hooks, which decoding would ignore"):
            greedy(decoder)


# Models that cannot be decoded exactly are refused when they are loaded


SIZES: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


class Recurrent(GPT2LMHeadModel):
    """Adds to the logits a sum over all tokens that were read, which is not in the cache."""

    total: torch.Tensor | int = 0

    def forward(self, input_ids: Any = None, past_key_values: Any = None, **kwargs: Any) -> Any:
        if past_key_values is None or past_key_values.get_seq_length() == 0:
            self.total = 0
        output = super().forward(input_ids, past_key_values, **kwargs)
        sums = self.total + self.transformer.wte(input_ids).cumsum(1)
        self.total = sums[:, -1:]
        output.logits = self.lm_head(sums)[:, -output.logits.shape[1] :]
        return output


def random_model(model: type[PreTrainedModel], gain: float = 3.0, embedding: float = 0.2, **settings: Any) -> Any:
    return randomised(model(model.config_class(**SIZES | settings)), 0, gain, embedding)


PARTS: dict[str, Any] = {"dim_head": 8, "dim_ff": 64, "prompt_types": 2, "prompt_length": 4, "segment_types": 4}


@pytest.mark.parametrize(
    ("model", "gain", "settings", "message"),
    [
        # They attend to later tokens.
        *((model, gain, {}, r"reading a text in parts gives other logits .* is_decoder=True")
          for model in (BertLMHeadModel, ElectraForCausalLM) for gain in (1.0, 3.0)),
        # It reads its prompt's padding anew with every token.
        (CpmAntForCausalLM, 1.0, PARTS, r"^cpmant: cannot read a text in parts \(.*\); choose another model$"),
        # Its state is not rolled back.
        (Recurrent, 1.0, {}, "gpt2: reading a text in parts gives other logits"),
    ],
)  # fmt: skip
def test_models_that_cannot_read_in_parts(model: Any, gain: float, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        language_model(random_model(model, gain, 0.5, **settings))


def test_the_same_as_a_decoder() -> None:
    """The error names a remedy, and the remedy works: the greedy text equals that of transformers."""
    model, draft = (random_model(BertLMHeadModel, is_decoder=True, **NO_SPECIALS) for _ in range(2))
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    prompt = [*range(5, 17)]
    output = SpeculativeDecoder(model, draft, length=3).generate(prompt, max_new_tokens=24, temperature=0)
    assert output.tokens == transformers_greedy(model, prompt, 24)
