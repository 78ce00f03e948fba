"""Random models of real architectures, small enough to run thousands of times."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

NO_SPECIALS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def new_model(name: str, head: str = "ForCausalLM", **config: Any) -> PreTrainedModel:
    """Return a random model of transformers' class ``{name}{head}``."""
    settings = getattr(transformers, f"{name}Config")(**NO_SPECIALS | config)
    return getattr(transformers, f"{name}{head}")(settings)  # type: ignore[no-any-return]


def sized(
    name: str, head: str = "ForCausalLM", *, vocab: int = 64, layers: int = 2, hidden: int = 32, context: int = 128,
    longest: str = "max_position_embeddings", **more: Any,
) -> PreTrainedModel:  # fmt: skip
    """Return a small decoder. If its architecture supports grouped-query attention, two heads share a key.

    Args:
        longest: name of the architecture's setting for the context; empty if there is none.
        more: further settings, or functions that compute them from ``hidden``.
    """
    return new_model(
        name, head, vocab_size=vocab, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, **({longest: context} if longest else {}),
        **{key: value(hidden) if callable(value) else value for key, value in more.items()},
    )  # fmt: skip


def t5(
    vocab: int = 64, layers: int = 2, hidden: int = 32, encoder_layers: int = 2, family: str = "T5"
) -> PreTrainedModel:
    """Return a small T5, whose attention does not distinguish distances of 10 and more."""
    model = new_model(
        family, "ForConditionalGeneration", vocab_size=vocab, d_model=hidden, d_kv=hidden // 4, d_ff=2 * hidden,
        num_heads=4, num_layers=encoder_layers, num_decoder_layers=layers, relative_attention_num_buckets=8,
        relative_attention_max_distance=10, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("layer_norm.weight") and "final" not in name:
                parameter.mul_(3)  # or the embedding, tied to the head, has every token repeat itself
    return model


ARCHITECTURES = {
    "llama": partial(sized, "Llama"),
    "gpt2": partial(sized, "GPT2", "LMHeadModel"),
    "qwen": partial(sized, "Qwen3", head_dim=8),
    # The last hidden state is projected before the head.
    "opt": partial(sized, "OPT", word_embed_proj_dim=lambda hidden: hidden // 2, ffn_dim=lambda hidden: 2 * hidden),
}
ALIBI = {  # they count positions themselves
    "bloom": partial(sized, "Bloom", longest=""),
    "falcon": partial(sized, "Falcon", longest="", alibi=True),
    "mpt": partial(sized, "Mpt", longest="max_seq_len"),
}
ENCODER_DECODERS = {name.lower(): partial(t5, family=name) for name in ("T5", "MT5", "UMT5", "LongT5")}


def make(architecture: str = "llama", *, seed: int = 0, sharpness: float = 3.0, **sizes: int) -> PreTrainedModel:
    """Return a model whose matrices are multiplied by ``sharpness``, so that its distributions are far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = (ARCHITECTURES | ALIBI | ENCODER_DECODERS)[architecture](**sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(sharpness)
    return model.eval().requires_grad_(False)


def byte_tokenizer(extra: int = 0) -> PreTrainedTokenizerFast:
    """Return a tokenizer of 256 bytes, an end token and ``extra`` further tokens."""
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


BYTES = [f"<0x{byte:02X}>" for byte in (*b"\n", *"日😊".encode())]  # tokens of SentencePiece
PIECES = ["▁", "▁▁", "▁fox", "▁brown", "fox", "x▁", "a", "n", "'", "s", ".", "é", "▁n", "▁'", "▁s", "▁."]
GEMMA = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
LLAMA_2 = decoders.Sequence([*GEMMA, decoders.Strip(" ", 1, 0)])


def sentencepiece_tokenizer(decoder: Any = LLAMA_2, *, unigram: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer of 32 tokens: words with a space in front, a few bytes, and special tokens."""
    vocabulary = ["<unk>", "<s>", "</s>", "<|im_end|>", *BYTES, *PIECES]
    vocabulary += [f"<{i}>" for i in range(32 - len(vocabulary))]
    ids = {token: index for index, token in enumerate(vocabulary)}
    bpe = models.BPE(ids, [], byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(models.Unigram([(token, 0.0) for token in ids], 0, True) if unigram else bpe)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<|im_end|>"])  # one that has no name
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def save_pair(
    folder: Path,
    *,
    vocab: int = 257,
    draft_vocab: int | None = None,
    target_seed: int = 0,
    draft_seed: int = 0,
    layers: int = 2,
) -> tuple[str, str]:
    """Save a target and a draft of one layer with one tokenizer; their vocabularies may differ in size."""
    tokenizer = byte_tokenizer()
    sizes = vocab, draft_vocab or vocab
    for name, seed, depth, size in zip(("target", "draft"), (target_seed, draft_seed), (layers, 1), sizes, strict=True):
        model = make(seed=seed, vocab=size, layers=depth)
        model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return str(folder / "target"), str(folder / "draft")


def pair_and_prompts(folder: Path, prompts: Iterable[str], **seeds: int) -> dict[str, Any]:
    """Options of a dataset: a pair of :func:`save_pair` and a file of ``prompts``, without the chat template."""
    target, draft = save_pair(folder, **seeds)
    (folder / "p.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))
    return {"target": target, "draft": draft, "prompts": str(folder / "p.txt"), "chat": False, "device": "cpu"}
