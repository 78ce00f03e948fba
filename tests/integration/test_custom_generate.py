"""`model.generate(…, custom_generate=decoder)`: transformers' settings, the decoder's text."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed
from specpilot.infer.decoder import SpeculativeDecoder
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LlamaForCausalLM,
    LogitNormalization,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    set_seed,
)
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput

from ..helpers.tiny import byte_tokenizer, make

PROMPT = [5, 9, 2, 44, 17, 3, 30]
IDS = torch.tensor([PROMPT])
PAD = 63
ROWS = [[31, 48], [40, 38, 57, 14, 44], [4, 33, 0, 49]]
BATCH = torch.tensor([[PAD] * (5 - len(row)) + row for row in ROWS])
MASK = (BATCH != PAD).long()


def pair(architecture: str = "llama", **options: Any) -> tuple[Any, SpeculativeDecoder]:
    model = make(architecture)
    return model, SpeculativeDecoder(model, make(architecture, layers=1), **options)


def drawn_seed() -> int:
    """Return the number that the next call will draw from the global generator, whose state stays."""
    with torch.random.fork_rng():
        return int(torch.randint(2**32, ()))


@pytest.mark.parametrize("settings", [{"max_new_tokens": 40}, {"max_length": 30}, {}])
@pytest.mark.parametrize("way", [{}, {"verifier": "mcss", "tree": (3, 2, 1)}, {"draft": None}], ids=str)
def test_greedy_is_transformers_own(way: dict[str, Any], settings: dict[str, int]) -> None:
    """Greedy texts equal those of transformers, and the state of the global generator does not change."""
    model = make()
    decoder = SpeculativeDecoder(model, **{"draft": make(layers=1)} | way)
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), **settings}
    before = torch.get_rng_state()
    assert torch.equal(model.generate(**inputs, custom_generate=decoder), model.generate(**inputs, do_sample=False))
    assert torch.equal(before, torch.get_rng_state())


CHAIN: dict[str, Any] = {}
TREE: dict[str, Any] = {"verifier": "mcss", "tree": (3, 2, 1)}


@pytest.mark.parametrize(
    ("architecture", "options", "pad"),
    [
        ("llama", CHAIN, {}),
        ("llama", TREE, {"pad_token_id": PAD}),
        ("gpt2", CHAIN, {"pad_token_id": PAD}),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("llama", CHAIN, {"pad_token_id": PAD}), ("llama", TREE, {}),
                ("gpt2", CHAIN, {}), ("gpt2", TREE, {}), ("gpt2", TREE, {"pad_token_id": PAD}),
            )
        ),
    ],
)  # fmt: skip
def test_greedy_batches_are_transformers_own(architecture: str, options: dict[str, Any], pad: dict[str, int]) -> None:
    """Padding on the left is not part of the text. Rows that reach an end token are padded on the right."""
    model, decoder = pair(architecture, **options)
    inputs = {"input_ids": BATCH, "attention_mask": MASK, "max_new_tokens": 40, "do_sample": False, **pad}
    free = model.generate(**inputs)
    assert torch.equal(model.generate(**inputs, custom_generate=decoder), free)
    for ends in (int(free[0, 8]), free[:2, 9].tolist()):
        expected = model.generate(**inputs, eos_token_id=ends)
        assert not torch.equal(expected, free[:, : expected.shape[1]])  # some row is padded
        assert torch.equal(model.generate(**inputs, eos_token_id=ends, custom_generate=decoder), expected)


ROW: dict[str, Any] = {"input_ids": IDS, "max_new_tokens": 20, "do_sample": True}
WARPED: dict[str, Any] = {"temperature": 0.7, "top_k": 8, "top_p": 0.9}
ONE_OBJECT = GenerationConfig(max_new_tokens=20, do_sample=True, top_k=5, early_stopping=True, output_logits=False)
SAMPLED: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {  # transformers' call; prompts and settings of ours
    "defaults": (ROW, [PROMPT], {}),
    "warped": (ROW | WARPED, [PROMPT], WARPED),
    "no top-k": (ROW | {"top_k": 0}, [PROMPT], {"top_k": None}),
    "none of them": (ROW | dict.fromkeys(WARPED), [PROMPT], {"top_k": None}),
    "a batch": (ROW | {"input_ids": BATCH, "attention_mask": MASK}, ROWS, {}),
    "one object": ({"input_ids": IDS, "generation_config": ONE_OBJECT}, [PROMPT], {"top_k": 5}),
    "several": (ROW | {"num_return_sequences": 3}, PROMPT, {"n": 3}),
}


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("case", SAMPLED)
def test_samples_are_the_decoders(architecture: str, case: str) -> None:
    keywords, prompts, options = SAMPLED[case]
    model, decoder = pair(architecture)
    set_seed(1)
    seed = drawn_seed()
    expected = decoder.generate(prompts, max_new_tokens=20, seed=seed, **options)
    output = model.generate(**keywords, custom_generate=decoder)
    assert output[:, keywords["input_ids"].shape[1] :].tolist() == [row.tokens for row in expected]
    assert len({tuple(row.tokens) for row in expected}) == len(expected)
    assert drawn_seed() != seed  # the global generator goes on


@pytest.mark.parametrize("ends", [None, "model", "call"])
def test_end_tokens_of_model_and_call(ends: str | None) -> None:
    """End tokens are those of the model or of the call, as in transformers, not those that were set in the decoder."""
    model, decoder = pair()
    free = model.generate(IDS, max_new_tokens=30, do_sample=False)[0, len(PROMPT) :].tolist()
    decoder.stop_tokens = frozenset(free[:1])
    call = {"eos_token_id": [free[4], 62]} if ends == "call" else {}
    if ends == "model":
        model.generation_config.eos_token_id = free[4]
    output = model.generate(IDS, max_new_tokens=30, custom_generate=decoder, **call)[0, len(PROMPT) :].tolist()
    assert output == (free if ends is None else free[: free.index(free[4]) + 1])
    assert decoder.stop_tokens == frozenset([free[4] if ends == "model" else free[0]])


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.received: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.received.append(value.tolist())

    def end(self) -> None:
        self.received.append("end")


def test_streamers_receive_what_transformers_sends() -> None:
    model = make()
    decoder = SpeculativeDecoder(model, model)  # several tokens a round
    decoder_streamer, model_streamer = Recorder(), Recorder()
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "max_new_tokens": 25, "do_sample": False}
    output = model.generate(**inputs, custom_generate=decoder, streamer=decoder_streamer, return_dict_in_generate=True)
    assert torch.equal(output.sequences, model.generate(**inputs, streamer=model_streamer))
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert output.keys() == {"sequences"}
    assert decoder_streamer.received == model_streamer.received


def test_stop_strings_are_transformers_own() -> None:
    """A text and a batch are decoded. Each text ends at the token that completes a stop string, with any drafts."""
    tokenizer, model = byte_tokenizer(), make(vocab=257)
    inputs = {"input_ids": BATCH, "attention_mask": MASK, "max_new_tokens": 40, "do_sample": False, "pad_token_id": PAD}
    inputs["eos_token_id"] = 255  # never drawn; transformers decodes rows beyond their stop strings without one
    decoder = SpeculativeDecoder(model, model, tokenizer, length=Fixed(6))
    free = model.generate(**inputs)[:, BATCH.shape[1] :].tolist()
    letters = [[tokenizer.decode(pair) for pair in pairwise(row) if max(pair) < 94] for row in free]  # of ASCII
    for stop in (letters[0][0], [letters[1][-1], letters[2][0]]):
        inputs |= {"stop_strings": stop, "tokenizer": tokenizer}
        assert torch.equal(model.generate(**inputs, custom_generate=decoder), model.generate(**inputs))
    with pytest.raises(InputError, match="stop strings: text needs a tokenizer"):
        model.generate(IDS, stop_strings="a", custom_generate=SpeculativeDecoder(model, model))


REFUSED: dict[str, Any] = {  # of the settings that a checkpoint may not ask for either, one
    "repetition_penalty": 1.2,
    "renormalize_logits": True, "use_cache": False, "cache_implementation": "static", "prefill_chunk_size": 4,
    "output_scores": True, "output_logits": True, "output_attentions": True, "output_hidden_states": True,
    "prompt_lookup_num_tokens": 3, "assistant_early_exit": 1, "num_assistant_tokens": 3, "use_mtp": True,
    "assistant_model": make(layers=1), "logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)]),
    "stopping_criteria": [EosTokenCriteria(3)], "prefix_allowed_tokens_fn": lambda batch, ids: [1, 2],
    "synced_gpus": True, "position_ids": torch.arange(1, 8)[None], "inputs_embeds": torch.zeros(1, 7, 32),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_settings_are_refused_by_name(name: str) -> None:
    model, decoder = pair()
    settings = {"eos_token_id": 7, "do_sample": True, "max_new_tokens": 5, "return_dict_in_generate": True}
    with pytest.raises(InputError, match=rf"^{name}(=[^\n]+)?: not supported by the decoder[^\n]+$"):
        model.generate(IDS, custom_generate=decoder, **settings | {name: REFUSED[name]})


class OwnProcessors(LlamaForCausalLM):
    """A model that adds its own logits processor to every generation, as some models do."""

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> LogitsProcessorList:
        return LogitsProcessorList([*super()._get_logits_processor(*args, **kwargs), LogitNormalization()])


def test_processors_of_the_models_own() -> None:
    model = OwnProcessors(make().config)
    with pytest.raises(InputError, match=r"^LogitNormalization: set by the model's generate"):
        model.generate(IDS, custom_generate=SpeculativeDecoder(model, None))


def test_models_and_inputs_that_do_not_fit() -> None:
    model, decoder = pair()
    t5 = make("t5")
    with pytest.raises(InputError, match=r"model: t5 is an encoder-decoder; call decoder\.generate"):
        t5.generate(IDS, max_new_tokens=5, custom_generate=SpeculativeDecoder(t5, None))
    with pytest.raises(InputError, match=r"^model: a LlamaForCausalLM that is not the decoder's target"):
        make().generate(IDS, custom_generate=decoder)
    with pytest.raises(InputError, match=r"^decoder: .*call decoder\.generate, or model\.generate"):
        decoder(model, IDS, generation_config=model.generation_config, logits_processor=[], stopping_criteria=[])
    for mask in ([1, 1, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0], [0] * 7):
        with pytest.raises(InputError, match=r"^attention_mask: row 0 is padded elsewhere than on the left"):
            model.generate(IDS, attention_mask=torch.tensor([mask]), custom_generate=decoder)
    with pytest.raises(InputError, match=r"^streamer: supports a single prompt, got 3"):
        model.generate(BATCH, attention_mask=MASK, custom_generate=decoder, streamer=Recorder())
    with pytest.raises(InputError, match=r"^pad_token_id=None:"):
        model.generate(BATCH, attention_mask=MASK, max_new_tokens=127, custom_generate=decoder)


def test_a_text_that_the_context_cuts_is_named() -> None:
    model = make(context=32)
    decoder = SpeculativeDecoder(model, make(layers=1, context=32))
    with pytest.warns(UserWarning, match="^max_new_tokens: 1 of 1 text .* context of 32 tokens"):
        model.generate(IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=90, custom_generate=decoder)
