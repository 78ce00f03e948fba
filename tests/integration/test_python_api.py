"""Arguments in Python, and errors for wrong ones: one line with the name, the value and the remedy."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import specpilot
import torch
from specpilot.controllers.acceptance import lag_free_head
from specpilot.controllers.length import Confidence, Fixed, OnlineConfidence, RateOptimal
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams
from specpilot.infer.prompting import encode_prompt
from transformers import BartConfig, BartForConditionalGeneration

from ..helpers.architectures import target_of
from ..helpers.drafts import FREE, predictor, state_draft
from ..helpers.refusals import refused
from ..helpers.tiny import byte_tokenizer, make, save_pair

TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder(make(vocab=257), make(vocab=257, layers=1), TOKENIZER)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_new_tokens", 2.0, "max_new_tokens=2.0: must be a whole number"),
        ("max_new_tokens", 0, "max_new_tokens=0: must be at least 1"),
        ("seed", "a", "seed='a': must be a whole number"),
        ("seed", [1, 2], "seed: a list of 2 for 1 text;"),
        ("temperature", -1, "temperature=-1: must be a finite number"),
        ("temperature", 1e-38, "temperature=1e-38: too small to compute with"),
        ("top_p", 1e-300, "top_p=1e-300: too small to compute with"),
        ("temperature", float("nan"), "temperature=nan: must be a finite number"),
        ("top_k", 0, "top_k=0: must be at least 1"),
        ("top_p", None, "top_p=None: must be a number"),
        ("top_p", 2, "top_p=2: must be in"),
        ("chat", 1, "chat=1: true or false or 'auto' is expected"),
        ("length", -1, "length=-1: a fixed draft length"),
        ("length", 2.5, "length=2.5: give a number of tokens, a rule, or a controller"),
        ("verifier", "x", "verifier='x': choose one of"),
        ("verifier", 3, "verifier=3: give a rule's name"),
        ("verifier", "spec-infer:1", "only typical, bild, mtad have a threshold"),
        ("verifier", "mtad:1", "verifier='mtad:1': τ must be in"),
        ("verifier", "typical:0", "ε must be in"),
        ("verifier", "bild:-1", "must be at least 0 nats"),
        ("prompt", ["a", "b"], "on_tokens: supports a single text"),
    ],
)
def test_settings_out_of_range(decoder: SpeculativeDecoder, name: str, value: Any, message: str) -> None:
    with refused(message):
        decoder.generate(**{"prompt": "hello", "max_new_tokens": 3, "on_tokens": print} | {name: value})


TARGET, DRAFT, T5, SOURCE = make(), make(layers=1), make("t5"), target_of("llama")
STATES = {"target": SOURCE, "draft": state_draft(SOURCE)}
SIZES = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
BART = BartForConditionalGeneration(BartConfig(vocab_size=64, **SIZES, decoder_attention_heads=2))
RATE = RateOptimal(predictor(), FREE)
GROWN = {"tree": "auto", "length": RATE}
JOINT = {"verifier": "mtad", "beams": Beams(2)}
INVALID_OPTIONS: list[tuple[dict[str, Any], str]] = [  # beside a target and a draft
    ({"max_running": 0}, "max_running=0: must be at least 1"),
    ({"generation_config": "obey"}, "generation_config='obey': .*follow.*ignore"),
    ({"length": -1}, "length=-1: a fixed draft length must be between 0"),
    ({"length": object()}, "length: of type object; give a number, a name, or a length controller"),
    ({"length": "confidence:4"}, "length='confidence:4':"),
    ({"cost": 0.2}, "cost: would be ignored without a trained controller; name one as length"),
    ({"threshold": 0.2}, "threshold=0.2: belongs to a trained controller; name one as length"),
    ({"draft": None, "length": Fixed(4)}, "length: has no effect without a draft model"),
    ({"draft": [DRAFT, DRAFT]}, "draft: 2 drafts need a router"),
    (
        {"tree": (2, 1), "verifier": "token-wise"},
        "verifies one chain; a tree needs one of invariant, spec-infer, mcss",
    ),
    ({"tree": (2, 1), "verifier": "mcss", "length": Fixed(2)}, "a tree's levels are its length"),
    ({"tree": (2, 0), "verifier": "mcss"}, "tree='2x0': give the children at each level, as in '3x2x1'"),
    ({"tree": (20, 20), "verifier": "mcss"}, "tree='20x20': 420 nodes; take at most 256"),
    (GROWN | {"tree": "autos"}, "give the children at each level, as in '3x2x1', or 'auto'"),
    (GROWN | {"length": OnlineConfidence(0.3)}, "tree='auto': is grown by predicted acceptance and costs"),
    (GROWN | {"verifier": "spec-infer"}, "a tree='auto' is verified token-wise at every node, or by invariant"),
    (GROWN | {"draft": None}, "tree='auto': needs a draft model"),
    (JOINT | {"length": Fixed(0)}, "length=0: verifier='mtad' needs at least one token"),
    (JOINT | {"length": Confidence(0.4)}, "takes a number of tokens per step"),
    (JOINT | {"draft": None}, "verifier='mtad': needs a draft model"),
    (JOINT | {"verifier": "mtjd"}, "the target decodes alone"),
    (JOINT | {"verifier": "block"}, "beams: only for mtad and mtjd"),
    (STATES | {"verifier": "mtad"}, "draft: it reads the target's states, which is not supported for beams"),
    (STATES | {"target": make(hidden=8)}, "draft: reads states of size 32, the target's have size 8"),
    ({"target": T5}, "target is a t5, draft a llama: one of them is an encoder-decoder"),
    ({"target": BART, "draft": None}, "bart: of the encoder-decoder models only t5, mt5, umt5, longt5 are supported"),
]


@pytest.mark.parametrize(("options", "message"), INVALID_OPTIONS, ids=[message for _, message in INVALID_OPTIONS])
def test_decoders_that_cannot_be_made(options: dict[str, Any], message: str) -> None:
    with refused(message):
        SpeculativeDecoder(**{"target": TARGET, "draft": DRAFT} | options)


NAMED: list[tuple[dict[str, Any], str]] = [  # beside the included target
    ({"draft": DRAFT}, "target, draft: are loaded models; pass them to SpeculativeDecoder"),
    ({"draft": "ngram:0"}, "draft='ngram:0':"),
    ({"draft": ["tiny-draft", "ngram"], "tree": "2x1"}, "draft: 2 drafts need a router"),
    ({"draft": "tiny-draft+ngram", "tree": "2x1", "verifier": "mcss"}, "ngram: n-gram drafts go with chains"),
    ({"draft": "ngram", "length": "tiny-lag-free", "cost": 0.2}, "a trained controller needs a draft model"),
    ({"draft": "ngram", "length": "oracle"}, "length='oracle': supports only draft models"),
    ({"draft": "tiny-draft+ngram", "verifier": "mtad"}, "ngram: verifier='mtad' drafts by beams"),
    ({"draft": "ngram", "draft_dtype": "int4"}, "draft_dtype='int4': there is no draft model"),
    ({"draft": "tiny-draft", "draft_dtype": "int2"}, r"draft_dtype='int2': .*int4"),
    ({"draft": None, "copies": "tiny-head"}, "copies: predicts n-gram drafts; name them, as in draft='ngram'"),
    ({"draft": "ngram", "length": 3, "copies": "tiny-copies"}, "copies and length: both decide how many tokens"),
    ({"draft": "ngram", "copies": "tiny-head"}, "copies='tiny-head': is of kind 'acceptance-head'; give a copy"),
    ({"draft": None, "router": "./nowhere", "copies": "tiny-head"}, "copies and router: a router's n-gram arm has no"),
]


@pytest.mark.parametrize(("options", "message"), NAMED, ids=[message for _, message in NAMED])
def test_decoders_by_name_that_cannot_be_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(specpilot.InputError, match=message):
        SpeculativeDecoder.from_pretrained("tiny", **options)


def test_models_in_training_mode_are_refused() -> None:
    """A change of the mode after the decoder was made is refused, too, because dropout changes the distribution."""
    target, draft = make(), make(layers=1)
    decoder = SpeculativeDecoder(target, draft)
    draft.train()
    with pytest.raises(specpilot.InputError, match=r"llama: the model is in training mode.*\.eval\(\)"):
        decoder.generate([1, 2], max_new_tokens=2)
    draft.eval()
    assert decoder.generate([1, 2], max_new_tokens=2).tokens


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_decoders_are_not_pickled_or_copied(decoder: SpeculativeDecoder, take: Any) -> None:
    with pytest.raises(specpilot.InputError, match="SpeculativeDecoder: cannot be pickled or copied"):
        take(decoder)


def test_paths_precisions_and_numbers(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path)
    decoder = SpeculativeDecoder.from_pretrained(Path(target), Path(draft), length=2, dtype="auto")
    assert decoder.target.model.dtype == torch.float32
    assert len(decoder.generate("hello", max_new_tokens=5, temperature=0.0).rounds[1].drafted) == 2
    assert lag_free_head.TrainingOptions(data=Path("a")).data == "./a"  # a folder, whatever is named so
    shipped = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-lag-free", cost=0.2, dtype="auto")
    assert shipped.target.model.dtype == torch.bfloat16
    head = Path(specpilot.checkpoints.__path__[0]) / "tiny-head"
    lengths = (head, "tiny-head", 3, Fixed(3), "none")
    rounds = [
        shipped.generate("What is 3 and 4?", max_new_tokens=24, seed=5, length=length).rounds for length in lengths
    ]
    assert rounds[0] == rounds[1] != rounds[2] == rounds[3]
    assert not any(round.drafted for round in rounds[4])


def test_length_and_rule_of_one_call() -> None:
    """In a call they have the meaning of the constructor's arguments, and they do not change the decoder."""
    target, draft = make(), make(layers=1)
    decoder = SpeculativeDecoder(target, draft)
    rules = {"length": Fixed(2)}, {"length": Fixed(5), "verifier": "block"}, {"length": "heuristic:3"}
    for options in (*rules, {"verifier": "typical:0.2"}):
        expected = SpeculativeDecoder(target, draft, **options).generate([1, 2, 3], max_new_tokens=20, seed=4)
        assert decoder.generate([1, 2, 3], max_new_tokens=20, seed=4, **options).rounds == expected.rounds
    tree = SpeculativeDecoder(target, draft, tree=(2, 2), verifier="spec-infer")
    expected = SpeculativeDecoder(target, draft, tree=(2, 2), verifier="mcss").generate(
        [1, 2], max_new_tokens=12, seed=1
    )
    assert tree.generate([1, 2], max_new_tokens=12, seed=1, verifier="mcss").rounds == expected.rounds
    chain = SpeculativeDecoder(target, draft, length=3, verifier="spec-infer")
    chosen = [decoder.generate([1, 2], max_new_tokens=12, seed=1, length=3).rounds for decoder in (tree, chain)]
    assert chosen[0] == chosen[1]
    with pytest.raises(specpilot.InputError, match="verifies one chain"):
        tree.generate([1, 2], verifier="block")


