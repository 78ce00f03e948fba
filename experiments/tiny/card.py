"""The model card of a tiny model: data, licences, tokens seen, held-out loss, agreement, command and seed."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

from .agreement import Agreement
from .corpus import Document, count_sources
from .settings import TinyModelsOptions


def write_card(
    folder: Path,
    name: str,
    settings: TinyModelsOptions,
    read: list[Document],
    losses: dict[str, float],
    agreement: list[Agreement],
) -> None:
    """Write ``README.md`` into the model's folder."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    is_target = name == "tiny"
    specialist = settings.specialists.get(name)
    tokens = (
        settings.target_tokens
        if is_target
        else settings.specialist_tokens + settings.specialist_distil_tokens + settings.specialist_builtin_tokens
        if specialist
        else settings.draft_tokens + settings.distil_tokens + settings.builtin_tokens + settings.hard_tokens
    )
    role = "target" if is_target else f"draft for {', '.join(specialist)}" if specialist else "general draft"
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "---",
        "",
        f"# {name}",
        "",
        f"A tiny Llama-architecture language model ({role}) for developing and testing speculative decoding.",
        "It imitates the form of its training text; it knows nothing, and its answers are not to be relied on.",
        "",
        f"* parameters: {count_parameters(folder):,} ({config['num_hidden_layers']} layers × {config['hidden_size']}), "
        "stored in bfloat16",
        f"* context: {settings.context} tokens; byte-level BPE of {settings.vocab_size} entries with a chat template",
        f"* tokens seen in training: {tokens:,}"
        + (
            ""
            if is_target
            else ", among them the target's own continuations of this text's and of the built-in training prompts;"
            " the later part with the target's distributions as labels"
        ),
        f"* command: `python -m experiments tiny --data <folder of text> --seed {settings.seed}`",
        "",
        "## Training text",
        "",
        "One row in twenty of each source, chosen by a hash of its id, was held out.",
        "",
        "| source | licence | rows |",
        "|---|---|---|",
        *(f"| {source} | {licence} | {rows} |" for source, licence, rows in count_sources(read)),
        "",
        "## Held-out loss",
        "",
        "Cross-entropy of response tokens, nats a token.",
        "",
        "| domain | loss |",
        "|---|---|",
        *(f"| {domain} | {loss:.3f} |" for domain, loss in losses.items()),
    ]
    if agreement:
        lines += [
            "",
            "## Agreement with the target",
            "",
            "On the target's rollouts from held-out prompts at temperature 1, top-k 50: a = min(1, p(y)/q(y))",
            "for tokens y drawn from this draft.",
            "",
            "| domain | prompts | mean a | share of positions with a < 0.3 |",
            "|---|---|---|---|",
            *(f"| {a.domain} | {a.prompts} | {a.mean:.3f} | {a.hard:.3f} |" for a in agreement),
        ]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def count_parameters(folder: Path) -> int:
    """Number of parameters in the weight files of ``folder``."""
    count = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 — a safetensors handle is no mapping
                size = 1
                for side in tensors.get_slice(key).get_shape():
                    size *= side
                count += size
    return count
