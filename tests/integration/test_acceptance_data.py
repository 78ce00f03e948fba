"""Acceptance data and rounds: labels against direct computation, distributions of samples, folders of other runs."""

import errno
import json
import re
from dataclasses import fields, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot.common.errors import InputError
from specpilot.common.files import replacing
from specpilot.controllers.sampling import SamplingParams
from specpilot.data_gen import builder
from specpilot.data_gen.acceptance import AcceptanceDatasetBuilder, make_acceptance_data
from specpilot.data_gen.builder import plan
from specpilot.data_gen.dataset import ShardWriter, read_manifest
from specpilot.data_gen.kinds import AcceptanceRow, RoundsRow, Rows, read_dataset, text_of
from specpilot.data_gen.on_policy import make_on_policy_data
from specpilot.data_gen.options import AcceptanceDataOptions, OnPolicyDataOptions
from specpilot.data_gen.rollout import roll_out
from specpilot.infer import decoder as decoder_module
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import draw, sample_seed
from specpilot.models import CausalLM
from specpilot.models.forwards import Padded

from ..helpers.refusals import refused
from ..helpers.tiny import ARCHITECTURES, make, pair_and_prompts
from ..helpers.training import accepted, assert_labels


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> AcceptanceDataOptions:
    prompts = (f"prompt {i} {'word ' * (i % 5)}" for i in range(24))
    paths = pair_and_prompts(tmp_path_factory.mktemp("pair"), prompts)
    return AcceptanceDataOptions(**paths, max_new_tokens=12, batch_size=5, shard_size=4, top_k=20, seed=3)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    "sampling", [{}, {"top_k": None}, {"top_k": None, "top_p": 0.9}, {"temperature": 0.0}, {"top_k": 150}], ids=str
)
def test_rows_by_direct_computation(sampling: dict[str, Any], base: AcceptanceDataOptions, tmp_path: Path) -> None:
    """Labels are right with and without stored distributions of the target, which rollouts store for small top-k."""
    base = replace(base, **sampling)
    dataset_builder = AcceptanceDatasetBuilder(base)
    rows = read_dataset(make_acceptance_data(base, tmp_path / "data"), AcceptanceRow)
    assert [row.prompt_id for row in rows] == [item.id for item in dataset_builder.prompts.items]
    assert_labels(dataset_builder, rows)
    for row in rows:
        assert 1 <= len(row.x) == len(row.y) == len(row.p) <= 12
        assert dataset_builder.stop_tokens.isdisjoint(row.x[:-1])


@pytest.mark.parametrize("sampling", [{}, {"top_k": None}, {"temperature": 0.0}], ids=str)
def test_labels_by_rule(sampling: dict[str, Any], base: AcceptanceDataOptions, tmp_path: Path) -> None:
    """The rule changes only the probabilities. A manifest without a rule means token-wise verification."""
    by_rule = {}
    for verifier in ("token-wise", "invariant"):
        options = replace(base, verifier=verifier, limit=8, **sampling)  # type: ignore[arg-type]
        folder = make_acceptance_data(options, tmp_path / verifier)
        rows = read_dataset(folder, AcceptanceRow)
        assert_labels(AcceptanceDatasetBuilder(options), rows)
        assert read_manifest(folder).verifier == verifier
        by_rule[verifier] = rows
    token_wise, invariant = by_rule["token-wise"], by_rule["invariant"]
    assert [(row.x, row.y) for row in token_wise] == [(row.x, row.y) for row in invariant]
    same = [row.p for row in token_wise] == [row.p for row in invariant]
    assert same == (base.temperature == 0 or sampling.get("temperature") == 0)
    assert "verifier" not in (tmp_path / "token-wise" / "manifest.json").read_text(encoding="utf-8")


def test_data_of_two_rules_is_not_mixed(base: AcceptanceDataOptions, tmp_path: Path) -> None:
    folder = make_acceptance_data(replace(base, limit=4), tmp_path / "data")
    with pytest.raises(
        InputError, match="other settings: verifier was 'token-wise' and is 'invariant'; repeat those settings"
    ):
        make_acceptance_data(replace(base, limit=4, verifier="invariant"), folder)