def test_the_checkpoints_own_sampling_settings(tmp_path: Path) -> None:
    """The checkpoint's settings are the defaults of a call.

    Unsupported ones are refused by name, or ignored by option.
    """
    target, _ = save_pair(tmp_path)
    loaded = SpeculativeDecoder.from_pretrained(target)
    config = loaded.target.model.generation_config
    config.do_sample, config.temperature, config.top_k, config.max_new_tokens = True, 0.5, 3, 7
    loaded.target.model.save_pretrained(target)
    followed = SpeculativeDecoder.from_pretrained(target)
    plain = SpeculativeDecoder.from_pretrained(target, generation_config="ignore")
    expected = plain.generate("hello", temperature=0.5, top_k=3, max_new_tokens=7, seed=2)
    assert followed.generate("hello", seed=2).tokens == expected.tokens
    assert followed.generate("hello", seed=2, temperature=1.0, top_k=None).tokens == plain.generate(
        "hello", seed=2, temperature=1.0, top_k=None, max_new_tokens=7
    ).tokens  # fmt: skip
    config.repetition_penalty = 1.1
    loaded.target.model.save_pretrained(target)
    assert SpeculativeDecoder.from_pretrained(target, generation_config="ignore").generate("x", max_new_tokens=2).tokens


def test_sampling_parameters_in_one_object(decoder: SpeculativeDecoder) -> None:
    sampling = specpilot.SamplingParams(0.7, 5, 0.9)
    single = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    output = decoder.generate("hello", sampling=sampling, max_new_tokens=8, seed=3)
    assert output.tokens == decoder.generate("hello", **single, max_new_tokens=8, seed=3).tokens
    assert "".join(decoder.stream("hello", sampling=sampling, max_new_tokens=8, seed=3)) == output.text
    for more, message in (
        ({"temperature": 0.2}, "^temperature=0.2: .*give one of them"),
        ({"top_k": None}, "^top_k=None: .*give one of them"),
        ({"sampling": {"temperature": 0.2}}, r"^sampling: of type dict; give SamplingParams\("),
    ):
        with pytest.raises(specpilot.InputError, match=message):
            decoder.generate("hello", **{"sampling": sampling} | more)


