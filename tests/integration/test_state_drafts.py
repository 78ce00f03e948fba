"""q is a function of the text, whatever came before; drafts that read states, their folders, EAGLE-3's checkpoints."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from specpilot.common.errors import InputError
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder
from specpilot.data_gen.options import AcceptanceDataOptions, RouterDataOptions
from specpilot.data_gen.router import RouterDatasetBuilder
from specpilot.infer.core import Draft, Request
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.ngram import Ngram
from specpilot.models import CausalLM, Read, ancestors_of
from specpilot.models.forwards import Padded
from specpilot.models.loading.eagle3_folder import save_eagle3
from specpilot.models.loading.names import load_model
from specpilot.train.draft_model import new_draft, new_eagle3
from torch import Tensor
from transformers import PreTrainedModel

from experiments.router.single_arm import SingleArm

from ..helpers.architectures import HIDDEN, MAKERS, VOCAB
from ..helpers.architectures import target_of as small_target
from ..helpers.drafts import KEPT, PROMPTS, STATE_WAYS, options_of, real, shared_pair, state_draft
from ..helpers.eagle3 import Reference, write_draft
from ..helpers.refusals import refused
from ..helpers.tiny import byte_tokenizer, make

COMMON_WAYS = ("3", "some rounds", "spec-infer 2x2x1", "auto", "copies or 3", "auto or copies")  # the rest are slow
PLAIN_WAYS = ["3", "spec-infer 2x2x1", "mcss 3x2x1", "auto", "copies or 3", "auto or copies"]


def drafted(decoder: SpeculativeDecoder) -> Iterator[tuple[list[int], list[tuple[list[int], Tensor]]]]:
    """Each draft of texts that are drawn in a list and alone, after any rejections.

    These are the text before the round, and of each first child the tokens down to it and the q it was drawn from.
    """
    (arm,) = decoder.setup.arms
    propose, proposals = arm.drafter.propose, list[tuple[list[int], Draft]]()

    def watched(requests: Sequence[Request]) -> list[Draft]:
        texts = [list(request.text) for request in requests]
        drafts = propose(requests)
        proposals.extend(zip(texts, drafts, strict=True))
        return drafts

    arm.drafter.propose = watched  # type: ignore[method-assign]
    sampling: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "top_k": None}
    outputs = [*decoder.generate(PROMPTS, seed=[3, 4, 5, 6], **sampling), decoder.generate([7], seed=8, **sampling)]
    assert 0 < sum(output.stats.n_accepted for output in outputs) < sum(output.stats.n_drafted for output in outputs)
    for text, draft in proposals:
        children = [node for node, parent in enumerate(draft.parents) if draft.parents.index(parent) == node]
        paths = ([*ancestors_of(draft.parents, node), node] for node in children if not draft.copied)
        yield text, [([draft.tokens[node] for node in path], draft.q[path[-1]]) for path in paths]


def compare(decoder: SpeculativeDecoder, expected: Callable[[list[int], list[int]], list[Tensor]]) -> list[int]:
    """Compare each q of :func:`drafted` with what is expected, and return the depths of the tokens.

    Args:
        expected: of a text and a path of drafted tokens, the distribution that each of these is drawn from.
    """
    depths = []
    for text, nodes in drafted(decoder):
        after: dict[tuple[int, ...], Tensor] = {}
        for path, q in sorted(nodes, key=lambda node: len(node[0]), reverse=True):  # a path has those of its beginnings
            if tuple(path[:-1]) not in after:
                after |= {tuple(path[:place]): row for place, row in enumerate(expected(text, path))}
            torch.testing.assert_close(q.double(), after[*path[:-1],].double(), rtol=1e-3, atol=1e-5)
            depths.append(len(path))
    return depths


@pytest.mark.parametrize(
    ("kind", "name", "way"),
    [
        *(("model", "llama", way) for way in PLAIN_WAYS),
        *(
            pytest.param("model", "gpt2", way, marks=[pytest.mark.slow] * (way not in ("3", "auto")))
            for way in PLAIN_WAYS
        ),
        ("trimmed", "gpt2", "3"),
        *(
            pytest.param("states", name, way, marks=[pytest.mark.slow] * (way not in common))
            for name, common in {
                "llama": COMMON_WAYS,
                "gemma3": ("3", "auto or copies"),
                "qwen2": (),
            }.items()
            for way in STATE_WAYS
        ),
    ],
)
def test_q_is_a_function_of_the_text(kind: str, name: str, way: str, tmp_path: Path) -> None:
    """After any rejections and copies, in any batch, q is the draft's result for a single read of the text."""
    decoder = SpeculativeDecoder(*real(kind, name, tmp_path), **options_of(way))
    reader, draft = decoder.target, CausalLM(decoder.drafts[0].model)
    draft.strategy = Padded("a test asks for it")  # by transformers' own forward

    @torch.inference_mode()
    def in_one_go(text: list[int], path: list[int]) -> list[Tensor]:
        cache = draft.new_cache()
        cache.add(0, len(text) + len(path))
        if kind != "states":
            logits, _ = draft.forward(cache, [Read(0, [*text, *path[:-1]], len(path))])
            return [*logits.softmax(-1)]
        read = reader.new_cache()
        read.add(0, len(text))
        _, states = reader.forward(read, [Read(0, text, 1, None, len(text))])
        assert draft.state_input is not None
        before = draft.state_input.from_target(states[:-1])
        logits, draft_states = draft.forward(cache, [Read(0, text[1:], states=before)])
        rows = [logits[0]]
        for token in path[:-1]:
            logits, draft_states = draft.forward(cache, [Read(0, [token], states=draft_states)])
            rows.append(logits[0])
        return [row.softmax(-1) for row in rows]

    assert max(compare(decoder, in_one_go)) > 1


