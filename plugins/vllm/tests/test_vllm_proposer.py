"""The drafter of a vLLM engine without vLLM. Simple objects replace the parts of vLLM that the drafter calls.

The draft model reads every text from the slots that the drafter's tables name, so that a wrong slot, position, length
or table gives another draft. Drafts must be those of specpilot's own decoder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import specpilot_vllm
import torch
from specpilot.infer.decoder import SpeculativeDecoder
from specpilot_vllm.settings import Settings
from torch import Tensor

from tests.helpers.architectures import pair
from tests.helpers.drafts import PROMPTS

BLOCK, LIMIT, NEW = 4, 5, 20
LENGTH = "confidence:0.3"
FORWARD: list[SimpleNamespace] = []  # the metadata of the forward that runs


class Slots:
    """A draft model whose cache holds tokens: each text is read anew from the slots of its row."""

    def __init__(self, model: Any) -> None:
        self.model, self.slots = model, dict[int, int]()

    def __call__(self, input_ids: Tensor, positions: Tensor, inputs_embeds: None) -> Tensor:
        (metadata,) = FORWARD
        slots = metadata.slot_mapping.tolist()
        assert len(slots) == metadata.num_actual_tokens == int(metadata.query_start_loc[-1])
        self.slots |= dict(zip(slots, input_ids.tolist(), strict=False))
        hidden = torch.full((len(input_ids), self.model.config.hidden_size), torch.nan)
        starts = metadata.query_start_loc_cpu.tolist()
        for row, (start, end) in enumerate(pairwise(starts)):
            length, table = int(metadata.seq_lens[row]), metadata.block_table_tensor[row].tolist()
            text = [self.slots[table[position // BLOCK] * BLOCK + position % BLOCK] for position in range(length)]
            assert positions[start:end].tolist() == [*range(length - (end - start), length)]
            assert end - start <= metadata.max_query_len
            assert length <= metadata.max_seq_len
            hidden[start:end] = self.model.model(torch.tensor([text])).last_hidden_state[0, -(end - start) :]
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.model.lm_head(hidden)
        return logits


class Base:
    """The parts of vLLM's ``DraftModelProposer`` that the drafter uses; batches are padded by a token."""

    block_size, kv_cache_gid, max_model_len = BLOCK, 0, 128

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any) -> None:
        self.vllm_config, self.device = vllm_config, device
        self.draft_model_config = SimpleNamespace(model="draft")
        self.max_num_tokens = runner.max_num_tokens
        self.input_ids = torch.zeros(64, dtype=torch.int32)
        self.positions = torch.zeros(64, dtype=torch.int64)

    def load_model(self, target: Any) -> None:
        self.model = Slots(self.vllm_config.draft)

    def _determine_batch_execution_and_padding(self, tokens: int) -> tuple[None, int, None]:
        return None, tokens + 1, None

    def build_per_group_and_layer_attn_metadata(self, metadata: Any) -> tuple[None, Any]:
        return None, metadata

    def _get_slot_mapping(self, padded: int, slots: Tensor) -> Tensor:
        return slots


@contextmanager
def set_forward_context(metadata: Any, *_: Any, **__: Any) -> Iterator[None]:
    FORWARD.append(metadata)
    yield
    FORWARD.clear()


