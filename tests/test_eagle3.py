"""EAGLE-3 drafts: their checkpoints are read, q is what they compute, and decoding with them is exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from specpilot import main as cli
from specpilot.common.errors import InputError
from specpilot.controllers.length import Fixed
from specpilot.controllers.router import SingleArm
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.loading.names import load_model
from specpilot.infer.models import CausalLM, Read
from transformers import PreTrainedModel

from .architectures import HIDDEN, MAKERS, VOCAB
from .drafts import KEPT, PROMPTS, STATE_WAYS, options_of
from .eagle3 import Reference, write_draft
from .test_state_drafts import first_children, watch
from .tiny import byte_tokenizer, make

PLAIN: dict[str, Any] = {"vocab": VOCAB, "kept": KEPT, "target": HIDDEN, "layers": [1, 2]}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm before the residual": {"norm_before_residual": True},
    "norm of all states": {"norm_before_fc": True},
    "norm of each state": {"fc_norm": True},
    "state after the norm": {"norm_output": True, "norm_before_residual": True},
    "two layers": {"depth": 2},
    "qwen3": {"kind": "qwen3"},
    "all tokens": {"kept": None},
    "the target's embedding": {"own_embedding": False},
    "another width": {"width": 16},
    "one layer of the target": {"layers": [2]},
    "the authors' names": {"original": True},
}


def target_of(name: str, layers: int = 4) -> PreTrainedModel:
    return MAKERS[name](layers, VOCAB, 0)


def loaded(folder: Path, target: PreTrainedModel | None = None, dtype: str = "float32") -> PreTrainedModel:
    return load_model(folder, device="cpu", target=target, dtype=dtype)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_draft(tmp_path / "plain", **PLAIN)


def inner_states(target: PreTrainedModel, text: list[int], layers: Sequence[int]) -> torch.Tensor:
    """(n, L, d) the outputs of the target's layers, by transformers; the last one's is not among them."""
    found = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.stack([found[layer][0] for layer in layers], 1)


# The target's layers


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_outputs_of_layers_follow_the_last_states(name: str, lean: bool) -> None:
    target = target_of(name)
    plain = CausalLM(target)
    if not lean:
        plain.lean = None
    layers = (1, plain.layers - 1)
    model = plain.with_layers(layers)
    assert plain.state_layers == ()
    texts = [[5, 9, 2, 33, 41, 7], [3, 1], [8, 8, 2, 40]]
    results = []
    for reader in (plain, model):
        cache = reader.new_cache()
        for i in range(3):
            cache.add(i, 20)
        reader.forward(cache, [Read(i, text[:1]) for i, text in enumerate(texts)])
        results.append(reader.forward(cache, [Read(i, t[1:], 1, None, len(t) - 1) for i, t in enumerate(texts)]))
    (logits, last), (same_logits, states) = results
    torch.testing.assert_close(same_logits, logits)
    torch.testing.assert_close(states[:, : plain.hidden_size], last)
    expected = torch.cat([inner_states(target, text, layers)[1:] for text in texts])
    torch.testing.assert_close(states[:, plain.hidden_size :], expected.flatten(1), rtol=1e-4, atol=1e-4)


# What the draft computes


@pytest.mark.parametrize(
    ("form", "way"), [*((form, "3") for form in FORMS), *(("plain", way) for way in STATE_WAYS[1:])]
)
def test_q_is_what_the_checkpoint_computes(form: str, way: str, tmp_path: Path) -> None:
    """After any rejections, in a batch or alone, q is the written-out computation from the text."""
    settings = PLAIN | FORMS[form]
    folder, target = write_draft(tmp_path / "draft", **settings), target_of("llama")
    reference = Reference(folder, target.get_input_embeddings().weight)
    decoder = SpeculativeDecoder(target, loaded(folder, target), **options_of(way))
    seen = watch(decoder)
    outputs = decoder.generate(PROMPTS, max_new_tokens=12, temperature=1.0, top_k=None, seed=[3, 4, 5, 6])
    outputs += [decoder.generate([7], max_new_tokens=12, temperature=1.0, top_k=None, seed=8)]
    assert 0 < sum(one.stats.n_accepted for one in outputs) < sum(one.stats.n_drafted for one in outputs)
    compared = 0
    for text, draft in seen:
        inner = inner_states(target, text[:-1], settings["layers"])
        for path, q in first_children(draft):
            expected = reference.drafted(text, inner, path)[-1]
            torch.testing.assert_close(q.double(), expected, rtol=1e-3, atol=1e-5)
            compared += 1
    assert compared > 20


def test_the_default_layers_are_those_of_the_field(tmp_path: Path) -> None:
    draft = CausalLM(loaded(write_draft(tmp_path / "draft", **PLAIN | {"layers": None})))
    assert draft.state_input is not None
    assert draft.state_input.target_layers(8) == (2, 4, 5)


# Decoding


def test_texts_may_be_longer_than_the_drafts_context(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "draft", **PLAIN)
    layer = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    edited(folder, transformer_layer_config=layer | {"max_position_embeddings": 16})
    decoder = SpeculativeDecoder(target_of("llama"), loaded(folder), length=Fixed(2))
    output = decoder.generate(PROMPTS[0], max_new_tokens=40, temperature=0.0)
    plain = SpeculativeDecoder(target_of("llama"), None).generate(PROMPTS[0], max_new_tokens=40, temperature=0.0)
    assert output.tokens == plain.tokens
    assert output.rounds[-1].drafted or output.rounds[-2].drafted


# Folders


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of a target with a tokenizer and of a draft without one."""
    make(vocab=257, hidden=32).save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    settings: dict[str, Any] = {"vocab": 257, "kept": [*range(0, 257, 2)], "target": 32, "layers": [1]}
    return tmp_path / "target", write_draft(tmp_path / "eagle", **settings, own_embedding=False)


