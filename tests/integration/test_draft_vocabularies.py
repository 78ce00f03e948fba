"""Drafts with fewer or more tokens than their target, a trimmed head, or a shorter context: decoding and data."""

import math
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from specpilot.common.errors import InputError
from specpilot.compare.decoders import ComparedDecoder, Loader
from specpilot.compare.recorded import Tracer, replay_counts
from specpilot.controllers.acceptance import feature_model, lag_free_head, specdec_head
from specpilot.controllers.checkpoints.fingerprint import model_fingerprint
from specpilot.controllers.length import Fixed, Oracle
from specpilot.controllers.length.draft_sources import DraftSources
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen.acceptance import make_acceptance_data
from specpilot.data_gen.dataset import read_manifest
from specpilot.data_gen.draft_states import read_positions
from specpilot.data_gen.kinds import AcceptanceRow, RoundsRow, read_dataset
from specpilot.data_gen.on_policy import make_on_policy_data
from specpilot.data_gen.options import AcceptanceDataOptions, OnPolicyDataOptions, RouterDataOptions
from specpilot.data_gen.prompts import PromptRow
from specpilot.data_gen.rollout import Rollout, can_read, label, overlap
from specpilot.data_gen.router import make_router_data
from specpilot.data_gen.router_dataset import read_router_dataset
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.drafters.beams import Beams
from specpilot.infer.drafters.ngram import Ngram
from specpilot.infer.options import DecodingOptions
from specpilot.models import CausalLM
from specpilot.models.loading.draft_folder import SharedTarget, save_draft
from specpilot.models.loading.names import load_model, load_tokenizer
from specpilot.train.acceptance import train_acceptance
from specpilot.train.calibration import load_draft, load_rows
from specpilot.train.draft_model import new_draft
from transformers import PreTrainedModel

from ..helpers.drafts import FREE, options_of, state_draft
from ..helpers.routing import ArmsInTurn, routed
from ..helpers.tiny import make, save_pair

SIZES = {"shorter draft": (340, 260), "longer draft": (260, 340)}  # the tokenizer has 257
TOKENS = 20


class Pair(NamedTuple):
    folder: Path
    target: str
    draft: str
    sizes: tuple[int, int]
    drawn: set[int]  # tokens that the draft can draw
    prompts: str


def trimmed_pair(folder: Path) -> tuple[str, str]:
    """Return a target, and a draft with its embedding and every second token in the head."""
    target, _ = save_pair(folder)
    model, tokenizer = load_model(target, device="cpu"), load_tokenizer(target)
    shared = SharedTarget(target, model_fingerprint(model), ["input", "output"])
    draft = new_draft(model, [0], [*range(0, 256, 2), 256])
    save_draft(draft, folder / "trimmed", tokenizer, target=shared, dtype=torch.float32)
    return target, str(folder / "trimmed")


