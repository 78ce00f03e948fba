"""Random EAGLE-3 checkpoints, and what their drafts compute, written out in plain tensor operations."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

HEADS, KEY_HEADS = 4, 2


def write_draft(
    folder: Path,
    *,
    vocab: int,
    kept: list[int] | None,
    target: int,
    layers: list[int] | None,
    width: int = 32,
    kind: str = "llama",
    depth: int = 1,
    own_embedding: bool = True,
    original: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **switches: Any,
) -> Path:
    """A checkpoint of speculators, or with ``original`` one as EAGLE-3's authors name things.

    Args:
        kept: tokens with an output; None for all, without ``d2t``.
        target: size of the target's states.
        layers: those of the target that are read; None leaves them out of the file.
        switches: ``norm_before_residual`` and the like.
    """
    generator, size = torch.Generator().manual_seed(seed), width // HEADS
    outputs = vocab if kept is None else len(kept)
    count = 3 if layers is None else len(layers)

    def matrix(rows: int, columns: int) -> Tensor:
        return (1.5 * torch.randn(rows, columns, generator=generator) / columns**0.5).to(dtype)

    def norm(columns: int) -> Tensor:
        return (1 + 0.1 * torch.randn(columns, generator=generator)).to(dtype)

    weights = {
        "fc.weight": matrix(width, count * target),
        "norm.weight": norm(width),
        "lm_head.weight": matrix(outputs, width),
    }
    if own_embedding:
        weights["embed_tokens.weight"] = torch.randn(vocab, width, generator=generator).to(dtype)
    if kept is not None:
        weights["d2t"] = torch.tensor(kept) - torch.arange(outputs)
        weights["t2d"] = torch.tensor([token in kept for token in range(vocab)])
    if switches.get("norm_before_fc"):
        weights["input_norm.weight"] = norm(count * target)
    if switches.get("fc_norm"):
        weights |= {f"fc_norm.{i}.weight": norm(target) for i in range(count)}
    for number in range(depth):
        name, columns = f"layers.{number}" if not original else "midlayer", width if number else 2 * width
        weights |= {
            f"{name}.self_attn.q_proj.weight": matrix(width, columns),
            f"{name}.self_attn.k_proj.weight": matrix(KEY_HEADS * size, columns),
            f"{name}.self_attn.v_proj.weight": matrix(KEY_HEADS * size, columns),
            f"{name}.self_attn.o_proj.weight": matrix(width, width),
            f"{name}.mlp.gate_proj.weight": matrix(2 * width, width),
            f"{name}.mlp.up_proj.weight": matrix(2 * width, width),
            f"{name}.mlp.down_proj.weight": matrix(width, 2 * width),
            f"{name}.input_layernorm.weight": norm(width),
            f"{name}.post_attention_layernorm.weight": norm(width),
        }
        if not number:
            weights[f"{name}.hidden_norm.weight"] = norm(width)
        if kind == "qwen3":
            weights |= {f"{name}.self_attn.{part}_norm.weight": norm(size) for part in "qk"}
    layer = {
        "model_type": kind,
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": size,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "hidden_act": "silu",
    }
    config: dict[str, Any] = {"draft_vocab_size": outputs, **switches}
    if target != width:
        config["target_hidden_size"] = target
    if original:
        config |= {**layer, "architectures": ["LlamaForCausalLM" + "Eagle3" * (seed % 2)]}  # both are used
        config |= {} if layers is None else {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}}
    else:
        config = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "norm_before_residual": False,
            "transformer_layer_config": layer,
            **config,
        }
        config |= {} if layers is None else {"eagle_aux_hidden_state_layer_ids": layers}
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Reference:
    """What the draft in ``folder`` computes, without a cache.

    Args:
        embedding: (V, d) the target's, if the draft has none.
    """

    def __init__(self, folder: Path, embedding: Tensor | None = None) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.layer = self.config.get("transformer_layer_config", self.config)
        self.weights = {
            key.replace("midlayer", "layers.0"): value.double() if value.is_floating_point() else value
            for key, value in load_file(folder / "model.safetensors").items()
        }
        self.embedding = self.weights.get("embed_tokens.weight", embedding)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.layer["rms_norm_eps"]).rsqrt() * self.weights[name]

    def project(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def fused(self, inner: Tensor) -> Tensor:
        """(n, d) states from the outputs (n, L, d_t) of the target's layers."""
        if self.config.get("fc_norm"):
            parts = [self.norm(f"fc_norm.{i}.weight", inner[:, i]) for i in range(inner.shape[1])]
            inner = torch.stack(parts, 1)
        joined = inner.flatten(1)
        if self.config.get("norm_before_fc"):
            joined = self.norm("input_norm.weight", joined)
        return self.project("fc", joined)

    def attention(self, name: str, x: Tensor) -> Tensor:
        n, size = len(x), self.layer["head_dim"]
        q, k, v = (self.project(f"{name}.{part}_proj", x).view(n, -1, size) for part in "qkv")
        if f"{name}.q_norm.weight" in self.weights:
            q, k = self.norm(f"{name}.q_norm.weight", q), self.norm(f"{name}.k_norm.weight", k)
        angles = torch.arange(n)[:, None] / self.layer["rope_theta"] ** (torch.arange(0, size, 2) / size)
        cos, sin = angles.cos()[:, None].double(), angles.sin()[:, None].double()

        def turned(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        q, k = turned(q), turned(k).repeat_interleave(HEADS // KEY_HEADS, 1)
        scores = torch.einsum("ihd,jhd->hij", q, k) / size**0.5
        weights = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
        mixed = torch.einsum("hij,jhd->ihd", weights, v.repeat_interleave(HEADS // KEY_HEADS, 1))
        return self.project(f"{name}.o_proj", mixed.flatten(1))

    def forward(self, tokens: list[int], states: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (V,) after the last of ``tokens``, each read with one of ``states`` (n, d), and its state (d,)."""
        assert self.embedding is not None
        embedded, x = self.embedding[tokens].double(), states
        for number in range(self.layer["num_hidden_layers"]):
            name = f"layers.{number}"
            if number:
                x = x + self.attention(f"{name}.self_attn", self.norm(f"{name}.input_layernorm.weight", x))
            else:
                normed = self.norm(f"{name}.hidden_norm.weight", x)
                read = torch.cat([self.norm(f"{name}.input_layernorm.weight", embedded), normed], -1)
                residual = normed if self.config.get("norm_before_residual") else x
                x = residual + self.attention(f"{name}.self_attn", read)
            y = self.norm(f"{name}.post_attention_layernorm.weight", x)
            gate, up = self.project(f"{name}.mlp.gate_proj", y), self.project(f"{name}.mlp.up_proj", y)
            x = x + self.project(f"{name}.mlp.down_proj", torch.nn.functional.silu(gate) * up)
        normed = self.norm("norm.weight", x[-1])
        some = normed @ self.weights["lm_head.weight"].T
        logits = some.new_full((self.layer["vocab_size"],), -torch.inf)
        tokens_of = torch.arange(len(some)) + self.weights.get("d2t", torch.zeros(len(some), dtype=torch.long))
        logits[tokens_of] = some
        return logits, normed if self.config.get("norm_output") else x[-1]

    def drafted(self, text: list[int], inner: Tensor, drafted: list[int]) -> list[Tensor]:
        """q (V,) of each of ``drafted`` after ``text``, whose ``inner`` (n - 1, L, d_t) the target gave."""
        tokens, states, found = text[1:], self.fused(inner.double()), []
        for token in drafted:
            logits, own = self.forward(tokens, states)
            found.append(logits.softmax(-1))
            tokens, states = [*tokens, token], torch.cat([states, own[None]])
        return found