def test_copies_are_not_continued() -> None:
    """The states of copied tokens are not known before they are verified."""
    target = small_target("llama")
    for draft, joined in ((state_draft(target), False), (new_draft(target, [0], None), True)):
        (arm,) = SpeculativeDecoder(target, draft, ngram=Ngram()).setup.arms
        assert arm.drafter.joined is joined  # type: ignore[attr-defined]


def test_stages_without_states_refuse_such_a_draft(pair: Path) -> None:
    target, draft, prompts = (str(pair / name) for name in ("target", "draft", "text.txt"))
    with pytest.raises(
        InputError, match=r"draft='.*draft': .* reads the target's states; .* specpilot data on-policy$"
    ):
        AcceptanceDatasetBuilder(AcceptanceDataOptions(target=target, draft=draft, prompts=prompts, device="cpu"))
    arms = (draft, "autoregressive")
    with pytest.raises(InputError, match=r"arm '.*draft': reads the target's states, .*; choose a draft"):
        RouterDatasetBuilder(RouterDataOptions(target=target, arms=arms, prompts=prompts, device="cpu"))


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Return a folder of a target and two EAGLE-3 drafts: one by specpilot, one with the names of speculators."""
    target, draft_tokens = make(vocab=257, hidden=32), [*range(0, 257, 2)]
    target.save_pretrained(tmp_path / "target")
    byte_tokenizer().save_pretrained(tmp_path / "target")
    written(state_draft(target, draft_tokens), target, tmp_path / "draft")
    write_draft(tmp_path / "eagle", vocab=257, kept=draft_tokens, target=32, layers=[1], own_embedding=False)
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    return tmp_path


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


def inner_states(target: PreTrainedModel, text: list[int], layers: Sequence[int]) -> torch.Tensor:
    """Return the outputs (n, L, d) of the target's ``layers`` by transformers; the last layer is not supported."""
    hidden_states = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.stack([hidden_states[layer][0] for layer in layers], 1)


def written(draft: PreTrainedModel, target: PreTrainedModel, folder: Path) -> Path:
    return save_eagle3(draft, folder, target, name="target", speculative_tokens=3, dtype=torch.float32)


def test_a_written_draft_is_read_unchanged(pair: Path) -> None:
    target = load_model(pair / "target", device="cpu")
    draft = state_draft(target, [*range(0, 257, 2)])
    again = loaded(pair / "draft", target)
    for name, value in draft.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert model_fingerprint(again) == model_fingerprint(draft)


@pytest.mark.parametrize("form", FORMS)
def test_a_draft_by_others_is_written_as_it_is_read(form: str, tmp_path: Path) -> None:
    """A published draft of any form is written in the same form, for example after further training."""
    target = target_of("llama")
    draft = loaded(write_draft(tmp_path / "published", **PLAIN | FORMS[form]), target)
    again = loaded(written(draft, target, tmp_path / "again"), target)
    for key, value in draft.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    assert again.config.eagle3 == draft.config.eagle3
    published, copy = ({*load_file(tmp_path / name / "model.safetensors")} for name in ("published", "again"))
    assert {name.replace("layers.0.", "midlayer.") for name in published} == copy


@pytest.mark.parametrize("kept", [KEPT, None])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_q_of_a_written_draft_is_that_of_its_architecture(name: str, kept: list[int] | None, tmp_path: Path) -> None:
    target = target_of(name)
    draft = new_eagle3(target, [1, 2, 3], kept)
    reference = Reference(written(draft, target, tmp_path / "draft"), target.get_input_embeddings().weight)
    decoder = SpeculativeDecoder(target, draft, length=3, verifier="token-wise")

    def written_out(text: list[int], path: list[int]) -> list[Tensor]:
        return reference.drafted(text, inner_states(target, text[:-1], [1, 2, 3]), path)

    assert len(compare(decoder, written_out)) > 20


@pytest.mark.parametrize("reads_states", [False, True])
def test_drafts_of_the_earlier_architecture_are_refused(reads_states: bool, tmp_path: Path) -> None:
    """The folder of such a draft has the key `reads_states`, which is false for drafts of layers."""
    shared_pair(tmp_path)
    file = tmp_path / "draft" / "draft.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"reads_states": reads_states}))
    target = load_model(tmp_path / "target", device="cpu")
    if not reads_states:
        load_model(tmp_path / "draft", device="cpu", target=target)
        return
    with refused("a draft that reads the target's last hidden state, which this release does not read; train it again"):
        load_model(tmp_path / "draft", device="cpu", target=target)


