"""``python -m experiments gguf``: writes a Llama of transformers as a GGUF file, for llama.cpp.

The file contains weights, tokenizer and chat template. The command is for the models that ship with specpilot. For
other architectures, use ``convert_hf_to_gguf.py`` of llama.cpp. The file has the tokenizer twice: in the format of
llama.cpp, and in that of transformers (``tokenizer.huggingface.json``), by which controllers check the pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from specpilot.common.console import quiet
from specpilot.common.errors import InputError, optional_import
from specpilot.models.loading.names import load_model, load_tokenizer
from specpilot.models.trimmed_head import TrimmedHead
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

NORMAL, CONTROL = 1, 3  # ggml's types of tokens
PLAIN = {"f32": 0, "bf16": 32, "q8_0": 7}  # ggml's types of files


@dataclass(frozen=True, kw_only=True)
class GgufOptions:
    """Model.

    Options of ``python -m experiments gguf``.

    Attributes:
        model: Model to convert: a Llama with a byte-level BPE tokenizer, by name or folder.
        type: Format of the weights: f32, bf16, or q8_0, blocks of 32 numbers of 8 bits with a scale.
        output: GGUF file to write.
    """

    output: Path
    model: str = "tiny"
    type: Literal["f32", "bf16", "q8_0"] = "bf16"


def write_gguf(model: str, output: Path, kind: str = "bf16") -> None:
    """Write a model as a GGUF file.

    Args:
        model: name or folder of the model.
        output: the file to write.
        kind: format of the weights: ``f32``, ``bf16`` or ``q8_0``.

    Raises:
        InputError: the extra ``gguf`` is not installed; or the model is no Llama, has a trimmed vocabulary, or has a
            tokenizer that is no byte-level BPE.
    """
    with optional_import("gguf"):
        from gguf import GGMLQuantizationType, GGUFWriter
        from gguf.quants import quantize
    loaded = load_model(model)
    if not isinstance(loaded, LlamaForCausalLM):
        raise InputError(f"{model}: a {loaded.config.model_type}; only Llamas are converted here")
    if isinstance(loaded.lm_head, TrimmedHead):
        raise InputError(f"{model}: its vocabulary is trimmed, which GGUF has no format for; convert another draft")
    writer = GGUFWriter(str(output), "llama")
    writer.add_name(Path(model).name)
    writer.add_file_type(PLAIN[kind])
    _add_sizes(writer, loaded.config)
    _add_tokenizer(writer, load_tokenizer(model), loaded.config.vocab_size)
    for name, tensor in _tensors(loaded):
        stored = GGMLQuantizationType[kind.upper()] if tensor.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(tensor.float().contiguous().numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: Any, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_tokenizer(writer: Any, tokenizer: PreTrainedTokenizerBase, size: int) -> None:
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    if described["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(described["pre_tokenizer"]):
        raise InputError(f"{tokenizer.name_or_path}: its tokenizer is no byte-level BPE; only such are converted here")
    vocabulary = {index: token for token, index in tokenizer.get_vocab().items()}
    tokens = [vocabulary.get(index, f"[PAD{index}]") for index in range(size)]
    special = {token["content"] for token in described["added_tokens"] if token["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if "Digits" in json.dumps(described["pre_tokenizer"]) else "gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if t in special or i not in vocabulary else NORMAL for i, t in enumerate(tokens)])
    merges = described["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    for add, token in (
        (writer.add_bos_token_id, tokenizer.bos_token_id), (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):  # fmt: skip
        if token is not None:
            add(token)
    writer.add_add_bos_token(False)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)
    writer.add_string("tokenizer.huggingface.json", tokenizer.backend_tokenizer.to_str())


def _tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights with their names in GGUF files."""
    config: Any = model.config
    body: Any = model.model
    yield "token_embd.weight", body.embed_tokens.weight
    if not config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight
    yield "output_norm.weight", body.norm.weight
    for i, layer in enumerate(body.layers):
        attention, mlp = layer.self_attn, layer.mlp
        yield f"blk.{i}.attn_norm.weight", layer.input_layernorm.weight
        yield f"blk.{i}.attn_q.weight", interleave_halves(attention.q_proj.weight, config.num_attention_heads)
        yield f"blk.{i}.attn_k.weight", interleave_halves(attention.k_proj.weight, config.num_key_value_heads)
        yield f"blk.{i}.attn_v.weight", attention.v_proj.weight
        yield f"blk.{i}.attn_output.weight", attention.o_proj.weight
        yield f"blk.{i}.ffn_norm.weight", layer.post_attention_layernorm.weight
        yield f"blk.{i}.ffn_gate.weight", mlp.gate_proj.weight
        yield f"blk.{i}.ffn_up.weight", mlp.up_proj.weight
        yield f"blk.{i}.ffn_down.weight", mlp.down_proj.weight


def interleave_halves(weight: Tensor, heads: int) -> Tensor:
    """Return the rows of a weight (H·D, d) in llama.cpp's order.

    llama.cpp rotates pairs of neighbouring rows of a head, transformers pairs of a row in each half of the head.
    """
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return torch.transpose(halves, 1, 2).reshape(rows, columns)


def main(options: GgufOptions) -> None:
    """Write a model as a GGUF file, for llama.cpp."""
    quiet()
    write_gguf(options.model, options.output, options.type)