def test_a_pair_is_loaded_by_name(pair: tuple[Path, Path]) -> None:
    settings = {"max_new_tokens": 20, "temperature": 0.0}
    plain = SpeculativeDecoder.from_pretrained(pair[0], device="cpu").generate("hello", **settings)
    decoder = SpeculativeDecoder.from_pretrained(*pair, device="cpu", length="cumulative-confidence:0.01")
    output = decoder.generate("hello", **settings)
    assert output.tokens == plain.tokens
    assert output.stats.n_drafted > 0


class Listening(SingleArm):
    """Keeps the embeddings."""

    def weigh(self, embedding: torch.Tensor) -> list[float]:
        self.size = len(embedding)
        return super().weigh(embedding)


def test_an_arm_of_a_router(pair: tuple[Path, Path]) -> None:
    """Its embedding of a prompt is the last state alone, though the target gives more."""
    arms = [str(pair[1]), "autoregressive"]
    router = Listening(0, 2)
    decoder = SpeculativeDecoder.from_pretrained(pair[0], arms, router=router, device="cpu", length=2)
    settings = {"max_new_tokens": 20, "temperature": 0.0}
    output = decoder.generate("hello", **settings)
    assert (
        output.tokens == SpeculativeDecoder.from_pretrained(pair[0], device="cpu").generate("hello", **settings).tokens
    )
    assert output.stats.n_drafted > 0


# Refusals


