"""Settings of a checkpoint's generation_config.json: followed, without effect, or refused by name."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from specpilot.common.errors import InputError
from specpilot.controllers.sampling import SamplingParams
from specpilot.models.loading import generation_defaults as defaults
from specpilot.models.loading.generation_defaults import GenerationDefaults, generation_defaults
from specpilot.models.loading.names import load_model
from transformers import GenerationConfig

from ..helpers.refusals import refused
from ..helpers.tiny import make


def defaults_of(**settings: Any) -> GenerationDefaults:
    model = make()
    model.generation_config = GenerationConfig(**settings)
    return generation_defaults(model)


def test_a_plain_model_asks_for_nothing(tmp_path: Path) -> None:
    assert generation_defaults(make()) == GenerationDefaults()
    assert generation_defaults(make("t5")) == GenerationDefaults()
    for name in ("tiny", "tiny-draft", "tiny-t5"):
        assert generation_defaults(load_model(name, device="cpu")) == GenerationDefaults()
    make().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()  # made from config.json then
    plain = generation_defaults(load_model(str(tmp_path), device="cpu"))
    assert plain == GenerationDefaults()
    assert plain.sampling_params() == SamplingParams()
    assert plain.budget("auto", 7) == 128
    # Nor what is about the run, not the text.
    assert defaults_of(use_cache=False, cache_implementation="static", num_assistant_tokens=5, bos_token_id=3) == plain


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"do_sample": True}, {}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True, "top_k": 0}, {"top_k": None}),
        ({"do_sample": True, "top_k": 64, "top_p": 1.0}, {"top_k": 64, "top_p": 1.0}),
        ({"do_sample": False}, {"temperature": 0.0}),
        ({"do_sample": False, "temperature": 0.6, "top_k": 9}, {"temperature": 0.0, "top_k": 9}),
        ({"temperature": 0.6}, {"temperature": 0.6}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_sampling_that_is_followed(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    assert defaults_of(**settings).sampling_params() == SamplingParams(**expected)
    assert defaults_of(**settings).sampling_params(temperature=0.3, top_k="auto").temperature == 0.3


def test_lengths_that_are_followed() -> None:
    assert defaults_of(max_new_tokens=9).budget("auto", 100) == 9
    # 20 is transformers' own default, which older versions wrote out.
    assert defaults_of(max_length=20) == GenerationDefaults()
    assert defaults_of(max_length=30).budget("auto", 12) == 18
    assert defaults_of(max_length=30, max_new_tokens=9) == GenerationDefaults(max_new_tokens=9)
    with refused("prompt: 30 tokens, but the checkpoint's generation_config has max_length=30"):
        defaults_of(max_length=30).budget("auto", 30)


REFUSED: dict[str, Any] = {
    "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "constraints": [1], "force_words_ids": [[3]],
    "repetition_penalty": 1.2, "encoder_repetition_penalty": 1.2, "exponential_decay_length_penalty": (3, 1.1),
    "no_repeat_ngram_size": 2, "encoder_no_repeat_ngram_size": 2, "bad_words_ids": [[3]], "sequence_bias": [[[3], 1.0]],
    "min_p": 0.1, "top_h": 0.4, "typical_p": 0.9, "epsilon_cutoff": 0.01, "eta_cutoff": 0.01, "min_length": 9,
    "min_new_tokens": 3, "forced_bos_token_id": 0, "forced_eos_token_id": 1, "suppress_tokens": [1],
    "begin_suppress_tokens": [1], "remove_invalid_values": True, "guidance_scale": 1.5, "max_time": 3.0,
    "watermarking_config": {"bias": 2.0}, "stop_strings": ["\n"], "token_healing": True, "penalty_alpha": 0.6,
    "dola_layers": "low", "assistant_ensemble_weight": 0.5,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_change_the_text_are_refused_by_name(name: str) -> None:
    """The remedy in the message works."""
    model = make()
    model.generation_config.do_sample = True
    setattr(model.generation_config, name, REFUSED[name])
    with pytest.raises(InputError) as raised:
        generation_defaults(model)
    setting = re.escape(f"model.generation_config.{name}")
    remedy = re.search(rf"sets {name}=.*; set {setting}=(.*), or pass generation_config='ignore'", str(raised.value))
    setattr(model.generation_config, name, ast.literal_eval(remedy[1]))
    generation_defaults(model)


def test_every_setting_is_accounted_for() -> None:
    """A new setting of transformers is refused until the lists of the code and of this test contain it."""
    transformers_settings = vars(GenerationConfig()).keys()
    handled_settings = defaults.SUPPORTED | defaults.IDLE | defaults.RUNTIME
    assert sorted(transformers_settings - handled_settings - REFUSED.keys()) == []
    assert not handled_settings & REFUSED.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_p": 0.0}, r"generation_config: top_p=0\.0:"),
        ({"temperature": -1.0}, r"generation_config: temperature=-1\.0:"),
        ({"temperature": "hot"}, r"has temperature='hot', of type str; set model\.generation_config\.tem"),
        ({"max_length": "long"}, r"the checkpoint has max_length='long', of type str"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    model = make()
    model.generation_config.do_sample = True
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    with refused(message):
        generation_defaults(model)