@pytest.fixture(scope="module", params=[*SIZES, "trimmed"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    (folder / "p.txt").write_text("".join(f"prompt {i} {'word ' * (i % 3)}\n" for i in range(16)))
    if request.param == "trimmed":
        return Pair(folder, *trimmed_pair(folder), (257, 257), {*range(0, 256, 2), 256}, str(folder / "p.txt"))
    sizes = SIZES[request.param]
    names = save_pair(folder, vocab=sizes[0], draft_vocab=sizes[1])
    return Pair(folder, *names, sizes, {*range(min(sizes))}, str(folder / "p.txt"))


@pytest.fixture(scope="module")
def data(pair: Pair) -> Path:
    options = AcceptanceDataOptions(
        target=pair.target, draft=pair.draft, prompts=pair.prompts, chat=False, max_new_tokens=TOKENS, batch_size=5,
        shard_size=8, top_k=None, device="cpu",
    )  # fmt: skip
    return make_acceptance_data(options, pair.folder / "acceptance")


def test_labels_end_where_the_draft_cannot_read_on(pair: Pair, data: Path) -> None:
    rows = read_dataset(data, AcceptanceRow)
    assert len(rows) == 16
    ended = [row for row in rows if len(row.x) < TOKENS and row.x[-1:] != [256]]
    assert bool(ended) == (pair.sizes[0] > pair.sizes[1])  # some were cut, or none had to be
    for row in rows:
        assert len(row.x) == len(row.y) == len(row.p) <= TOKENS
        assert max(row.x, default=0) < min(pair.sizes)
        assert {*row.y} <= pair.drawn


def test_labels_and_overlaps_of_cut_texts() -> None:
    """A text is labelled as if it ended at the unreadable token, in any batch."""
    target, draft, sampling = CausalLM(make(vocab=64)), CausalLM(make("gpt2", vocab=50)), SamplingParams(1.0, None)
    prompts = [[1, 2, 3], [4], [5, 60], [6, 7]]
    texts = [[8, 9, 10, 11], [12, 55, 13, 14], [15, 16, 17, 18], [63, 19, 20, 21]]
    uniforms = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    rollouts = [Rollout(text) for text in texts]
    labels = label(target, draft, prompts, rollouts, uniforms, sampling)
    assert [len(y) for y, _ in labels] == [len(p) for _, p in labels] == [4, 1, 0, 0]
    shares = overlap(target, draft, prompts, rollouts, sampling)
    assert [[share > 0 for share in row] for row in shares] == [[True] * 4, [True, True, False, False], [False] * 4,
                                                                [True, False, False, False]]  # fmt: skip
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        rollouts = [Rollout(text[: max(1, len(labels[row][0]))])]
        ((y, p),) = label(target, draft, [prompt], rollouts, uniforms[row : row + 1], sampling)
        assert y == labels[row][0]
        assert p == pytest.approx(labels[row][1], rel=1e-4)
    assert label(target, draft, [[60]], [Rollout([1])], uniforms[:1], sampling) == [([], [])]


def test_every_stage_takes_it(pair: Pair, data: Path, tmp_path: Path) -> None:
    some = {"epochs": 1, "validation_fraction": 0.4, "device": "cpu"}
    trainings: list[Any] = [
        specdec_head.TrainingOptions(data=str(data), mixing=mixing, **some) for mixing in (0.3, 1.0)
    ]
    # Without and with the target's own forward, and one that reads the embedding.
    trainings += [feature_model.TrainingOptions(data=str(data), traced=traced, **some) for traced in (0, 3)]
    shared = {
        "target": pair.target, "prompts": pair.prompts, "chat": False, "shard_size": 8, "top_k": None, "device": "cpu",
    }  # fmt: skip
    settings = OnPolicyDataOptions(**shared, draft=pair.draft, max_new_tokens=TOKENS + 4, length="3")
    rounds = make_on_policy_data(settings, tmp_path / "rounds")
    rows = read_dataset(rounds, RoundsRow)
    assert (max(max(row.x) for row in rows) >= pair.sizes[1]) == (pair.sizes[0] > pair.sizes[1])
    trainings.append(lag_free_head.TrainingOptions(data=[str(data), str(rounds)], width=8, traced=3, **some))
    for i, training in enumerate(trainings):
        result = train_acceptance(training, output=tmp_path / str(i))
        assert all(map(math.isfinite, result.metrics.values()))
    arms = (pair.draft, "exit:1", "autoregressive")
    make_router_data(RouterDataOptions(**shared, max_new_tokens=TOKENS, arms=arms, limit=6), tmp_path / "router")


def test_features_of_positions_are_those_of_the_labels_distribution(pair: Pair, data: Path) -> None:
    manifest = read_manifest(data)
    assert (manifest.vocab_size is not None) == (pair.sizes[1] > pair.sizes[0])
    draft, rows = load_draft(None, manifest, device="cpu"), load_rows(str(data))
    positions = read_positions(draft, rows, SamplingParams(1.0, None), manifest.vocab_size)
    row = rows[0]
    logits = draft.model(input_ids=torch.tensor([row.prompt_ids + row.x])).logits[0, len(row.prompt_ids) - 1]
    q = logits[: pair.sizes[0]].softmax(-1)
    assert float(positions.evidence[0, 0]) == pytest.approx(float(q[row.tokens[0]].log()), abs=1e-4)


def test_transformers_assistance_is_refused(tmp_path: Path) -> None:
    target, draft = save_pair(tmp_path, draft_vocab=260)
    base = DecodingOptions(target=target, draft=draft, device="cpu")
    decoder = ComparedDecoder.parse("transformers:assisted-2", base)
    with pytest.raises(InputError, match="vocab_size of the target: 257, of the draft: 260"):
        Loader(base).generate(decoder, SamplingParams(1.0, None), TOKENS)


def test_an_arm_has_no_output_after_a_prompt_it_cannot_read(tmp_path: Path) -> None:
    folder = tmp_path / "pair"
    target, draft = save_pair(folder, vocab=257, draft_vocab=130)
    (folder / "p.txt").write_text("abc\na b\nxyz\n")  # a space is beyond the draft's tokens
    settings = RouterDataOptions(
        target=target, arms=(draft, "autoregressive"), prompts=str(folder / "p.txt"), chat=False, max_new_tokens=4,
        top_k=None, device="cpu",
    )  # fmt: skip
    rows = read_router_dataset(make_router_data(settings, tmp_path / "data")).rows
    unread = [row for row in rows if not can_read(row.prompt_ids, 130)]
    assert [row.prompt for row in unread] == ["a b"]
    assert unread[0].outputs[0] == []
    assert set(unread[0].overlap[0]) == {0.0}
    assert all(row.outputs[0] for row in rows if row not in unread)


def test_texts_are_traced_as_far_as_the_draft_reads(pair: Pair) -> None:
    decoder = SpeculativeDecoder.from_pretrained(pair.target, pair.draft, device="cpu")
    rows = [PromptRow(str(i), "x", f"prompt {i}") for i in range(8)]
    tracer = Tracer(decoder, SamplingParams(1.0, None), TOKENS, seed=0)
    traces = tracer.traces(rows)
    for traced in traces:
        assert max([*traced.text[:-1], *traced.tokens], default=0) < pair.sizes[1]
    assert any(max(traced.text) >= pair.sizes[1] for traced in traces) == (pair.sizes[0] > pair.sizes[1])
    counts = replay_counts(traces, lambda index: Fixed(4), decoder.stop_tokens)
    assert [count.generated for count in counts] == [len(traced.text) for traced in traces]
    rows = [PromptRow("far", "x", "a b")]
    decoder.drafts[0].vocab_size = 100
    with pytest.raises(InputError, match=r"prompt 'far': token .* is outside the draft's vocabulary of 100"):
        tracer.traces(rows)


# Drafts that read shorter texts than their target, which then goes on without them


pytestmark = pytest.mark.filterwarnings("ignore:.*reads texts of at most")
CONTEXT = 24  # of the drafts
PROMPTS = [[5, 9, 2, 44, 17, 3, 30], [*range(10, 33)], [*range(8, 50)], [7] * 12]  # short, at the edge, beyond, copied
WAYS: dict[str, dict[str, Any]] = {
    name: options_of(name) for name in ("3", "confidence", "mcss 2x1", "auto", "copies or 3", "auto or copies")
} | {"oracle": {"length": Oracle()}, "beams": {"verifier": "mtad", "beams": Beams(1), "length": Fixed(3)}}


def shortened(target: PreTrainedModel) -> PreTrainedModel:
    """Return the model with ``CONTEXT`` positions; a forward beyond them fails."""
    draft: Any = deepcopy(target)
    positions = draft.transformer.wpe
    positions.weight = torch.nn.Parameter(positions.weight[:CONTEXT], requires_grad=False)
    draft.config.n_positions = positions.num_embeddings = CONTEXT
    return draft  # type: ignore[no-any-return]


def texts(decoder: SpeculativeDecoder) -> list[list[int]]:
    """Return the tokens of all prompts, after checking that they are the same one by one and together."""
    settings: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.0}
    expected = [decoder.generate(prompt, **settings) for prompt in PROMPTS]
    together = [output.tokens for output in decoder.generate(PROMPTS, **settings)]
    assert together == [output.tokens for output in expected]
    return together


@cache
def plain_texts(architecture: str) -> list[list[int]]:
    return texts(SpeculativeDecoder(make(architecture), None))


@pytest.mark.parametrize(
    ("draft", "way"),
    [*(("gpt2", way) for way in WAYS), *(("states", way) for way in ("3", "spec-infer 2x2x1", "auto", "copies or 3"))],
)
def test_texts_are_as_long_as_the_targets(draft: str, way: str) -> None:
    if draft == "states":
        target = make()
        short = state_draft(target)
        short.config.max_position_embeddings = CONTEXT
    else:
        target = make("gpt2")
        short = shortened(target)
    decoder = SpeculativeDecoder(target, short, **deepcopy(WAYS.get(way) or options_of(way)))
    assert texts(decoder) == plain_texts(target.config.model_type)
    first = decoder.generate(PROMPTS[0], max_new_tokens=60, temperature=0.0)
    assert first.stats.n_draft_forwards > 0


def test_arms_leave_their_contexts() -> None:
    target = make("gpt2")
    arms = routed(target, [shortened(target)], ArmsInTurn(2), [Fixed(3), Fixed(0)])
    assert texts(arms) == plain_texts("gpt2")


def test_copies_go_on_beyond_the_drafts_context() -> None:
    target = make("gpt2", sharpness=0.0)  # always the same token
    options: dict[str, Any] = {"length": Fixed(2), "ngram": Ngram(2, FREE)}
    output = SpeculativeDecoder(target, shortened(target), **options).generate(
        [1] * 40, max_new_tokens=40, temperature=0
    )
    assert output.stats.n_draft_forwards == 0
    assert output.stats.n_accepted > 20
    sources = DraftSources(FREE, model=True)
    sources.idle = sources.patience  # the model would have another try
    assert sources.plan([1.0] * 5, 0) == (4, False)