def edited(folder: Path, **changes: Any) -> Path:
    """The folder with other keys in its config.json; None removes one."""
    file = folder / "config.json"
    found = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"speculators_model_type": "dflash"}, "a checkpoint of speculators of kind 'dflash'; 'eagle3' can be read"),
        ({"norm_before_residual": None}, "norm_before_residual"),
        ({"draft_vocab_size": "many"}, "draft_vocab_size"),
        ({"draft_vocab_size": 7}, r"lm_head\.weight has 32 rows, draft_vocab_size is 7"),
        ({"fc_norm": True}, "state_input.fc_norm.0.weight is missing"),
        ({"target_hidden_size": 64}, r"state_input.fc.weight has shape \(32, 64\) instead of \(32, 128\)"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "vocab_size=None: a whole number is expected"),
        ({"model_type": "gpt2"}, "layers of 'gpt2'; those of llama and qwen3 are known"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state=false"),
    ],
    ids=str,
)
def test_damaged_configurations_are_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    original = not changes.keys().isdisjoint(("model_type", "eagle_config"))
    folder = write_draft(tmp_path / "draft", **PLAIN, original=original)
    with pytest.raises(InputError, match=problem) as error:
        loaded(edited(folder, **changes))
    assert "\n" not in str(error.value)


def test_what_is_no_decoder_refuses_it(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = map(str, pair)
    (pair[0].parent / "text.txt").write_text("some text\n")
    text, output = str(pair[0].parent / "text.txt"), str(pair[0].parent / "output")
    alone = f"specpilot: error: {draft}: an EAGLE-3 draft, which has no tokenizer; give it as the draft of a decoder"
    for words, problem in (
        (["generate", "--target", draft, "hello"], alone),
        (["data", "acceptance", "--target", target, "--draft", draft, "--prompts", text, "--output", output], alone),
        (
            ["trim-vocabulary", draft, "--target", target, "--keep", "9", "--data", text, "--output", output],
            f"specpilot: error: {draft}: an EAGLE-3 draft, which was trained with its vocabulary; take another draft",
        ),
    ):
        assert cli.main(words) == 2
        assert capsys.readouterr().err.splitlines()[-1] == problem
    assert not Path(output).exists()


def test_weights_that_do_not_fit_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = load_file(file)
    for key, problem in (
        ("d2t", "d2t is missing, which maps 32 of 96 tokens"),
        ("fc.weight", "state_input.fc.weight is missing"),
        ("norm.weight", "lm_head.norm.weight is missing"),
        ("embed_tokens.weight", "a draft with the embedding of its target; load it as the draft of that model"),
    ):
        save_file({name: value for name, value in whole.items() if name != key}, file)
        with pytest.raises(InputError, match=problem):
            loaded(folder)
    save_file(whole | {"more.weight": torch.zeros(2)}, file)
    with pytest.raises(InputError, match=r"more\.weight is not one of this model's"):
        loaded(folder)
    save_file(whole | {"d2t": torch.zeros_like(whole["d2t"]) - 1}, file)
    with pytest.raises(InputError, match="d2t must map 32 outputs"):
        loaded(folder)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match="truncated or damaged"):
        loaded(folder)
    file.unlink()
    with pytest.raises(InputError, match=r"an EAGLE-3 draft without model\.safetensors"):
        loaded(folder)


def test_targets_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    draft, target = loaded(folder), target_of("llama")
    with pytest.raises(InputError, match="draft: reads states of size 32, the target's have size 8"):
        SpeculativeDecoder(make(hidden=8, vocab=VOCAB), draft)
    deep = loaded(write_draft(tmp_path / "deep", **PLAIN | {"layers": [1, 20]}))
    with pytest.raises(InputError, match="draft: reads the target's layers 1, 20; they must ascend, from 1 to 4 in"):
        SpeculativeDecoder(target, deep)
    with pytest.raises(InputError, match="draft: reads the outputs of layers, which are not found in gpt2"):
        SpeculativeDecoder(target_of("gpt2"), draft)
    smaller = make(hidden=32, vocab=64)
    with pytest.raises(InputError, match="draft: made for 96 tokens, the target has 64"):
        SpeculativeDecoder(smaller, draft)
    without = write_draft(tmp_path / "draft", **PLAIN, own_embedding=False)
    with pytest.raises(InputError, match=r"one of shape \(64, 32\) instead of \(96, 32\)"):
        loaded(without, smaller)
    with pytest.raises(InputError, match=r"device_map: .* is an EAGLE-3 draft, which is on one device"):
        load_model(folder, device_map="auto")
