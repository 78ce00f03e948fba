"""Pairs of small random models of many decoder-only architectures; attention windows are shorter than the texts.

A maker takes ``(layers, vocab, seed)`` and changed settings of the config as keywords. From two layers on its model
has every type of layer that the architecture has. :func:`pair` makes a target of it and a draft that often agrees.
"""

from copy import deepcopy
from functools import partial
from typing import Any, Protocol

import torch
import transformers
from transformers import PreTrainedModel

from .tiny import NO_SPECIALS

WINDOW = 16  # tokens seen by a sliding layer, tokens in a chunk
LONG_ROPE = 32  # longer texts are read with other frequencies
CONTEXT = 256
HIDDEN = 32
VOCAB = 96


class Maker(Protocol):
    def __call__(self, layers: int, vocab: int, seed: int, **changes: Any) -> PreTrainedModel: ...


def build(
    layers: int, vocab: int, seed: int, *, name: str, config_name: str = "", head: str = "ForCausalLM",
    gain: float = 1.5, embedding: float = 0.5, **config: Any,
) -> PreTrainedModel:  # fmt: skip
    """A random model of transformers' ``{name}{head}``; ``config`` replaces and adds settings of its config."""
    sizes = {
        "vocab_size": vocab, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT, **NO_SPECIALS,
        "tie_word_embeddings": False,  # a tied head has a sharp model repeat itself
        "use_cache": True,  # MPT's default is False
    }  # fmt: skip
    # Copied, for a config adds to the dictionaries it is given.
    settings = {key: value(layers) if callable(value) else deepcopy(value) for key, value in config.items()}
    model_config = getattr(transformers, f"{config_name or name}Config")(**sizes | settings)
    model = getattr(transformers, f"{name}{head}")(model_config)
    return randomised(model, seed, gain, embedding)


def randomised(model: PreTrainedModel, seed: int, gain: float, embedding: float) -> PreTrainedModel:
    """Draw all parameters again, so that distributions depend on many earlier tokens and are far from uniform.

    Biases and the weights of norms, which transformers starts as zeros and ones, are moved a little.
    """
    generator = torch.Generator().manual_seed(seed)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if id(parameter) in tables:
                parameter.copy_(embedding * noise)
            elif parameter.ndim > 1:
                parameter.copy_(gain * noise / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.1 * noise)
    return model.eval().requires_grad_(False)


def alternating(layers: int) -> list[str]:
    """Layer types for any number of layers."""
    return [("sliding_attention", "full_attention")[i % 2] for i in range(layers)]


GPT_SIZES = {
    "n_embd": HIDDEN, "n_head": 4, "n_positions": CONTEXT, "n_layer": lambda layers: layers,
    "hidden_size": HIDDEN, "num_hidden_layers": lambda layers: layers,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": HIDDEN, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {  # attention of DeepSeek's kind
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "num_key_value_heads": 4,
}  # fmt: skip
GEMMA = {"head_dim": 8, "sliding_window": WINDOW, "layer_types": alternating, "query_pre_attn_scalar": 8}
PER_LAYER_INPUTS = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 16,
}  # fmt: skip
SHARP = {"gain": 3.0, "embedding": 0.2}  # where texts would repeat themselves otherwise