@pytest.mark.parametrize("router", [None, SingleArm(0, 2)], ids=["alone", "an arm"])
@pytest.mark.parametrize("draft", ["draft", "eagle"])
def test_state_drafts_by_name(draft: str, router: SingleArm | None, pair: Path) -> None:
    """A router's embedding of a prompt is the last state alone, though the target gives more."""
    plain = SpeculativeDecoder.from_pretrained(pair / "target", device="cpu")
    drafts = pair / draft if router is None else [str(pair / draft), "autoregressive"]
    decoder = SpeculativeDecoder.from_pretrained(pair / "target", drafts, router=router, device="cpu", length=2)
    output, expected = (
        each_decoder.generate("hello", max_new_tokens=20, temperature=0.0) for each_decoder in (decoder, plain)
    )
    assert output.tokens == expected.tokens
    assert output.stats.n_drafted > 0


@pytest.mark.parametrize(
    ("form", "way", "name"),
    [
        *((form, "3", "llama") for form in FORMS),
        *(
            pytest.param("plain", way, "llama", marks=[pytest.mark.slow] * (way not in COMMON_WAYS))
            for way in STATE_WAYS[1:]
        ),
        ("plain", "3", "gemma3"),  # which has no lean forward
    ],
)
def test_q_is_what_the_checkpoint_computes(form: str, way: str, name: str, tmp_path: Path) -> None:
    """After any rejections, in a batch or alone, q is the written-out computation from the text."""
    settings = PLAIN | FORMS[form]
    folder, target = write_draft(tmp_path / "draft", **settings), target_of(name)
    reference = Reference(folder, target.get_input_embeddings().weight)
    decoder = SpeculativeDecoder(target, loaded(folder, target), **options_of(way))

    def written_out(text: list[int], path: list[int]) -> list[Tensor]:
        return reference.drafted(text, inner_states(target, text[:-1], settings["layers"]), path)

    assert len(compare(decoder, written_out)) > 20


@pytest.mark.parametrize("kept", [KEPT, None])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_without_lm_head_the_targets_is_meant(name: str, kept: list[int] | None, tmp_path: Path) -> None:
    """The draft equals that of a checkpoint that contains the target's rows, in one file or in shards."""
    target = target_of(name)
    head: Any = target.get_output_embeddings().weight
    settings = PLAIN | {"kept": kept, "own_embedding": False}
    written_out = loaded(write_draft(tmp_path / "whole", **settings, head=head), target)
    decoder = SpeculativeDecoder(target, written_out, length=3)
    for shards in (1, 3):
        folder = write_draft(tmp_path / f"{shards} shards", **settings, head=head[:0], shards=shards)
        draft = loaded(folder, target)
        assert model_fingerprint(draft) == model_fingerprint(written_out)
        expected_drafts = drafted(SpeculativeDecoder(target, draft, length=3))
        for (text, nodes), (other_text, other_nodes) in zip(drafted(decoder), expected_drafts, strict=True):
            assert text == other_text
            for (path, q), (other_path, other_q) in zip(nodes, other_nodes, strict=True):
                assert path == other_path
                torch.testing.assert_close(q, other_q)  # the order of sums depends on the alignment of weights
        with pytest.raises(InputError, match=r"a draft with the .* of its target; load it as the draft of that model"):
            loaded(folder)


def test_the_default_layers_are_those_of_the_field(tmp_path: Path) -> None:
    draft = CausalLM(loaded(write_draft(tmp_path / "draft", **PLAIN | {"layers": None})))
    assert draft.state_input is not None
    assert draft.state_input.target_layers(8) == (2, 4, 5)


def test_targets_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "plain", **PLAIN)
    draft, target = loaded(folder), target_of("llama")
    deep = loaded(write_draft(tmp_path / "deep", **PLAIN | {"layers": [1, 20]}))
    with pytest.raises(InputError, match="draft: reads the target's layers 1, 20; they must ascend, from 1 to 4 in"):
        SpeculativeDecoder(target, deep)
    with pytest.raises(InputError, match="draft: reads the outputs of layers, which are not found in gpt2"):
        SpeculativeDecoder(target_of("gpt2"), draft)
    smaller = make(hidden=32, vocab=64)
    with pytest.raises(InputError, match="draft: made for 96 tokens, the target has 64"):
        SpeculativeDecoder(smaller, draft)
    without = write_draft(tmp_path / "draft", **PLAIN, own_embedding=False)
    with pytest.raises(InputError, match=r"a weight of shape \(64, 32\) instead of \(96, 32\)"):
        loaded(without, smaller)
    headless = write_draft(tmp_path / "headless", **PLAIN, head=torch.empty(0))
    with pytest.raises(
        InputError, match=r"output projection of its target.* has a weight of shape \(64, 32\) instead of"
    ):
        loaded(headless, smaller)
    with pytest.raises(InputError, match="a draft with the output projection of its target; load it as the draft"):
        loaded(headless)
    with pytest.raises(InputError, match=r"device_map: .* is an EAGLE-3 draft, which is on one device"):
        load_model(folder, device_map="auto")