def test_text_uses_the_chat_template_where_there_is_one(decoder: SpeculativeDecoder) -> None:
    """The default is that of the command line. Token ids are decoded unchanged."""
    ids, options = {chat: encode_prompt(TOKENIZER, "hello", chat=chat) for chat in (True, False)}, {"max_new_tokens": 6}
    assert decoder.generate("hello", **options).prompt_tokens == ids[True] != ids[False]
    assert decoder.generate("hello", chat=False, **options).prompt_tokens == ids[False]
    assert decoder.generate(ids[False], **options).prompt_tokens == ids[False]
    assert "".join(decoder.stream("hello", seed=1, **options)) == decoder.generate(ids[True], seed=1, **options).text
    bare = byte_tokenizer()
    bare.chat_template = None
    plain = SpeculativeDecoder(make(vocab=257), None, bare)
    assert plain.generate("hello", **options).prompt_tokens == ids[False]
    for chat in (True, "auto"):
        with refused("has no chat template"):
            plain.generate("hello", chat=chat, system="be brief")
    with refused("^system: is part of the chat template"):
        decoder.generate("hello", chat=False, system="be brief")
    with refused("has no chat template"):
        plain.generate("hello", chat=True)


def test_misspelt_options_are_named() -> None:
    with pytest.raises(specpilot.InputError, match=r"^lenght: .*did you mean 'length'"):
        SpeculativeDecoder.from_pretrained("tiny", lenght=3)
    with pytest.raises(specpilot.InputError, match=r"^minuts: .*did you mean 'minutes'"):
        specpilot.compare(["3"], minuts=3)
    with pytest.raises(specpilot.InputError, match=r"^zzzz: .*choose from .*length"):
        SpeculativeDecoder.from_pretrained("tiny", zzzz=3)
