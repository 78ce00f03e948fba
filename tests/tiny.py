"""Random models of real architectures, small enough to run thousands of times."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LongT5Config,
    LongT5ForConditionalGeneration,
    MptConfig,
    MptForCausalLM,
    MT5Config,
    MT5ForConditionalGeneration,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
)

NO_SPECIALS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def grouped(vocab: int, layers: int, hidden: int, context: int) -> dict[str, Any]:
    """A configuration with two heads a key."""
    return {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": context, **NO_SPECIALS,
    }  # fmt: skip


def llama(vocab: int = 64, layers: int = 2, hidden: int = 32, context: int = 128) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**grouped(vocab, layers, hidden, context)))


def gpt2(vocab: int = 64, layers: int = 2, hidden: int = 32, context: int = 128) -> PreTrainedModel:
    config = GPT2Config(vocab_size=vocab, n_embd=hidden, n_layer=layers, n_head=4, n_positions=context, **NO_SPECIALS)
    return GPT2LMHeadModel(config)


def qwen(vocab: int = 64, layers: int = 2, hidden: int = 32, context: int = 128) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**grouped(vocab, layers, hidden, context), head_dim=8))


def opt(vocab: int = 64, layers: int = 2, hidden: int = 32, context: int = 128) -> PreTrainedModel:
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            word_embed_proj_dim=hidden // 2,  # the last hidden state is projected before the head
            ffn_dim=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=context,
            **NO_SPECIALS,
        )
    )


def bloom(vocab: int = 64, layers: int = 2, hidden: int = 32) -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=vocab, hidden_size=hidden, n_layer=layers, n_head=4, **NO_SPECIALS))


def falcon(vocab: int = 64, layers: int = 2, hidden: int = 32) -> PreTrainedModel:
    sizes = {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4}
    return FalconForCausalLM(FalconConfig(**sizes, alibi=True, **NO_SPECIALS))


def mpt(vocab: int = 64, layers: int = 2, hidden: int = 32, context: int = 128) -> PreTrainedModel:
    sizes = {"vocab_size": vocab, "d_model": hidden, "n_layers": layers, "n_heads": 4}
    return MptForCausalLM(MptConfig(**sizes, max_seq_len=context, **NO_SPECIALS))


def t5(
    vocab: int = 64, layers: int = 2, hidden: int = 32, encoder_layers: int = 2, family: str = "t5"
) -> PreTrainedModel:
    """Distances of 10 and more are all one to it."""
    config, kind = T5_FAMILY[family]
    sizes = {"vocab_size": vocab, "d_model": hidden, "d_kv": hidden // 4, "d_ff": 2 * hidden, "num_heads": 4}
    positions = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
    specials = {"eos_token_id": None, "pad_token_id": 0, "decoder_start_token_id": 0}
    model = kind(config(**sizes, num_layers=encoder_layers, num_decoder_layers=layers, **positions, **specials))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("layer_norm.weight") and "final" not in name:
                parameter.mul_(3)  # or the embedding, tied to the head, has every token repeat itself
    return model


T5_FAMILY = {
    "t5": (T5Config, T5ForConditionalGeneration),
    "mt5": (MT5Config, MT5ForConditionalGeneration),
    "umt5": (UMT5Config, UMT5ForConditionalGeneration),
    "longt5": (LongT5Config, LongT5ForConditionalGeneration),
}
ARCHITECTURES = {"llama": llama, "gpt2": gpt2, "qwen": qwen, "opt": opt}
EACH = ["llama", "gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen", "opt"))]
ALIBI = {"bloom": bloom, "falcon": falcon, "mpt": mpt}  # they count positions themselves
ENCODER_DECODERS = {family: partial(t5, family=family) for family in T5_FAMILY}


def make(architecture: str = "llama", *, seed: int = 0, sharpness: float = 3.0, **sizes: int) -> PreTrainedModel:
    """A model whose next-token distributions are far from uniform: matrices are scaled up by ``sharpness``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = (ARCHITECTURES | ALIBI | ENCODER_DECODERS)[architecture](**sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(sharpness)
    return model.eval().requires_grad_(False)


def byte_tokenizer(extra: int = 0) -> PreTrainedTokenizerFast:
    """256 bytes, an end token and ``extra`` more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "<|end|>", *(f"<{i}>" for i in range(extra))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        chat_template="{%- for m in messages -%}{{- '[' + m['role'] + ']' + m['content'] -}}{%- endfor -%}",
    )


def save_pair(
    folder: Path, *, vocab: int = 257, draft_vocab: int | None = None, target_seed: int = 0, draft_seed: int = 0
) -> tuple[str, str]:
    """A target (2 layers) and a draft (1 layer) with one tokenizer, saved; their embeddings may differ in size."""
    tokenizer = byte_tokenizer()
    sizes = vocab, draft_vocab or vocab
    for name, seed, layers, size in zip(("target", "draft"), (target_seed, draft_seed), (2, 1), sizes, strict=True):
        model = make(seed=seed, vocab=size, layers=layers)
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return str(folder / "target"), str(folder / "draft")
