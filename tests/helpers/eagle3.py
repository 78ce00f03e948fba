"""Random EAGLE-3 checkpoints, and the computation of their drafts in plain tensor operations."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

HEADS, KEY_HEADS = 4, 2


def write_draft(
    folder: Path, *, vocab: int, kept: list[int] | None, target: int, layers: list[int] | None, width: int = 32,
    kind: str = "llama", depth: int = 1, own_embedding: bool = True,
    head: Tensor | None = None, shards: int = 1, original: bool = False, seed: int = 0,
    dtype: torch.dtype = torch.float32, **switches: Any,
) -> Path:  # fmt: skip
    """Write a checkpoint of speculators, or with ``original`` one with the names of EAGLE-3's authors.

    Args:
        kept: tokens with an output; None for all, without ``d2t``.
        target: size of the target's states.
        layers: the target's layers that the draft reads; None leaves them out of the file.
        head: (V, d) weights whose rows become ``lm_head``; if empty, the file has no ``lm_head``.
        shards: number of files of weights, with an index if there are several.
        switches: boolean keys of the configuration, such as ``norm_before_residual``.
    """
    generator, size = torch.Generator().manual_seed(seed), width // HEADS
    outputs, count = vocab if kept is None else len(kept), 3 if layers is None else len(layers)

    def matrix(rows: int, columns: int) -> Tensor:
        return (1.5 * torch.randn(rows, columns, generator=generator) / columns**0.5).to(dtype)

    def norm(columns: int) -> Tensor:
        return (1 + 0.1 * torch.randn(columns, generator=generator)).to(dtype)

    weights = {"fc": matrix(width, count * target), "norm": norm(width), "lm_head": matrix(outputs, width)}
    if head is not None:
        rows = head.detach()[kept if kept is not None and len(head) else slice(None)]
        weights |= {"lm_head": rows.to(dtype).clone()}
    if own_embedding:
        weights["embed_tokens"] = torch.randn(vocab, width, generator=generator).to(dtype)
    if switches.get("norm_before_fc"):
        weights["input_norm"] = norm(count * target)
    if switches.get("fc_norm"):
        weights |= {f"fc_norm.{i}": norm(target) for i in range(count)}
    for number in range(depth):
        name, columns = f"layers.{number}" if not original else "midlayer", width if number else 2 * width
        shapes = {
            "self_attn.q_proj": (width, columns), "self_attn.k_proj": (KEY_HEADS * size, columns),
            "self_attn.v_proj": (KEY_HEADS * size, columns), "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (2 * width, width), "mlp.up_proj": (2 * width, width), "mlp.down_proj": (width, 2 * width),
        }  # fmt: skip
        weights |= {f"{name}.{part}": matrix(*shape) for part, shape in shapes.items()}
        norms = ["input_layernorm", "post_attention_layernorm", *["hidden_norm"][number:]]
        weights |= {f"{name}.{part}": norm(width) for part in norms}
        if kind == "qwen3":
            weights |= {f"{name}.self_attn.{part}_norm": norm(size) for part in "qk"}
    tensors = {f"{name}.weight": value for name, value in weights.items() if len(value)}
    if kept is not None:
        tensors["d2t"] = torch.tensor(kept) - torch.arange(outputs)
        tensors["t2d"] = torch.tensor([token in kept for token in range(vocab)])
    layer = {
        "model_type": kind, "vocab_size": vocab, "hidden_size": width, "intermediate_size": 2 * width,
        "num_hidden_layers": depth, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": size,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False,
        "hidden_act": "silu",
    }  # fmt: skip
    read = {} if layers is None else {"eagle_aux_hidden_state_layer_ids": layers}
    config: dict[str, Any] = {"draft_vocab_size": outputs, **switches}
    if target != width:
        config["target_hidden_size"] = target
    if original:
        config |= {**layer, "architectures": ["LlamaForCausalLM" + "Eagle3" * (seed % 2)]}  # both are used
        config |= {"eagle_config": read} if read else {}
    else:
        config = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "norm_before_residual": False,
            "transformer_layer_config": layer, **config, **read,
        }  # fmt: skip
    folder.mkdir(parents=True)
    save_weights(folder, tensors, shards)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_weights(folder: Path, tensors: dict[str, Tensor], shards: int) -> None:
    """Write one file of weights, or several with an index."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    places = {name: f"model-0000{i % shards}.safetensors" for i, name in enumerate(sorted(tensors))}
    for place in {*places.values()}:
        save_file({name: tensors[name] for name in places if places[name] == place}, folder / place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


class Reference:
    """The computation of the draft in ``folder``, without a cache.

    Args:
        embedding: (V, d) the target's, if the draft has none.
    """

    def __init__(self, folder: Path, embedding: Tensor | None = None) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.layer = self.config.get("transformer_layer_config", self.config)
        self.weights = {
            key.replace("midlayer", "layers.0").removesuffix(".weight"): value.double()
            for key, value in load_file(folder / "model.safetensors").items()
        }
        self.embedding = self.weights.get("embed_tokens", embedding)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.layer["rms_norm_eps"]).rsqrt() * self.weights[name]

    def project(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[name].T

    def fused(self, inner: Tensor) -> Tensor:
        """(n, d) states from the outputs (n, L, d_t) of the target's layers."""
        if self.config.get("fc_norm"):
            inner = torch.stack([self.norm(f"fc_norm.{i}", inner[:, i]) for i in range(inner.shape[1])], 1)
        joined = inner.flatten(1)
        if self.config.get("norm_before_fc"):
            joined = self.norm("input_norm", joined)
        return self.project("fc", joined)

    def attention(self, name: str, x: Tensor) -> Tensor:
        n, size = len(x), self.layer["head_dim"]
        q, k, v = (self.project(f"{name}.{part}_proj", x).view(n, -1, size) for part in "qkv")
        if f"{name}.q_norm" in self.weights:
            q, k = self.norm(f"{name}.q_norm", q), self.norm(f"{name}.k_norm", k)
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
                x = x + self.attention(f"{name}.self_attn", self.norm(f"{name}.input_layernorm", x))
            else:
                normed = self.norm(f"{name}.hidden_norm", x)
                read = torch.cat([self.norm(f"{name}.input_layernorm", embedded), normed], -1)
                residual = normed if self.config.get("norm_before_residual") else x
                x = residual + self.attention(f"{name}.self_attn", read)
            y = self.norm(f"{name}.post_attention_layernorm", x)
            gate, up = self.project(f"{name}.mlp.gate_proj", y), self.project(f"{name}.mlp.up_proj", y)
            x = x + self.project(f"{name}.mlp.down_proj", torch.nn.functional.silu(gate) * up)
        normed = self.norm("norm", x[-1])
        some = self.project("lm_head", normed)
        logits = some.new_full((self.layer["vocab_size"],), -torch.inf)
        logits[torch.arange(len(some)) + self.weights.get("d2t", torch.zeros(len(some))).long()] = some
        return logits, normed if self.config.get("norm_output") else x[-1]

    def drafted(self, text: list[int], inner: Tensor, drafted: list[int]) -> list[Tensor]:
        """q (V,) of each of ``drafted`` after ``text``, whose ``inner`` (n - 1, L, d_t) the target gave."""
        tokens, states, probabilities = text[1:], self.fused(inner.double()), []
        for token in drafted:
            logits, draft_states = self.forward(tokens, states)
            probabilities.append(logits.softmax(-1))
            tokens, states = [*tokens, token], torch.cat([states, draft_states[None]])
        return probabilities
