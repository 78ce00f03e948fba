"""The lag-free head: data of both kinds, training, checkpoint, and the same outputs in training and in serving."""

from pathlib import Path

import pytest
import torch
from specpilot.controllers.acceptance.lag_free_head import LagFreeHead
from specpilot.data_gen.kinds import RoundsRow, read_dataset
from specpilot.data_gen.on_policy import make_on_policy_data
from specpilot.data_gen.options import OnPolicyDataOptions
from specpilot.data_gen.texts import text_of
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot.infer.random_source import sample_seed

from .tiny import pair_and_prompts

PROMPTS = ["one two", "three", "four five six", "seven", "eight nine", "ten", "eleven twelve", "thirteen"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OnPolicyDataOptions, Path]:
    folder = tmp_path_factory.mktemp("lag-free")
    given = pair_and_prompts(folder, PROMPTS)
    settings = OnPolicyDataOptions(**given, max_new_tokens=24, batch_size=3, shard_size=3, length=5)
    return folder, settings, make_on_policy_data(settings, folder / "rounds")


def test_rounds_are_what_the_decoder_did(data: tuple[Path, OnPolicyDataOptions, Path]) -> None:
    _, settings, folder = data
    decoder = SpeculativeDecoder.from_pretrained(settings.target, settings.draft, length=5)
    rows = read_dataset(folder, RoundsRow)
    assert len(rows) == 8
    for place, row in enumerate(rows):
        alone = decoder.generate(row.prompt_ids, seed=sample_seed(settings.seed, place), max_new_tokens=24)
        assert row.x == alone.tokens
        length, drafts = 0, []
        for round in alone.rounds:
            if round.drafted:
                drafts.append((length, round.drafted[: round.accepted + 1], round.accepted))
            length += len(round.emitted)
        assert [(s, d) for s, d, _ in drafts] == list(zip(row.starts, row.drafted, strict=True))
        for (start, tokens, accepted), probabilities in zip(drafts, row.accept, strict=True):
            assert len(probabilities) == len(tokens)
            assert all(0 <= probability <= 1 for probability in probabilities)
            assert tokens[:accepted] == row.x[start : start + accepted]
        assert text_of(row).accept == [probability for of_round in row.accept for probability in of_round]
        assert text_of(row).tokens == [token for of_round in row.drafted for token in of_round]


def test_the_head_does_not_use_the_entropy() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(3, 7), torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 8)
    for place in range(7):
        changed = inputs[0].clone()
        changed[:, place] += 5.0
        head = LagFreeHead(8, 4)
        assert torch.equal(head(*inputs), head(changed, *inputs[1:])) == (place == 2)