@pytest.fixture
def proposer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of the drafter, in which simple objects replace those of vLLM."""
    for name, content in {
        "vllm": {}, "vllm.v1": {}, "vllm.v1.attention": {}, "vllm.v1.spec_decode": {},
        "vllm.forward_context": {"set_forward_context": set_forward_context},
        "vllm.v1.attention.backend": {"CommonAttentionMetadata": SimpleNamespace},
        "vllm.v1.spec_decode.draft_model": {"DraftModelProposer": Base},
    }.items():  # fmt: skip
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    file = Path(specpilot_vllm.__file__).with_name("proposer.py")
    spec = spec_from_file_location("specpilot_vllm.without_vllm", file)  # beside the one that imports vLLM
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


class Engine:
    """The parts of a model runner that the drafter uses: its batch, and the requests that it has."""

    def __init__(self, prompts: list[list[int]], draft: Any, max_num_tokens: int) -> None:
        names = [f"request-{row}" for row in range(len(prompts))]
        self.max_num_tokens, self.device = max_num_tokens, torch.device("cpu")
        self.vllm_config = SimpleNamespace(draft=draft, model_config=SimpleNamespace(model="target"))
        # Blocks of all requests in turn, so that no text lies in one piece.
        self.table = np.arange(16 * len(prompts)).reshape(16, len(prompts)).T.copy()
        self.input_batch = SimpleNamespace(
            req_ids=names, vocab_size=draft.config.vocab_size, block_table=[self],
            sampling_metadata=SimpleNamespace(all_greedy=True, generators={}),
        )  # fmt: skip
        self.discard_request_mask = SimpleNamespace(np=np.zeros(len(prompts), dtype=bool))
        params = SimpleNamespace(
            temperature=0.0, top_k=0, top_p=1.0, max_tokens=NEW, stop_token_ids=[], eos_token_id=None
        )
        self.requests = {
            name: SimpleNamespace(
                prompt_token_ids=prompt, output_token_ids=[], num_prompt_tokens=len(prompt), num_tokens=len(prompt),
                sampling_params=params,
            )
            for name, prompt in zip(names, prompts, strict=True)
        }  # fmt: skip

    def get_numpy_array(self) -> Any:
        return self.table

    def take(self, row: int, tokens: list[int]) -> None:
        """Add new tokens of the request in ``row``, as vLLM does after it has asked for drafts."""
        request = self.requests[f"request-{row}"]
        request.output_token_ids += tokens
        request.num_tokens += len(tokens)


def accepted_and_next(coming: list[int], draft: list[int]) -> list[int]:
    """Return the accepted tokens of ``draft`` and one more, for a target whose next tokens are ``coming``."""
    accepted = next((i for i, (a, b) in enumerate(zip(draft, coming, strict=False)) if a != b), len(draft))
    return coming[: accepted + 1]


@pytest.mark.parametrize("most", [64, 6])  # tokens that a forward may read: prompts may need several steps
@torch.inference_mode()
def test_drafts_are_those_of_the_decoder(proposer: ModuleType, most: int) -> None:
    target, draft = pair("llama")
    prompts = [list(prompt) for prompt in PROMPTS[:3]]
    decoder = SpeculativeDecoder(target, draft, length=LENGTH)
    decoder.stop_tokens = frozenset()
    expected = [decoder.generate(prompt, max_new_tokens=NEW, temperature=0) for prompt in prompts]
    engine = Engine(prompts, draft, most)
    drafter = proposer.ControlledProposer(engine, Settings(LENGTH), sampling_works=True)
    drafter.load_model(None)
    attention = SimpleNamespace(block_table_tensor=torch.from_numpy(engine.table))
    step = SimpleNamespace(num_spec_tokens_to_schedule=LIMIT, finished_req_ids=[], scheduled_cached_reqs=None)
    drafts: list[list[int]] = [[] for _ in prompts]
    drafted: list[list[list[int]]] = [[] for _ in prompts]
    texts: list[list[int]] = [[] for _ in prompts]
    metadata = None
    while any(len(text) < NEW for text in texts):
        sampled = [
            accepted_and_next(whole.tokens[len(text) :], draft)
            for text, whole, draft in zip(texts, expected, drafts, strict=True)
        ]
        rows = [[*new, *[proposer.REJECTED] * (LIMIT + 1 - len(new))] for new in sampled]
        drafts = drafter.drafts(step, torch.tensor(rows), metadata, attention)
        metadata = SimpleNamespace(num_draft_tokens=[len(draft) for draft in drafts])
        for row, new in enumerate(sampled):
            texts[row] += new
            engine.take(row, new)
            drafted[row].append(drafts[row])
    assert all(text == whole.tokens for text, whole in zip(texts, expected, strict=True))
    for plugin_drafts, whole in zip(drafted, expected, strict=True):
        rounds = [round.drafted for round in whole.rounds[1:]]
        if most == 64:
            assert plugin_drafts[: len(rounds)] == rounds
        assert [draft for draft in plugin_drafts if draft][-1] == [draft for draft in rounds if draft][-1]


def test_what_is_forgotten(proposer: ModuleType) -> None:
    """The draft model reads the text of a preempted request again. A finished request is removed."""
    _, draft = pair("llama")
    engine = Engine([list(prompt) for prompt in PROMPTS[:2]], draft, 64)
    drafter = proposer.ControlledProposer(engine, Settings(2), sampling_works=True)
    drafter.load_model(None)
    attention = SimpleNamespace(block_table_tensor=torch.from_numpy(engine.table))
    step = SimpleNamespace(num_spec_tokens_to_schedule=LIMIT)
    sampled = torch.tensor([[7, -1, -1], [7, -1, -1]])
    with torch.inference_mode():
        drafts = drafter.drafts(step, sampled, None, attention)
    assert [len(draft) for draft in drafts] == [2, 2]
    assert drafter.requests["request-0"].read > 0
    resumed = SimpleNamespace(resumed_req_ids=["request-0"])
    drafter.release(SimpleNamespace(finished_req_ids=["request-1"], scheduled_cached_reqs=resumed))
    assert drafter.requests.keys() == {"request-0"}
    assert (drafter.requests["request-0"].read, drafter.requests["request-0"].tokens) == (0, [])