# Some or all layers do not see all of the text, or how they see it depends on the text's length.
SPECIAL: dict[str, Maker] = {
    name: partial(build, **config)
    for name, config in {
        # Full and sliding layers; masks by layer type.
        "gemma2": {"name": "Gemma2", **GEMMA},
        "gemma3": {"name": "Gemma3", "config_name": "Gemma3Text", **GEMMA},
        "gemma3n": {
            "name": "Gemma3n", "config_name": "Gemma3nText", **GEMMA, **PER_LAYER_INPUTS, "laurel_rank": 8,
            "altup_num_inputs": 2,
        },
        "gemma4": {
            "name": "Gemma4", "config_name": "Gemma4Text", **GEMMA, **PER_LAYER_INPUTS, "global_head_dim": 16, **SHARP
        },
        "qwen2": {"name": "Qwen2", "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
        "qwen3": {
            "name": "Qwen3", "head_dim": 8, "use_sliding_window": True, "sliding_window": WINDOW,
            "max_window_layers": 1,
        },
        "gpt-oss": {"name": "GptOss", "head_dim": 8, "sliding_window": WINDOW, **EXPERTS},
        "olmo3": {"name": "Olmo3", "sliding_window": WINDOW, "layer_types": alternating},
        "smollm3": {
            "name": "SmolLM3", "sliding_window": WINDOW, "layer_types": alternating,
            "no_rope_layers": lambda layers: [i % 2 for i in range(layers)],
        },
        # Chunks; the layers without them scale queries by the text's length.
        "llama4": {
            "name": "Llama4", "config_name": "Llama4Text", "head_dim": 8, "attention_chunk_size": WINDOW,
            "no_rope_layers": lambda layers: [1 - i % 2 for i in range(layers)], "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 2 * HIDDEN, **EXPERTS, "attn_temperature_tuning": True, "floor_scale": 4,
            "attn_scale": 1.0, **SHARP,
        },
        # All layers slide; one mask.
        "mistral": {"name": "Mistral", "sliding_window": WINDOW},
        "mixtral": {"name": "Mixtral", "sliding_window": WINDOW, **EXPERTS},
        "ministral3": {  # queries are scaled by their position
            "name": "Ministral3", "head_dim": 8, "sliding_window": WINDOW,
            "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5},
        },
        "phi3": {"name": "Phi3", "sliding_window": WINDOW},
        "starcoder2": {"name": "Starcoder2", "sliding_window": WINDOW, **SHARP},
        # Its local layers count the cache's columns, whatever the mask and the positions.
        "gpt-neo": {
            "name": "GPTNeo", "num_layers": lambda layers: layers, "num_heads": 4, "window_size": WINDOW,
            "attention_types": lambda layers: [[["local", "global"], layers // 2]],
        },
        # Other frequencies for all of a text once it is longer than LONG_ROPE.
        "phi3-longrope": {
            "name": "Phi3", "original_max_position_embeddings": LONG_ROPE,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [4.0, 6.0, 8.0, 10.0], "factor": 1.0,
            },
        },
    }.items()
}  # fmt: skip

# All layers see all of the text before them.
PLAIN: dict[str, Maker] = {
    name: partial(build, **config)
    for name, config in {
        "llama": {"name": "Llama"},
        # With the lean forward, as Llama; with sliding layers, above, without.
        "mistral-full": {"name": "Mistral", "head_dim": 16, "sliding_window": None},
        "qwen2-full": {"name": "Qwen2"},
        "qwen3-full": {"name": "Qwen3", "head_dim": 8, "rope_parameters": YARN},
        "qwen3-moe": {"name": "Qwen3Moe", "head_dim": 8, **EXPERTS},
        "gpt2": {"name": "GPT2", "head": "LMHeadModel", **GPT_SIZES, **SHARP},
        "opt": {"name": "OPT", "ffn_dim": 2 * HIDDEN, "word_embed_proj_dim": HIDDEN // 2, **SHARP},
        # Positions by ALiBi: the first two count them off the padding mask, MPT counts the cache's columns.
        "bloom": {"name": "Bloom", **SHARP},
        "falcon-alibi": {"name": "Falcon", "alibi": True, "multi_query": False, "gain": 2.5},
        "mpt": {
            "name": "Mpt", "d_model": HIDDEN, "n_heads": 4, "n_layers": lambda layers: layers, "max_seq_len": CONTEXT,
            **SHARP,
        },
        "falcon": {"name": "Falcon", "new_decoder_architecture": True, "num_kv_heads": 2, **SHARP},
        "gemma": {"name": "Gemma", "head_dim": 8},
        "cohere": {"name": "Cohere", "logit_scale": 1.0},
        "olmo2": {"name": "Olmo2"},
        "stablelm": {"name": "StableLm"},
        "phi": {"name": "Phi", **SHARP},
        "gpt-neox": {"name": "GPTNeoX", **SHARP},
        "gptj": {"name": "GPTJ", "rotary_dim": 4, **GPT_SIZES, **SHARP},
        "granite": {"name": "Granite"},
        "deepseek-v2": {"name": "DeepseekV2", **LATENT, **EXPERTS},
        "deepseek-v3": {"name": "DeepseekV3", **LATENT, **EXPERTS},
        "minicpm3": {"name": "MiniCPM3", **LATENT, "gain": 2.5},
        "glm4": {"name": "Glm4", "head_dim": 8, "gain": 2.0},
        "glm4-moe": {"name": "Glm4Moe", "head_dim": 8, **EXPERTS},
        "diffllama": {"name": "DiffLlama"},
        "xglm": {
            "name": "XGLM", "d_model": HIDDEN, "ffn_dim": 2 * HIDDEN, "num_layers": lambda layers: layers,
            "attention_heads": 4, **SHARP,
        },
        "ctrl": {"name": "CTRL", "head": "LMHeadModel", "dff": 2 * HIDDEN, **GPT_SIZES, **SHARP},
        # Of two lengths of embedding tables below.
        "qwen3-padded-target": {"name": "Qwen3", "head_dim": 8},
        "qwen3-padded-draft": {"name": "Qwen3", "head_dim": 8},
    }.items()
}  # fmt: skip


def t5(layers: int, vocab: int, seed: int, name: str = "T5", **changes: Any) -> PreTrainedModel:
    """Return a random T5 whose attention depends on distances below 10, so that texts do not repeat themselves."""
    sizes = {"d_model": HIDDEN, "d_kv": 8, "d_ff": 2 * HIDDEN, "num_heads": 4, "num_layers": 2}
    positions = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
    specials = {"num_decoder_layers": layers, "pad_token_id": 0, "decoder_start_token_id": 0}
    settings = {**sizes, **positions, **specials, **SHARP, **changes}
    model = build(layers, vocab, seed, name=name, head="ForConditionalGeneration", **settings)
    for weight, parameter in model.named_parameters():
        if "relative_attention_bias" in weight:
            parameter.mul_(30)
    return model


MAKERS: dict[str, Maker] = SPECIAL | PLAIN
ENCODER_DECODERS: dict[str, Maker] = {name.lower(): partial(t5, name=name) for name in ("T5", "MT5", "UMT5", "LongT5")}
LAYERS = {"gemma3n": 4, "gemma4": 4}  # two layers use the keys of the other two; all other models have two layers
SEEDS = dict.fromkeys(ENCODER_DECODERS, 1)  # of all others 0
VOCABS = {"qwen3-padded-target": (300, 257), "qwen3-padded-draft": (257, 300)}  # target, draft; of all others VOCAB


def target_of(name: str, **changes: Any) -> PreTrainedModel:
    """Return the target of :func:`pair` with the same weights and ``changes`` of its config."""
    vocab, _ = VOCABS.get(name, (VOCAB, VOCAB))
    return (MAKERS | ENCODER_DECODERS)[name](LAYERS.get(name, 2), vocab, SEEDS.get(name, 0), **changes)


def pair(name: str, noise: float = 0.05) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target, and as draft the target with noise on its weights; many drafts are accepted, many rejected."""
    target = target_of(name)
    # Tables of another length: the rows both have are the target's.
    draft = MAKERS[name](LAYERS.get(name, 2), VOCABS[name][1], 1) if name in VOCABS else deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for draft_weight, target_weight in zip(draft.parameters(), target.parameters(), strict=True):
            rows = min(len(draft_weight), len(target_weight))
            draft_weight[:rows] = target_weight[:rows]
            if draft_weight.numel() > 1:
                draft_weight.add_(torch.randn(draft_weight.shape, generator=generator) * target_weight.std() * noise)
    return target, draft