@pytest.mark.parametrize(("verifier", "top_k"), [("token-wise", 50), ("invariant", 50), ("invariant", None)])
def test_rounds_are_what_the_decoder_did(
    verifier: Any, top_k: int | None, base: AcceptanceDataOptions, tmp_path: Path
) -> None:
    base_options = {"target": base.target, "draft": base.draft, "prompts": base.prompts, "chat": False, "device": "cpu"}
    settings = OnPolicyDataOptions(**base_options, verifier=verifier, top_k=top_k, max_new_tokens=24, batch_size=3,  # type: ignore[arg-type]
                                   shard_size=3, length=5, limit=8)  # fmt: skip
    folder = make_on_policy_data(settings, tmp_path / "rounds")
    rows = read_dataset(folder, RoundsRow)
    assert read_manifest(folder).verifier == verifier
    decoder = SpeculativeDecoder.from_pretrained(settings.target, settings.draft, length=5, verifier=verifier)
    sampling = SamplingParams(1.0, top_k)
    assert len(rows) == 8
    for place, row in enumerate(rows):
        seed = sample_seed(settings.seed, place)
        generation = decoder.generate(row.prompt_ids, seed=seed, max_new_tokens=24, top_k=top_k)
        assert row.x == generation.tokens
        for start, tokens, labels in zip(row.starts, row.drafted, row.accept, strict=True):
            text = torch.tensor([row.prompt_ids + row.x[:start] + tokens])
            p, q = (
                sampling(model.model(input_ids=text).logits[0, -len(tokens) - 1 : -1])
                for model in (decoder.target, *decoder.drafts)
            )
            expected = accepted(p, q, torch.tensor(tokens)[:, None], verifier)
            torch.testing.assert_close(torch.tensor(labels), expected, rtol=1e-3, atol=1e-5)
        length, drafts = 0, []
        for round in generation.rounds:
            if round.drafted:
                drafts.append((length, round.drafted[: round.accepted + 1], round.accepted))
            length += len(round.emitted)
        assert [(s, d) for s, d, _ in drafts] == list(zip(row.starts, row.drafted, strict=True))
        for (start, tokens, count), probabilities in zip(drafts, row.accept, strict=True):
            assert len(probabilities) == len(tokens)
            assert all(0 <= probability <= 1 for probability in probabilities)
            assert tokens[:count] == row.x[start : start + count]
        assert text_of(row).accept == [probability for of_round in row.accept for probability in of_round]
        assert text_of(row).tokens == [token for of_round in row.drafted for token in of_round]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_does_not_depend_on_its_company(architecture: str) -> None:
    """Padding, compaction and other rows of a batch change nothing. Stop tokens end rows at different steps."""
    model = CausalLM(make(architecture))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(64, (n,), generator=generator).tolist() for n in (1, 9, 4, 4, 12, 2, 7)]
    uniforms = [torch.rand(budget, generator=generator) for budget in (20, 20, 5, 20, 1, 20, 20)]
    sampling, stops = SamplingParams(1.0, 20), frozenset(range(0, 64, 9))

    texts_alone = [
        roll_out(model, [p], [u], sampling, stops, batch_size=1)[0].tokens
        for p, u in zip(prompts, uniforms, strict=True)
    ]
    assert len({len(row) for row in texts_alone}) > 2
    for batch_size, lean in ((1, True), (2, True), (3, True), (7, True), (50, True), (3, False)):
        model.strategy = model.strategy if lean else Padded("a test asks for it")
        lengths: list[int] = []
        together = roll_out(model, prompts, uniforms, sampling, stops, batch_size=batch_size, on_done=lengths.append)
        assert [row.tokens for row in together] == texts_alone
        assert sorted(lengths) == sorted(map(len, texts_alone))


@settings(max_examples=100)
@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=1, max_size=6).filter(any))
def test_draw_inverts_the_cdf(weights: list[float]) -> None:
    p = torch.tensor(weights)
    p = p / p.sum()
    points = 4096
    uniforms = (torch.arange(points) + 0.5) / points
    counts = torch.bincount(draw(p.expand(points, -1), uniforms), minlength=len(p)) / points
    torch.testing.assert_close(counts, p, rtol=0, atol=2 / points)
    edge = torch.tensor([0.0, 1 - 2**-24])
    assert bool((p[draw(p.expand(2, -1), edge)] > 0).all())


def test_another_runs_folder_is_refused_by_name(base: AcceptanceDataOptions, tmp_path: Path) -> None:
    folder = make_acceptance_data(base, tmp_path / "data")
    before = files(folder)
    for change, difference in (
        ({"temperature": 0.5}, "sampling.temperature was 1.0 and is 0.5"),
        ({"seed": 4}, f"seed was {base.seed} and is 4"),
        ({"limit": 3}, r"prompts.count was \d+ and is 3; prompts.sha256 was "),
        ({"batch_size": 1}, f"settings.batch_size was {base.batch_size} and is 1"),  # labels differ in the last digit
        ({"max_new_tokens": 13, "chat": True}, "settings.chat was False and is True; settings.max_new_tokens was "),
    ):
        with pytest.raises(InputError, match=f"belongs to a run with other settings: {difference}.*; repeat"):
            make_acceptance_data(replace(base, **change), folder)
    assert files(folder) == before


