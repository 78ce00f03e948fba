"""A model's own answers, many prompts at a time, with what it expected at each of their tokens.

The data generation's batched rollouts are for decoder-only models: here rows differ in what the encoder said, and all
texts begin in the same column. A row's answer depends on its own random numbers, not on its company (but for rounding).
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, T5ForConditionalGeneration
from transformers.cache_utils import EncoderDecoderCache

from ...controllers.sampling import SamplingParams
from ...data_gen.dataset import replacing
from ...infer.random_source import draw
from .pairs import Pair

ROWS = 256
CHUNK = 2048
CLOSE_UP = 0.7  # finished rows leave once this share of the batch or less is running: each time copies the cache


def answer(
    model: T5ForConditionalGeneration, prompts: list[list[int]], uniforms: Tensor, warp: SamplingParams, end: int
) -> list[Pair]:
    """The model's outputs, up to the token ``end`` or the budget, and the distributions they were drawn from.

    Args:
        prompts: N lists of tokens.
        uniforms: (N, T) numbers in [0, 1); a row's t-th decides its t-th token, and T is the budget.
        warp: one that leaves few tokens (temperature 0 or a top-k).
    """
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    answers: dict[int, Pair] = {}
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        answers |= zip(rows, _answer([prompts[i] for i in rows], model, uniforms[rows], warp, end), strict=True)
    return [answers[i] for i in range(len(prompts))]


@torch.inference_mode()
def _answer(
    prompts: list[list[int]], model: T5ForConditionalGeneration, uniforms: Tensor, warp: SamplingParams, end: int
) -> list[Pair]:
    """One batch."""
    device = model.device
    padded = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True, padding_value=-1).to(device)
    real = (padded >= 0).long()  # (B, S)
    encoded = model.get_encoder()(input_ids=padded.clamp(min=0), attention_mask=real).last_hidden_state  # (B, S, d)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    owner = torch.arange(len(prompts), device=device)  # the prompt that each running row answers
    last = torch.zeros(len(prompts), dtype=torch.long, device=device)  # the start token
    outputs: list[list[int]] = [[] for _ in prompts]
    soft: list[list[tuple[Tensor, Tensor]]] = [[] for _ in prompts]
    running = torch.ones(len(prompts), dtype=torch.bool, device=device)
    for step in range(uniforms.shape[1]):
        logits = model(
            encoder_outputs=(encoded,),
            attention_mask=real,
            decoder_input_ids=last.unsqueeze(1),
            past_key_values=cache,
            use_cache=True,
        ).logits[:, -1]  # (B, V)
        probabilities, likely = warp.top(logits)  # (B, k)
        assert likely is not None
        place = draw(probabilities, uniforms[owner.cpu(), step].to(device))
        last = likely.gather(-1, place.unsqueeze(-1)).squeeze(-1)
        for row, (prompt, token) in enumerate(zip(owner.tolist(), last.tolist(), strict=True)):
            if running[row]:
                outputs[prompt].append(token)
                soft[prompt].append((probabilities[row].cpu(), likely[row].cpu()))
        running = running & (last != end)
        left = int(running.sum())
        if left == 0:
            break
        if left <= CLOSE_UP * len(running):
            stay = running.nonzero().squeeze(1)
            cache.batch_select_indices(stay)
            encoded, real, owner, last, running = encoded[stay], real[stay], owner[stay], last[stay], running[stay]
    return [
        Pair(prompt, output, (torch.stack([p for p, _ in seen]), torch.stack([ids for _, ids in seen])))
        for prompt, output, seen in zip(prompts, outputs, soft, strict=True)
    ]


def kept_answers(
    model: T5ForConditionalGeneration,
    prompts: list[list[int]],
    folder: Path,
    *,
    warp: SamplingParams,
    budget: int,
    end: int,
    seed: int,
) -> list[Pair]:
    """The same, kept in ``folder``: chunks that are there are not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs: list[Pair] = []
    for start in track(range(0, len(prompts), CHUNK), f"the target's {folder.name}"):
        path, some = folder / f"{start // CHUNK:04d}.safetensors", prompts[start : start + CHUNK]
        if not path.exists():
            generator = torch.Generator().manual_seed((seed << 32) + start)
            made = answer(model, some, torch.rand(len(some), budget, generator=generator), warp, end)
            labels = [pair.soft for pair in made if pair.soft is not None]
            with replacing(path) as temporary:
                save_file(
                    {
                        "lengths": torch.tensor([len(pair.output) for pair in made]),
                        "tokens": torch.tensor([token for pair in made for token in pair.output]),
                        "probabilities": torch.cat([p for p, _ in labels]).bfloat16(),
                        "likely": torch.cat([ids for _, ids in labels]).short(),  # vocabularies up to 32,767
                    },
                    temporary,
                )
        kept = load_file(path)
        lengths: list[int] = kept["lengths"].tolist()
        parts = [torch.split(kept[name], lengths) for name in ("tokens", "probabilities", "likely")]
        pairs += [Pair(prompt, tokens.tolist(), (p, ids)) for prompt, tokens, p, ids in zip(some, *parts, strict=True)]
    return pairs