def test_a_resumed_dataset_without_labels_has_the_same_bytes(tmp_path: Path) -> None:
    """The sum of no probabilities is the whole number 0, also after the manifest is read and written again."""
    sampling = SamplingParams().to_dict()
    identity = {"kind": "acceptance", "target": "t", "draft": "d", "fingerprint": {}, "sampling": sampling}
    shards = [Rows([AcceptanceRow(str(i), "", [1], [], [], [])]) for i in range(2)]
    with ShardWriter(tmp_path / "whole", identity) as writer:
        for shard in shards:
            writer.write(shard)
    for shard in shards:
        with ShardWriter(tmp_path / "resumed", identity) as writer:
            writer.write(shard)
    assert files(tmp_path / "whole") == files(tmp_path / "resumed")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError) as error, replacing(tmp_path / "a") as temporary:  # noqa: PT012 - the block fails
        temporary.write_bytes(b"ha")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (files(tmp_path), error.value.filename) == ({"a": b"old"}, str(tmp_path / "a"))


def test_prompts_that_fill_the_context(base: AcceptanceDataOptions, tmp_path: Path) -> None:
    prompts = tmp_path / "long.txt"
    prompts.write_text("short\n" + "long " * 40 + "\n")
    arguments = replace(base, prompts=str(prompts))
    folder = make_acceptance_data(replace(arguments, max_prompt_tokens=116), tmp_path / "data")
    assert len(read_dataset(folder, AcceptanceRow)) == 1
    assert read_manifest(folder).prompts.left_out == 1


def test_a_target_that_answers_every_prompt_with_nothing(
    base: AcceptanceDataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "model_stop_tokens", lambda *_: frozenset(range(257)))
    with refused(r"the answers to 8 prompts are all empty; give prompts in the form .*--chat or --no-chat", "target="):
        make_acceptance_data(replace(base, shard_size=8), tmp_path / "data")
    make_acceptance_data(replace(base, limit=2), tmp_path / "two")  # which may be by chance
    with refused(r"the answers to 24 prompts are empty \(24 tokens in all\); remove the folder", str(tmp_path)):
        make_acceptance_data(base, tmp_path / "small shards")
    monkeypatch.setattr(decoder_module, "model_stop_tokens", lambda *_: frozenset(range(257)))
    rounds = {entry.name: getattr(base, entry.name) for entry in fields(base)}
    with refused(r"the answers to 8 prompts are all empty; give prompts in the form .*--chat or --no-chat", "target="):
        make_on_policy_data(OnPolicyDataOptions(**rounds | {"shard_size": 8, "length": 2}), tmp_path / "rounds")


def test_a_dataset_of_empty_answers_is_not_trained_on(base: AcceptanceDataOptions, tmp_path: Path) -> None:
    """Datasets of earlier versions, which wrote them without an error, are refused as well."""
    folder = make_acceptance_data(base, tmp_path / "data")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert read_manifest(folder, complete=True).prompts.count == 24
    single = make_acceptance_data(replace(base, max_new_tokens=1), tmp_path / "single")
    assert read_manifest(single, complete=True).shards[0].tokens == 4
    for shard in manifest["shards"]:
        shard["tokens"] = 4
    (folder / "manifest.json").write_text(json.dumps(manifest))
    read_manifest(folder)
    with refused(r"the answers to 24 prompts are empty \(24 tokens in all\)", str(folder)):
        read_manifest(folder, complete=True)


def test_plan_writes_nothing(base: AcceptanceDataOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = plan(AcceptanceDatasetBuilder(base))
    assert "prompts      24" in text
    assert re.search(r"(?s)at most 288 .* at most about \d+ s by a probe's [\d,]+ tokens/s$", text)
    assert "max_new_tokens" not in text
    assert re.search(
        r"max_new_tokens: .* 24 of 24 texts", plan(AcceptanceDatasetBuilder(replace(base, max_new_tokens=9999)))
    )
    assert list(tmp_path.iterdir()) == []


def test_shards_in_any_order_are_the_same_dataset(tmp_path: Path) -> None:
    sampling = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
    identity = {"kind": "acceptance", "target": "a", "draft": "b", "fingerprint": {}, "sampling": sampling}
    shards = [[AcceptanceRow(str(i), "prompt", [1], [2], [3], [0.5 / (i + 1)])] for i in range(3)]
    for order in permutations(range(3)):
        folder = tmp_path / "".join(map(str, order))
        for index in order:  # resumed after every shard
            with ShardWriter(folder, identity) as writer:
                with pytest.raises(InputError, match="another process is writing this dataset"):
                    ShardWriter(folder, identity)
                assert index in writer.missing(3)
                writer.write(Rows(shards[index]), index)
                assert index not in writer.missing(3)
        with ShardWriter(folder, identity) as writer:
            writer.complete()
        assert read_dataset(folder) == read_dataset(folder, AcceptanceRow) != []
        assert files(folder) == files(tmp_path / "012")
